"""Scores that every predictive has, and the state of a metric that is a mean: (sum, count), added across workers."""

import math
from dataclasses import dataclass

from torch import Tensor

from ..predictive import Predictive


@dataclass(frozen=True)
class Mean:
    """A sum in float64 and how many values are in it; ``Mean()`` is the neutral element of ``+``."""

    sum: float = 0.0
    count: int = 0

    @classmethod
    def of(cls, values: Tensor) -> "Mean":
        """Return the mean of all the values of a tensor."""
        return cls(float(values.double().sum()), values.numel())

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> float:
        """Return the mean; NaN where nothing was counted."""
        return self.sum / self.count if self.count else math.nan

    @property
    def root(self) -> float:
        """Return the root of the mean: RMSE, of squared errors."""
        return math.sqrt(self.value)


def nll(predictive: Predictive, targets: Tensor) -> Mean:
    """Return −log p(y|x) in nats; of all output columns together, for regression."""
    return Mean.of(-predictive.log_prob(targets))


def log_likelihood(predictive: Predictive, targets: Tensor) -> Mean:
    """Return log p(y|x) in nats."""
    return Mean.of(predictive.log_prob(targets))
