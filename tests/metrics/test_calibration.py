"""Calibration errors against counting, torchmetrics and dense integrals, and tests of calibration."""

import itertools
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.integrate
import torch
from scipy.stats import binom
from torchmetrics.functional.classification import binary_calibration_error

from bdl_pipe.metrics import calibration
from bdl_pipe.metrics.calibration import MEASURES, Probs, adaptive, class_wise, equal_mass, smooth_error, stated
from bdl_pipe.metrics.calibration_tests import Checked, check, drawn_labels, interval
from bdl_pipe.seeds import Seed


def random_rows(rows: int = 240, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = Seed(seed).fold("calibration").numpy()
    probs = random.dirichlet(np.full(classes, 0.7), size=rows)
    return probs, random.integers(classes, size=rows)


def test_bins_of_equal_mass_hold_equal_counts_and_keep_equal_values_together() -> None:
    values = Seed(0).numpy().permutation(60) / 60
    place = equal_mass(values, 15)
    assert np.bincount(place).tolist() == [4] * 15
    assert (np.diff(place[values.argsort()]) >= 0).all()
    assert equal_mass(np.array([0.9, 0.2, 0.9, 0.9]), 4).tolist() == [2, 0, 2, 2]  # two bins are empty
    assert equal_mass(np.full(5, 0.3), 3).tolist() == [1] * 5
    assert equal_mass(np.array([0.7]), 15).tolist() == [0]


def test_bins_of_equal_width_hold_their_upper_edge_and_the_first_bin_holds_zero() -> None:
    edges = np.linspace(0, 1, 6)
    assert calibration.equal_width(edges, 5).tolist() == [0, 0, 1, 2, 3, 4]
    assert calibration.equal_width(np.nextafter(edges[:-1], 1), 5).tolist() == [0, 1, 2, 3, 4]


def test_the_adaptive_error_equals_a_sum_over_sorted_confidences() -> None:
    """240 different confidences in 12 bins of 20; bins of equal width, the wrong variant, give another error."""
    probs, labels = random_rows()
    rows = sorted(zip(probs.max(1), probs.argmax(1) == labels, strict=True))
    by_hand = sum(abs(sum(float(y) - f for f, y in rows[at : at + 20])) for at in range(0, 240, 20)) / 240
    assert adaptive(probs, labels[None], 12)[0] == pytest.approx(by_hand, rel=1e-12)
    width = np.bincount(calibration.equal_width(probs.max(1), 12), (probs.argmax(1) == labels) - probs.max(1))
    assert abs(np.abs(width).sum() / 240 - by_hand) > 1e-3


def test_the_class_wise_error_is_the_mean_of_torchmetrics_over_classes() -> None:
    probs, labels = random_rows()
    each = [
        float(binary_calibration_error(torch.tensor(probs[:, k]), torch.tensor(labels == k), n_bins=10, norm="l1"))
        for k in range(4)
    ]
    assert class_wise(probs, labels[None], 10)[0] == pytest.approx(np.mean(each), rel=1e-6)


def by_images(sigma: mpmath.mpf, at: np.ndarray, residuals: np.ndarray) -> mpmath.mpf:
    """∫ |mean of residuals × the reflected kernel as a sum of images|, split at the zeros that a grid shows."""

    def density(t: mpmath.mpf) -> mpmath.mpf:
        total = mpmath.mpf(0)
        for f, r in zip(at.tolist(), residuals.tolist(), strict=True):
            images = (t - 2 * n - sign * mpmath.mpf(f) for n in (-1, 0, 1) for sign in (1, -1))
            total += r * sum(mpmath.npdf(distance, 0, sigma) for distance in images)
        return total / len(at)

    grid = [mpmath.mpf(k) / 20 for k in range(21)]
    signs = [mpmath.sign(density(t)) for t in grid]
    zeros = [
        mpmath.findroot(density, (a, b), solver="anderson", tol=1e-30)
        for a, b, s, t in zip(grid, grid[1:], signs, signs[1:], strict=False)
        if s != t
    ]
    return sum(abs(mpmath.quad(density, [a, (a + b) / 2, b])) for a, b in zip([0, *zeros], [*zeros, 1], strict=True))


def test_the_smooth_error_solves_its_fixed_point_equation_with_50_digits() -> None:
    """Four residuals; a kernel that is not reflected loses mass at the ends and gives at least a tenth less."""
    at, residuals = np.array([0.02, 0.4, 0.7, 0.97]), np.array([0.5, -0.4, 0.3, -0.6])
    error = float(smooth_error(at, residuals[None])[0])
    with mpmath.workdps(50):
        assert float(by_images(mpmath.mpf(error), at, residuals)) == pytest.approx(error, rel=1e-4)
    t = np.linspace(0, 1, 4001)
    plain = np.exp(-(((t[:, None] - at) / error) ** 2) / 2) / np.sqrt(2 * np.pi) / error @ residuals / 4
    assert scipy.integrate.trapezoid(np.abs(plain), t) < 0.9 * error


@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_the_smooth_error_matches_a_dense_sum_over_images(scale: float) -> None:
    """2,000 rows; at the smallest error the width is about 20 points of the grid."""
    random = Seed(1).numpy()
    at = random.random(2000)
    residuals = scale * (np.sin(9 * at) * 0.3 + random.normal(size=2000) * 0.5)
    error = float(smooth_error(at, residuals[None])[0])
    t = (np.arange(2500) + 0.5) / 2500
    images = sum(np.exp(-(((t[:, None] - n - s * at) / error) ** 2) / 2) for n in (-2, 0, 2) for s in (1, -1))
    dense = np.abs(images @ residuals).mean() / np.sqrt(2 * np.pi) / error / 2000
    assert error == pytest.approx(dense, rel=1e-3)


def test_the_smooth_error_of_residuals_of_one_sign_is_their_absolute_mean() -> None:
    """The kernel keeps mass, so that the integral does not depend on the width."""
    at = np.linspace(0, 1, 7)
    errors = smooth_error(at, np.array([np.full(7, 0.25), np.full(7, -0.125), np.zeros(7)]))
    np.testing.assert_allclose(errors, [0.25, 0.125, 0], atol=1e-6)


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_errors_do_not_depend_on_other_columns_or_on_the_order_of_rows_and_one_row_has_its_gap(measure: Any) -> None:
    """One class is always right; a row of confidence .7 has the error .3 if it is right and .7 if it is wrong."""
    probs, _ = random_rows()
    columns = Seed(3).numpy().integers(4, size=(3, 240))
    np.testing.assert_allclose(measure(probs, columns), [measure(probs, one[None])[0] for one in columns], rtol=1e-12)
    random = Seed(4).numpy()
    probs = np.array([[0.6, 0.4], [0.8, 0.2], [0.3, 0.7]])[random.integers(3, size=50)]  # equal confidences
    labels, order = random.integers(2, size=50), random.permutation(50)
    assert measure(probs[order], labels[None, order])[0] == pytest.approx(measure(probs, labels[None])[0], rel=1e-9)
    assert measure(np.ones((5, 1)), np.zeros((1, 5), int)).tolist() == [0]
    np.testing.assert_allclose(measure(np.array([[0.7, 0.3]]), np.array([[0], [1]])), [0.3, 0.7], atol=1e-6)


def test_probabilities_of_float32_are_read_as_float64_that_sums_to_one() -> None:
    probs, labels = random_rows(6)
    np.testing.assert_allclose(stated(probs.astype(np.float32), labels)[0].sum(1), 1, rtol=1e-15)


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
    result = check(lambda p, y: adaptive(p, y, 3), probs, columns[5], Seed(0), draws=4000)
    assert abs(result.expected - mean) < 5 * sd / np.sqrt(4000)  # false alarms: 6e-7
    exact = weights[errors >= errors[5] - 1e-12].sum()
    assert abs(result.p_value - exact) < 5 * np.sqrt(exact * (1 - exact) / 4000) + 1 / 4000


@pytest.mark.parametrize("name", ["adaptive", "class_wise", "smooth"])
def test_false_alarms_are_as_rare_as_stated_and_overconfidence_is_found(name: str) -> None:
    """At 10 %, 120 data sets of 60 rows with right probabilities, and 30 with probabilities that are too sharp."""
    alarms = detected = 0
    for number in range(120):
        probs = probabilities(60, number)
        (labels,) = np.concatenate(list(drawn_labels(probs, Seed(number).fold("truth"), 1)))[None]
        rng = Seed(number)
        alarms += check(MEASURES[name], probs, labels[0], rng, draws=19).miscalibrated(0.1)
        if number < 30:
            detected += check(MEASURES[name], sharpened(probs, 4), labels[0], rng, draws=19).miscalibrated(0.1)
    assert binom.ppf(ALARM, 120, 0.1) <= alarms <= binom.isf(ALARM, 120, 0.1)
    assert detected > binom.isf(ALARM, 30, 0.1)  # the wrong variant: labels from other probabilities


def test_the_least_p_value_is_reached_by_confident_wrong_answers() -> None:
    checked = check(adaptive, np.tile([0.99, 0.01], (50, 1)), np.ones(50, int), Seed(0), draws=19)
    assert checked.p_value == 1 / 20 and checked.miscalibrated(0.05)
    assert checked.excess == checked.value - checked.expected > 0.9
    for measure in MEASURES.values():  # one class is calibrated
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


def test_the_interval_holds_a_known_error_more_often_than_the_percentile_interval() -> None:
    """Gaps of five standard errors and of one: not below the binomial band of the least coverage stated for each.

    Of small gaps the percentile interval, the wrong variant, contains the bias twice.
    """
    assert binom.ppf(ALARM, 150, 0.87) <= coverage(rows=60, gap=0.28)[0]
    basic, percentile = coverage(rows=20, gap=0.11)
    assert percentile < binom.ppf(ALARM, 150, 0.78) <= basic


def _by_confidence(probs: Probs, labels: np.ndarray) -> np.ndarray:
    """The error over the twenty confidences themselves, whose true value is known."""
    place = np.rint((probs[:, 0] - 0.5) * 95).astype(int)
    gaps = [np.bincount(place, (column == 0) - probs[:, 0], 20) for column in labels]
    return np.abs(gaps).sum(1) / len(probs)


def test_the_least_number_of_draws_gives_an_interval() -> None:
    arguments = adaptive, probabilities(20, 0), np.zeros(20, int), Seed(0)
    low, high = interval(*arguments, draws=19)
    assert 0 <= low <= high and (low, high) == interval(*arguments, draws=19)
