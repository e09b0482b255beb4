"""A paper's printed figures and how ours stand beside them: names, differences, the terminal."""

import io
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from paper_cases import printed_in
from rich.console import Console

from bdl_pipe.errors import ConfigError
from pipeline import papers
from pipeline.core import scores
from pipeline.core.load import load
from pipeline.core.scores import Estimate, Quantity, RunScores, Score
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


def stored(figures: Iterable[tuple[int, int, Quantity, float]]) -> RunScores:
    return RunScores(scores.table("d", "m", "s", [Score(*figure, n=10) for figure in figures]))


def test_seeds_of_a_split_are_averaged_before_the_error() -> None:
    run = stored((split, seed, Quantity("nll"), 10.0 * split + seed) for split in range(3) for seed in range(2))
    spread = pytest.approx(10 / math.sqrt(3))
    assert run.estimate(Quantity("nll")) == Estimate(10.5, spread, 3)
    assert run.estimate(Quantity("nll"), 100).mean == pytest.approx(1050)  # type: ignore[union-attr]
    assert run.estimate(Quantity("rmse")) is None


def test_a_severity_is_the_mean_over_corruptions_within_a_seed() -> None:
    table = papers.load("inducing:table12")
    wanted = table.quantity("ece:sev. 3", "FFG-U")
    assert (wanted, table.title("ece:sev. 3")) == (Quantity("ece", "corrupted", severity=3), "ECE % sev. 3")
    run = stored(
        (0, seed, Quantity("ece", "corrupted", kind, severity), 0.1 * i + 0.01 * seed)
        for i, kind in enumerate(("fog", "snow", "frost"))
        for severity in (1, 3)
        for seed in range(4)
        if not (kind == "fog" and severity == 1)
    )
    spread = pytest.approx(math.sqrt(5 / 3) / 2)  # of 10, 11, 12, 13, whatever the corruptions' own spread
    assert run.estimate(wanted, 100) == Estimate(pytest.approx(11.5), spread, 4)
    first = run.estimate(Quantity("ece", "corrupted", severity=1), 100)
    assert first == Estimate(pytest.approx(16.5), spread, 4)
    assert run.estimate(Quantity("ece", "corrupted", severity=2)) is None
    assert run.estimate(Quantity("ece")) is None


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


ALL = [("vbll", n) for n in (1, 2, 3, 4)] + [("inducing", n) for n in RITTER] + [("ciber", n) for n in ZENG]
NEVER_NEGATIVE = ("nll", "rmse", "accuracy", "ece", "brier", "auroc", "aupr")


@pytest.mark.parametrize(("paper", "number"), ALL)
def test_every_name_of_a_table_has_a_counterpart(paper: str, number: int) -> None:
    table = papers.load(f"{paper}:table{number}")
    for dataset, methods in table.figures.items():
        assert dataset in table.names.datasets
        for method, figures in methods.items():
            for metric, printed in figures.items():
                of = table.quantity(metric, method)
                assert (of.name is not None) == (of.set in ("ood", "transfer"))
                assert (of.severity is not None) == (of.set == "corrupted")
                assert of.metric and (of.score is not None) == (of.set == "ood") and float(printed.error or 0) >= 0
                kind = metric.partition(":")[0]
                assert float(printed.value) >= 0 if kind in NEVER_NEGATIVE else kind.startswith("log_likelihood")


def test_figures_of_the_paper_by_hand() -> None:
    """Read off the printed tables."""
    second, first = papers.load("vbll:table2"), papers.load("vbll:table1").figures["CIFAR10"]
    assert second.figures["Energy"]["Dropout"]["nll"] == Printed("1.33", "0.00")
    assert second.figures["Boston"]["VBLL"]["rmse"] == Printed("1.42", "0.05")
    assert papers.load("vbll:table3").figures["Yacht"]["MAP"]["nll"] == Printed("5.14", "1.62")
    assert first["D-VBLL"]["accuracy"] == Printed("96.4", "0.12")
    assert first["G-VBLL-MAP"].keys() == {"auroc:SVHN", "auroc:CIFAR100"}
    assert [len(second.figures[d]) for d in second.figures] == [10, 10, 10]
    first, auroc = papers.load("vbll:table1"), Quantity("auroc", "ood", "svhn", score="max_prob")
    assert first.quantity("auroc:SVHN", "G-VBLL-MAP") == replace(auroc, score="refit_density")
    assert first.quantity("auroc:SVHN", "DNN") == first.quantity("auroc:SVHN", None) == auroc


