"""An empty project with an empty tracking store."""

import shutil
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables without a run, which take seconds to make."""
    place = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{place}").search_experiments(max_results=1)
    return place


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project without a store."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "BDL_TRACKING", "BDL_MLFLOW_ARTIFACTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def client(project: Path, tables: Path) -> MlflowClient:
    """The client of the project's empty store."""
    (project / "mlruns").mkdir()
    shutil.copy(tables, project / "mlruns/mlflow.db")
    return MlflowClient(f"sqlite:///{project}/mlruns/mlflow.db")
