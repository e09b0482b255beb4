"""This machine's end of a job: it sends a call, follows the job's output, fetches results, and stops it.

The dashboard's port is all that it needs. A job has a name that follows from its work, so whoever asks for the same
work again finds it: at work, done, or lost, in which case it is sent anew. A line that is cut is waited for.
"""

import asyncio
import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import queue
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from bdl_pipe.errors import UserError, brief
from bdl_pipe.files import write_bytes

from .. import places
from . import away, calls, entry

_CONNECT_SECONDS: Final = 3.0
_READ_SECONDS: Final = 30.0
_SILENCE_SECONDS: Final = 20.0  # after which a line is taken to be cut: a job speaks every five
_AGAIN_SECONDS: Final = 2.0
_FETCHES: Final = 3
_YOUNG_SECONDS: Final = 60.0  # in which a head that has just been started may not take jobs yet
_WORDS: Final = 8  # last lines of a job that are looked at when it fails
_LONGEST: Final = 600
_FULL: Final = "No space left on device"
_HALF: Final = r"(No module named|cannot import name '\w+' from) '(pipeline|bdl_pipe|stages)\b"  # what Ray could unpack
_MOST_BYTES: Final = 256 * 1024**2  # of a value: Ray's head holds what comes with jobs in memory, up to about 500 MB
_KEPT_SECONDS: Final = 24 * 3600.0  # of values that were sent, which the next job may send again
_UNDER_WAY: Final = ("PENDING", "RUNNING")
_TOKEN: Final = "RAY_AUTH_TOKEN"


class Listener(Protocol):
    """Whoever wants what a job sends home."""

    def event(self, event: Mapping[str, Any]) -> None: ...

    def file(self, name: str, blob: bytes) -> None: ...


class _Cut(Exception):
    """There is no answer from the cluster."""


@dataclass(frozen=True)
class Call:
    """A call to be made on the cluster.

    Attributes:
        name: follows from the work, and is a name to people, too.
        title: what the terminal calls it.
        stage: which asks for it again when it is run; empty: another command does.
        function: importable; what it is given is ``arguments``, the shared values and the outlet.
        shared: each is sent once, whatever number of calls need it.
    """

    name: str
    title: str
    stage: str
    function: calls.Function
    arguments: Any
    shared: Mapping[str, Any]


def folder() -> Path:
    """Return where this clone keeps a file for each of its jobs that have not ended."""
    return places.STATE / "jobs"


def preflight(url: str) -> None:
    """Refuse an address that is none of a Ray dashboard, or of a cluster of another version.

    Raises:
        UserError: naming the address and what is wrong with it.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise UserError("RAY_ADDRESS=http://… must have no user or password in it; a token goes into RAY_AUTH_TOKEN")
    if not parts.hostname or parts.path.strip("/") or parts.query:
        raise UserError(f"RAY_ADDRESS must be http://host:port (of the cluster's dashboard), got {url!r}")
    try:
        answer = _Api(url).get("api/version")
        cluster = str(json.loads(answer.content)["ray_version"]) if answer.status_code == 200 else ""
    except _Cut as error:
        cure = "start the head with ray[default] and this port open, or unset RAY_ADDRESS"
        raise UserError(f"RAY_ADDRESS={url}: no Ray dashboard answers there ({error}); {cure}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"RAY_ADDRESS={url}: what answers there is no Ray dashboard (its port is mostly 8265)"
        ) from None
    if answer.status_code in (401, 403):
        cure = f"set RAY_AUTH_MODE=token and {_TOKEN}, or ask for the right to submit jobs"
        raise UserError(f"RAY_ADDRESS={url}: access is refused ({answer.status_code}); {cure}")
    if not cluster:
        raise UserError(f"RAY_ADDRESS={url}: what answers there is no Ray dashboard (status {answer.status_code})")
    mine = importlib.metadata.version("ray")
    if cluster != mine:
        raise UserError(f"RAY_ADDRESS={url}: the cluster runs Ray {cluster}, this machine {mine}: give both the same")


def perform(url: str, call: Call, listener: Listener, remote: str = "") -> None:
    """Have a call made, by a job that is at it already or by a new one, and pass on what it sends home.

    On an interrupt the job is stopped, if it is of this clone.

    Args:
        remote: a DVC remote, for values that are too large to travel with a job; empty: none.

    Raises:
        UserError: what the call raises, or the cluster does not take the job.
        RuntimeError: the call failed otherwise; with its traceback as a note.
    """
    api = _Api(url)
    job = _under_way(api, call) or _send(api, call, remote)
    try:
        _follow(api, job, call.title, listener)
    except KeyboardInterrupt:
        if _note(job).exists():
            api.stop(job)
            _note(job).unlink(missing_ok=True)
        raise
    except (UserError, RuntimeError):
        _note(job).unlink(missing_ok=True)
        raise
    _note(job).unlink(missing_ok=True)


def noted() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the jobs of this clone whose end it has not seen: the name, and the title, stage and address of each."""
    for path in sorted(folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            yield path.stem, json.loads(path.read_text())


def status(url: str, job: str) -> str:
    """Return Ray's word for the state of a job; ``UNKNOWN`` to the cluster, or ``OUT OF REACH``."""
    try:
        return str((_Api(url).job(job) or {}).get("status", "UNKNOWN"))
    except _Cut:
        return "OUT OF REACH"


class _Api:
    """What is asked of the dashboard beside Ray's own client, which would wait for an answer without end."""

    def __init__(self, url: str) -> None:
        self.url = url
        token = os.environ.get(_TOKEN) if os.environ.get("RAY_AUTH_MODE") == "token" else None
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, *, stream: bool = False, **query: Any) -> Any:
        return self._ask("GET", path, params=query, stream=stream)

    def job(self, name: str) -> dict[str, Any] | None:
        """Return what the cluster knows of a job; None: nothing."""
        answer = self.get(f"api/jobs/{name}")
        return json.loads(answer.content) if answer.status_code == 200 else None

    def stop(self, name: str) -> None:
        with contextlib.suppress(_Cut):
            self._ask("POST", f"api/jobs/{name}/stop")

    def _ask(self, verb: str, path: str, **options: Any) -> Any:
        import requests

        times = (_CONNECT_SECONDS, _READ_SECONDS)
        try:
            return requests.request(verb, f"{self.url}/{path}", headers=self._headers, timeout=times, **options)
        except requests.RequestException as error:
            raise _Cut(_reason(error)) from None


