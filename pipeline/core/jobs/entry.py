"""``python -m pipeline.core.jobs.entry JOB CALL``: what a job runs on the cluster.

It finds the call on its path, joins the cluster that it is a job of, and does the work. Results lie in the folder of
Ray's logs, which the dashboard serves, until somebody asks for them; a line says of each where, and its hash.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from . import away, calls
from .calls import BLOB, EXPORTS, VERSIONS

_BEAT_SECONDS: Final = 5.0  # a line that is silent for longer is taken to be cut
_FLUSH_SECONDS: Final = 1.0
_KEPT_SECONDS: Final = 7 * 24 * 3600.0  # of results that nobody has asked for


class Output:
    """The outlet of a job: its standard output, and a folder beside the file that this goes to."""

    def __init__(self, job: str, folder: Path) -> None:
        self._folder, self._job = folder, job
        self._lock = threading.Lock()
        self._steps: dict[str, list[Any]] = {}
        self._told = 0.0
        threading.Thread(target=self._beat, daemon=True).start()

    def tell(self, **event: Any) -> None:
        with self._lock:
            self._write(event)

    def step(self, task: str, step: int, total: int, metrics: dict[str, float]) -> None:
        """Send a task's progress with the next beat; a later figure replaces an earlier one of the same name."""
        with self._lock:
            earlier = self._steps.get(task, [task, 0, 0, {}])[3]
            self._steps[task] = [task, step, total, {**earlier, **metrics}]

    def keep(self, name: str, blob: bytes) -> None:
        place = self._folder / EXPORTS / self._job
        place.mkdir(parents=True, exist_ok=True)
        write_bytes(place / name, blob)
        path = f"{EXPORTS}/{self._job}/{name}"
        self.tell(file=name, path=path, bytes=len(blob), sha256=hashlib.sha256(blob).hexdigest())

    def flush(self) -> None:
        """Send the progress that waits."""
        with self._lock:
            steps, self._steps = list(self._steps.values()), {}
            if steps:
                self._write({"steps": steps})

    def _beat(self) -> None:
        while True:
            time.sleep(_FLUSH_SECONDS)
            self.flush()
            with self._lock:
                if time.monotonic() - self._told >= _BEAT_SECONDS:
                    self._write({})

    def _write(self, event: dict[str, Any]) -> None:
        self._told = time.monotonic()
        calls.tell(event)


def main(job: str, call: str) -> int:
    """Do the work of a job, and return its exit code."""
    logs = Path(os.readlink("/proc/self/fd/1")).parent
    _sweep(logs / EXPORTS)
    outlet = Output(job, logs)
    try:
        _perform(_found(call), outlet)
    except UserError as error:
        outlet.tell(refused=str(error))
        return 2
    except BaseException as error:
        outlet.tell(failed=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        return 1
    outlet.flush()
    outlet.tell(ended=True)
    return 0


def _perform(place: Path, outlet: Output) -> None:
    _check_versions(json.loads((place / VERSIONS).read_text()))
    import ray
    from ray import cloudpickle

    from ...work.cluster import prepare_environment

    prepare_environment()
    ray.init(log_to_driver=False, logging_level="ERROR")
    function, arguments, shared = cloudpickle.loads((place / BLOB).read_bytes())
    values = {key: cloudpickle.loads(_read(_found(name))) for key, name in shared.items()}
    function(arguments, values, outlet)


def _read(place: Path) -> bytes:
    """Read a value, from where it lies."""
    elsewhere = place / away.FILE
    return away.get(json.loads(elsewhere.read_text())) if elsewhere.is_file() else (place / BLOB).read_bytes()


def _check_versions(sender: dict[str, str]) -> None:
    """Refuse a call of another Python, whose pickles this one may read wrongly.

    Raises:
        UserError: with both versions.
    """
    mine = versions()
    for name, wanted in sender.items():
        if mine[name] != wanted:
            raise UserError(f"the cluster runs {name} {mine[name]}, this machine {wanted}: give both the same")


def versions() -> dict[str, str]:
    """Return the versions that the two ends of a job must have in common."""
    import torch

    return {"Python": ".".join(platform.python_version_tuple()[:2]), "torch": torch.__version__.split("+")[0]}


def _found(name: str) -> Path:
    """Find a folder that came with the job."""
    for place in sys.path:
        if (Path(place) / name / BLOB).is_file():
            return Path(place) / name
    raise UserError(f"the cluster has lost {name}, which came with the job: run the command once more")


def _sweep(exports: Path) -> None:
    """Remove results that nobody has asked for in days."""
    for place in exports.iterdir() if exports.is_dir() else ():
        if time.time() - place.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
