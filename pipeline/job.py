"""A whole command as one Ray job, for a cluster that is reachable only at its dashboard (``http://head:8265``).

The job receives the project's files, and pushes its results to DVC's default remote. On the cluster,
``python -m pipeline.job`` runs the command in a folder of the head that outlives the job, so that the next job of the
same command continues from its checkpoints and results.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bdl_pipe.errors import UserError

from .core.settings import Settings
from .core.signals import interruptible
from .core.storage import hide
from .run import dvc

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

_NOT_SENT: Final = ("/.git", "/.venv", "/work", "/.state", "/report", "/mlruns", "/.dvc/cache", "/.dvc/tmp")
_KEPT: Final = ("work", ".state", "report", "mlruns", ".dvc")  # folders kept from one job of a command to the next
_PROGRAMS: Final = ("dvc", "python")
_SENT: Final = ("BDL_", "AWS_", "AZURE_", "GOOGLE_", "MLFLOW_")  # prefixes of variables
_PATHS: Final = ("_FILE", "_CREDENTIALS", "_BUNDLE")  # suffixes of variables with paths of this machine
_STOP_SECONDS: Final = "20"  # the time in which a stopped command records its results
_PATIENCE_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 5.0


def send(settings: Settings, command: Sequence[str]) -> int:
    """Run a command of this project as a job, follow its log, pull its results, and return the command's exit code.

    A running job of the same command is followed, not submitted again. Ctrl-C and SIGTERM stop the job.

    Args:
        command: starts with ``dvc`` or ``python``, or with a verb of ``python -m pipeline``.

    Raises:
        UserError: RAY_ADDRESS or BDL_REMOTE is not set for jobs, the address does not answer, or the job is refused.
    """
    client = _connect(settings)
    words = list(command) if command[0] in _PROGRAMS else ["python", "-m", "pipeline", *command]
    name = f"bdl-{_digest(_project(), *words)}"
    with _stopped_on_interrupt(client, name):
        with _worded(settings.jobs):
            job = next((job for job in client.list_jobs() if job.submission_id == name), None)
            if job is None or job.status.is_terminal():
                if job is not None:
                    client.delete_job(name)
                _submit(client, name, words)
        ended = _follow(client, settings.jobs, name)
    return _closed(ended)


def attach(settings: Settings) -> int:
    """Follow this project's running job, or else show its latest job; otherwise like :func:`send`."""
    client = _connect(settings)
    with _worded(settings.jobs):
        mine = [job for job in client.list_jobs() if (job.metadata or {}).get("project") == _project()]
    if not mine:
        raise UserError(f"RAY_ADDRESS={settings.jobs}: this project has no job there")
    job = max(mine, key=lambda job: (not job.status.is_terminal(), job.start_time or 0))
    print(f"{job.submission_id}: {job.metadata['command']} ({job.status})", flush=True)
    with _stopped_on_interrupt(client, job.submission_id):
        ended = _follow(client, settings.jobs, job.submission_id)
    return _closed(ended)


def sent_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job receives: settings and credentials, but no paths of this machine's files."""
    sent = {k: v for k, v in environment.items() if k.startswith(_SENT) and not k.endswith(_PATHS)}
    return sent | {"RAY_JOB_STOP_WAIT_TIME_S": _STOP_SECONDS}


def main(arguments: Sequence[str]) -> int:
    """Run ``NAME COMMAND...`` on the cluster, with the files of the working directory, and push the results."""
    name, program, *words = arguments
    folder = Path(tempfile.gettempdir(), f"bdl-jobs-{os.getuid()}", name)
    _refresh(folder, Path.cwd())
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}", "DVC_NO_ANALYTICS": "1"}
    environment["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"  # the command sends its code to the nodes, as on any cluster
    run = partial(subprocess.call, cwd=folder, env=environment)
    program_of_dvc = [sys.executable, "-m", "dvc"]
    run([*program_of_dvc, "config", "--local", "core.no_scm", "true"])  # the project comes without its Git repository
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))  # the command receives the signal, too
    code = run([*(program_of_dvc if program == "dvc" else [sys.executable]), *words])
    if stops:
        return code or 1
    return run([*program_of_dvc, "push", "--run-cache"]) or code


