"""MLflow's store: where it is, how it is opened, and how runs are written to it.

The default store is an SQLite file in WAL mode in ``mlruns/``; ``MLFLOW_TRACKING_URI`` names another one. It is made
under a file lock, since two processes that make it at once can leave it unusable.
"""

import contextlib
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from bdl_pipe.errors import UserError

from ..core import provenance
from ..core.settings import Settings
from ..core.storage import hide

STAGES: Final = "bdl-pipe stages"
COMPARISON: Final = "bdl-pipe comparison"
FOLDER: Final = Path("mlruns")
T = TypeVar("T")
KIND: Final = {"mlflow.experimentKind": "custom_model_development"}  # otherwise MLflow opens its page of traces
NEST: Final = "mlflow.parentRunId"  # MLflow's page folds the children of a run under it
NOTE: Final = "mlflow.note.content"  # MLflow's page shows it as the description, in Markdown
_LONG: Final = 5000  # characters of a value; MLflow refuses params of more than 6000 and tags of more than 8000
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
    """Call ``end`` after the block, with FINISHED, or with FAILED or KILLED by what the block raises."""
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
def parent(name: str, tags: Mapping[str, Any], resumed: str | None = None) -> Iterator[str | None]:
    """Hold the run that the trials of a search belong to, a new one or the run ``resumed``, within the block.

    Yields:
        The run's id; None where tracking is off or the store fails, which is one warning.
    """

    def start(client: Any) -> str:
        if resumed is None:
            return create(client, experiment(client, STAGES), name, tags)
        client.set_tag(resumed, "process", provenance.process())
        client.update_run(resumed, status="RUNNING")
        return resumed

    run_id = attempt(start)
    with ending(lambda status: run_id and attempt(lambda client: client.set_terminated(run_id, status))):
        yield run_id


def attempt(action: Callable[[Any], T]) -> T | None:
    """Return what ``action`` returns for the store's client; None where tracking is off or the store fails."""
    return tolerate(lambda: action(connect()))


def tolerate(action: Callable[[], T]) -> T | None:
    """Return what ``action`` returns; None where tracking is off, or where it fails, which is one warning."""
    if not Settings.read().tracking:
        return None
    try:
        return action()
    except Exception as error:  # MLflow, SQL, disks and networks raise what they like, and no result may depend on it
        warn(error)
        return None


def warn(error: Exception) -> None:
    """Print one line that says why there is no tracking."""
    reason = hide(next(iter(str(error).splitlines()), ""))[:200]
    print(f"warning: no tracking ({hide(store_uri())}): {type(error).__name__}: {reason}", file=sys.stderr, flush=True)


def quieten() -> None:
    """Set what MLflow reads from the environment: no telemetry, no progress bars, no minutes of retries."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def connect() -> Any:
    """Return MLflow's client of the store, which is made if it does not exist."""
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
            database.execute("PRAGMA journal_mode=WAL")  # readers do not wait for the writer
    return client


def lock() -> Any:
    """Return the lock under which a process of this project looks something up in the store and then makes it."""
    from filelock import FileLock

    FOLDER.mkdir(exist_ok=True)
    return FileLock(FOLDER / ".lock", timeout=60)


def experiment(client: Any, name: str) -> str:
    """Return the id of an experiment, which is made if it does not exist.

    Raises:
        UserError: the experiment keeps its files in another place than ``BDL_MLFLOW_ARTIFACTS``.
    """
    place = Settings.read().artifacts
    if place:
        place = f"{place}/{name.replace(' ', '-')}"
    elif not os.environ.get("MLFLOW_TRACKING_URI"):
        place = (FOLDER / "artifacts").absolute().as_uri()
    with lock():
        found = client.get_experiment_by_name(name)
        if found is None:
            return str(client.create_experiment(name, artifact_location=place or None, tags=KIND))
    if Settings.read().artifacts and found.artifact_location != place:
        cure = f"move {FOLDER} away, name another MLFLOW_TRACKING_URI, or unset BDL_MLFLOW_ARTIFACTS"
        raise UserError(f"the experiment {name} keeps its files at {hide(found.artifact_location)}; {cure}")
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def create(client: Any, experiment: str, name: str, tags: Mapping[str, Any], started: float | None = None) -> str:
    """Start a run, which the caller ends, and return its id.

    Args:
        started: seconds since 1970; None: now.
    """
    own = {"process": provenance.process(), "mlflow.source.name": Path(sys.argv[0]).name or "python"}
    since = None if started is None else round(1000 * started)
    made = client.create_run(experiment, start_time=since, tags=_texts({**own, **tags}), run_name=name)
    return str(made.info.run_id)


def log(
    client: Any,
    run_id: str,
    metrics: Iterable[tuple[str, float, float, int]] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, Any] | None = None,
) -> None:
    """Write to a run, in as few requests as MLflow's limits allow.

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


def search(client: Any, experiment: str, query: str) -> list[Any]:
    """Return the runs of an experiment that a query of MLflow finds."""
    return list(client.search_runs([experiment], query, max_results=50_000))


def end_dead(client: Any, experiment: str) -> None:
    """End the runs whose process, on this machine, was killed."""
    for run in search(client, experiment, "attributes.status = 'RUNNING'"):
        if provenance.is_dead(run.data.tags.get("process", "")):
            client.set_terminated(run.info.run_id, "KILLED")


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested sections to dotted keys and texts: ``{"a": {"b": 1}}`` to ``{"a.b": "1"}``."""
    flat: dict[str, str] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"[:250]] = str(value)[:_LONG]
    return flat


def _texts(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags as texts that MLflow takes."""
    return {name: str(value)[:_LONG] for name, value in tags.items()}
