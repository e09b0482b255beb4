"""Detection scores against pair counting, scikit-learn's curve and hand-made cases."""

import numpy as np
import pytest
from sklearn.metrics import roc_curve

from bdl_pipe import metrics
from bdl_pipe.metrics.classification import false_positive_rate
from bdl_pipe.seeds import Seed


def scores(rounded: bool) -> tuple[np.ndarray, np.ndarray]:
    random = Seed(4).numpy()
    inside, outside = random.normal(1, 1, size=150), random.normal(0, 1, size=90)
    return (inside.round(1), outside.round(1)) if rounded else (inside, outside)


@pytest.mark.parametrize("rounded", [False, True])
def test_auroc_is_the_share_of_pairs_in_order(rounded: bool) -> None:
    inside, outside = scores(rounded)
    pairs = (inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)
    assert metrics.detection(inside, outside)["auroc"] == pytest.approx(pairs.mean(), rel=1e-12)


@pytest.mark.parametrize("rounded", [False, True])
def test_fpr95_is_on_the_roc_curve(rounded: bool) -> None:
    inside, outside = scores(rounded)
    labels = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    false, true, _ = roc_curve(labels, np.r_[inside, outside], drop_intermediate=False)
    assert metrics.detection(inside, outside)["fpr95"] == false[true >= 0.95].min()


def test_which_set_is_positive() -> None:
    """in: 3, 2, 0; out: 1. In positive: precisions 1, 1, 3/4; out positive: found second of four, 1/2."""
    found = metrics.detection(np.array([3.0, 2, 0]), np.array([1.0]))
    assert found["aupr_in"] == pytest.approx((1 + 1 + 3 / 4) / 3)
    assert found["aupr_out"] == pytest.approx(1 / 2)
    assert found["auroc"] == pytest.approx(2 / 3)
    assert found["fpr95"] == 1.0


def test_separated_sets() -> None:
    found = metrics.detection(np.arange(10.0) + 100, np.arange(5.0))
    assert found == pytest.approx({"auroc": 1.0, "aupr_in": 1.0, "aupr_out": 1.0, "fpr95": 0.0})


def test_nineteen_of_twenty_are_95_percent() -> None:
    inside = np.arange(20.0)  # the threshold is 1: 19 of 20 reach it
    assert false_positive_rate(inside, np.array([0.5, 1.0]), 0.95) == 0.5
