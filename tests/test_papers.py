"""The papers' printed figures: names, quantities, differences, our runs beside them, and the order of methods."""

import csv
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from bdl_pipe import scores
from bdl_pipe.data import corrupt
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.scores import Estimate, Quantity, RunScores, Score
from bdl_report import papers
from bdl_report.papers import Pair, Printed
from bdl_report.papers.comparison import Comparison, Line, Ours, compare
from bdl_report.papers.order import CLEAR, compared
from bdl_report.papers.pages import markdown

NEVER_NEGATIVE = ("nll", "rmse", "accuracy", "error", "ece", "brier", "auroc", "aupr", "aupr_in", "aupr_out")


def cell(ours: Estimate | None, value: str, error: str = "") -> Pair:
    return Pair(ours, Printed(value, error))


def test_differences_are_in_combined_standard_errors() -> None:
    assert cell(Estimate(2.0, 0.3, 20), "1.50", "0.40").z == pytest.approx(1.0)  # √(0.09 + 0.16) = 0.5
    assert not cell(Estimate(3.0, 0.3, 20), "1.50", "0.40").far  # exactly 3
    assert cell(Estimate(3.01, 0.3, 20), "1.50", "0.40").far and cell(Estimate(-0.01, 0.3, 20), "1.50", "0.40").far
    assert cell(Estimate(math.nan, math.nan, 20), "1.50", "0.40").far
    assert cell(Estimate(2.0, 0.5, 20), "1.50", "0.00").z == pytest.approx(1.0)
    cells = cell(None, "1.5", "0.4"), cell(Estimate(2, None, 1), "1.5", "0.4"), cell(Estimate(2, 0.0, 2), "1.5", "0.0")
    for unknown in cells:
        assert unknown.z is None and not unknown.far
    assert cell(Estimate(2, 0.3, 2), "1.5").z is None and Pair(Estimate(2, 0.3, 2)).z is None


def test_a_severity_is_of_all_corruptions_and_a_corruption_is_the_mean_over_its_severities() -> None:
    table = papers.load("inducing:table12")
    wanted = table.quantity("ece:sev. 3", "FFG-U")
    assert (wanted, table.title("ece:sev. 3")) == (Quantity("ece", "corrupted", severity=3), "ECE % sev. 3")
    table = papers.load("vbpc:table3")
    assert table.quantity("nll:gaussian blur", None) == Quantity("nll", "corrupted", "gaussian_blur")
    assert table.title("accuracy:gaussian blur") == "Acc. % gaussian blur"
    assert {name.replace("_", " ") for name in corrupt.NAMES} < {*papers.CORRUPTED}


@pytest.mark.parametrize("path", sorted(papers.HERE.glob("*.csv")), ids=lambda path: path.stem)
def test_every_name_of_a_table_has_a_counterpart(path: Path) -> None:
    with open(path, newline="") as file:
        numbers = {row["table"] for row in csv.DictReader(file)}
    for table in (papers.load(f"{path.stem}:{number}") for number in numbers):
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


def test_accuracy_becomes_an_error_in_per_cent_and_nll_a_log_likelihood() -> None:
    """Two splits of accuracy .98 and .96: an error of 3 ± 1 %."""
    scored = [
        Score(split, 0, Quantity(metric), value, 500)
        for metric, values in (("accuracy", (0.98, 0.96)), ("nll", (0.05, 0.07)))
        for split, value in enumerate(values)
    ]
    stored, table = RunScores(scores.table("mnist", "sgmcmc", "", scored)), papers.load("dark_knowledge:mnist")
    error, likelihood = (table.estimate(metric, "SGLD", stored) for metric in ("error", "log_likelihood"))
    assert error is not None and likelihood is not None
    assert (error.mean, error.error, error.n) == (pytest.approx(3), pytest.approx(1), 2)
    assert (likelihood.mean, likelihood.error) == (pytest.approx(-0.06), pytest.approx(0.01))


def test_an_unknown_paper_or_table_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"vbl: is not a paper \(did you mean vbll"):
        papers.load("vbl:table2")
    with pytest.raises(UserError, match=r"vbll has no such table \(did you mean table2"):
        papers.load("vbll:tabel2")


def test_the_error_names_a_method_without_a_counterpart(tmp_path: Path) -> None:
    for name in ("vbll.yaml", "vbll.csv"):
        (tmp_path / name).write_bytes((papers.HERE / name).read_bytes())
    text = (tmp_path / "vbll.yaml").read_text()
    (tmp_path / "vbll.yaml").write_text(text.replace("  SWAG: {method: swag}\n", ""))
    with pytest.raises(ConfigError, match=r"vbll\.csv: SWAG has no counterpart in the paper's yaml"):
        papers.load("vbll:table2", tmp_path)


