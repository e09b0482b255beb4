"""Sending a job: the code, the call, and the values that it reads, each hash once."""

import contextlib
import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any, Final

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from . import away, calls, entry
from .dashboard import Cut, Dashboard, bottom, reason

_MOST_BYTES: Final = 256 * 1024**2  # of a value: Ray's head holds what comes with jobs in memory, up to about 500 MB
_KEPT_SECONDS: Final = 24 * 3600.0  # of values that were sent, which the next job may send again


def send(board: Dashboard, call: calls.Call, job: str, sender: str, folder: Path, remote: str) -> None:
    """Submit a job with all that it reads.

    Args:
        job: its name, which no other has.
        sender: kept with the job, by which whoever asks knows whose it is.
        folder: of the values that were sent.
        remote: a DVC remote, for values that are too large; empty: none.

    Raises:
        Cut: there is no answer.
        UserError: a value is too large and there is no remote, or the cluster does not take the job.
    """
    import requests
    from ray import cloudpickle
    from ray.job_submission import JobSubmissionClient

    from ...work.cluster import named
    from ...work.sealed import sealed

    _quiet()
    sent = _swept(folder)
    values = {key: _written(sent, key, value, remote) for key, value in call.shared.items()}
    names = {key: place.name for key, place in values.items()}
    place = calls.write(sent, "call", cloudpickle.dumps(sealed((call.function, call.arguments, names))))
    write_bytes(place / calls.VERSIONS, json.dumps(entry.versions()).encode())
    environment = named("")["runtime_env"]
    environment["py_modules"] += [str(path) for path in sorted({place, *values.values()})]
    try:
        JobSubmissionClient(board.url, headers=dict(board.headers)).submit_job(
            entrypoint=f"python -m pipeline.core.jobs.entry {job} {place.name}",
            submission_id=job,
            runtime_env=environment,
            metadata={"stage": call.title, "sender": sender},
        )
    except (requests.RequestException, ConnectionError) as error:
        raise Cut(reason(error)) from None
    except Exception as error:  # of many types; Ray's own message holds a traceback of its server
        raise UserError(f"{board.url}: the cluster does not take the job ({bottom(str(error))})") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _quiet() -> None:
    """Leave to this module what the terminal is told."""
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk", "ray._private.runtime_env"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _written(sent: Path, key: str, value: Any, remote: str) -> Path:
    """Write a value into a folder that travels with a job, or where it lies instead."""
    from ray import cloudpickle

    from ...work.sealed import sealed

    blob = cloudpickle.dumps(sealed(calls.portable(value)))
    if len(blob) <= _MOST_BYTES:
        return calls.write(sent, "value", blob)
    if not remote:
        rule = f"must be at most {_MOST_BYTES // 1024**2} MB to travel with a job"
        cure = "set BDL_REMOTE to a DVC remote that both reach, or join the cluster by RAY_ADDRESS=host:port"
        raise UserError(f"{key}: {rule}, got {len(blob) // 1024**2} MB; {cure}")
    where = json.dumps(away.put(key, blob, remote), sort_keys=True).encode()
    place = calls.write(sent, "value", where)
    write_bytes(place / away.FILE, where)
    return place


def _swept(place: Path) -> Path:
    """Remove the values that were last sent long ago, and return their folder."""
    place.mkdir(parents=True, exist_ok=True)
    for each in place.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - each.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(each, ignore_errors=True)
    return place
