"""MLflow: an experiment of stages, with a parent run for each repro and a child for each stage run.

The scores side by side are another experiment (see :mod:`.comparison`).

Artifacts come first: whatever goes wrong here is one line on stderr, and the work goes on without
tracking. The default store is an SQLite file in WAL mode under ``mlruns/``, made under a file lock
before anything fans out (two processes that create it at once fail); ``MLFLOW_TRACKING_URI`` names
another one, and with ``BDL_TRACKING=off`` there is none. Files of runs lie beside the store, or where
``BDL_MLFLOW_ARTIFACTS`` says. mlflow is imported when the first run starts, and may be
missing.
"""

import contextlib
import os
import socket
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlparse

from ..core.object_store import PATIENCE, hide, shorten_waits
from ..core.scores import Score
from ..core.settings import Settings
from . import provenance

EXPERIMENT: Final = "bdl-pipe stages"
KIND: Final = {"mlflow.experimentKind": "custom_model_development"}  # or MLflow opens its page of traces
FOLDER: Final = "mlruns"
PARENT: Final = "BDL_PARENT_RUN"
NEST: Final = "mlflow.parentRunId"  # MLflow's own tag: the runs table folds children under it
_MANY: Final = 90  # params in one request; MLflow takes 100
_LONG: Final = 500  # characters of a value
_QUIET: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
    **PATIENCE,
}
T = TypeVar("T")


class StageRun:
    """A tracked run, which a stage tells about itself. This base class keeps nothing: there is no tracking."""

    id: str | None = None

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Record figures, at a step where they form a curve."""

    def warn(self, text: str) -> None:
        """Print a warning, and record it as the run's tag ``warnings``."""
        print(f"warning: {text}", file=sys.stderr)

    def artifact(self, path: Path) -> None:
        """Keep a copy of a small file or folder."""

    def model(self, student: Path) -> None:
        """Log the fitted posterior in ``student`` as a model that can be served."""


class Tracked(StageRun):
    """A run of MLflow's store."""

    def __init__(self, store: Any, run_id: str) -> None:
        self._client, self.id, self._warnings = store, run_id, list[str]()

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        now = get_current_time_millis()
        entries = [Metric(k, float(v), now, step or 0) for k, v in values.items()]
        attempt(lambda: self._client.log_batch(self.id, metrics=entries))

    def warn(self, text: str) -> None:
        super().warn(text)
        self._warnings.append(text)
        attempt(lambda: self._client.set_tag(self.id, "warnings", "\n".join(self._warnings)[:5000]))

    def artifact(self, path: Path) -> None:
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        attempt(lambda: log(self.id, str(path)), then_stop=False)

    def model(self, student: Path) -> None:
        from . import model

        attempt(lambda: model.log(student, str(self.id)), then_stop=False)


@contextmanager
def stage_run(
    kind: str, key: str, tags: Mapping[str, Any], params: Mapping[str, Any], deps: Sequence[str] = ()
) -> Iterator[StageRun]:
    """Open a run for the block; it ends FINISHED, or FAILED/KILLED by what the block raises.

    Args:
        kind, key: the stage, as in ``evaluate`` and ``fashion_mnist-sgld``.
        tags: dataset, method, setting, seed, …: what runs are filtered by.
        params: the numbers of the run, possibly nested; logged as dotted keys.
        deps: the paths of what it is made from, tagged with their hashes.
    """
    about = {"stage": kind, "key": key, **tags, **provenance.tags(deps)}
    run = attempt(lambda: _child(f"{kind} {key}", about, params)) or StageRun()
    status = "FAILED"
    try:
        yield run
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        if run.id is not None:
            attempt(lambda: _end(str(run.id), status))


def initialise() -> str | None:
    """Make sure that store and experiment exist. Return the experiment's id, or None without tracking.

    Call it once before several processes begin to log.
    """
    return attempt(lambda: experiment())


def start_parent(name: str = "repro", tags: Mapping[str, Any] | None = None, resumed: str | None = None) -> str | None:
    """Start the run that the runs of this process and of its children belong to; or go on with ``resumed``."""
    run_id = resumed and attempt(lambda: reopen(str(resumed)))
    if not run_id:
        run_id = attempt(lambda: _create(name, {**provenance.tags(()), **(tags or {})}).info.run_id)
    if run_id is not None:
        os.environ[PARENT] = run_id
        attempt(_mark_dead_runs_killed)
    return run_id


def end_parent(run_id: str | None, status: str = "FINISHED") -> None:
    """End the parent as ``FINISHED``, ``FAILED`` or ``KILLED``."""
    os.environ.pop(PARENT, None)
    if run_id is not None:
        attempt(lambda: client().set_terminated(run_id, status))


def quiet_environment() -> None:
    """Set what MLflow reads as it is imported: no telemetry, no bars, no minutes of retries."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def store_uri() -> str:
    """Say where runs are kept: ``MLFLOW_TRACKING_URI``, or the project's own SQLite file."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(FOLDER).absolute()}/mlflow.db"


