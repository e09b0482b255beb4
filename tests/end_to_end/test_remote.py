"""Machines that share a DVC remote take each other's results. Each machine is a working copy with an empty cache."""

import shutil
from pathlib import Path
from typing import Final

import pyarrow.parquet
import pytest

from tests import buckets
from tests.buckets import IDENTIFIER, KEYS, SECRET
from tests.end_to_end.conftest import FORKED, PARAMS, Project, make
from tests.end_to_end.test_runner import artifacts

pytestmark = [pytest.mark.slow, pytest.mark.process, FORKED]
BOSTON: Final = "evaluate@boston-deterministic"


def machine(folder: Path, url: str, more: str = "") -> Project:
    """A clone with an empty cache; the remote's address lies in a file that git does not track."""
    project = make(folder, PARAMS)
    config = f"[core]\n    remote = store\n['remote \"store\"']\n    url = {url}\n{more}"
    (project.folder / ".dvc/config.local").write_text(config)
    project.env["BDL_REMOTE"] = "on"
    return project


def test_a_second_machine_takes_stored_results_and_runs_the_missing_stages(finished: Project, tmp_path: Path) -> None:
    first, second = (machine(tmp_path / name, str(tmp_path / "store")) for name in ("first", "second"))
    assert "3 stages done" in first.pipeline("repro", "student@boston-deterministic").stdout
    output = second.pipeline("repro", BOSTON).stdout
    assert "1 of 4 stages to run" in output and "[1/1] evaluate@boston-deterministic: done" in output
    assert artifacts(second) == artifacts(first) and artifacts(second).items() <= artifacts(finished).items()
    assert "nothing to do" in first.pipeline("repro", "student@boston-deterministic").stdout
    assert "nothing to do: all 4 results" in first.pipeline("repro", BOSTON).stdout, "taken, and not run"


@pytest.mark.soak
def test_other_params_take_no_stored_result(tmp_path: Path) -> None:
    first, second = (machine(tmp_path / name, str(tmp_path / "store")) for name in ("first", "second"))
    first.pipeline("repro", "prepare@boston")
    second.edit("params.yaml", "splits: 2", "splits: 1")
    assert "1 of 1 stages to run" in second.pipeline("repro", "prepare@boston").stdout


@pytest.mark.soak
def test_results_that_dvc_has_not_recorded_are_kept(tmp_path: Path) -> None:
    """DVC would delete them in order to fetch others, so the pipeline records them first."""
    project = machine(tmp_path / "one", str(tmp_path / "store"))
    project.pipeline("repro", "trajectory@boston-sgd", env={"BDL_REMOTE": "off"})
    shutil.rmtree(project.folder / ".state")
    (project.folder / "dvc.lock").unlink()
    assert "1 of 3 stages to run" in project.pipeline("repro", "student@boston-deterministic").stdout


@pytest.mark.parametrize("remote", ["", "unreachable"])
def test_a_remote_that_cannot_be_used_is_refused_before_any_work(tmp_path: Path, remote: str) -> None:
    (tmp_path / "file").touch()
    project = machine(tmp_path / "one", str(tmp_path / "file/store"))
    if not remote:
        (project.folder / ".dvc/config.local").unlink()
    output = project.pipeline("repro", "prepare@boston", code=2).stderr
    rule = "has no default remote" if not remote else "the DVC remote store"
    assert output.startswith("repro: BDL_REMOTE=on: ") and rule in output and output.count("\n") == 1
    assert not (project.folder / "work/prepare").exists()


def leaks(folder: Path, texts: dict[str, bytes]) -> list[str]:
    """The files below a folder, and the texts, that hold a key; Parquet is read, as it compresses."""
    keys = [IDENTIFIER.encode(), SECRET.encode()]
    leaks = [name for name, text in texts.items() if any(key in text for key in keys)]
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            text = path.read_bytes()
            if path.suffix == ".parquet":
                text += str(pyarrow.parquet.read_table(path).to_pylist()).encode()
            leaks += [str(path.relative_to(folder))] if any(key in text for key in keys) else []
    return leaks


@pytest.mark.soak
def test_a_remote_on_s3_works_and_no_output_or_file_holds_its_keys(tmp_path: Path) -> None:
    with buckets.served("bdl") as (environment, s3):
        more = f"    endpointurl = {environment['AWS_ENDPOINT_URL']}\n    region = us-east-1\n"
        more += f"    access_key_id = {IDENTIFIER}\n    secret_access_key = {SECRET}\n"
        first, second = (machine(tmp_path / name, "s3://bdl/x", more) for name in ("first", "second"))
        output = first.pipeline("repro", BOSTON, env={"BDL_TRACKING": "on", **KEYS}).stdout
        taken = second.pipeline("repro", BOSTON, env=KEYS).stdout
        stored = buckets.files(s3, "bdl")
    assert "4 stages done" in output and "nothing to do" in taken
    assert artifacts(second) == artifacts(first)
    for project in (first, second):
        (project.folder / ".dvc/config.local").unlink()  # This file had the keys.
    assert stored and leaks(tmp_path, {"first": output.encode(), "second": taken.encode(), **stored}) == []
    (tmp_path / "first/planted").write_text(f"key={SECRET}")
    assert leaks(tmp_path, {"line": IDENTIFIER.encode()}) == ["line", "first/planted"]
