"""One Ray head for all tests that need Ray, and the commands of the others."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_HEAD = """
from pipeline.core.settings import Settings
from pipeline.work.cluster import head
with head(Settings()) as address:
    print("ADDRESS", address, flush=True)
    input()
"""


@pytest.fixture(scope="session")
def ray_head() -> Iterator[str]:
    """host:port of a head on this machine, which ends with the tests of this process.

    Its workers can import the methods of this folder.
    """
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    with subprocess.Popen(
        [sys.executable, "-c", _HEAD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as head:
        assert head.stdin is not None and head.stdout is not None
        lines = iter(head.stdout.readline, "")
        yield next(line.split()[1] for line in lines if line.startswith("ADDRESS"))
        head.stdin.close()


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables without a run, which take seconds to make."""
    from mlflow.tracking import MlflowClient

    place = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{place}").search_experiments(max_results=1)
    return place


@pytest.fixture
def untracked(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project without a store."""
    for name in ("MLFLOW_TRACKING_URI", "BDL_TRACKING", "BDL_MLFLOW_ARTIFACTS"):
        monkeypatch.delenv(name, raising=False)
    return here


@pytest.fixture
def client(untracked: Path, tables: Path) -> Any:
    """The client of the project's empty store."""
    from mlflow.tracking import MlflowClient

    (untracked / "mlruns").mkdir()
    shutil.copy(tables, untracked / "mlruns/mlflow.db")
    return MlflowClient(f"sqlite:///{untracked}/mlruns/mlflow.db")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs a command in this process, and returns its output, or its errors for another code than 0."""

    def run(*words: object, code: int = 0) -> str:
        from pipeline import cli

        capsys.readouterr()
        returned = cli.main([str(word) for word in words])
        out, error = capsys.readouterr()
        assert returned == code, out + error
        return error if code else out

    return run
