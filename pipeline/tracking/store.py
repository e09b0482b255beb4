"""Access to MLflow's store.

``MLFLOW_TRACKING_URI`` names the store; the default is an SQLite file in WAL mode in ``mlruns/``. The default store is
created under a file lock, since two processes that create it at the same time can leave it unusable.
"""

import contextlib
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from bdl_pipe.errors import UserError

from ..core import provenance
from ..core.settings import Settings
from ..core.storage import hide

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

STAGES: Final = "bdl-pipe stages"
COMPARISON: Final = "bdl-pipe comparison"
FOLDER: Final = Path("mlruns")
T = TypeVar("T")
KIND: Final = {"mlflow.experimentKind": "custom_model_development"}  # otherwise MLflow opens the page of traces
NEST: Final = "mlflow.parentRunId"  # MLflow's page folds the children of a run under it
NOTE: Final = "mlflow.note.content"  # MLflow's page shows it as the description, in Markdown
_LONG: Final = 5000  # the most characters of a value; MLflow's limits are 6000 for params and 8000 for tags
_QUIET: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def store_uri() -> str:
    """Return the address of the store: ``MLFLOW_TRACKING_URI``, or the project's own SQLite file."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{FOLDER.absolute()}/mlflow.db"


@contextlib.contextmanager
def ending(end: Callable[[str], object]) -> Iterator[None]:
    """Call ``end`` after the block with FINISHED or, depending on the block's exception, FAILED or KILLED."""
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        end(status)


@contextlib.contextmanager
def parent(name: str, tags: Mapping[str, object], resumed: str | None = None) -> Iterator[str | None]:
    """Open the parent run of a search's trials, a new run or ``resumed``, within the block.

    Yields:
            The run's id; None if tracking is off or the store fails, which is one warning.
    """

    def start(client: "MlflowClient") -> str:
        if resumed is None:
            return create(client, experiment(client, STAGES), name, tags)
        client.set_tag(resumed, "process", provenance.process())
        client.update_run(resumed, status="RUNNING")
        return resumed

    run_id = attempt(start)
    with ending(lambda status: run_id and attempt(lambda client: client.set_terminated(run_id, status))):
        yield run_id


def attempt(action: Callable[["MlflowClient"], T]) -> T | None:
    """Call ``action`` with the store's client and return its result; None if tracking is off or the store fails."""
    return tolerate(lambda: action(connect()))


def tolerate(action: Callable[[], T]) -> T | None:
    """Call ``action`` and return its result; None if tracking is off, or after a warning if ``action`` fails."""
    if not Settings.read().tracking:
        return None
    try:
        return action()
    except Exception as error:  # MLflow, SQL, disks and networks raise any exception, and no result may depend on it
        warn(error)
        return None


def warn(error: Exception) -> None:
    """Print a line with the reason why tracking is disabled."""
    reason = hide(next(iter(str(error).splitlines()), ""))[:200]
    print(f"warning: no tracking ({hide(store_uri())}): {type(error).__name__}: {reason}", file=sys.stderr, flush=True)


def quieten() -> None:
    """Set MLflow's environment variables: no telemetry, no progress bars, few retries."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def connect() -> "MlflowClient":
    """Return MLflow's client of the store; create the store if it does not exist."""
    quieten()
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    if os.environ.get("MLFLOW_TRACKING_URI"):
        return MlflowClient(store_uri())
    with lock():
        client = MlflowClient(store_uri())
        client.search_experiments(max_results=1)
        with contextlib.closing(sqlite3.connect(FOLDER / "mlflow.db", timeout=30)) as database:
            database.execute("PRAGMA journal_mode=WAL")  # so that readers do not wait for the writer
    return client


def lock() -> "BaseFileLock":
    """Return the lock to hold from a lookup in the store until the missing entry is created."""
    from filelock import FileLock

    FOLDER.mkdir(exist_ok=True)
    return FileLock(FOLDER / ".lock", timeout=60)


