"""Which is better: intervals of the stated coverage, published critical differences."""

import math

import numpy as np
import pytest
from scipy import stats

from bdl_pipe.metrics import comparison

RATIO = 1 / 9  # test rows over training rows


def test_intervals_over_splits_cover_as_often_as_they_say() -> None:
    """4,000 sets of five differences whose errors correlate as those of splits that share rows do.

    The number of misses is within 5 standard errors of 5 %, a false alarm in 1.7 million; with the error of independent
    splits, the control, misses are three times as many.
    """
    g, count, shared = np.random.default_rng(0), 5, RATIO / (1 + RATIO)
    common, own = g.normal(size=(4000, 1)), g.normal(size=(4000, count))
    draws = 0.3 + math.sqrt(shared) * common + math.sqrt(1 - shared) * own
    for ratio, low, high in ((RATIO, 0.033, 0.067), (0.0, 0.08, 1.0)):
        found = [comparison.over_splits(row, ratio) for row in draws]
        missed = np.mean([abs(d.mean - 0.3) > d.half for d in found])
        assert low < missed < high


def test_an_interval_is_student_s() -> None:
    values = np.array([0.1, 0.3, -0.1, 0.2, 0.4])
    found = comparison.over_splits(values, 0.0)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert comparison.over_splits(values, 0.0, comparisons=7).half > 1.5 * found.half
    assert not found.apart and comparison.over_splits(values, 0.0, level=0.8).apart


def test_an_interval_over_rows_is_the_normal_one() -> None:
    values = np.random.default_rng(0).normal(0.2, 1, 400)
    found = comparison.over_rows(values, comparisons=2)
    low, high = stats.norm.interval(0.975, values.mean(), stats.sem(values))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))


def test_the_critical_difference_is_that_of_demsar() -> None:
    """Demšar 2006, section 3.2.2: four classifiers on fourteen data sets, q = 2.569, CD = 1.25."""
    g = np.random.default_rng(0)
    found = comparison.mean_ranks("abcd", g.normal(size=(14, 4)))
    assert found.critical == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), rel=1e-3)
    assert sum(found.means.values()) == pytest.approx(10)
    assert list(found.means.values()) == sorted(found.means.values())
    assert comparison.mean_ranks("abc", np.arange(3) + np.zeros((9, 3))).p_value < 0.01
