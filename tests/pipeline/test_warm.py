"""Stages in forks of a server that has imported everything."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
import yaml

from bdl_pipe.errors import UserError
from pipeline import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stages are forked on Linux alone")
STAGES = {
    "good": {"cmd": "echo made > made; echo $ADDED", "outs": ["made"]},
    "bad": {"cmd": "echo no such thing >&2; exit 3"},
    "long": {"cmd": "sleep 300"},
    "ours": {"cmd": "python -m stages.evaluate nothing"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project."""
    made = tmp_path_factory.mktemp("warm")
    (made / "dvc.yaml").write_text(yaml.safe_dump({"stages": STAGES}))
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=made, check=True)
    return made


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> warm.Server:
    """Its forks work where this process does."""
    monkeypatch.chdir(folder)
    return warm.Server()


def test_dvc_runs_and_records(server: warm.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is that of the moment at which a stage starts."""
    for value, words in (("early", "early"), ("later", "didn't change")):
        monkeypatch.setenv("ADDED", value)
        stage = server.start("good")
        assert words in "".join(stage.lines()) and stage.wait() == 0
    stage = server.start("bad")
    said = "".join(stage.lines())
    assert stage.wait() == 255 and "no such thing" in said and "exited with 3" in said


def test_the_lock_file_is_what_dvc_alone_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two stages, one added to the other's, with every kind of value that params.yaml has."""
    values = {
        "rate": 4.0e-6,
        "none": None,
        "some": [1, 2.5],
        "of none": [],
        "text": "ünï: 'x'",
        "yes": True,
        "in": {"a": 1},
    }
    params = {"first": values, "second": {"b": values}}
    stages = {
        name: {"cmd": f"echo {name} > {name}", "params": [name], "outs": [name], "deps": ["params.yaml"]}
        for name in params
    }
    written = []
    for alone in (True, False):
        folder = tmp_path / str(alone)
        folder.mkdir()
        (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
        (folder / "params.yaml").write_text(yaml.safe_dump(params, allow_unicode=True))
        subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=folder, check=True)
        monkeypatch.chdir(folder)
        for name in stages:
            if alone:
                subprocess.run([sys.executable, "-m", "dvc", "repro", "-q", "-s", name], check=True)
            else:
                stage = warm.Server().start(name)
                assert list(stage.lines()) and stage.wait() == 0
        written.append((folder / "dvc.lock").read_bytes())
    assert written[0] == written[1] and written[0].count(b"4e-06") == 2


def test_ours_is_called_where_dvc_is(server: warm.Server) -> None:
    """One line says what is wrong, and DVC sees the exit code; no interpreter was started for it."""
    stage = server.start("ours")
    said = "\n".join(stage.lines())
    assert stage.wait() == 255 and "exited with 2" in said and "evaluate nothing: " in said


def test_a_signal_is_the_exit_code(server: warm.Server) -> None:
    stage = server.start("long")
    deadline = time.monotonic() + 60
    while os.getpgid(stage.pid) != stage.pid:  # it leads its group
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(stage.pid, signal.SIGKILL)
    assert list(stage.lines()) is not None and stage.wait() == -signal.SIGKILL


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every server made inside ends while it imports."""
    (tmp_path / "ends_the_server.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(warm, "_PRELOAD", "ends_the_server")
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()


@pytest.mark.parametrize("seconds", [0.0, 1.0], ids=["while it is asked", "before"])
def test_a_server_that_has_ended_is_one_line(dying: None, seconds: float) -> None:
    server = warm.Server()
    time.sleep(seconds)
    with pytest.raises(UserError, match=r"^good: the process that stages are forked from has ended \(\w+.*\); python"):
        server.start("good")