def experiment(client: "MlflowClient", name: str) -> str:
    """Return the id of an experiment; create it if it does not exist.

    Raises:
        UserError: the experiment's artifacts are not at ``BDL_MLFLOW_ARTIFACTS``.
    """
    place = Settings.read().artifacts
    if place:
        place = f"{place}/{name.replace(' ', '-')}"
    elif not os.environ.get("MLFLOW_TRACKING_URI"):
        place = (FOLDER / "artifacts").absolute().as_uri()
    with lock():
        stored = client.get_experiment_by_name(name)
        if stored is None:
            return str(client.create_experiment(name, artifact_location=place or None, tags=KIND))
    if Settings.read().artifacts and stored.artifact_location != place:
        cure = f"move {FOLDER} away, name another MLFLOW_TRACKING_URI, or unset BDL_MLFLOW_ARTIFACTS"
        raise UserError(f"the experiment {name} keeps its files at {hide(stored.artifact_location)}; {cure}")
    if stored.lifecycle_stage == "deleted":
        client.restore_experiment(stored.experiment_id)
    return str(stored.experiment_id)


def create(
    client: "MlflowClient", experiment: str, name: str, tags: Mapping[str, object], started: float | None = None
) -> str:
    """Start a run, which the caller must end, and return its id.

    Args:
        started: the start time in seconds since 1970; None means now.
    """
    origin = {"process": provenance.process(), "mlflow.source.name": Path(sys.argv[0]).name or "python"}
    since = None if started is None else round(1000 * started)
    created = client.create_run(experiment, start_time=since, tags=_texts({**origin, **tags}), run_name=name)
    return str(created.info.run_id)


def log(
    client: "MlflowClient",
    run_id: str,
    metrics: Iterable[tuple[str, float, float, int]] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, object] | None = None,
) -> None:
    """Write to a run, with the fewest requests that MLflow's limits allow.

    Args:
        metrics: (name, value, seconds since 1970, step).
    """
    from mlflow.entities import Metric, Param, RunTag

    values = [Metric(name, value, round(1000 * time), step) for name, value, time, step in metrics]
    several = [Param(name, value) for name, value in (params or {}).items()]
    texts = [RunTag(name, value) for name, value in _texts(tags or {}).items()]
    while values or several or texts:
        client.log_batch(run_id, metrics=values[:800], params=several[:100], tags=texts[:50])
        values, several, texts = values[800:], several[100:], texts[50:]


def watch(run_id: str, wanted: bool) -> bool:
    """Log the machine's CPU, memory, disk, network and GPUs to a run; return False if nobody asks for them.

    MLflow's own switch is ``MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=true``. It measures every 10 s in a thread that ends
    with :func:`unwatch`, which the same thread must call.
    """
    if not wanted and os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "").lower() not in ("true", "1"):
        return False
    import mlflow

    logging.getLogger("mlflow.system_metrics").setLevel(logging.WARNING)
    mlflow.set_tracking_uri(store_uri())
    mlflow.start_run(run_id=run_id, log_system_metrics=True)
    return True


def unwatch() -> None:
    """End what :func:`watch` began; the run ends, too."""
    import mlflow

    mlflow.end_run()


def search(client: "MlflowClient", experiment: str, query: str) -> list["Run"]:
    """Return the runs of an experiment that match an MLflow query."""
    return list(client.search_runs([experiment], query, max_results=50_000))


def end_dead(client: "MlflowClient", experiment: str) -> None:
    """End runs whose process on this machine was killed."""
    for run in search(client, experiment, "attributes.status = 'RUNNING'"):
        if provenance.is_dead(run.data.tags.get("process", "")):
            client.set_terminated(run.info.run_id, "KILLED")


def flatten(params: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Flatten nested sections to dotted keys and texts: ``{"a": {"b": 1}}`` to ``{"a.b": "1"}``."""
    flat: dict[str, str] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"[:250]] = str(value)[:_LONG]
    return flat


def _texts(tags: Mapping[str, object]) -> dict[str, str]:
    """Return tags as texts within MLflow's limits."""
    return {name: str(value)[:_LONG] for name, value in tags.items()}
