"""Where MLflow keeps the files of runs, if ``BDL_MLFLOW_ARTIFACTS`` says so: tried out before any work starts.

MLflow gives an experiment the place of its files when it makes it, for good.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core import object_store
from ..core.settings import Settings
from . import experiments

_CURE: Final = "unset BDL_MLFLOW_ARTIFACTS"


def require(settings: Settings) -> None:
    """Refuse a place that cannot be written, read and cleaned, or that the experiment has not.

    Raises:
        UserError: one line with the cure, within seconds.
    """
    if settings.artifacts and settings.tracking:
        what = f"BDL_MLFLOW_ARTIFACTS={settings.artifacts}"
        object_store.probe("pipeline.tracking.artifact_store", what, _CURE)


def main() -> int:
    """Try out the place of the environment; print why it cannot be used."""
    experiments.quiet_environment()
    try:
        import boto3
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        _compare()
        store = get_artifact_repository(str(experiments.artifact_root()))
        boto3.client("s3")  # reads what the store's own client takes seconds of a core to read
        with object_store.limited():
            _try_out(store)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"{error.name} is not installed; pip install mlflow boto3", file=sys.stderr)
        return 2
    except Exception as error:  # whatever MLflow and the client of the store raise
        print(object_store.reason(error), file=sys.stderr)
        return 2
    return 0


def _compare() -> None:
    """Refuse to mix: an experiment that is there keeps its files where it did."""
    if not (os.environ.get("MLFLOW_TRACKING_URI") or Path(experiments.FOLDER, "mlflow.db").exists()):
        return
    try:
        found = experiments.client().get_experiment_by_name(experiments.EXPERIMENT)
    except Exception:  # a dead tracking server is the tracking's business, which says so and goes on
        return
    if found is not None and found.artifact_location != experiments.artifact_root():
        place = object_store.hide(found.artifact_location)
        cure = f"move {experiments.FOLDER} away, or name a new MLFLOW_TRACKING_URI"
        raise UserError(f"the experiment keeps its files at {place}; {cure}")


def _try_out(store: Any) -> None:
    """Write, read and remove a small file in MLflow's store of artifacts."""
    text = os.urandom(16).hex()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"probe-{text}")
        file.write_text(text)
        store.log_artifact(str(file))
        back = Path(folder, "back")
        back.mkdir()
        same = Path(store.download_artifacts(file.name, str(back))).read_text() == text
        store.delete_artifacts(file.name)
    if not same:
        raise UserError("what is written there is not what is read")


if __name__ == "__main__":
    sys.exit(main())
