"""Recalibration of a fitted posterior on held-out rows: a temperature or a width, and conformal scores.

Classes: p_T(k | x) ∝ p(k | x)^(1/T) of the mixture's probabilities (Guo et al. 2017, section 4.2). Regression: the
predictive is widened about its mean, z ↦ μ(x) + s (z − μ(x)), in transformed units. T and s minimise the negative
log-likelihood of the calibration rows (SciPy).

Split conformal prediction (Vovk, Gammerman & Shafer 2005; Lei et al. 2018): with scores r_1 … r_n of the calibration
rows and q the ⌈(n + 1)·level⌉-th smallest, the set {y: r(x, y) ≤ q} holds a new target with a probability between level
and level + 1/(n + 1), on average over calibration and test rows, for any posterior. Scores are 1 − p(y | x) for classes
(Sadinle, Lei & Wasserman 2019), and for regression the largest |z − μ(x)|/sd(x) over outputs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .artifacts import State
from .data.examples import Examples
from .data.transform import Transform
from .errors import require
from .predictive import Categorical, Continuous, Predictive

_BOUNDS: Final = (math.log(0.02), math.log(50))  # bounds of log T and log s


@dataclass(frozen=True)
class Recalibration:
    """A temperature or width, and the conformal scores of the calibration rows.

    Attributes:
        factor: T for classes, s for regression; > 1 if the posterior is over-confident.
        scores: the conformal scores of the calibration rows, ascending [n].
    """

    factor: float
    scores: Float[Tensor, " n"]

    def apply(self, predictive: Predictive) -> Predictive:
        """Return the recalibrated predictive; for regression in transformed units."""
        if isinstance(predictive, Categorical):
            tempered = torch.log_softmax(predictive.log_probs / self.factor, dim=-1)
            return Categorical(tempered[None], predictive.scores)
        assert isinstance(predictive, Continuous)
        return Widened(predictive, self.factor)

    def threshold(self, level: float) -> float:
        """Return the largest score inside a conformal set.

        Raises:
            ConfigError: the level is not in (0, 1), or there are too few calibration rows for it.
        """
        require(0 < level < 1, "level", "must be in (0, 1)", level)
        place, count = math.ceil((len(self.scores) + 1) * level - 1e-9), len(self.scores)  # 100·0.55 gives 55, not 56
        rule = f"must be at most {count / (count + 1):.4g} with {count} calibration rows"
        require(place <= count, "level", rule, level)
        return float(self.scores[place - 1])

    def class_set(self, predictive: Categorical, level: float) -> Bool[Tensor, "batch class"]:
        """Return which classes are in the conformal set of each input."""
        return 1 - predictive.mean.double() <= self.threshold(level)

    def interval(self, predictive: Continuous, transform: Transform, level: float) -> tuple[Tensor, Tensor]:
        """Return the ends [batch, output] of the conformal intervals, in the targets' own units.

        Args:
            predictive: the predictive before recalibration, in transformed units.
        """
        reach = self.threshold(level) * predictive.variance.double().sqrt()
        centre = predictive.mean.double()
        return transform.own_units(centre - reach), transform.own_units(centre + reach)

    def state(self) -> State:
        """Return the state, for :meth:`from_state`."""
        return State({"scores": self.scores}, {"factor": self.factor})

    @classmethod
    def from_state(cls, state: State) -> "Recalibration":
        """Rebuild the recalibration from its :meth:`state`."""
        return cls(float(state.config["factor"]), state.tensors["scores"])


def fit(batches: Iterator[tuple[slice, Predictive]], rows: Examples, transform: Transform) -> Recalibration:
    """Fit the recalibration to calibration rows.

    Args:
        batches: the posterior's predictives of the rows, in transformed units, in order.
        rows: the calibration rows, with targets in their own units.
    """
    from scipy.optimize import minimize_scalar

    parts = [(predictive, transform.targets(rows.targets[at])) for at, predictive in batches]
    scores = torch.cat([_scores(predictive, targets) for predictive, targets in parts]).sort().values

    def loss(log_factor: float) -> float:
        made = Recalibration(math.exp(log_factor), scores)
        return -sum(float(made.apply(p).log_prob(t.to(p.mean.device)).double().sum()) for p, t in parts)

    found = minimize_scalar(loss, bounds=_BOUNDS, method="bounded", options={"xatol": 1e-4})
    best = float(found.x) if math.isfinite(found.fun) and found.fun < loss(0.0) else 0.0
    return Recalibration(math.exp(best), scores)


def _scores(predictive: Predictive, targets: Tensor) -> Tensor:
    """Return the conformal score of each row, in float64."""
    if isinstance(predictive, Categorical):
        return (1 - predictive.mean.double().gather(1, targets.long()[:, None].to(predictive.mean.device))[:, 0]).cpu()
    sd = predictive.variance.double().sqrt()
    return ((targets.to(sd.device) - predictive.mean).abs() / sd).amax(1).cpu()


@final
class Widened(Continuous):
    """The distribution of μ + s (z − μ), where z has the distribution ``base`` with mean μ."""

    def __init__(self, base: Continuous, factor: float) -> None:
        self.base, self.factor = base, factor

    @cached_property
    def _centre(self) -> Tensor:
        return self.base.mean

    @property
    def mean(self) -> Tensor:
        return self._centre

    @property
    def variance(self) -> Tensor:
        return self.factor**2 * self.base.variance

    @property
    def epistemic_variance(self) -> Float[Tensor, "batch output"]:
        return self.factor**2 * self.base.epistemic_variance

    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        return self.base.cdf(self._narrow(values))

    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        low, high = self.base.bracket(level)
        return self._wide(low), self._wide(high)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        low, high = self.base.reach
        return self._wide(low), self._wide(high)

    def log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, " batch"]:
        outputs = self._centre.shape[-1]
        return self.base.log_prob(self._narrow(targets)) - outputs * math.log(self.factor)

    def rescale(self, shift: Tensor, scale: Tensor) -> "Widened":
        moved = self.base.rescale(shift, scale)
        assert isinstance(moved, Continuous)
        return Widened(moved, self.factor)

    def _narrow(self, values: Tensor) -> Tensor:
        return self._centre + (values - self._centre) / self.factor

    def _wide(self, values: Tensor) -> Tensor:
        return torch.where(values.isfinite(), self._centre + self.factor * (values - self._centre), values)
