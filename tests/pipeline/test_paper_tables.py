"""A paper's printed figures and how ours stand beside them: names, differences, the terminal."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from bdl_pipe.errors import ConfigError
from bdl_pipe.scores import Estimate, Quantity
from pipeline import papers
from pipeline.core.load import load
from pipeline.papers import Printed, compare, show
from pipeline.papers.compare import Line, Pair

ROOT = Path(__file__).parents[2]
ZENG = range(1, 11)
RITTER = (2, 3, 5, 6, 7, 8, *range(11, 19))  # tables of one params file


def cell(ours: Estimate | None, value: str, error: str = "") -> Pair:
    return Pair(ours, Printed(value, error))


def test_differences_in_combined_standard_errors() -> None:
    assert cell(Estimate(2.0, 0.3, 20), "1.50", "0.40").z == pytest.approx(1.0)  # √(0.09 + 0.16) = 0.5
    assert not cell(Estimate(3.0, 0.3, 20), "1.50", "0.40").far  # exactly 3
    assert cell(Estimate(3.01, 0.3, 20), "1.50", "0.40").far and cell(Estimate(-0.01, 0.3, 20), "1.50", "0.40").far
    assert cell(Estimate(math.nan, math.nan, 20), "1.50", "0.40").far
    assert cell(Estimate(2.0, 0.5, 20), "1.50", "0.00").z == pytest.approx(1.0)
    for unknown in (
        cell(None, "1.5", "0.4"),
        cell(Estimate(2, None, 1), "1.5", "0.4"),
        cell(Estimate(2, 0.0, 2), "1.5", "0.0"),
    ):
        assert unknown.z is None and not unknown.far
    assert cell(Estimate(2, 0.3, 2), "1.5").z is None and Pair(Estimate(2, 0.3, 2)).z is None


def test_disagreement_is_said_with_its_size() -> None:
    far = {
        "nll": cell(Estimate(2.48, 0.08, 20), "1.80", "0.06"),
        "rmse": cell(Estimate(1.50, 0.10, 20), "1.42", "0.05"),
    }
    near = {"nll": cell(Estimate(2.50, 0.08, 20), "2.41", "0.06"), "rmse": cell(None, "2.83", "0.16")}
    lines = [
        Line("VBLL", "run", "", True, far),
        Line("RBF GP", "run", "", True, near),
        Line("GBLL", None, "", False, {}),
    ]
    assert show.agreement(papers.load("vbll:table2"), lines).splitlines() == [
        "ours − paper (in combined standard errors; ! beyond 3: 1 of 3)",
        "  VBLL disagrees: NLL +0.68 (+6.8 !), RMSE +0.08 (+0.7)",
        "  RBF GP agrees: NLL +0.09 (+0.9)",
    ]


def test_a_severity_is_a_quantity_of_all_corruptions() -> None:
    table = papers.load("inducing:table12")
    wanted = table.quantity("ece:sev. 3", "FFG-U")
    assert (wanted, table.title("ece:sev. 3")) == (Quantity("ece", "corrupted", severity=3), "ECE % sev. 3")


def test_tables_of_the_same_runs_show_their_own_alone() -> None:
    found = load(ROOT / "params/paper/inducing-table2.yaml")
    shown = {
        name: [row.key for row in compare.runs_of(papers.load(f"inducing:{name}"), dataset, found)]
        for name, dataset in (
            ("table2", "CIFAR10"),
            ("table5", "CIFAR10"),
            ("table3", "CIFAR100"),
            ("table7", "CIFAR100"),
        )
    }
    own = ["deterministic", "ensemble", "ffg_w", "ffg_u", "ensemble_u"]
    assert shown["table2"] == [f"cifar10-{key}" for key in own]
    assert shown["table5"] == [f"cifar10-{key}" for key in (*own, "ffg_u-128", "ensemble_u-128")]
    assert shown["table3"] == [f"cifar100-{key}" for key in own]
    weights, inducing = (50, 10, 1, "0_1"), (75, 50, 25)  # per cent that are left
    left = [f"ffg_w-left-{n}" for n in weights] + [f"ffg_u-left-{n}" for n in inducing]
    assert shown["table7"] == [f"cifar100-{key}" for key in ("ffg_w", "ffg_u", *left)]
    assert papers.load("inducing:table6").source == "table2"


def test_every_method_of_ritter_has_one_run_and_every_run_a_method() -> None:
    found, shown = load(ROOT / "params/paper/inducing-table2.yaml"), set[str]()
    for table in (papers.load(f"inducing:table{number}") for number in RITTER):
        assert table.source == "table2"
        for dataset, figures in table.figures.items():
            lines = compare.compare(table, dataset, found, evaluated=())
            assert [line.method for line in lines] == [*figures]
            keys = [line.run for line in lines if line.run is not None]
            assert len(keys) == len(set(keys)) == len(figures)
            for line in lines:
                assert {m: cell.paper for m, cell in line.cells.items() if cell.paper} == figures[line.method]
            shown |= {*keys}
    assert shown == {row.key for row in found.of("student")}


LEE = (1, 2, 3, 4, 8, 9, 10)
ALL = (
    [("vbll", n) for n in (1, 2, 3, 4)]
    + [("vbpc", n) for n in LEE]
    + [("inducing", n) for n in RITTER]
    + [("ciber", n) for n in ZENG]
)
NEVER_NEGATIVE = ("nll", "rmse", "accuracy", "ece", "brier", "auroc", "aupr", "aupr_in", "aupr_out")


@pytest.mark.parametrize(("paper", "number"), ALL)
def test_every_name_of_a_table_has_a_counterpart(paper: str, number: int) -> None:
    table = papers.load(f"{paper}:table{number}")
    for dataset, methods in table.figures.items():
        assert dataset in table.names.datasets
        for method, figures in methods.items():
            for metric, printed in figures.items():
                of = table.quantity(metric, method)
                elsewhere = of.set in ("ood", "transfer", "corrupted")
                assert (of.name is not None or of.severity is not None) == elsewhere
                assert of.metric and (of.score is not None) == (of.set == "ood") and float(printed.error or 0) >= 0
                kind = metric.partition(":")[0]
                assert float(printed.value) >= 0 if kind in NEVER_NEGATIVE else kind.startswith("log_likelihood")


def test_a_log_likelihood_below_zero_and_above_is_compared_as_any_other() -> None:
    table = papers.load("ciber:table1")
    below = {"log_likelihood": cell(Estimate(-2.0, 0.03, 20), "-2.471", "0.140")}
    above = {"log_likelihood": cell(Estimate(6.0, 0.03, 20), "7.482", "0.188")}
    lines = [Line("CIBER (LAST)", "run", "", True, below), Line("SWAG", "run", "", True, above)]
    assert show.agreement(table, lines).splitlines()[1:] == [
        "  CIBER (LAST) disagrees: LL +0.471 (+3.3 !)",
        "  SWAG disagrees: LL -1.482 (-7.8 !)",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "name, dataset",
    [
        ("vbll:table1", "CIFAR10"),
        ("vbll:table3", "Yacht"),
        ("inducing:table11", "CIFAR10"),
        ("inducing:table7", "CIFAR10"),
        ("ciber:table1", "Boston"),
        ("ciber:table3", "CIFAR10"),
        ("vbpc:table3", "CIFAR10"),
        ("vbpc:table10", "CIFAR10"),
    ],
)
def test_a_terminal_of_any_width_shows_all(name: str, dataset: str, width: int) -> None:
    table = papers.load(name)
    lines = [
        Line(
            method,
            "run",
            "",
            True,
            {m: Pair(Estimate(12.3456, 1.5, 20), f.get(m)) for m in table.metrics(dataset)},
            3.0,
        )
        for method, f in table.figures[dataset].items()
    ]
    console = Console(width=width, record=True, file=io.StringIO())
    show.terminal(table, dataset, lines, console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    for figures in table.figures[dataset].values():
        for metric, printed in figures.items():
            assert printed.text in text and all(part in text for part in table.title(metric, "\n").split("\n"))


def test_every_params_file_of_a_table_is_right() -> None:
    paths = sorted(
        path for paper in ("vbll", "inducing", "ciber", "vbpc") for path in ROOT.glob(f"params/paper/{paper}-*.yaml")
    )
    assert len(paths) >= 9
    for path in paths:
        table = papers.load(path.stem.replace("-", ":", 1))
        found = load(path)
        known = {table.names.datasets[name] for name in table.figures}
        assert {row.spec.dataset for row in found.of("student")} <= known
        assert f"python -m pipeline paper {table}" in path.read_text()


def test_a_name_without_a_counterpart_is_told(tmp_path: Path) -> None:
    for name in ("vbll.yaml", "vbll.csv"):
        (tmp_path / name).write_bytes((papers.HERE / name).read_bytes())
    text = (tmp_path / "vbll.yaml").read_text()
    (tmp_path / "vbll.yaml").write_text(text.replace("  SWAG: {method: swag}\n", ""))
    with pytest.raises(ConfigError, match=r"vbll\.csv: SWAG has no counterpart in the paper's yaml"):
        papers.load("vbll:table2", tmp_path)
