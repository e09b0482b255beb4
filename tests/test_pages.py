"""Pages under results/ are what their commands write of the stored figures, and what they name is there."""

import csv

import pytest
from scipy.stats import ttest_rel

from benchmarks.pages import vbpc_ablations

BASE = {ablation.axis: ablation.base for ablation in vbpc_ablations.ABLATIONS}


def ablation_rows() -> list[dict[str, str]]:
    with (vbpc_ablations.OUT / "ablations.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_page_of_ablations_is_of_the_stored_study() -> None:
    stored = (vbpc_ablations.OUT / "ablations-beside-the-paper.md").read_text()
    assert vbpc_ablations.page(ablation_rows()) == stored


@pytest.mark.parametrize("score", ["accuracy", "nll"])
def test_an_effect_is_paired_by_seed_as_scipy_pairs_it(score: str) -> None:
    """Seeds that are paired crosswise have more than twice the error."""
    rows, point = ablation_rows(), BASE | {"rho": "1"}
    mean, error = vbpc_ablations.paired(rows, point, BASE, score)
    there, here = ([float(row[score]) for row in vbpc_ablations.at(rows, at)] for at in (point, BASE))
    assert mean / error == pytest.approx(ttest_rel(there, here).statistic, rel=1e-9)
    twisted = [row | {"seed": str(1 - int(row["seed"]))} if row["rho"] == "1" else row for row in rows]
    assert vbpc_ablations.paired(twisted, point, BASE, score)[1] > 2 * error


def test_an_effect_over_other_seeds_is_refused() -> None:
    rows = [row for row in ablation_rows() if row["rho"] != "1000" or row["seed"] != "1"]
    with pytest.raises(SystemExit, match="has other seeds than the default"):
        vbpc_ablations.paired(rows, BASE | {"rho": "1000"}, BASE, "nll")


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ("+", "+", "found"),
        ("0", "-", "not found"),
        ("+", "-", "the other sign"),
        ("0", "0", "neither"),
        ("-", "0", "ours alone"),
    ],
)
def test_nothing_on_both_sides_is_no_effect_found(ours: str, theirs: str, said: str) -> None:
    assert vbpc_ablations.verdict(ours, theirs) == said