def _reason(error: BaseException) -> str:
    """Name what lies at the bottom of an error of requests."""
    while error.__context__ is not None or error.__cause__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return brief(getattr(error, "strerror", None) or error or type(error).__name__, 80)


def _bottom(text: str) -> str:
    """Find what went wrong in Ray's words, which hold tracebacks of the cluster, and say what helps."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    if any(_FULL in line for line in lines):
        return "a disk there is full, of the head or of a node: make space in the folder of Ray's temporary files"
    if half := [line for line in lines if re.search(_HALF, line)]:
        cure = "a node there has half of our code, as from a time when its disk was full; make space and start it anew"
        return f"{brief(half[-1])}: {cure}"
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    said = brief([*lines, *errors][-1] if lines else "no reason is given", _LONGEST)
    return f"{said}: install constraints.txt there" if said.startswith("ModuleNotFoundError") else said


def _note(job: str) -> Path:
    return folder() / f"{job}.json"


def _under_way(api: _Api, call: Call) -> str | None:
    """Find the last job of a call, if it is at work or has done it."""
    last, number, patient = None, 1, _Patient(api.url, call.title)
    while (found := patient.ask(api.job, f"{call.name}-{number}")) is not None:
        last, number = found, number + 1
    if last is None or last["status"] not in (*_UNDER_WAY, "SUCCEEDED"):
        return None
    return f"{call.name}-{number - 1}"


def _send(api: _Api, call: Call, remote: str) -> str:
    """Submit a job with all that it reads, and return its name.

    Raises:
        UserError: a value is too large and there is no remote, or the cluster does not take the job.
    """
    from ray import cloudpickle
    from ray.job_submission import JobSubmissionClient

    from ..executors.cluster import named
    from ..executors.sealed import sealed

    _quiet()
    sent = _swept(folder() / "sent")
    values = {key: _written(sent, key, value, remote) for key, value in call.shared.items()}
    names = {key: place.name for key, place in values.items()}
    place = calls.write(sent, "call", cloudpickle.dumps(sealed((call.function, call.arguments, names))))
    write_bytes(place / calls.VERSIONS, json.dumps(entry.versions()).encode())
    environment = named("")["runtime_env"]
    environment["py_modules"] += [str(path) for path in sorted({place, *values.values()})]
    number = 1
    while api.job(job := f"{call.name}-{number}") is not None:
        number += 1
    write_bytes(_note(job), json.dumps({"title": call.title, "stage": call.stage, "url": api.url}).encode())
    try:
        JobSubmissionClient(api.url).submit_job(
            entrypoint=f"python -m pipeline.core.jobs.entry {job} {place.name}",
            submission_id=job,
            runtime_env=environment,
            metadata={"stage": call.title},
        )
    except Exception as error:  # of many types; Ray's own message holds a traceback of its server
        _note(job).unlink(missing_ok=True)
        raise UserError(f"{api.url}: the cluster does not take the job ({_bottom(str(error))})") from None
    shutil.rmtree(place, ignore_errors=True)
    return job


def _quiet() -> None:
    """Leave to this module what the terminal is told."""
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk", "ray._private.runtime_env"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _written(sent: Path, key: str, value: Any, remote: str) -> Path:
    """Write a value into a folder that travels with a job, or where it lies instead."""
    from ray import cloudpickle

    from ..executors.sealed import sealed

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


def _follow(api: _Api, job: str, title: str, listener: Listener) -> None:
    """Pass on a job's events and files up to its end."""
    heard, words, patient = 0, list[str](), _Patient(api.url, title)
    while True:
        known = patient.ask(api.job, job)  # before the lines, so that none is missed of a job that has ended
        if known is None:
            raise UserError(f"{api.url}: the cluster has forgotten {job}: run the command once more")
        for number, line in enumerate(_lines(api.url, job)):
            if number < heard:
                continue
            heard = number + 1
            event = calls.event(line)
            if event is None:
                words = [*words, line][-_WORDS:]
            elif _ended(event, title):
                return
            elif "file" in event:
                listener.file(event["file"], patient.ask(_fetch, api, job, event))
            else:
                listener.event(event)
        if known["status"] not in _UNDER_WAY:
            said = _bottom("\n".join((known.get("message") or "", *words)))
            raise UserError(f"{title}: its job {job} ended as {known['status']} ({said})")


