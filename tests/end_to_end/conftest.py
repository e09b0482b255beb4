"""A copy of the project with tiny data and methods, its whole graph run once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from filelock import FileLock

from tests.end_to_end import forked

FORKED = pytest.mark.xdist_group("forked")  # tests whose commands are forks of one process
ROOT = Path(__file__).parents[2]
PARAMS = Path(__file__).with_name("tiny.yaml").read_text()


class Project:
    """A working copy, and commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        places = [str(folder / "src"), str(folder)]
        removed = ("RAY_ADDRESS", "BDL_DEVICE", "BDL_PARENT_RUN", "MLFLOW_TRACKING_URI")
        self.env = {k: v for k, v in os.environ.items() if k not in removed} | {
            "PYTHONPATH": os.pathsep.join(places),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "BDL_EXECUTOR": "inline",
            "BDL_TRACKING": "off",  # its imports are half of a small command's time
            "OMP_NUM_THREADS": "1",
            "DVC_NO_ANALYTICS": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env | dict(env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self, *command: str, env: Mapping[str, str] | None = None, code: int = 0
    ) -> "subprocess.CompletedProcess[str]":
        if command[0] == sys.executable and (command[1] == "-c" or command[2].startswith(("pipeline", "stages"))):
            returned, out, error = forked.run(self.folder, self.env | dict(env or {}), command[1:])
        else:
            process = self.start(*command, env=env)
            out, error = process.communicate(timeout=500)
            returned = process.returncode
        assert returned == code, f"{command}: {returned}\n{out}\n{error}"
        return subprocess.CompletedProcess(command, returned, out, error)

    def pipeline(
        self, *arguments: str, env: Mapping[str, str] | None = None, code: int = 0
    ) -> "subprocess.CompletedProcess[str]":
        return self.run(sys.executable, "-m", "pipeline", *arguments, env=env, code=code)

    def dvc(self, *arguments: str, code: int = 0) -> str:
        return self.run(sys.executable, "-m", "dvc", *arguments, code=code).stdout

    def git(self, *arguments: str) -> None:
        self.run("git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments)

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.folder / path).read_text()
        assert old in text
        (self.folder / path).write_text(text.replace(old, new, 1))


def make(folder: Path, params: str) -> Project:
    """A fresh working copy under git, with ``params`` as its params.yaml."""
    skip = shutil.ignore_patterns("*.egg-info")  # bytecode comes along: it is of the same sources at the same times
    for name in ("pipeline", "stages", "src", "data", "plugins"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    (folder / ".dvc").mkdir()
    for name in ("dvc.yaml", ".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "params.yaml").write_text(params)
    project = Project(folder)
    project.git("init", "-q")
    project.git("add", "-A")
    project.git("commit", "-qm", "start")
    return project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with every stage done, by the parallel executor with its work in process. Tests must not change it.

    It is made once, by the first of the test processes that needs it.
    """
    place = tmp_path_factory.getbasetemp()
    place = (place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "finished"
    with FileLock(f"{place}.lock"):
        if not (place / "whole").exists():
            shutil.rmtree(place, ignore_errors=True)  # left by a failed attempt; this attempt shows its own error
            project = make(place / "tiny", PARAMS)
            output = project.pipeline("repro", "-j", "2").stdout
            assert "11 stages done" in output and "report: " in output and "| ensemble |" in output
            project.git("add", "-A")
            project.git("commit", "-qm", "results")
            (place / "whole").touch()
    return Project(place / "tiny")


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished project that a test may change."""
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    return Project(tmp_path / "copy")
