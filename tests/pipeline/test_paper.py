"""A paper's table: what is run and what is not, ours against hand-made figures, the files, the errors."""

import csv
import io
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from rich.console import Console
from torch import Tensor

from bdl_pipe import config, evaluation
from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import Split
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.posterior import Fitted
from bdl_pipe.predictive import Categorical, Gaussian, Predictive
from bdl_pipe.seeds import Seed
from pipeline import cli, current, paper, papers, params, places, shell, stage, tracking
from pipeline.papers import Printed, compare, show
from pipeline.papers.compare import Cell, Line, Mean
from pipeline.report.sections import OOD_SCORES
from pipeline.settings import Settings

ROOT = Path(__file__).parents[2]
TREE = Path("work/paper/vbll-table2")
SGD = {
    "network": {"name": "mlp", "hidden": [4]},
    "epochs": 2,
    "keep": 1,
    "batch": 64,
    "optimiser": {"name": "adamw", "rate": 1.0e-2},
}
ROW = {"dataset": "boston", "members": 1, "setting": "tiny", "input": "trajectory/boston-sgd"}
TINY: dict[str, Any] = {
    "seed": 0,
    "datasets": {
        "boston": {
            "source": {"name": "boston"},
            "normalise": "train",
            "whiten": False,
            "validation": 0.2,
            "fit_rows": "train_and_validation",
            "splits": 2,
            "ood": [],
            "corrupted_images": 0,
            "corruptions": "made",
        }
    },
    "methods": {"sgd": SGD, "deterministic": {}, "ensemble": {}},
    "trajectories": {
        "boston-sgd": {"dataset": "boston", "method": "sgd", "members": 2, "input": "prepare/boston"},
        "boston-other": {"dataset": "boston", "method": "sgd", "members": 1, "input": "prepare/boston"},
    },
    "teachers": {},
    "coresets": {},
    "runs": {
        "boston-deterministic": {**ROW, "method": "deterministic", "input": "trajectory/boston-other"},
        "boston-ensemble": {**ROW, "method": "ensemble"},
    },
    "evaluate": {"calibration_bins": 15, "batch": 100, "joint_pairs": 0},
    "report": {"figures_dpi": 110},
}
ALL = [
    "prepare boston",
    "trajectory boston-sgd",
    "trajectory boston-other",
    "student boston-deterministic",
    "student boston-ensemble",
    "evaluate boston-deterministic",
    "evaluate boston-ensemble",
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with the tiny params file, without tracking."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tracking, "_stopped", True)
    write(TINY)
    return tmp_path


def write(raw: Any) -> None:
    path = Path("params/paper/vbll-table2.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(raw, sort_keys=False))


def with_override(section: str, key: str, override: dict[str, Any]) -> dict[str, Any]:
    row = {**TINY[section][key], "override": override}
    return {**TINY, section: {**TINY[section], key: row}}


def go(capsys: pytest.CaptureFixture[str], *words: str, rc: int = 0) -> tuple[list[str], str]:
    """The stages that ran, and all that was printed on stdout (on stderr where it fails)."""
    capsys.readouterr()
    assert cli.main(["paper", "vbll:table2", "--executor", "inline", *words]) == rc
    out, err = capsys.readouterr()
    ran = [line.removesuffix(": done") for line in err.splitlines() if line.endswith(": done")]
    return ran, err if rc else out


def test_only_what_is_out_of_date_runs_again(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran, _ = go(capsys)
    assert ran == ALL
    first = {p: p.read_bytes() for p in Path("results").rglob("*.*")}
    assert sorted(p.name for p in first) == ["table2-boston.csv", "table2-boston.md"]
    assert go(capsys)[0] == []
    assert {p: p.read_bytes() for p in Path("results").rglob("*.*")} == first, "equal results, other bytes"
    # a number: its branch and what depends on it, and nothing beside
    write(with_override("trajectories", "boston-other", {"epochs": 1}))
    assert go(capsys)[0] == [name for name in ALL if "other" in name or "deterministic" in name]
    # an artifact that is gone: itself; what was made from it still is what it was made from
    gone = TREE / "trajectory/boston-sgd"
    (gone / "manifest.json").unlink()
    assert go(capsys)[0] == ["trajectory boston-sgd"]
    # an artifact that is not the one that was recorded
    place = TREE / "evaluate/boston-ensemble.identity.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "made": ["0"]}))
    assert go(capsys)[0] == ["evaluate boston-ensemble"]


STALE: dict[str, tuple[dict[str, Any], Settings, list[str]]] = {
    "nothing": ({}, Settings("inline"), []),
    "seed": ({"seed": 1}, Settings("inline"), ALL),
    "splits": ({"datasets": {"boston": {**TINY["datasets"]["boston"], "splits": 3}}}, Settings("inline"), ALL[:1]),
    "members": (
        {"trajectories": {**TINY["trajectories"], "boston-sgd": {**TINY["trajectories"]["boston-sgd"], "members": 3}}},
        Settings("inline"),
        ["trajectory boston-sgd"],
    ),
    "evaluate": ({"evaluate": {**TINY["evaluate"], "batch": 99}}, Settings("inline"), ALL[-2:]),
    "threads": ({}, Settings("inline", threads=2), ALL),
    "who runs it": ({}, Settings("ray", address="head:1", checkpoint_seconds=1.0), []),
    "the report's look": ({"report": {"figures_dpi": 50}}, Settings("inline"), []),
}


def test_what_makes_a_stage_stale_before_anything_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go(capsys)
    for name, (change, settings, stale) in STALE.items():
        write({**TINY, **change})
        asked = paper.read("vbll:table2", None, None, None)
        with places.rooted(TREE):
            todo = current.steps(asked.params, asked.runs)
            found = [str(step) for step in todo if not current.is_current(step, asked.params, settings)]
        assert found == stale, name


def test_other_code_makes_every_stage_stale(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go(capsys, "--method", "deterministic")
    monkeypatch.setattr(current, "_shells", lambda: "edited")
    assert len(go(capsys, "--method", "deterministic")[0]) == 4


def test_an_interrupted_run_goes_on(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, calls = stage.make, list[int]()

    def stopped(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:  # two trajectories, each of a table made as one, then a student's second member
            raise KeyboardInterrupt
        return make(*args)

    monkeypatch.setattr(stage, "make", stopped)
    assert cli.main(["paper", "vbll:table2", "--executor", "inline"]) == 130
    assert not Path("results").exists()
    assert (TREE / "prepare/boston/manifest.json").is_file()
    assert (TREE / "trajectory/boston-other").exists()
    assert not any(path.is_dir() for path in (TREE / "student").glob("*"))
    ran, _ = go(capsys)
    assert ran == ALL[3:]
    assert len(calls) == 4 + 1 + 2, "finished members were made again"
    assert not list(Path(".state/checkpoints").rglob("*.done"))


def test_the_figures_are_those_of_the_scores(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = go(capsys, "--dataset", "boston")
    scores = pq.read_table(TREE / "evaluate/boston-ensemble/scores.parquet").to_pylist()
    nll = [s["value"] for s in scores if (s["split"], s["metric"]) == ("test", "nll")]
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
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert f"{mean:.2f} ± {error:.2f}" in lines["Ensemble"] and "2.48 ± 0.09" in lines["Ensemble"]
    assert "not run" in lines["VBLL"] and "1.80 ± 0.04" in lines["VBLL"]
    assert "of this table, not in params/paper/vbll-table2.yaml: Concrete, Energy" in " ".join(out.split())
    page = Path("results/vbll/table2-boston.md").read_text()
    for fact in (
        "| command |",
        "| params |",
        "| commit |",
        "| data sha256 |",
        "| device |",
        "| threads of a task | 1 |",
    ):
        assert fact in page
    assert page.count("| not run |") == 2 * 9 and "2.48 ± 0.09" in page


def test_a_chosen_method_runs_alone_and_none_is_hidden(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran, out = go(capsys, "--method", "ENSEMBLE")
    assert ran == [name for name in ALL if "other" not in name and "deterministic" not in name]
    assert all(name in out for name in papers.load("vbll:table2").figures["Boston"])
    line = next(line for line in out.splitlines() if line.startswith("deterministic"))
    assert line.count("not run") == 2
    # what is up to date is shown whatever was chosen; what no longer is, is not
    _, out = go(capsys, "--method", "deterministic")
    assert next(line for line in out.splitlines() if line.startswith("Ensemble")).count("not run") == 0
    write(with_override("trajectories", "boston-sgd", {"epochs": 1}))
    _, out = go(capsys, "--method", "deterministic")
    assert next(line for line in out.splitlines() if line.startswith("Ensemble")).count("not run") == 2


def test_another_number_of_splits_costs_no_results(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go(capsys, "--method", "deterministic")
    ran, out = go(capsys, "--method", "deterministic", "--splits", "1")
    assert len(ran) == 4
    assert "agreement: no method has figures with a standard error on both sides" in out
    assert Path("results/vbll/table2-boston-1-splits.md").is_file()
    assert go(capsys, "--method", "deterministic")[0] == []


WRONG = {
    "paper": (["vbl:table2"], "paper: vbl: is not a paper (did you mean vbll?)"),
    "no table": (["vbll"], "vbll: must be <paper>:<table>"),
    "table": (["vbll:tabel2"], "vbll has no such table (did you mean table2?)"),
    "no params file": (["vbll:table1"], "vbll:table1: there is no params/paper/vbll-table1.yaml"),
    "data set": (
        ["vbll:table2", "--dataset", "Bostn"],
        "--dataset Bostn: is not a data set of vbll:table2 (did you mean Boston?)",
    ),
    "data set without a row": (
        ["vbll:table2", "--dataset", "Boston,Concrete"],
        "--dataset Concrete: has no row in params/paper",
    ),
    "empty name": (
        ["vbll:table2", "--dataset", "Boston,"],
        "--dataset: must be names with a comma between, got 'Boston,'",
    ),
    "method": (["vbll:table2", "--method", "Ensembel"], "(did you mean Ensemble?)"),
    "method without a run": (["vbll:table2", "--method", "SWAG"], "(it has: deterministic, ensemble)"),
}


@pytest.mark.parametrize("words, said", WRONG.values(), ids=WRONG)
def test_bad_names_are_one_line_before_any_work(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main(["paper", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not Path("work").exists() and not Path("results").exists()


def test_a_wrong_number_names_its_file(project: Path) -> None:
    write({**TINY, "methods": {**TINY["methods"], "sgd": {**SGD, "epochs": 0}}})
    with pytest.raises(UserError, match=r"params/paper/vbll-table2\.yaml: methods\.sgd\.epochs must be > 0, got 0"):
        paper.read("vbll:table2", None, None, None)


def test_two_processes_do_not_share_a_tree(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with paper._alone(paper.read("vbll:table2", None, None, None)):
        _, err = go(capsys, rc=2)
    assert err == "paper: vbll:table2: another process is running it here\n"


def cell(ours: Mean | None, value: str, error: str = "") -> Cell:
    return Cell(ours, Printed(value, error))


def test_differences_in_combined_standard_errors() -> None:
    assert cell(Mean(2.0, 0.3, 20), "1.50", "0.40").z == pytest.approx(1.0)  # √(0.09 + 0.16) = 0.5
    assert not cell(Mean(3.0, 0.3, 20), "1.50", "0.40").far  # exactly 3
    assert cell(Mean(3.01, 0.3, 20), "1.50", "0.40").far and cell(Mean(-0.01, 0.3, 20), "1.50", "0.40").far
    assert cell(Mean(math.nan, math.nan, 20), "1.50", "0.40").far
    assert cell(Mean(2.0, 0.5, 20), "1.50", "0.00").z == pytest.approx(1.0)
    for unknown in (
        cell(None, "1.5", "0.4"),
        cell(Mean(2, None, 1), "1.5", "0.4"),
        cell(Mean(2, 0.0, 2), "1.5", "0.0"),
    ):
        assert unknown.z is None and not unknown.far
    assert cell(Mean(2, 0.3, 2), "1.5").z is None and Cell(Mean(2, 0.3, 2)).z is None


def test_members_of_a_split_are_averaged_before_the_error() -> None:
    scores = [
        {"split": "test", "metric": "nll", "seed": split * 1000 + member, "value": 10.0 * split + member}
        for split in range(3)
        for member in range(2)
    ]
    found = compare.mean(scores, "test", "nll", fold=1000)
    assert found == Mean(10.5, pytest.approx(10 / math.sqrt(3)), 3)
    assert compare.mean(scores, "test", "nll", scale=100).n == 6  # type: ignore[union-attr]
    assert compare.mean(scores, "test", "nll", scale=100).value == pytest.approx(1050)  # type: ignore[union-attr]
    assert compare.mean(scores, "test", "rmse") is None


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4"])
def test_every_name_of_a_table_has_a_counterpart(name: str) -> None:
    table = papers.load(f"vbll:{name}")
    for dataset, methods in table.figures.items():
        assert dataset in table.names.datasets
        for method, figures in methods.items():
            for metric, printed in figures.items():
                split, score = table.score(metric, method)
                assert split == "test" or split.startswith("ood:")
                assert score and float(printed.value) > 0 and float(printed.error) >= 0


class Answering:
    """A posterior with every score that there is: its answer does not look at its inputs."""

    def __init__(self, task: str) -> None:
        self.task = task

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        draws = torch.randn(2, len(inputs), 3, generator=rng.fold("any").generator())
        if self.task == "regression":
            return Gaussian(draws[..., :1], draws[..., 1:2].exp())
        return Categorical(draws.log_softmax(-1), draws[0, :, 0], draws[0, :, 1])

    def state(self) -> State:
        return State({}, {"posterior": "answering"})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Answering":
        raise NotImplementedError


def written(task: str) -> dict[str, set[str]]:
    """The names of all scores that evaluation writes, of test rows and of other data."""
    fitted = Fitted(Answering(task), Transform("table", torch.zeros(2), torch.ones(2)))
    inputs = np.zeros((20, 2))
    targets = np.arange(20) % 3 if task == "classification" else np.zeros((20, 1))
    how = EvaluateConfig(calibration_bins=3, batch=8, joint_pairs=10)
    clean = evaluation.score_clean(fitted, Split(inputs, targets), how, Seed(0))
    return {"test": {*clean.metrics}, "ood": {*evaluation.score_ood(fitted, inputs, clean.in_scores, how, Seed(0))}}


@pytest.mark.parametrize("path", sorted(papers.HERE.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_score_that_a_paper_names_is_one_that_evaluation_writes(path: Path) -> None:
    names = config.read(papers.Names, params.read_yaml(path), path.name)
    found = [written(task) for task in ("classification", "regression")]
    known = {split: found[0][split] | found[1][split] for split in ("test", "ood")}
    assert "auroc" in known["ood"] and "auroc_density" not in known["ood"]
    with open(path.with_suffix(".csv"), newline="") as file:
        asked = {(row["method"], row["metric"]) for row in csv.DictReader(file)}
    for method, metric in asked:
        name, _, ood = metric.partition(":")
        special = names.methods[method].metrics
        assert special.get(name, names.metrics[name].metric) in known["ood" if ood else "test"], (method, metric)
    for method, counterpart in names.methods.items():
        assert counterpart.metrics.keys() <= names.metrics.keys(), method
        assert {*counterpart.metrics.values()} <= known["test"] | known["ood"], method


def test_every_score_of_other_data_has_its_columns_in_the_report() -> None:
    found = {name.removeprefix("auroc") for task in ("classification", "regression") for name in written(task)["ood"]}
    suffixes = {name for name in found if not name.startswith(("aupr", "fpr"))}
    assert suffixes == {*OOD_SCORES}


def test_figures_of_the_paper_by_hand() -> None:
    """Read off the printed tables."""
    second, first = papers.load("vbll:table2"), papers.load("vbll:table1").figures["CIFAR10"]
    assert second.figures["Energy"]["Dropout"]["nll"] == Printed("1.33", "0.00")
    assert second.figures["Boston"]["VBLL"]["rmse"] == Printed("1.42", "0.05")
    assert papers.load("vbll:table3").figures["Yacht"]["MAP"]["nll"] == Printed("5.14", "1.62")
    assert first["D-VBLL"]["accuracy"] == Printed("96.4", "0.12")
    assert first["G-VBLL-MAP"].keys() == {"auroc:SVHN", "auroc:CIFAR100"}
    assert [len(second.figures[d]) for d in second.figures] == [10, 10, 10]
    assert papers.load("vbll:table1").score("auroc:SVHN", "G-VBLL-MAP") == ("ood:svhn", "auroc_refit_density")
    assert papers.load("vbll:table1").score("auroc:SVHN", "DNN") == ("ood:svhn", "auroc")


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name, dataset", [("table1", "CIFAR10"), ("table3", "Yacht")])
def test_a_terminal_of_any_width_shows_all(name: str, dataset: str, width: int) -> None:
    table = papers.load(f"vbll:{name}")
    lines = [
        Line(method, "run", "", True, {m: Cell(Mean(12.3456, 1.5, 20), f.get(m)) for m in table.metrics(dataset)}, 3.0)
        for method, f in table.figures[dataset].items()
    ]
    console = Console(width=width, record=True, file=io.StringIO())
    show.terminal(table, dataset, lines, console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    for figures in table.figures[dataset].values():
        for metric, printed in figures.items():
            assert printed.text in text and table.title(metric) in text


@pytest.fixture
def opened(project: Path) -> Iterator[tuple[params.Params, Settings]]:
    found = paper.read("vbll:table2", None, None, None).params
    with places.rooted(TREE), shell.opened("inline", found) as (given, _, settings):
        yield given, settings


def test_places_are_rooted_for_the_block_alone() -> None:
    before = places.artifact("student", "x"), places.record("student", "x"), places.checkpoints("student", "x")
    with places.rooted(Path("there")):
        assert places.artifact("student", "x") == Path("there/student/x")
        assert places.record("student", "x") == Path("there/student/x.run.json")
        assert places.checkpoints("student", "x") == Path(".state/checkpoints/there/student/x")
    assert before == (
        places.artifact("student", "x"),
        places.record("student", "x"),
        places.checkpoints("student", "x"),
    )
    assert before[0] == Path("work/student/x") and before[2] == Path(".state/checkpoints/student/x")


def test_a_users_file_that_changes_is_prepared_again(opened: tuple[params.Params, Settings]) -> None:
    given, settings = opened
    table = {"name": "table", "path": "rows.csv", "target": ["y"], "task": "regression"}
    write({**TINY, "datasets": {"boston": {**TINY["datasets"]["boston"], "source": table}}})
    Path("rows.csv").write_text("x,y\n" + "\n".join(f"{i},{i * i % 7}" for i in range(60)))
    from pipeline.executors.inline import Inline

    given, step = paper.read("vbll:table2", None, None, None).params, current.Step("prepare", "boston")
    assert current.bring(step, given, Inline(settings), settings)
    assert not current.bring(step, given, Inline(settings), settings)
    Path("rows.csv").write_text(Path("rows.csv").read_text() + "\n60,3")
    assert current.bring(step, given, Inline(settings), settings)


def test_every_params_file_of_a_table_is_right() -> None:
    for path in sorted(ROOT.glob("params/paper/vbll-*.yaml")):
        table = papers.load(path.stem.replace("-", ":", 1))
        found = params.load(path)
        known = {table.names.datasets[name] for name in table.figures}
        assert {row.entry.dataset for row in found.of("student")} <= known
        assert f"python -m pipeline paper {table}" in path.read_text()


def test_a_name_without_a_counterpart_is_told(tmp_path: Path) -> None:
    for name in ("vbll.yaml", "vbll.csv"):
        (tmp_path / name).write_bytes((papers.HERE / name).read_bytes())
    text = (tmp_path / "vbll.yaml").read_text()
    (tmp_path / "vbll.yaml").write_text(text.replace("  SWAG: {method: swag}\n", ""))
    with pytest.raises(ConfigError, match=r"vbll\.csv: SWAG has no counterpart in the paper's yaml"):
        papers.load("vbll:table2", tmp_path)