def _ended(event: Mapping[str, Any], title: str) -> bool:
    if "refused" in event:
        raise UserError(event["refused"])
    if "failed" in event:
        if re.search(_HALF, event["failed"]):
            raise UserError(f"{title}: {_bottom(event['failed'])}")
        error = RuntimeError(f"{title}: {event['failed']}")
        error.add_note(event["trace"])
        raise error
    return "ended" in event


def _fetch(api: _Api, job: str, event: Mapping[str, Any]) -> bytes:
    """Fetch a result, and make sure that it is what the job wrote."""
    import requests

    path, came = event["path"], 0
    node = (api.job(job) or {}).get("driver_node_id")
    for _ in range(_FETCHES):
        answer = api.get("api/v0/logs/file", stream=True, node_id=node, filename=path, lines=-1)
        if answer.status_code != 200:
            raise UserError(f"{api.url}: {path} is not there any more (status {answer.status_code})")
        try:
            blob = b"".join(answer.iter_content(2**20))
        except requests.RequestException as error:
            raise _Cut(_reason(error)) from None
        if hashlib.sha256(blob).hexdigest() == event["sha256"]:
            return blob
        came = len(blob)
    raise UserError(f"{api.url}: {path} came altered {_FETCHES} times ({came} of {event['bytes']} bytes): run it again")


@dataclass(frozen=True)
class _Patient:
    """Somebody who asks again and again until there is an answer; the terminal is told once."""

    url: str
    title: str

    def ask(self, question: Callable[..., Any], *about: Any) -> Any:
        since = None
        while True:
            try:
                answer = question(*about)
            except _Cut as error:
                if since is None:
                    since = time.monotonic()
                    print(f"{self.title}: no answer from {self.url} ({error}); what runs there goes on", flush=True)
                time.sleep(_AGAIN_SECONDS)
                continue
            if since is not None:
                print(f"{self.title}: {self.url} answers again after {time.monotonic() - since:.0f} s", flush=True)
            return answer


def _lines(url: str, job: str) -> Iterator[str]:
    """Yield all lines of a job's output from the first on, until it ends or the line is cut."""
    from ray.job_submission import JobSubmissionClient

    _quiet()
    came: queue.Queue[str | None] = queue.Queue()
    loop = asyncio.new_event_loop()

    async def pump() -> None:
        async for text in JobSubmissionClient(url).tail_job_logs(job):
            came.put(text)

    def run() -> None:
        with contextlib.suppress(Exception, asyncio.CancelledError):
            loop.run_until_complete(task)
        came.put(None)

    task = loop.create_task(pump())
    threading.Thread(target=run, daemon=True).start()
    rest = ""
    try:
        while True:
            try:
                text = came.get(timeout=_SILENCE_SECONDS)
            except queue.Empty:
                return
            if text is None:
                if rest:
                    yield rest
                return
            *whole, rest = (rest + text).split("\n")
            yield from whole
    finally:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(task.cancel)