def _connect(settings: Settings) -> "JobSubmissionClient":
    """Return a client of the dashboard."""
    if not settings.jobs:
        raise UserError("RAY_ADDRESS must be http://host:8265, the address of a cluster's dashboard, to submit a job")
    if not settings.remote:
        raise UserError("BDL_REMOTE must be on: a job returns its results through DVC's default remote")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with _worded(settings.jobs):
        from ray.job_submission import JobSubmissionClient

        headers = json.loads(os.environ.get("RAY_JOB_HEADERS") or "{}")
        return JobSubmissionClient(settings.jobs, headers=headers)


def _submit(client: "JobSubmissionClient", name: str, words: list[str]) -> None:
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"  # machine.yaml and .dvc/config.local are sent, too
    client.submit_job(
        entrypoint=f"PYTHONPATH=src:$PYTHONPATH exec python -m pipeline.job {shlex.join([name, *words])}",
        submission_id=name,
        runtime_env={
            "working_dir": str(Path.cwd()),
            "excludes": [*_NOT_SENT, "__pycache__", ".*_cache"],
            "env_vars": sent_variables(os.environ),
        },
        metadata={"project": _project(), "command": shlex.join(words)},
    )
    print(f"job {name} has been submitted", flush=True)


def _follow(client: "JobSubmissionClient", url: str, name: str) -> "JobDetails":
    """Print a job's log until the job ends, reconnecting after a lost connection, and return the job's details."""
    printed, answered = 0, time.monotonic()

    async def tail() -> None:
        nonlocal printed
        received = 0  # the log is sent from its start
        async for text in client.tail_job_logs(name):
            print(text[max(printed - received, 0) :], end="", flush=True)
            received += len(text)
            printed = max(printed, received)

    while True:
        try:
            asyncio.run(tail())
            job = client.get_job_info(name)
            answered = time.monotonic()
            if job.status.is_terminal():
                return job
        except Exception as error:  # Ray and its HTTP client raise many types of errors
            waited = time.monotonic() - answered
            if waited > _PATIENCE_SECONDS:
                rule = "once it answers, follow the job with python -m pipeline attach"
                raise UserError(f"RAY_ADDRESS={url} has not answered for {waited:.0f} s: {rule}") from None
            print(f"{url} does not answer ({_line(error)}); the job continues", file=sys.stderr, flush=True)
        time.sleep(_RETRY_SECONDS)


def _closed(job: "JobDetails") -> int:
    """Restore the results of a job that has ended from the DVC remote, and return the job's exit code."""
    has_succeeded = str(job.status) == "SUCCEEDED"
    if not has_succeeded:
        print(f"job {job.submission_id}: {job.status}: {_line(job.message)}", file=sys.stderr)
    dvc.take()
    return 0 if has_succeeded else job.driver_exit_code or 1


@contextlib.contextmanager
def _stopped_on_interrupt(client: "JobSubmissionClient", name: str) -> Iterator[None]:
    """Stop the job on SIGINT and SIGTERM; a shell without job control starts a process with SIGINT ignored."""
    interruptible()
    try:
        yield
    except KeyboardInterrupt:
        try:
            client.stop_job(name)
            print(f"job {name} has been stopped", file=sys.stderr)
        except Exception as error:
            print(f"job {name} could not be stopped ({_line(error)}); run ray job stop {name}", file=sys.stderr)
        raise


@contextlib.contextmanager
def _worded(url: str) -> Iterator[None]:
    """Turn any error of Ray's client into one line."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:
        cure = "; pip install 'ray[default]'" if "ray[default]" in str(error) or isinstance(error, ImportError) else ""
        raise UserError(f"RAY_ADDRESS={url}: the Ray Jobs API cannot be used there ({_line(error)}){cure}") from None


def _refresh(folder: Path, sent: Path) -> None:
    """Replace the project's files in ``folder``, and keep results and checkpoints."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            if path.name not in _KEPT:
                shutil.rmtree(path)
        else:
            path.unlink()
    shutil.copytree(sent, folder, symlinks=True, dirs_exist_ok=True)


def _project() -> str:
    return _digest(socket.gethostname(), str(Path.cwd()))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _line(error: object) -> str:
    """Return the first line of an error, or the name of its type, without credentials."""
    text = next(iter(str(error).splitlines()), "")
    return hide(text or type(error).__name__)[:300]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
