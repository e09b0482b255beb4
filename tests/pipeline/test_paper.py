"""A paper's table from an empty project: the stages that run, the files that are written, the errors."""

import csv
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from bdl_pipe.errors import UserError
from bdl_report import papers
from pipeline import cli
from pipeline.papers import COMMANDS, read
from pipeline.run import pool
from pipeline.stages import fit
from tests.pipeline import walk
from tests.pipeline.params_cases import REFUSED, changed, params

ROOT = Path(__file__).parents[2]
TREE = Path("work/paper/vbll-table2")
Go = Callable[..., tuple[list[str], str]]
ALL = ["prepare boston", "trajectory boston-sgd", "trajectory boston-other", "student boston-deterministic"]
ALL += ["student boston-ensemble", "evaluate boston-deterministic", "evaluate boston-ensemble"]


@pytest.fixture(autouse=True)
def project(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with the tiny params file, without tracking."""
    monkeypatch.setenv("BDL_TRACKING", "off")
    monkeypatch.setattr(pool, "run", walk.run)
    write({})
    return here


def write(changes: dict[str, Any]) -> None:
    path = Path("params/paper/vbll-table2.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(changed(params("paper"), changes), sort_keys=False))


@pytest.fixture
def go(command: Callable[..., str]) -> Go:
    """A function that runs the table, and returns the stages that ran, and all that was printed."""

    def run(*words: str) -> tuple[list[str], str]:
        out = command("paper", "vbll:table2", *words)
        return [line[:-6].replace("@", " ") for line in out.splitlines() if line.endswith(": done")], out

    return run


def test_only_stages_that_are_out_of_date_run_again(go: Go, capsys: pytest.CaptureFixture[str]) -> None:
    ran, _ = go()
    assert ran == ALL
    first = {p: p.read_bytes() for p in Path("results").rglob("*.*")}
    assert sorted(p.name for p in first) == ["table2-boston.csv", "table2-boston.md"]
    assert cli.main(["paper", "vbll:table2"]) == 0 and "nothing to run: 7 stages" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in Path("results").rglob("*.*")} == first, "equal results, other bytes"
    # a changed number: its stage runs, and the stages that depend on it, and no others
    write({"trajectories.boston-other.override": {"epochs": 1}})
    assert go()[0] == [name for name in ALL if "other" in name or "deterministic" in name]
    # a missing artifact: its stage alone runs, since the artifact comes out as it was
    gone = TREE / "trajectory/boston-sgd"
    (gone / "manifest.json").unlink()
    assert go()[0] == ["trajectory boston-sgd"]
    # a recorded identity that lists no made artifact: its stage alone runs
    place = TREE / "identity/evaluate/boston-ensemble.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "made": {}}))
    assert go()[0] == ["evaluate boston-ensemble"]


def test_an_interrupted_command_continues_where_it_stopped(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    make, calls = fit.make, list[int]()

    def stopped(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:  # two trajectories, each in one call, then a student's second member
            raise KeyboardInterrupt
        return make(*args)

    monkeypatch.setattr(fit, "make", stopped)
    assert cli.main(["paper", "vbll:table2"]) == 130
    assert not Path("results").exists()
    assert (TREE / "prepare/boston/manifest.json").is_file()
    assert (TREE / "trajectory/boston-other").exists()
    assert not any(path.is_dir() for path in (TREE / "student").glob("*"))
    ran, _ = go()
    assert ran == ALL[3:]
    assert len(calls) == 4 + 1 + 2, "finished members were made again"
    assert not list(Path(".state/checkpoints").rglob("*.done"))


def test_the_figures_of_a_table_equal_the_means_of_the_scores(go: Go) -> None:
    _, out = go("--dataset", "boston")
    scores = pq.read_table(TREE / "evaluate/boston-ensemble/scores.parquet").to_pylist()
    nll = [s["value"] for s in scores if (s["set"], s["metric"]) == ("test", "nll")]
    assert len(nll) == 2
    mean, error = statistics.mean(nll), statistics.stdev(nll) / math.sqrt(2)
    with open("results/vbll/table2-boston.csv") as file:
        rows = {(r["method"], r["metric"]): r for r in csv.DictReader(file)}
    row = rows["Ensemble", "nll"]
    assert (float(row["ours"]), float(row["error"]), row["n"]) == (pytest.approx(mean), pytest.approx(error), "2")
    assert (row["paper"], row["paper_error"], row["run"]) == ("2.48", "0.09", "boston-ensemble")
    assert float(row["z"]) == pytest.approx((mean - 2.48) / math.sqrt(error**2 + 0.09**2))
    assert rows["deterministic", "nll"]["ours"] and not rows["deterministic", "nll"]["paper"]
    assert rows["VBLL", "rmse"]["paper"] == "1.42" and not rows["VBLL", "rmse"]["ours"]
    assert f"| Ensemble | {mean:.2f} ± {error:.2f}" in out and "| 2.48 ± 0.09 |" in out
    assert "| VBLL | not run | 1.80 ± 0.04 |" in out
    assert "of this table, not in params/paper/vbll-table2.yaml: Concrete, Energy" in " ".join(out.split())
    page = Path("results/vbll/table2-boston.md").read_text()
    for fact in ("command", "params", "commit", "data sha256", "device", "threads of a task | 1"):
        assert f"| {fact} |" in page
    assert page.count("| not run |") == 2 * 9 and "2.48 ± 0.09" in page


def test_only_the_chosen_method_runs_and_every_method_is_shown(go: Go) -> None:
    ran, out = go("--method", "ENSEMBLE")
    assert ran == [name for name in ALL if "other" not in name and "deterministic" not in name]
    assert all(name in out for name in papers.load("vbll:table2").figures["Boston"])
    assert not_run(out, "deterministic") == 2
    # a method that is up to date is shown whatever was chosen; after a change it is not
    assert not_run(go("--method", "deterministic")[1], "Ensemble") == 0
    # a command with fewer splits keeps the earlier results
    ran, out = go("--method", "deterministic", "--splits", "1")
    assert len(ran) == 4
    assert "agreement: no method has figures with a standard error on both sides" in out
    assert Path("results/vbll/table2-boston-1-splits.md").is_file()
    assert go("--method", "deterministic")[0] == []
    write({"trajectories.boston-sgd.override": {"epochs": 1}})
    assert not_run(go("--method", "deterministic")[1], "Ensemble") == 2


def not_run(out: str, method: str) -> int:
    """Count the cells without a run in the method's line."""
    return next(line for line in out.splitlines() if line.startswith(f"| {method}")).count("not run")


@pytest.mark.parametrize(("words", "message"), REFUSED["paper"])
def test_a_bad_name_is_one_line_before_any_work(command: Callable[..., str], words: str, message: str) -> None:
    error = command("paper", *words.split(), code=2)
    assert message in error and error.count("\n") == 1
    assert not Path("work").exists() and not Path("results").exists()


def test_a_table_of_costs_or_settings_runs_its_command(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[list[str]]()
    failed = subprocess.CompletedProcess([], returncode=3)
    monkeypatch.setattr(subprocess, "run", lambda words: ran.append(words) or failed)
    assert command("paper", "vbpc:table14", code=3) == "python -m pipeline study params/study/vbpc-lamb.yaml\n"
    assert ran == [[sys.executable, "-m", "pipeline", "study", "params/study/vbpc-lamb.yaml"]]


def test_the_commands_of_other_tables_name_existing_files() -> None:
    """Each command names a file of the project, and its table is none of the tables of printed scores."""
    for table, command in yaml.safe_load(COMMANDS.read_text()).items():
        words = [f"{word.replace('.', '/')}.py" if "benchmarks." in word else word for word in command.split()]
        assert any((ROOT / word).is_file() for word in words), table
        with pytest.raises(UserError, match="has no such table"):
            papers.load(table)


def test_the_error_of_a_wrong_number_names_the_params_file() -> None:
    write({"methods.sgd.epochs": 0})
    with pytest.raises(UserError, match=r"params/paper/vbll-table2\.yaml: methods\.sgd\.epochs must be > 0, got 0"):
        read(papers.load("vbll:table2"), None, None, None)
