"""Our runs beside a paper's figures: the line of each run, agreement, the table."""

import pytest

from bdl_pipe import scores
from bdl_pipe.scores import Estimate, Quantity, RunScores, Score
from bdl_report import papers
from bdl_report.papers import Pair, Printed
from bdl_report.papers.comparison import Comparison, Line, Ours, compare
from bdl_report.papers.pages import markdown


def cell(ours: Estimate | None, value: str, error: str = "") -> Pair:
    return Pair(ours, Printed(value, error))


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
    unlike = {f"{method} (ResNet18-BN)" for method in family}
    assert unlike in [{*methods} for methods in papers.load("vbpc:table4").notes("CIFAR10").values()]