def test_figures_of_ritter_by_hand() -> None:
    """Read off the printed tables: the first of a row, the last, one between; the main text's table 2 is of 5 and 6."""

    def printed(number: int, dataset: str, method: str, metric: str) -> Printed:
        return papers.load(f"inducing:table{number}").figures[dataset][method][metric]

    assert printed(5, "CIFAR10", "FFG-U (M=128)", "ece") == Printed("1.59", "0.06")
    assert printed(6, "CIFAR100", "Ensemble-W", "brier") == Printed("0.31")
    assert printed(3, "CIFAR100", "FFG-W", "aupr:SVHN") == Printed(".69", ".01")
    assert printed(3, "CIFAR10", "Ensemble-U", "auroc:CIFAR100") == Printed(".90", ".00")
    assert printed(11, "CIFAR10", "Deterministic", "accuracy:sev. 1") == Printed("87.90")
    assert printed(12, "CIFAR10", "FFG-U", "ece:sev. 3") == Printed("7.77")
    assert printed(13, "CIFAR100", "Ensemble-U", "accuracy:sev. 5") == Printed("30.85")
    assert printed(14, "CIFAR100", "FFG-W", "ece:sev. 2") == Printed("11.07")
    assert printed(7, "CIFAR10", "FFG-W (0.1%)", "accuracy") == Printed("58.59", "0.75")
    assert printed(7, "CIFAR100", "FFG-U (25%)", "brier") == Printed("0.42", "0.00")
    assert printed(8, "CIFAR10", "FFG-W (0.1%)", "aupr:SVHN") == Printed(".24", ".03")
    assert printed(8, "CIFAR100", "FFG-U (75%)", "auroc:SVHN") == Printed(".82", ".01")
    assert printed(15, "CIFAR10", "FFG-W (0.1%)", "accuracy:sev. 1") == Printed("46.33")
    assert printed(16, "CIFAR10", "FFG-U (50%)", "ece:sev. 3") == Printed("5.44")
    assert printed(17, "CIFAR100", "FFG-U (25%)", "accuracy:sev. 5") == Printed("27.93")
    assert printed(18, "CIFAR100", "FFG-W (1%)", "ece:sev. 2") == Printed("11.99")
    for dataset, number in (("CIFAR10", 5), ("CIFAR100", 6)):
        short, long = papers.load("inducing:table2"), papers.load(f"inducing:table{number}").figures[dataset]
        for method, figures in short.figures[dataset].items():
            name = f"{method} (M=64)" if method.endswith("-U") else method
            assert {metric: p.value for metric, p in figures.items()} == {m: long[name][m].value for m in figures}
    count = {n: len(papers.load(f"inducing:table{n}").figures) for n in RITTER}
    assert count == {n: 2 if n in (2, 3, 7, 8) else 1 for n in RITTER}


