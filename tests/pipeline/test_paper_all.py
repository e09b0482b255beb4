"""``paper all``: pages from stored scores and stored CSV files, and the list of missing cells; nothing is run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bdl_pipe import scores
from bdl_pipe.scores import Quantity, Score
from bdl_report import papers
from bdl_report.papers.pages import facts_of
from pipeline.run import pool

PAGE = Path("results/vbll/table1-cifar10-on-fashion_mnist.md")


def store(
    key: str, method: str, nll: list[float], commit: str, seconds: dict[str, float], dataset: str = "fashion_mnist"
) -> None:
    """Write the files that a run leaves whose networks come from a shared trajectory."""
    rows = [Score(0, seed, Quantity("nll"), value, 9) for seed, value in enumerate(nll)]
    folder = Path("work/evaluate") / key
    folder.mkdir(parents=True)
    pq.write_table(scores.table(dataset, method, "small", rows), folder / "scores.parquet")
    names = [f"0-{seed}" for seed in range(len(nll))]
    made_from = {name: {f"trajectory/shared/{name}": seconds["shared"]} for name in names}
    seconds_of = dict.fromkeys(names, seconds["own"])
    total = dict.fromkeys(names, seconds["shared"] + seconds["own"])
    record = {"seconds": seconds_of, "made_from": made_from, "peak_bytes": seconds_of, "total_seconds": total}
    record |= {"commit": commit, "device": "a processor", "versions": {"torch": "2.0"}}
    student = Path("work/student") / f"{key}.run.json"
    student.parent.mkdir(exist_ok=True)
    student.write_text(json.dumps(record))
    identity = Path("work/identity/evaluate") / f"{key}.json"
    identity.parent.mkdir(parents=True, exist_ok=True)
    identity.write_text(json.dumps({"params": {"seed": 3, "runs.x": key}}))


@pytest.fixture(autouse=True)
def project(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the stored scores of two default runs, made at two commits; a test fails if a stage runs."""
    monkeypatch.setattr(pool, "run", lambda *_, **__: pytest.fail("something was run"))
    store("fashion_mnist-deterministic", "deterministic", [0.31, 0.33], "a" * 40, {"shared": 5.0, "own": 0.5})
    store("fashion_mnist-d_vbll", "d_vbll", [0.25], "b" * 40, {"shared": 5.0, "own": 2.0})
    Path("params.yaml").write_text("runs: {fashion_mnist-sngp: {dataset: fashion_mnist, method: sngp, setting: small}}")
    Path("params").mkdir()


def test_pages_are_made_from_stored_scores(command: Callable[..., str]) -> None:
    assert f"written: {PAGE}\n" in command("paper", "all")
    page = PAGE.read_text()
    assert "| DNN | — | 95.8 ± 0.19 | — | 0.028 ± 0.028 | 0.320 ± 0.010 | 0.183 ± 0.007 |" in page
    assert "| D-VBLL | — | 96.4 ± 0.12 | — | 0.022 ± 0.001 | 0.250 | 0.160 ± 0.001 |" in page
    assert page.split("\n")[2].startswith("**37 cells printed; 0 made") and "2 made on a stand-in.**" in page
    facts = facts_of(page)
    assert facts["commit"] == f"{'a' * 40}, {'b' * 40}" and facts["seed"] == "3" and facts["device"] == "a processor"
    # two fits of the shared trajectory, each counted once, and the three fits of the two runs
    assert float(facts["seconds of fitting"]) == 2 * 5.0 + 2 * 0.5 + 2.0
    # equal scores give equal bytes; without the scores, the stored CSV gives the same bytes
    first = files("results")
    command("paper", "all")
    Path("work").rename("gone")
    PAGE.write_text(page.replace("**37 cells", "**38 cells"))
    command("paper", "all")
    assert files("results") == first


def test_a_page_of_folds_names_every_run_and_adds_their_seconds(command: Callable[..., str]) -> None:
    folds = papers.load("vbll:table1").names.folds["CIFAR10"].of
    for fold, nll in zip(folds, (0.2, 0.3, 0.4), strict=True):
        store(f"{fold}-sngp", "sngp", [nll], "e" * 40, {"shared": 0.0, "own": 1.5}, fold)
    command("paper", "all")
    page = PAGE.with_stem("table1-cifar10-on-fashion_near").read_text()
    assert "0.300 ± 0.058 | 0.149 ± 0.005 |" in next(line for line in page.splitlines() if line.startswith("| SNGP |"))
    facts = facts_of(page)
    assert facts["runs"] == ", ".join(f"{fold}-sngp" for fold in folds) and facts["commit"] == "e" * 40
    assert len(facts["data sha256"].split(", ")) == 3 and float(facts["seconds of fitting"]) == 3 * 1.5


def files(folder: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(folder).rglob("*.*") if path.is_file()}


def test_a_page_keeps_the_rows_of_runs_that_the_project_lacks(command: Callable[..., str]) -> None:
    """For example, an overlay's runs were made in another clone. The page names their origin."""
    command("paper", "all")
    first = PAGE.read_text()
    shutil.rmtree("work")
    store("fashion_mnist-deterministic", "deterministic", [0.51, 0.53], "c" * 40, {"shared": 5.0, "own": 0.5})
    command("paper", "all")
    page = PAGE.read_text()
    row = next(line for line in first.splitlines() if line.startswith("| D-VBLL |"))
    assert row in page and "| 0.520 ± 0.010 |" in page and "0.320" not in page
    facts = facts_of(page)
    assert facts["commit"] == "c" * 40
    earlier = facts["rows of an earlier page"]
    assert earlier.startswith("D-VBLL: ") and f"{'a' * 40}, {'b' * 40}" in earlier
    command("paper", "all")  # again in this folder: the row has its own origin still
    assert PAGE.read_text() == page
    shutil.rmtree("work")
    store("fashion_mnist-sngp", "sngp", [0.41], "d" * 40, {"shared": 5.0, "own": 0.5})
    command("paper", "all")  # in a third folder: each row has the origin of the folder that made it
    made = facts_of(PAGE.read_text())["rows of an earlier page"].split(" // ")
    assert made[0].startswith("DNN: params") and f"commit {'c' * 40};" in made[0] and made[1:] == [earlier]


def test_missing_lists_the_cells_that_can_be_made_and_writes_nothing(command: Callable[..., str]) -> None:
    command("paper", "all")
    record = Path("work/student/fashion_mnist-sngp.run.json")
    record.write_text(Path("work/student/fashion_mnist-d_vbll.run.json").read_text())
    before = files(".")
    lines = command("paper", "all", "--missing").splitlines()
    at = lines.index("vbll:table1 CIFAR10: 37 printed, 0 made, 2 on a stand-in")
    assert lines[at + 1] == "  4 can be made: python -m pipeline repro, then paper all (7 s of fitting as recorded)"
    # two cells of this table, and the trained network's NLL in tables 3 and 7 of CIBER and table 5 of inducing weights
    printed = sum(len(path.read_text().splitlines()) - 1 for path in papers.HERE.glob("*.csv"))
    assert lines[-1] == f"made: 5 of {printed}, 0 on the papers' data and 5 on a stand-in"
    assert files(".") == before