def run(key: str, method: str, setting: str = "", nll: tuple[float, ...] = ()) -> Ours:
    """A run on Boston, with an NLL and an RMSE for each of some splits."""
    figures = [Score(split, 0, Quantity(m), v, 9) for split, v in enumerate(nll) for m in ("nll", "rmse")]
    figures += [Score(split, 0, Quantity("fit_seconds", "cost"), 2.0, 1) for split in range(len(nll))]
    stored = RunScores(scores.table("boston", method, setting, figures)) if nll else None
    return Ours(key, "boston", method, setting, stored)


def test_each_method_of_the_paper_has_its_runs_and_further_runs_follow() -> None:
    table = papers.load("vbll:table2")
    runs = [run("a", "ensemble", "x", (2.5, 2.7)), run("b", "ensemble", "y"), run("c", "gp")]
    runs += [run("d", "own", "z", (1.0,))]
    comparison = compare(table, "Boston", [*runs, Ours("e", "elsewhere", "ensemble")])
    ours = {line.method: line for line in comparison.lines if line.run}
    expected = {"Ensemble (x)": "a", "Ensemble (y)": "b", "RBF GP": "c", "own": "d"}
    assert {name: line.run for name, line in ours.items()} == expected
    others = [name for name in table.figures["Boston"] if name != "Ensemble"]
    assert [n for n in (line.method for line in comparison.lines) if not n.startswith("Ensemble (")] == [*others, "own"]
    texts = {row[0]: row[1:] for row in comparison.rows}
    assert comparison.head == ["method", "NLL ours", "NLL paper", "RMSE ours", "RMSE paper", "n", "seconds"]
    assert texts["Ensemble (x)"][:2] == ["2.60 ± 0.10", "2.48 ± 0.09"] and texts["Ensemble (x)"][-2:] == ["2", "2 s"]
    assert texts["Ensemble (y)"][0] == "not run" and texts["VBLL"][:2] == ["not run", "1.80 ± 0.04"]
    assert texts["own"][:2] == ["1.00", "—"] and comparison.counts == "n = 1 or 2"
    assert compare(table, "Boston", []).counts == "none run"


def test_a_disagreement_is_stated_with_its_size() -> None:
    far = {"nll": cell(Estimate(2.48, 0.08, 20), "1.80", "0.06")}
    far["rmse"] = cell(Estimate(1.50, 0.10, 20), "1.42", "0.05")
    near = {"nll": cell(Estimate(2.50, 0.08, 20), "2.41", "0.06"), "rmse": cell(None, "2.83", "0.16")}
    lines = [Line("VBLL", "run", "", True, far), Line("RBF GP", "run", "", True, near)]
    lines += [Line("GBLL", None, "", False, {})]
    assert Comparison(papers.load("vbll:table2"), "Boston", lines).agreement() == [
        "ours − paper (in combined standard errors; ! beyond 3: 1 of 3)",
        "VBLL disagrees: NLL +0.68 (+6.8 !), RMSE +0.08 (+0.7)",
        "RBF GP agrees: NLL +0.09 (+0.9)",
    ]


def test_log_likelihoods_of_either_sign_are_compared_by_their_difference() -> None:
    below = {"log_likelihood": cell(Estimate(-2.0, 0.03, 20), "-2.471", "0.140")}
    above = {"log_likelihood": cell(Estimate(6.0, 0.03, 20), "7.482", "0.188")}
    lines = [Line("CIBER (LAST)", "run", "", True, below), Line("SWAG", "run", "", True, above)]
    assert Comparison(papers.load("ciber:table1"), "Boston", lines).agreement()[1:] == [
        "CIBER (LAST) disagrees: LL +0.471 (+3.3 !)",
        "SWAG disagrees: LL -1.482 (-7.8 !)",
    ]


@pytest.mark.parametrize(
    "name, dataset", [("vbll:table3", "Yacht"), ("inducing:table7", "CIFAR10"), ("vbpc:table10", "CIFAR10")]
)
def test_a_table_shows_every_printed_figure_beside_ours(name: str, dataset: str) -> None:
    table, ours = papers.load(name), Estimate(12.3456, 1.5, 20)
    lines = [
        Line(method, "run", "", True, {m: Pair(ours, figures.get(m)) for m in table.metrics(dataset)}, 3.0)
        for method, figures in table.figures[dataset].items()
    ]
    shown = Comparison(table, dataset, lines)
    for (method, figures), row in zip(table.figures[dataset].items(), shown.rows, strict=True):
        texts = dict(zip(shown.head, row, strict=True))
        assert texts["method"] == method and texts["seconds"] == "3 s"
        for metric, printed in figures.items():
            assert texts[f"{table.title(metric)} paper"] == printed.text
            assert texts[f"{table.title(metric)} ours"].startswith("12.3")