def test_figures_of_zeng_by_hand() -> None:
    """Read off the printed tables: corners, and what is printed twice."""
    printed = printed_in("ciber")
    assert printed(1, "Boston", "CIBER (SECOND)", "log_likelihood") == Printed("-2.471", "0.140")
    assert printed(1, "Naval", "CIBER (LAST)", "log_likelihood") == Printed("7.482", "0.188")
    assert printed(1, "Energy", "VSD", "log_likelihood") == Printed("-1.060", "0.010")
    assert printed(2, "Pol", "PCA+ESS (SI)", "log_likelihood_normalised") == Printed("-0.185", "2.779")
    assert printed(2, "Elevators", "ORTHVGP", "log_likelihood_normalised") == Printed("-0.448")
    assert printed(5, "Concrete", "CIBER (LAST)", "rmse") == Printed("4.854", "0.503")
    assert printed(6, "Skillcraft", "FF", "rmse") == Printed("0.250", "0.020")
    assert printed(6, "Keggd", "CIBER (SECOND)", "rmse") == Printed("0.142", "0.074")
    assert printed(4, "CIFAR10", "SGD (PreResNet-164)", "accuracy:STL10") == Printed("75.56", "0.00")
    assert printed(10, "CIFAR10", "CIBER (WideResNet)", "ece:STL10") == Printed("0.0336", "0.0009")
    assert printed(8, "CIFAR100", "SWAG (PreResNet-164)", "accuracy") == Printed("73.02", "10.30")
    tables = {number: papers.load(f"ciber:table{number}").figures for number in ZENG}
    count = {n: sum(map(len, tables[n].values())) for n in ZENG}
    assert count == {1: 55, 2: 47, 3: 12, 4: 8, 5: 40, 6: 58, 7: 36, 8: 36, 9: 36, 10: 4}
    for number, metric in ((7, "nll"), (8, "accuracy"), (9, "ece")):
        for dataset, figures in tables[3].items():
            for method, row in figures.items():
                assert printed(number, dataset, method, metric) == row[metric]


def test_what_stands_for_the_names_of_zeng() -> None:
    tables = {number: papers.load(f"ciber:table{number}") for number in ZENG}
    assert [tables[n].source for n in ZENG] == [f"table{n}" for n in (1, 2, 3, 3, 1, 2, 3, 3, 3, 3)]
    assert tables[1].quantity("log_likelihood", "SWAG") == Quantity("log_likelihood")
    assert tables[2].quantity("log_likelihood_normalised", "SWAG") == Quantity("log_likelihood_normalised")
    assert tables[4].quantity("nll:STL10", "SWA (VGG-16)") == Quantity("nll", "transfer", "stl10")
    assert tables[1].folder == "collapsed" and papers.load("vbll:table2").folder == "vbll"
    small, images = tables[1].names.methods, tables[7].names.methods
    assert (small["SGD"].method, small["SGD"].setting) == ("deterministic", "")
    assert (images["SGD (VGG-16)"].method, images["SGD (VGG-16)"].setting) == ("deterministic", "VGG-16")
    unbuilt = [name for name, known in small.items() if known.method is None]
    assert unbuilt == ["DVI", "DGP", "VI", "VSD", "ORTHVGP", "NL", "DKL", "FF"]


def test_a_log_likelihood_below_zero_and_above_is_compared_as_any_other() -> None:
    table = papers.load("ciber:table1")
    below = {"log_likelihood": cell(Estimate(-2.0, 0.03, 20), "-2.471", "0.140")}
    above = {"log_likelihood": cell(Estimate(6.0, 0.03, 20), "7.482", "0.188")}
    lines = [Line("CIBER (LAST)", "run", "", True, below), Line("SWAG", "run", "", True, above)]
    assert show.agreement(table, lines).splitlines()[1:] == [
        "  CIBER (LAST) disagrees: LL +0.471 (+3.3 !)",
        "  SWAG disagrees: LL -1.482 (-7.8 !)",
    ]


@pytest.mark.parametrize(("whole", "pruned"), [(5, 7), (6, 7), (3, 8), (11, 15), (12, 16), (13, 17), (14, 18)])
def test_what_is_not_pruned_is_printed_twice(whole: int, pruned: int) -> None:
    above = papers.load(f"inducing:table{whole}").figures
    below = papers.load(f"inducing:table{pruned}").figures
    for dataset, figures in above.items():
        assert len(below[dataset]) == 9 and len({frozenset(row) for row in below[dataset].values()}) == 1
        assert below[dataset]["FFG-W (100%)"] == figures["FFG-W"]
        assert below[dataset]["FFG-U (100%)"] == figures["FFG-U (M=64)" if whole in (5, 6) else "FFG-U"]


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
