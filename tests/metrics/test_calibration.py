"""Calibration errors against counting by hand, torchmetrics, and dense integrals with 50 digits."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import scipy.integrate
import torch
from torchmetrics.functional.classification import binary_calibration_error

from bdl_pipe.errors import DataError
from bdl_pipe.metrics import calibration
from bdl_pipe.metrics.calibration import MEASURES, adaptive, class_wise, equal_mass, smooth_error, stated
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
    found = float(smooth_error(at, residuals[None])[0])
    with mpmath.workdps(50):
        assert float(by_images(mpmath.mpf(found), at, residuals)) == pytest.approx(found, rel=1e-4)
    t = np.linspace(0, 1, 4001)
    plain = np.exp(-(((t[:, None] - at) / found) ** 2) / 2) / np.sqrt(2 * np.pi) / found @ residuals / 4
    assert scipy.integrate.trapezoid(np.abs(plain), t) < 0.9 * found


@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_the_smooth_error_matches_a_dense_sum_over_images(scale: float) -> None:
    """2,000 rows; at the smallest error the width is about 20 points of the grid."""
    random = Seed(1).numpy()
    at = random.random(2000)
    residuals = scale * (np.sin(9 * at) * 0.3 + random.normal(size=2000) * 0.5)
    found = float(smooth_error(at, residuals[None])[0])
    t = (np.arange(2500) + 0.5) / 2500
    images = sum(np.exp(-(((t[:, None] - n - s * at) / found) ** 2) / 2) for n in (-2, 0, 2) for s in (1, -1))
    dense = np.abs(images @ residuals).mean() / np.sqrt(2 * np.pi) / found / 2000
    assert found == pytest.approx(dense, rel=1e-3)


def test_the_smooth_error_of_residuals_of_one_sign_is_their_absolute_mean() -> None:
    """The kernel keeps mass, so that the integral does not depend on the width."""
    at = np.linspace(0, 1, 7)
    found = smooth_error(at, np.array([np.full(7, 0.25), np.full(7, -0.125), np.zeros(7)]))
    np.testing.assert_allclose(found, [0.25, 0.125, 0], atol=1e-6)


@pytest.mark.parametrize("name", list(MEASURES))
def test_many_columns_of_labels_have_the_error_of_each_column_alone(name: str) -> None:
    measure = MEASURES[name]
    probs, _ = random_rows()
    columns = Seed(3).numpy().integers(4, size=(3, 240))
    alone = [measure(probs, column[None])[0] for column in columns]
    np.testing.assert_allclose(measure(probs, columns), alone, rtol=1e-12)


@pytest.mark.parametrize("name", list(MEASURES))
def test_the_order_of_rows_with_equal_confidences_does_not_change_the_error(name: str) -> None:
    random = Seed(4).numpy()
    probs = np.array([[0.6, 0.4], [0.8, 0.2], [0.3, 0.7]])[random.integers(3, size=50)]
    labels, order = random.integers(2, size=50), random.permutation(50)
    found = MEASURES[name](probs, labels[None])[0]
    assert MEASURES[name](probs[order], labels[None, order])[0] == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("name", list(MEASURES))
def test_one_class_has_no_error_and_one_row_the_gap_of_its_confidence(name: str) -> None:
    """One class is always right; a row of confidence .7 has the error .3 if it is right and .7 if it is wrong."""
    measure: Callable[..., np.ndarray] = MEASURES[name]
    assert measure(np.ones((5, 1)), np.zeros((1, 5), int)).tolist() == [0]
    found = measure(np.array([[0.7, 0.3]]), np.array([[0], [1]]))
    np.testing.assert_allclose(found, [0.3, 0.7], atol=1e-6)


def test_a_bad_table_of_probabilities_or_labels_is_refused() -> None:
    probs, labels = random_rows(6)
    np.testing.assert_allclose(stated(probs.astype(np.float32), labels)[0].sum(1), 1, rtol=1e-15)
    for bad, truth, said in (
        (probs[:0], labels[:0], r"must be \[row, class\]"),
        (probs, labels[:5], r"must be \[row, class\]"),
        (2 * probs, labels, "sum to 1"),
        (probs * np.nan, labels, "sum to 1"),
        (probs, labels + 9, "from 0 to 3"),
        (probs, labels + 0.5, "from 0 to 3"),
    ):
        with pytest.raises(DataError, match=said):
            stated(bad, truth)
