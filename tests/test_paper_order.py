"""The order of methods: pairs, Kendall's τ-b, pairs that both sides distinguish, signs against a baseline."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import kendalltau

from bdl_pipe.scores import Estimate
from bdl_report.papers import Pair, Printed
from bdl_report.papers.order import CLEAR, compared


def cell(ours: float, paper: str, error: float | None = None, paper_error: str = "") -> Pair:
    return Pair(Estimate(ours, error, 3), Printed(paper, paper_error))


@pytest.mark.parametrize("levels", [3, 6, 1000], ids=["many ties", "some ties", "few ties"])
def test_the_order_equals_scipys_tau_and_an_enumeration_of_pairs(levels: int) -> None:
    """SciPy's τ-b and an enumeration of the pairs, on random figures of which some are equal."""
    rng = np.random.default_rng(levels)
    for count in (2, 3, 5, 9):
        for _ in range(20):
            ours, paper = rng.integers(0, levels, size=(2, count))
            order = compared({str(i): cell(float(ours[i]), str(paper[i])) for i in range(count)})
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
        order = compared({"a": cell(0.0, "1.0", 0.3, "0.3"), "b": cell(ours, paper, 0.4, "0.4")})
        assert bool(order.clear.pairs) == clear, (ours, paper)
    # a pair with an unknown error on either side is not told apart, however far its figures are
    for pair in (cell(9.0, "9", None, "0.1"), cell(9.0, "9", 0.1, "")):
        assert compared({"a": cell(0.0, "1", 0.1, "0.1"), "b": pair}).clear.pairs == []
    # an error of 0 is a known error
    assert compared({"a": cell(0.0, "1", 0.0, "0.0"), "b": cell(0.1, "2", 0.0, "0.0")}).clear.same


def test_signs_against_a_baseline_come_from_its_pairs() -> None:
    """Printed: SGD .3, SWA .2, CIBER .1. Ours: SGD .3, CIBER .2, SWA .4: one of two signs holds, and CIBER < SWA."""
    order = compared({"SGD": cell(0.3, "0.3"), "SWA": cell(0.4, "0.2"), "CIBER": cell(0.2, "0.1")})
    signs = order.against("SGD")
    assert len(signs.pairs) == 2 and [str(pair) for pair in signs.same] == ["CIBER < SGD"]
    assert [str(pair) for pair in order.opposite] == ["SWA < SGD"]
    assert len(order.same) == 2 and order.tau == pytest.approx(1 / 3)
    assert order.against("MCD").pairs == []


def test_methods_without_a_figure_on_a_side_or_with_nan_are_in_no_pair() -> None:
    cells = {
        "a": cell(1.0, "1"),
        "not run": Pair(None, Printed("2")),
        "not printed": Pair(Estimate(3.0, None, 1)),
        "not a number": cell(math.nan, "4"),
        "infinite": cell(math.inf, "5"),
    }
    order = compared(cells)
    assert [(pair.first, pair.second, pair.same) for pair in order.pairs] == [("a", "infinite", True)]
    assert compared({"a": cell(1.0, "1")}).tau is None
