"""Calibration of regression: the probability integral transform of the targets, and central intervals.

F(y) of the target y under its predictive distribution function F is uniform on [0, 1] if the predictives are right
(Dawid 1984). Too many values at both ends show that intervals are too narrow; too many values in the middle show that
they are too wide; a slope shows a biased mean. :func:`pit` is exact for a mixture of draws, as ``cdf`` is. Targets are
continuous, so that F(y) needs no randomisation.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import DataError, require
from ..predictive import Continuous
from .conformal import LEVEL, moved_by_halves, widened_by_halves
from .metric import StoredMetric
from .stored import StoredValues

THIRDS: Final = {"coverage_narrow": "narrowest", "coverage_middle": "middle", "coverage_wide": "widest"}
_EQUAL: Final = 1e-4  # widths whose relative difference is smaller are equal, up to the rounding of quantiles
LEVELS: Final = 19  # 5 %, 10 %, … 95 %


def pit(predictive: Continuous, targets: Float[Tensor, "batch output"]) -> Float[np.ndarray, "batch output"]:
    """Return F(y) of each output separately, in float64."""
    return predictive.cdf(targets.double()).cpu().numpy()


@dataclass(frozen=True)
class PitHistogram:
    """Counts of values in equal-width bins of [0, 1], and the band of all counts together under perfect calibration.

    Attributes:
        low, high: the least and the largest count of the band. With a probability of at least the level, the counts of
            all bins lie inside.
    """

    count: Int[np.ndarray, " bin"]
    low: int
    high: int

    @property
    def outside(self) -> Int[np.ndarray, " some"]:
        """Return the numbers of the bins with a count outside the band."""
        return np.flatnonzero((self.count < self.low) | (self.count > self.high))


def pit_histogram(values: Float[np.ndarray, " row"], bins: int = 10, level: float = 0.95) -> PitHistogram:
    """Count values of F(y) in bins, with the band of the binomial distribution (Bonferroni over bins).

    Raises:
        ConfigError: ``bins`` is below 1, or ``level`` is not in (0, 1).
        DataError: see :func:`quantile_error`.
    """
    require(bins >= 1, "bins", "must be at least 1", bins)
    values = _checked(values)
    count = np.bincount(np.minimum((values * bins).astype(int), bins - 1), minlength=bins)
    return PitHistogram(count, *band(len(values), bins, level))


def band(rows: int, bins: int, level: float = 0.95) -> tuple[int, int]:
    """Return the least and the largest count of a bin's band if the predictives are right; see :class:`PitHistogram`.

    Raises:
        ConfigError: ``level`` is not in (0, 1).
    """
    from scipy.stats import binom

    require(0 < level < 1, "level", "must be in (0, 1)", level)
    outside = (1 - level) / bins / 2
    return int(binom.ppf(outside, rows, 1 / bins)), int(binom.isf(outside, rows, 1 / bins))


@dataclass(frozen=True)
class QuantileError:
    """The calibration error of quantiles.

    Attributes:
        value: the mean over levels p of (share of targets below their quantile at p − p)².
        expected: the exact mean of ``value`` if the predictives are right, p(1 − p)/n averaged over levels.
        p_value: how often the largest gap over all levels in [0, 1] is at least the observed gap if the predictives are
            right (the exact test of Kolmogorov and Smirnov).
        levels, shares: the curve of the reliability diagram.
    """

    value: float
    expected: float
    p_value: float
    levels: Float[np.ndarray, " level"]
    shares: Float[np.ndarray, " level"]


def quantile_error(values: Float[np.ndarray, " row"], levels: int = LEVELS) -> QuantileError:
    """Compute the calibration error of quantiles (Kuleshov, Fenner & Ermon 2018, eq. 9) at j/(levels + 1).

    Deviation: a mean over levels, not a sum, so that it does not grow with their number.

    Args:
        values: F(y) of each row.

    Raises:
        ConfigError: ``levels`` is below 1.
        DataError: there is no row, or a value is not in [0, 1].
    """
    from scipy.stats import kstest

    require(levels >= 1, "levels", "must be at least 1", levels)
    values = _checked(values)
    at = np.arange(1, levels + 1) / (levels + 1)
    shares = np.searchsorted(np.sort(values), at, side="right") / len(values)
    error, expected = np.mean((shares - at) ** 2), np.mean(at * (1 - at)) / len(values)
    return QuantileError(float(error), float(expected), float(kstest(values, "uniform").pvalue), at, shares)


def _checked(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or not len(values) or not ((values >= 0) & (values <= 1)).all():
        raise DataError("values of a distribution function must be [row] and in [0, 1]")
    return values


def _of_pit(name: str, label: str, about: str, better: Literal[-1, 0, 1], value: str, **look: Any) -> StoredMetric:
    def of(fit: StoredValues) -> float | None:
        return None if fit.pit is None else float(getattr(quantile_error(fit.pit), value))

    return StoredMetric(name, label, about, better, "regression", function=of, **look)


def _third(number: int, third: str) -> StoredMetric:
    """Return the share of targets inside the central intervals of a third of the rows: 0 has the narrowest intervals.

    Rows with equally wide intervals stay in their order. If all are equally wide, thirds have no meaning.
    """

    def of(fit: StoredValues) -> float | None:
        if fit.interval is None or len(fit) < len(THIRDS):
            return None
        (low, _, high), targets = fit.interval, fit.targets[:, 0]
        width = high - low
        if not np.isfinite(width).all() or np.ptp(width) <= _EQUAL * width.max():
            return None
        rows = np.array_split(np.argsort(width, kind="stable"), len(THIRDS))[number]
        return float(((low <= targets) & (targets <= high))[rows].mean())

    about = f"share of targets inside 90 % intervals, in the third of the rows with the {third} intervals"
    look: Any = {"task": "regression", "percent": True, "question": "intervals"}
    return StoredMetric([*THIRDS][number], f"Coverage, {third} %", about, 0, function=of, **look)


def _width(name: str, label: str, change: str, *, scaled: bool) -> StoredMetric:
    def of(fit: StoredValues) -> float | None:
        if fit.interval is None or len(fit) < 2:
            return None
        (low, centre, high), calibration = fit.interval, (fit.targets[:, 0], LEVEL, fit.rng)
        if not scaled:
            low, high = moved_by_halves(low, high, *calibration)
        elif ((low < centre) & (centre < high)).all():
            low, high = widened_by_halves(low, centre, high, *calibration)
        else:
            return None
        width = float((high - low).mean())
        return width if math.isfinite(width) else None

    about = f"mean width of intervals {change} to 90 % coverage, original units; each half calibrates the other"
    return StoredMetric(name, label, about, -1, "regression", function=of, **_ASKED)


_ASKED: Any = {"question": "intervals"}
_GAP: Final = "mean squared gap of a quantile's level and the share of targets below it"
_BY_CHANCE: Final = f"{_GAP}, if the predictives are right"
_PIT_P: Final = "p-value of Kolmogorov and Smirnov's test that F(y) is uniform"
_LOOK: Any = {"unit": "digits", "beside": "quantile_error_expected", **_ASKED}
METRICS: Final = (
    _of_pit("quantile_error", "Quantile error", _GAP, -1, "value", **_LOOK),
    _of_pit("quantile_error_expected", "Quantile error by chance", _BY_CHANCE, 0, "expected", unit="digits"),
    _of_pit("pit_p", "PIT p", _PIT_P, 0, "p_value", **_ASKED),
    *(_third(number, third) for number, third in enumerate(THIRDS.values())),
    _width("width_at_90", "Calibrated width", "scaled", scaled=True),
    _width("width_cqr_90", "Width CQR", "with ends moved", scaled=False),
)