def test_each_note_is_shown_once_below_the_table() -> None:
    family, table = ("BPC-rKL", "BPC-fKL", "FBPC", "BPC-CD"), papers.load("vbpc:table1")
    notes, none = table.notes("FMNIST"), compare(table, "FMNIST", [])
    of_family = [f"{method} (ipc {ipc})" for ipc in (1, 10, 50) for method in family]
    assert [*notes.values()] == [of_family, [f"VBPC (ipc {ipc})" for ipc in (1, 10, 50)]]
    text = markdown(none, {"commit": "abc"})
    assert text.endswith("\n| commit | abc |\n")
    for note, methods in notes.items():
        sentence = f"{', '.join(methods)}: {note}"
        assert none.remarks().count(sentence) == 1 and text.count(f"\n- {sentence}\n") == 1
    assert papers.load("vbll:table1").notes("CIFAR10") == {}
    unlike = {f"VBPC ({name})" for name in ("Conv-NN", "Conv-GN", "Conv-IN", "AlexNet-NN", "ResNet18-BN", "VGG11-GN")}
    assert unlike in [{*methods} for methods in papers.load("vbpc:table4").notes("CIFAR10").values()]


def pair(ours: float, paper: str, error: float | None = None, paper_error: str = "") -> Pair:
    return Pair(Estimate(ours, error, 3), Printed(paper, paper_error))


@pytest.mark.parametrize("levels", [3, 6, 1000], ids=["many ties", "some ties", "few ties"])
def test_the_order_equals_scipys_tau_and_an_enumeration_of_pairs(levels: int) -> None:
    """SciPy's τ-b and an enumeration of the pairs, on random figures of which some are equal."""
    rng = np.random.default_rng(levels)
    for count in (2, 3, 5, 9):
        for _ in range(20):
            ours, paper = rng.integers(0, levels, size=(2, count))
            order = compared({str(i): pair(float(ours[i]), str(paper[i])) for i in range(count)})
            products = [(ours[i] - ours[j]) * (paper[i] - paper[j]) for i, j in combinations(range(count), 2)]
            assert len(order.pairs) == math.comb(count, 2)
            assert len(order.same) == sum(p > 0 for p in products)
            assert len(order.opposite) == sum(p < 0 for p in products)
            expected = kendalltau(ours, paper).statistic
            assert order.tau is None if math.isnan(expected) else order.tau == pytest.approx(expected, abs=1e-12)


def test_clear_pairs_differ_by_more_than_two_combined_errors_on_each_side() -> None:
    """Errors of 0.3 and 0.4 combine to 0.5, so that a difference of 1 is not beyond two errors and 1.01 is."""
    assert CLEAR == 2.0
    for ours, paper, clear in ((1.01, "2.01", True), (1.0, "2.01", False), (1.01, "2.0", False), (-1.01, "2.01", True)):
        order = compared({"a": pair(0.0, "1.0", 0.3, "0.3"), "b": pair(ours, paper, 0.4, "0.4")})
        assert bool(order.clear.pairs) == clear, (ours, paper)
    # a pair with an unknown error on either side is not told apart, however far its figures are
    for unknown in (pair(9.0, "9", None, "0.1"), pair(9.0, "9", 0.1, "")):
        assert compared({"a": pair(0.0, "1", 0.1, "0.1"), "b": unknown}).clear.pairs == []
    # an error of 0 is a known error
    assert compared({"a": pair(0.0, "1", 0.0, "0.0"), "b": pair(0.1, "2", 0.0, "0.0")}).clear.same


def test_signs_against_a_baseline_come_from_its_pairs() -> None:
    """Printed: SGD .3, SWA .2, CIBER .1. Ours: SGD .3, CIBER .2, SWA .4: one of two signs holds, and CIBER < SWA."""
    order = compared({"SGD": pair(0.3, "0.3"), "SWA": pair(0.4, "0.2"), "CIBER": pair(0.2, "0.1")})
    signs = order.against("SGD")
    assert len(signs.pairs) == 2 and [str(pair) for pair in signs.same] == ["CIBER < SGD"]
    assert [str(pair) for pair in order.opposite] == ["SWA < SGD"]
    assert len(order.same) == 2 and order.tau == pytest.approx(1 / 3)
    assert order.against("MCD").pairs == []


def test_methods_without_a_figure_on_a_side_or_with_nan_are_in_no_pair() -> None:
    cells = {
        "a": pair(1.0, "1"),
        "not run": Pair(None, Printed("2")),
        "not printed": Pair(Estimate(3.0, None, 1)),
        "not a number": pair(math.nan, "4"),
        "infinite": pair(math.inf, "5"),
    }
    order = compared(cells)
    assert [(pair.first, pair.second, pair.same) for pair in order.pairs] == [("a", "infinite", True)]
    assert compared({"a": pair(1.0, "1")}).tau is None
