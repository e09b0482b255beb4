"""Calibration errors of class probabilities: by bins of equal mass, by class, and smooth.

Each function takes stated probabilities [row, class] and several columns of labels [draw, row], and returns one error
for each column. Many columns cost little, so that :mod:`bdl_pipe.metrics.calibration_tests` can compare an error with
the errors of labels that are drawn from the stated probabilities.

- :func:`adaptive`: Σ_b (n_b / n) |accuracy_b − confidence_b| over bins of the largest probability, with about equal
  numbers of rows (Nguyen & O'Connor 2015; Nixon et al. 2019).
- :func:`class_wise`: the mean over classes k of Σ_b (n_bk / n) |share of k in b − mean p_k in b| over equal-width bins
  of p_k (Kull et al. 2019).
- :func:`smooth`: smECE (Błasiok & Nakkiran 2023): with residuals y_i − f_i of the largest probability
  f_i and the reflected Gaussian kernel K_σ on [0, 1], ∫ |(1/n) Σ_i (y_i − f_i) K_σ(t, f_i)| dt at the σ that equals the
  integral. The integral falls with σ, so that there is one such σ. It has no bins to choose.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from jaxtyping import Float, Int

from ..errors import DataError
from .classification import equal_width

Probs = Float[np.ndarray, "row class"]
Labels = Int[np.ndarray, "draw row"]
Measure = Callable[[Probs, Labels], Float[np.ndarray, " draw"]]

BINS: Final = 15
_NODES: Final = 2048  # number of intervals of the smooth error's grid on [0, 1]
_TOLERANCES: Final = {"xatol": 1e-7, "xrtol": 1e-6}  # for σ of the smooth error


def stated(probs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities in float64, with rows that sum to 1, and labels as integers [draw, row].

    Raises:
        DataError: there is no row, the shapes differ, a label is not a class, or a row is not a distribution (within
            1e-3).
    """
    probs, classes = np.asarray(probs, np.float64), np.atleast_2d(np.asarray(labels))
    if probs.ndim != 2 or not probs.size or classes.shape[-1] != len(probs):
        raise DataError(f"probabilities must be [row, class] with a label for each row, got {probs.shape}")
    if not np.isin(classes, np.arange(probs.shape[1])).all():
        raise DataError(f"labels must be whole numbers from 0 to {probs.shape[1] - 1}")
    total = probs.sum(1, keepdims=True)
    if not (np.abs(total - 1) <= 1e-3).all() or (probs < 0).any():
        raise DataError("probabilities must be at least 0 and sum to 1 in each row")
    return probs / total, classes.astype(np.int64)


def equal_mass(values: Float[np.ndarray, " row"], bins: int) -> Int[np.ndarray, " row"]:
    """Return the bin of each value, 0 … ``bins`` − 1, with about as many values in each.

    A bin depends on the value alone: equal values share the bin of their middle rank. A bin may be empty.
    """
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - (count + 1) / 2  # the middle 0-based rank of equal values
    return np.floor(bins * middle / len(values)).astype(np.int64)[which]


def adaptive(probs: Probs, labels: Labels, bins: int = BINS) -> Float[np.ndarray, " draw"]:
    """Compute the error of the largest probability over bins of equal mass, for each column of labels."""
    confidence, right = _largest(probs, labels)
    place = equal_mass(confidence, bins)
    order = np.argsort(place, kind="stable")
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    gaps = np.add.reduceat(right[:, order] - confidence[order], starts, axis=1)
    return np.abs(gaps).sum(1) / len(confidence)


def class_wise(probs: Probs, labels: Labels, bins: int = BINS) -> Float[np.ndarray, " draw"]:
    """Compute the mean over classes of the error of the class's probability, for each column of labels."""
    rows, classes = probs.shape
    place = equal_width(probs, bins) + bins * np.arange(classes)  # each pair of a class and a bin has its own number
    expected = np.bincount(place.ravel(), probs.ravel(), bins * classes)
    counts = (np.bincount(place[np.arange(rows), column], minlength=bins * classes) for column in labels)
    return np.array([np.abs(happened - expected).sum() for happened in counts]) / (rows * classes)


def smooth(probs: Probs, labels: Labels) -> Float[np.ndarray, " draw"]:
    """Compute the smooth error of the largest probability, for each column of labels."""
    confidence, right = _largest(probs, labels)
    return smooth_error(confidence, right - confidence)


def smooth_error(at: Float[np.ndarray, " row"], residuals: Float[np.ndarray, "draw row"]) -> np.ndarray:
    """Solve ∫ |(1/n) Σ_i r_i K_σ(t, at_i)| dt = σ for σ.

    The reflected Gaussian kernel is diagonal in cosines: 1 + 2 Σ_k exp(−(πkσ)²/2) cos(πkt) cos(πks). Residuals are
    shared linearly between neighbours on a grid of 2,049 points (our deviation; the published code has 200 and takes
    σ within 0.001).
    """
    from scipy.fft import dct
    from scipy.optimize.elementwise import find_root

    node = np.minimum((at * _NODES).astype(np.int64), _NODES - 1)  # the node below
    share = at * _NODES - node
    mass = np.empty((len(residuals), _NODES + 1))
    for row, values in enumerate(residuals):
        mass[row] = np.bincount(node, values * (1 - share), _NODES + 1)
        mass[row] += np.bincount(node + 1, values * share, _NODES + 1)
    mass[:, 1:-1] /= 2  # a transform of type 1 doubles the inner entries
    waves = dct(mass / len(at), type=1, axis=1)
    squares = (np.pi * np.arange(_NODES + 1)) ** 2 / 2

    def excess(sigma: np.ndarray, which: np.ndarray) -> np.ndarray:
        density = np.abs(dct(waves[which] * np.exp(-squares * sigma[:, None] ** 2), type=1, axis=1))
        return (density.sum(1) - (density[:, 0] + density[:, -1]) / 2) / _NODES - sigma

    rows = np.arange(len(residuals))
    return find_root(excess, (np.zeros(len(rows)), np.full(len(rows), 2.0)), args=(rows,), tolerances=_TOLERANCES).x


def _largest(probs: Probs, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    top = probs.argmax(1)
    return probs[np.arange(len(probs)), top], (labels == top).astype(np.float64)


MEASURES: Final[dict[str, Measure]] = {"adaptive": adaptive, "class_wise": class_wise, "smooth": smooth}
