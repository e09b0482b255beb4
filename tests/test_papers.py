"""The papers' printed figures: names, quantities, differences."""

import csv
import math
from pathlib import Path

import pytest

from bdl_pipe import scores
from bdl_pipe.data import corrupt
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.scores import Estimate, Quantity, RunScores, Score
from bdl_report import papers
from bdl_report.papers import Pair, Printed

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
