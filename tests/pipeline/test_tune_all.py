"""Searches of all methods of a data set: which, in what order, and that they go on where they were stopped."""

import argparse
import shutil
from pathlib import Path

import pytest

from bdl_pipe.errors import UserError
from bdl_pipe.registry import METHODS
from pipeline import cli
from pipeline.core import places
from pipeline.core.load import load
from pipeline.search import every, tune

PARAMS = Path(__file__).parents[2] / "params.yaml"


class Stopped(Exception):
    pass


class Searches:
    """What was searched; one of them may be stopped."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int, bool | None, bool]] = []
        self.stop_at = ""

    def __call__(self, args: argparse.Namespace) -> int:
        self.made.append((args.method, args.samples, args.resume, args.apply))
        folder = places.STATE / "tune" / f"{args.method}-{args.dataset}"
        if args.method == self.stop_at:
            folder.mkdir(parents=True)
            (folder / "search.json").write_text('{"identity": "x"}')
            raise Stopped
        return 0


@pytest.fixture
def searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searches:
    monkeypatch.chdir(tmp_path)
    shutil.copy(PARAMS, "params.yaml")
    made = Searches()
    monkeypatch.setattr(tune, "main", made)
    monkeypatch.setattr("pipeline.search.branch.RECORD", "search.json")
    return made


def go(*more: str) -> int:
    return cli.main(["tune", "all", "--dataset", "boston", "--samples", "4", *more])


def test_every_method_with_something_to_search_is_searched_once_and_sources_first(searches: Searches) -> None:
    assert go("--apply") == 0
    methods = [method for method, *_ in searches.made]
    runs = [run for run in load().runs.values() if run.spec.dataset == "boston"]
    assert set(methods) == {run.method.name for run in runs if METHODS[run.method.name].search}
    assert len(methods) == len(set(methods)) > 5
    assert methods[:2] == ["sgd", "sgld"], "posteriors are made from these"
    assert all(made[1:] == (4, False, True) for made in searches.made)


def test_stopped_searches_go_on(searches: Searches, capsys: pytest.CaptureFixture[str]) -> None:
    searches.stop_at = "vbll"
    with pytest.raises(Stopped):
        go()
    before = [method for method, *_ in searches.made]
    assert go() == 2
    assert "holds unfinished searches; go on with --resume" in capsys.readouterr().err
    searches.stop_at, searches.made = "", []
    assert cli.main(["tune", "all", "--dataset", "boston", "--samples", "5", "--resume"]) == 2
    assert "--samples: must be 4, as in the searches that were done, got 5" in capsys.readouterr().err
    assert go("--resume") == 0
    assert searches.made[0][:3] == ("vbll", 4, True), "the one that was stopped is resumed, others begin"
    assert not any(resumed for _, _, resumed, _ in searches.made[1:])
    assert not {method for method, *_ in searches.made[1:]} & set(before)
    assert go("--resume") == 2
    assert "there is no unfinished search of all methods" in capsys.readouterr().err


def test_another_machine_goes_on(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In shared storage lies what was done; with the params.yaml of another state it would be a mix."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("BDL_SEARCHES", str(shared))
    searches.stop_at = "vbll"
    with pytest.raises(Stopped):
        go("--apply")
    before = [method for method, *_ in searches.made]
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.chdir(second)
    monkeypatch.setattr(every.socket, "gethostname", lambda: "second")
    (second / "params.yaml").write_text(PARAMS.read_text().replace("seed: ", "seed: 1", 1))
    assert go("--apply", "--resume") == 2
    assert "params.yaml: is not the one that the searches on" in capsys.readouterr().err
    shutil.copy(PARAMS, "params.yaml")
    searches.stop_at, searches.made = "", []
    assert go("--apply", "--resume") == 0
    assert searches.made[0] == ("vbll", 4, None, True), "it is gone on with, if its record is there"
    assert not {method for method, *_ in searches.made[1:]} & set(before)
    assert not list(shared.iterdir())


def test_what_cannot_be_searched_is_one_line(searches: Searches) -> None:
    with pytest.raises(UserError, match=r"bostn: is not a data set \(did you mean boston"):
        every.searched(load(), "bostn")
    assert go("--run", "boston-vbll") == 2
    assert cli.main(["tune", "vbll", "--dataset", "boston", "--samples", "3"]) == 0
    assert searches.made == [("vbll", 3, False, False)], "one method is searched as before"
