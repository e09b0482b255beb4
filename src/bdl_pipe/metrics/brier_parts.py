"""Split Brier's score into reliability − resolution + uncertainty, for every class.

With n_b rows in bin b of a class's probability, their mean probability p_b, their share of the class o_b and the share
o of all n rows (Murphy 1973),

    reliability Σ_b (n_b/n) (p_b − o_b)²,   resolution Σ_b (n_b/n) (o_b − o)²,   uncertainty o (1 − o).

Low reliability is good: shares agree with the stated probabilities. High resolution is good: shares differ between
bins. The uncertainty depends on the labels alone. The sampling noise of shares biases reliability and resolution up, by
V = Σ_b (n_b/n) o_b(1 − o_b)/(n_b − 1) on average. The corrected parts are Ferro & Fricker's (2012):
reliability − V, resolution − V + o(1 − o)/(n − 1), and uncertainty + o(1 − o)/(n − 1). Reliability is then unbiased
where the bins of the rows are fixed, the sum of the parts is unchanged, and a part may be below 0.

Probabilities differ within a bin, so their score differs from the score of p_b (Stephenson et al. 2008). The rest is
``within`` = Σ_i [(p_i − y_i)² − (p_b − y_i)²] / n, so that the four parts add up to Brier's score exactly.
All parts are sums over classes, as :func:`bdl_pipe.metrics.brier` is.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from .calibration import BINS, equal_mass, stated
from .metric import StoredMetric
from .stored import StoredClasses


@dataclass(frozen=True)
class BrierParts:
    """The parts of Brier's score, summed over classes; see the module."""

    reliability: float
    resolution: float
    uncertainty: float
    within: float

    @property
    def brier(self) -> float:
        """Return Brier's score, the sum over classes."""
        return self.reliability - self.resolution + self.uncertainty + self.within


def brier_parts(
    probs: np.ndarray, labels: np.ndarray, bins: int = BINS, *, corrected: bool = True
) -> BrierParts | None:
    """Compute the parts over bins of equal mass of each class's probability.

    Args:
        probs: [row, class].
        labels: [row].
        corrected: apply the correction of Ferro & Fricker (2012). A bin of one row has no variance and joins its
            neighbour.

    Returns:
        None if there is only one row and ``corrected`` is True.

    Raises:
        DataError: see :func:`.calibration.stated`.
    """
    probs, observed = stated(probs, labels)
    if corrected and len(probs) < 2:
        return None
    truth = observed[0][:, None] == np.arange(probs.shape[1])
    parts = [_of_event(p, y, bins, corrected=corrected) for p, y in zip(probs.T, truth.T.astype(float), strict=True)]
    return BrierParts(*np.sum(parts, axis=0).tolist())


def _of_event(probs: np.ndarray, happened: np.ndarray, bins: int, *, corrected: bool) -> tuple[float, ...]:
    place = _without_single(equal_mass(probs, bins)) if corrected else equal_mass(probs, bins)
    _, place, count = np.unique(place, return_inverse=True, return_counts=True)
    rows = len(probs)
    mean, share = np.bincount(place, probs) / count, np.bincount(place, happened) / count
    overall = happened.mean()
    reliability = count @ (mean - share) ** 2 / rows
    resolution = count @ (share - overall) ** 2 / rows
    uncertainty = overall * (1 - overall)
    within = np.mean((probs - happened) ** 2 - (mean[place] - happened) ** 2)
    if corrected:
        varying = float(np.sum(count / rows * share * (1 - share) / (count - 1)))
        of_all = uncertainty / (rows - 1)
        reliability -= varying
        resolution += of_all - varying
        uncertainty += of_all
    return float(reliability), float(resolution), float(uncertainty), float(within)


def _without_single(place: np.ndarray) -> np.ndarray:
    """Join each bin of one row with the bin before it, and the first one with the next."""
    joined, before = place.copy(), -1
    for one, count in zip(*np.unique(place, return_counts=True), strict=True):
        if count == 1 and before >= 0:
            joined[place == one] = before
        else:
            before = one
    numbers, counts = np.unique(joined, return_counts=True)
    if counts[0] == 1 and len(numbers) > 1:
        joined[joined == numbers[0]] = numbers[1]
    return joined


def _metric(part: str, about: str, better: Literal[-1, 0, 1], least: float = -math.inf) -> StoredMetric:
    def of(fit: StoredClasses) -> float | None:
        parts = brier_parts(fit.probs, fit.labels)
        return None if parts is None else float(getattr(parts, part))

    look: Any = {"task": "classification", "unit": "digits", "question": "trust", "least": least}
    return StoredMetric(f"brier_{part}", f"Brier {part}", f"{about}; corrected for bias", better, function=of, **look)


METRICS: Final = (
    _metric("reliability", "squared gap between frequencies and stated probabilities", -1, least=0.0),
    _metric("resolution", "squared gap between frequencies and their mean", +1),
    _metric("uncertainty", "Brier score of the constant prediction of class frequencies", 0),
)
