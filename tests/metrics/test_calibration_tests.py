"""Tests of calibration on labels that were drawn from known probabilities, with their rates of false alarms."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from bdl_pipe.errors import ConfigError
from bdl_pipe.metrics.calibration import MEASURES, Probs, adaptive
from bdl_pipe.metrics.calibration_tests import Checked, check, drawn_labels, interval
from bdl_pipe.seeds import Seed

ALARM = 1e-6  # the rate of false alarms of each statistical test below; seeds are fixed


def probabilities(rows: int, seed: int) -> Probs:
    return Seed(seed).fold("probabilities").numpy().dirichlet(np.full(3, 0.8), size=rows)


def sharpened(probs: Probs, power: float) -> Probs:
    return probs**power / (probs**power).sum(1, keepdims=True)


def test_labels_are_drawn_from_the_probabilities() -> None:
    """Counts of each class by row, within the binomial band; the same address draws the same labels."""
    probs = np.array([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [0.9, 0.0, 0.1]])
    labels = np.concatenate(list(drawn_labels(probs, Seed(0), 3000)))
    assert labels.shape == (3000, 3)
    for row, k in itertools.product(range(3), range(3)):
        count = int((labels[:, row] == k).sum())
        p = probs[row, k]
        assert binom.ppf(ALARM, 3000, p) <= count <= binom.isf(ALARM, 3000, p)
    again = np.concatenate(list(drawn_labels(probs, Seed(0), 3000)))
    assert (labels == again).all()
    assert (labels != np.concatenate(list(drawn_labels(probs, Seed(1), 3000)))).any()


def test_the_expected_error_and_the_p_value_match_an_enumeration() -> None:
    """All labels of six rows with two classes: 64 columns, each weighted by its probability."""
    first = np.array([0.55, 0.6, 0.7, 0.8, 0.9, 0.95])
    probs = np.stack([first, 1 - first], 1)
    columns = np.array(list(itertools.product([0, 1], repeat=6)))
    weights = np.prod(np.where(columns == 0, first, 1 - first), axis=1)
    errors = adaptive(probs, columns, 3)
    mean, sd = weights @ errors, np.sqrt(weights @ errors**2 - (weights @ errors) ** 2)
    found = check(lambda p, y: adaptive(p, y, 3), probs, columns[5], Seed(0), draws=4000)
    assert abs(found.expected - mean) < 5 * sd / np.sqrt(4000)  # false alarms: 6e-7
    exact = weights[errors >= errors[5] - 1e-12].sum()
    assert abs(found.p_value - exact) < 5 * np.sqrt(exact * (1 - exact) / 4000) + 1 / 4000


@pytest.mark.parametrize("name", ["adaptive", "class_wise", pytest.param("smooth", marks=pytest.mark.slow)])
def test_false_alarms_are_as_rare_as_stated_and_overconfidence_is_found(name: str) -> None:
    """At 10 %, 120 data sets of 60 rows with right probabilities, and 30 with probabilities that are too sharp."""
    alarms = found = 0
    for number in range(120):
        probs = probabilities(60, number)
        (labels,) = np.concatenate(list(drawn_labels(probs, Seed(number).fold("truth"), 1)))[None]
        rng = Seed(number)
        alarms += check(MEASURES[name], probs, labels[0], rng, draws=19).miscalibrated(0.1)
        if number < 30:
            found += check(MEASURES[name], sharpened(probs, 4), labels[0], rng, draws=19).miscalibrated(0.1)
    assert binom.ppf(ALARM, 120, 0.1) <= alarms <= binom.isf(ALARM, 120, 0.1)
    assert found > binom.isf(ALARM, 30, 0.1)  # the wrong variant: labels from other probabilities


def test_a_rate_of_false_alarms_below_the_least_p_value_is_refused() -> None:
    wrong = np.tile([0.99, 0.01], (50, 1))
    found = check(adaptive, wrong, np.ones(50, int), Seed(0), draws=19)
    assert found.p_value == 1 / 20 and found.miscalibrated(0.05)
    assert found.excess == found.value - found.expected > 0.9
    with pytest.raises(ConfigError, match="false_alarms must be in"):
        found.miscalibrated(0.01)
    with pytest.raises(ConfigError, match="draws must be at least 1"):
        check(adaptive, wrong, np.ones(50, int), Seed(0), draws=0)


def test_one_class_is_calibrated() -> None:
    for measure in MEASURES.values():
        assert check(measure, np.ones((4, 1)), np.zeros(4, int), Seed(0), 19) == Checked(0.0, 0.0, 1.0, 19)


def coverage(rows: int, gap: float) -> tuple[int, int]:
    """Count in 150 samples how often the basic and the percentile interval of 90 % hold the true error ``gap``.

    Twenty confidences are each right ``gap`` less or more often than stated.
    """
    random = Seed(rows).numpy()
    confidence = np.repeat(np.linspace(0.5, 0.7, 20), rows)
    true = confidence + np.where(np.arange(20 * rows) // rows % 2 == 0, gap, -gap)
    probs = np.stack([confidence, 1 - confidence], 1)
    basic = percentile = 0
    for number in range(150):
        labels = (random.random(len(true)) > true).astype(int)
        low, high = interval(_by_confidence, probs, labels, Seed(number), draws=59)
        value = _by_confidence(probs, labels[None])[0]
        basic += low <= gap <= high
        percentile += 2 * value - high <= gap <= 2 * value - low
    return basic, percentile


def test_the_interval_holds_a_known_error_where_gaps_are_large() -> None:
    """Gaps of five standard errors: not below the binomial band of 87 %, the least coverage stated for large gaps."""
    basic, _ = coverage(rows=60, gap=0.28)
    assert binom.ppf(ALARM, 150, 0.87) <= basic


def test_the_interval_holds_small_gaps_more_often_than_the_percentile_interval() -> None:
    """Gaps of one standard error. The percentile interval, the wrong variant, contains the bias twice."""
    basic, percentile = coverage(rows=20, gap=0.11)
    assert binom.ppf(ALARM, 150, 0.78) <= basic
    assert percentile < binom.ppf(ALARM, 150, 0.78)


def _by_confidence(probs: Probs, labels: np.ndarray) -> np.ndarray:
    """The error over the twenty confidences themselves, whose true value is known."""
    place = np.rint((probs[:, 0] - 0.5) * 95).astype(int)
    gaps = [np.bincount(place, (column == 0) - probs[:, 0], 20) for column in labels]
    return np.abs(gaps).sum(1) / len(probs)


def test_an_interval_needs_enough_draws_for_its_level() -> None:
    probs, labels = probabilities(20, 0), np.zeros(20, int)
    with pytest.raises(ConfigError, match=r"draws must be more at the level 0\.9, got 18"):
        interval(adaptive, probs, labels, Seed(0), draws=18)
    with pytest.raises(ConfigError, match=r"level must be in \(0, 1\), got 1"):
        interval(adaptive, probs, labels, Seed(0), level=1)
    low, high = interval(adaptive, probs, labels, Seed(0), draws=19)
    assert 0 <= low <= high
    assert (low, high) == interval(adaptive, probs, labels, Seed(0), draws=19)