def final_scores(scores: Iterable[Score]) -> dict[str, float]:
    """Average the scores of one run to its final metrics, named alike for every method.

    ``test/accuracy``, ``corrupted/accuracy`` (the mean over corruptions and severities),
    ``ood/<set>/auroc``, ``transfer/<set>/accuracy``, ``cost/fit_seconds``: each the mean over splits and seeds.
    """
    groups = defaultdict[str, list[float]](list)
    for score in scores:
        of = score.of
        place = f"{of.set}/{of.name}" if of.set in ("ood", "transfer") else of.set
        groups[f"{place}/{of.title}"].append(score.value)
    return {name: sum(values) / len(values) for name, values in sorted(groups.items())}


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested sections to dotted keys and texts: ``{"a": {"b": 1}}`` → ``{"a.b": "1"}``."""
    flat: dict[str, str] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"[:250]] = str(value)[:_LONG]
    return flat


def try_again() -> None:
    """Let tracking that a failure has stopped be tried once more."""
    global _stopped
    _stopped = False


def _child(name: str, tags: Mapping[str, Any], params: Mapping[str, Any]) -> StageRun:
    return begin(name, {**tags, NEST: os.environ.get(PARENT) or _session_parent()}, params)


def begin(name: str, tags: Mapping[str, Any], params: Mapping[str, Any]) -> StageRun:
    """Open a run that the caller ends."""
    run_id = _create(name, tags).info.run_id
    log_params(run_id, flatten(params))
    return Tracked(client(), run_id)


def log_params(run_id: str, params: Mapping[str, str]) -> None:
    """Record numbers of a run, by dotted keys."""
    from mlflow.entities import Param

    entries = [Param(k, v) for k, v in params.items()]
    for start in range(0, len(entries), _MANY):
        client().log_batch(run_id, params=entries[start : start + _MANY])


def _create(name: str, tags: Mapping[str, Any]) -> Any:
    texts = {k: str(v)[:_LONG] for k, v in tags.items()} | {"process": provenance.process(os.getpid())}
    return client().create_run(experiment(), run_name=name, tags=texts)


def reopen(run_id: str) -> str:
    """Go on with a run, in the name of this process."""
    client().set_tag(run_id, "process", provenance.process(os.getpid()))
    client().update_run(run_id, status="RUNNING")
    return run_id


def _end(run_id: str, status: str) -> None:
    client().set_terminated(run_id, status)
    if os.environ.get(PARENT) is None:  # nobody else will end a parent that stages made among themselves
        client().set_terminated(_session_parent(), status)


@cache
def _session_parent() -> str:
    """Find or make the parent of stages that share one ``dvc repro``, or else one process."""
    name, invocation = provenance.invocation()
    stages = experiment()  # takes the lock itself
    with store_lock():
        found = client().search_runs([stages], f"tags.invocation = '{invocation}'", max_results=1)
        run = (
            found[0]
            if found
            else _create(name, {**provenance.tags(()), "invocation": invocation, "process": invocation})
        )
    return run.info.run_id


def _mark_dead_runs_killed() -> None:
    """End the runs of this machine's processes that were killed."""
    for run in client().search_runs([experiment()], "attributes.status = 'RUNNING'"):
        if provenance.is_dead(run.data.tags.get("process", "")):
            client().set_terminated(run.info.run_id, "KILLED")


@cache
def client() -> Any:
    """Return MLflow's client of the store."""
    quiet_environment()
    _preflight(store_uri())
    if Settings.read().artifacts:
        shorten_waits()
    import logging

    from mlflow.tracking import MlflowClient

    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(store_uri())


@cache
def experiment(name: str = EXPERIMENT) -> str:
    """Return the experiment's id; store and experiment are made under the lock if need be."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return _find_experiment(name, None)
    ready = Path(FOLDER, f".{name.replace(' ', '-')}.ready")
    if ready.exists() and Path(FOLDER, "mlflow.db").exists():
        return _find_experiment(name, Path(FOLDER, "artifacts"))
    with store_lock():
        found = _find_experiment(name, Path(FOLDER, "artifacts"))
        with contextlib.closing(sqlite3.connect(Path(FOLDER, "mlflow.db"), timeout=30)) as database:
            database.execute("PRAGMA journal_mode=WAL")  # kept in the file: readers and one writer at once
        ready.touch()
    return found


def _find_experiment(name: str, artifacts: Path | None) -> str:
    found = client().get_experiment_by_name(name)
    if found is None:
        place = artifact_root(name) or (None if artifacts is None else artifacts.absolute().as_uri())
        return client().create_experiment(name, artifact_location=place, tags=KIND)
    if found.lifecycle_stage == "deleted":
        client().restore_experiment(found.experiment_id)
    return found.experiment_id


def artifact_root(name: str = EXPERIMENT) -> str | None:
    """Return the address that ``BDL_MLFLOW_ARTIFACTS`` gives an experiment's files; None where it says nothing."""
    place = Settings.read().artifacts
    return f"{place}/{name.replace(' ', '-')}" if place else None


def store_lock() -> Any:
    """Hold a lock while something is looked up and then made, by one process of this project at a time."""
    from filelock import FileLock

    Path(FOLDER).mkdir(exist_ok=True)
    return FileLock(Path(FOLDER, ".lock"), timeout=60)


def _preflight(uri: str) -> None:
    """Refuse a dead server, which MLflow would try again for minutes."""
    address = urlparse(uri)
    if address.scheme in ("http", "https") and address.hostname:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname, port), timeout=3).close()


_stopped = False


def attempt(action: Callable[[], T], then_stop: bool = True) -> T | None:
    """Return what ``action`` returns, None if it fails or tracking is off.

    With ``then_stop``, for what would fail again, a failure stops all tracking.
    """
    global _stopped
    if _stopped or not Settings.read().tracking:
        return None
    try:
        return action()
    except Exception as error:  # whatever MLflow, SQL, the disk or the network raise: the result matters more
        _stopped = then_stop
        reason = hide(next(iter(str(error).splitlines()), ""))
        what = "no tracking" if then_stop else "not tracked"
        print(f"warning: {what} ({hide(store_uri())}): {type(error).__name__}: {reason[:200]}", file=sys.stderr)
        return None
