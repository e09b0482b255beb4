"""Intervals for rows that arrive one after the other: their coverage over time is the level, whatever drifts.

    α_{t+1} = α_t + γ (α − err_t),    err_t = 1 if the interval of row t misses its target

(Gibbs and Candès 2021, "Adaptive conformal inference under distribution shift", equation 2.) The interval of row t is
the split-conformal one at level 1 − α_t, given the scores of the latest rows. For any sequence of targets at all,

    |mean of err_1 … err_T − α| ≤ (max(α, 1 − α) + γ) / (T γ)        (proposition 4.1)

Deviations: calibration scores are those of a window of the latest rows, so that they drift, too; the rows of a block,
which are predicted before any of their targets is known, share one α_t, and with B rows in a block the numerator of
the bound has Bγ in place of γ. Where α_t ≥ 1 the interval is its middle and not empty, so that fewer targets are missed
if many equal their prediction.
"""

import math
from collections import deque
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from .conformal import row_scores, threshold
from .distribution import Distribution
from .errors import DataError, require, short
from .predictive import Continuous, Predictive


@final
class AdaptiveIntervals:
    """Adaptive conformal intervals of regression, around the means of any predictive, in its standard deviations.

    Args:
        level: the wanted share of targets inside, in (0, 1).
        rate: γ > 0: by how much one miss moves the level. A large rate follows drift faster, and its intervals vary
            more.
        window: the number of latest scores that calibrate.

    Attributes:
        alpha: α_t, the rate of misses that the next intervals aim at; below 0 they are infinite, from 1 on they have
            the width 0.
        rows, misses: the number of rows observed so far, and of those outside.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(self, level: float = 0.9, *, rate: float = 0.005, window: int = 1000) -> None:
        require(0 < level < 1, "level", "must be in (0, 1)", level)
        require(0 < rate < math.inf, "rate", "must be > 0 and finite", rate)
        whole = isinstance(window, int | np.integer) and not isinstance(window, bool)
        require(whole and window > 0, "window", "must be a whole number > 0", window)
        self.level, self.rate, self.alpha = level, rate, 1 - level
        self.rows, self.misses = 0, 0
        self._scores = deque[float](maxlen=window)

    @property
    def coverage(self) -> float:
        """Return the share of observed targets that were inside; NaN before any."""
        return 1 - self.misses / self.rows if self.rows else math.nan

    def _radius(self) -> float:
        """Return the radius of the next intervals, in standard deviations."""
        level = 1 - self.alpha
        if level <= 0:
            return 0.0
        return math.inf if level >= 1 else threshold(np.array(self._scores), level)

    def intervals(
        self, predictive: Predictive | Distribution
    ) -> tuple[Float[np.ndarray, "row ..."], Float[np.ndarray, "row ..."]]:
        """Return the ends of the next rows' intervals, float64. They are infinite while there are too few scores.

        Returns:
            Ends of the shape of a distribution's ``mean``, or [row, output] for a predictive.

        Raises:
            DataError: the predictive is one of classes.
        """
        tensors, radius = _tensors(predictive), self._radius()
        mean = tensors.mean.double().cpu().numpy()
        if math.isinf(radius):
            low, high = np.full_like(mean, -math.inf), np.full_like(mean, math.inf)
        else:
            reach = radius * tensors.variance.double().sqrt().cpu().numpy()
            low, high = mean - reach, mean + reach
        if isinstance(predictive, Distribution):
            return predictive._shaped(low), predictive._shaped(high)
        return low, high

    def observe(self, predictive: Predictive | Distribution, targets: ArrayLike | Tensor) -> None:
        """Learn from the targets [row] or [row, output] of the rows whose intervals came last, in their order.

        Raises:
            DataError: the predictive is one of classes, or the targets are not finite or not as many as the rows.
        """
        predictive = _tensors(predictive)
        rule = f"targets: must be {list(predictive.mean.shape)} finite numbers"
        try:
            values = torch.as_tensor(np.atleast_1d(np.asarray(targets, np.float64)))
        except (TypeError, ValueError):
            raise DataError(f"{rule}, got {short(targets)}") from None
        values = values[:, None] if values.ndim == 1 else values
        if values.shape != predictive.mean.shape:
            raise DataError(f"{rule}, got {list(values.shape)}")
        if not bool(values.isfinite().all()):
            raise DataError(f"{rule}, got {values[~values.isfinite()][0]:g}")
        scores, radius = row_scores(predictive, values.to(predictive.mean)).double().tolist(), self._radius()
        wrong = [score > radius for score in scores]
        for miss in wrong:
            self.alpha += self.rate * (1 - self.level - miss)
        self.rows, self.misses = self.rows + len(scores), self.misses + sum(wrong)
        self._scores.extend(scores)


def _tensors(predictive: Predictive | Distribution) -> Continuous:
    tensors = predictive.predictive if isinstance(predictive, Distribution) else predictive
    if not isinstance(tensors, Continuous):
        raise DataError("predictive: must be of numbers, not of classes")
    return tensors
