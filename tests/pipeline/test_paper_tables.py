"""A paper's printed figures and how ours stand beside them: runs, agreement, the table."""

from pathlib import Path

import pytest

from bdl_pipe import papers
from bdl_pipe.papers import Pair, Printed
from bdl_pipe.scores import Estimate
from pipeline.core.load import load
from pipeline.papers import Line, agreement, compare, grid, runs_of

ROOT = Path(__file__).parents[2]
RITTER = (2, 3, 5, 6, 7, 8, *range(11, 19))  # tables of one params file


def cell(ours: Estimate | None, value: str, error: str = "") -> Pair:
    return Pair(ours, Printed(value, error))


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
    assert agreement(papers.load("vbll:table2"), lines) == [
        "ours − paper (in combined standard errors; ! beyond 3: 1 of 3)",
        "VBLL disagrees: NLL +0.68 (+6.8 !), RMSE +0.08 (+0.7)",
        "RBF GP agrees: NLL +0.09 (+0.9)",
    ]


def test_tables_of_the_same_runs_show_their_own_alone() -> None:
    found = load(ROOT / "params/paper/inducing-table2.yaml")
    shown = {
        name: [row.key for row in runs_of(papers.load(f"inducing:{name}"), dataset, found)]
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
    assert papers.load("inducing:table6").source == "inducing-table2"


def test_every_method_of_ritter_has_one_run_and_every_run_a_method() -> None:
    found, shown = load(ROOT / "params/paper/inducing-table2.yaml"), set[str]()
    for table in (papers.load(f"inducing:table{number}") for number in RITTER):
        assert table.source == "inducing-table2"
        for dataset, figures in table.figures.items():
            lines = compare(table, dataset, found, evaluated=())
            assert [line.method for line in lines] == [*figures]
            keys = [line.run for line in lines if line.run is not None]
            assert len(keys) == len(set(keys)) == len(figures)
            for line in lines:
                assert {m: cell.paper for m, cell in line.cells.items() if cell.paper} == figures[line.method]
            shown |= {*keys}
    assert shown == {row.key for row in found.of("student")}


def test_a_log_likelihood_below_zero_and_above_is_compared_as_any_other() -> None:
    table = papers.load("ciber:table1")
    below = {"log_likelihood": cell(Estimate(-2.0, 0.03, 20), "-2.471", "0.140")}
    above = {"log_likelihood": cell(Estimate(6.0, 0.03, 20), "7.482", "0.188")}
    lines = [Line("CIBER (LAST)", "run", "", True, below), Line("SWAG", "run", "", True, above)]
    assert agreement(table, lines)[1:] == [
        "CIBER (LAST) disagrees: LL +0.471 (+3.3 !)",
        "SWAG disagrees: LL -1.482 (-7.8 !)",
    ]


@pytest.mark.parametrize(
    "name, dataset", [("vbll:table3", "Yacht"), ("inducing:table7", "CIFAR10"), ("vbpc:table10", "CIFAR10")]
)
def test_a_table_shows_all_that_the_paper_prints_beside_ours(name: str, dataset: str) -> None:
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
    shown = grid(table, dataset, lines)
    for (method, figures), row in zip(table.figures[dataset].items(), shown.rows, strict=True):
        texts = dict(zip(shown.head, (cell.text for cell in row), strict=True))
        assert texts["method"] == method and texts["seconds"] == "3 s"
        for metric, printed in figures.items():
            assert texts[f"{table.title(metric)} paper"] == printed.text
            assert texts[f"{table.title(metric)} ours"].startswith("12.3")


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
