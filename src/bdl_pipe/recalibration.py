"""Recalibration of a fitted posterior on held-out rows: a temperature or several widths, and conformal scores.

Classes: p_T(k | x) ∝ p(k | x)^(1/T) of the mixture's probabilities (Guo et al. 2017, section 4.2). T minimises the
negative log-likelihood of the calibration rows (SciPy).

Regression: the predictive becomes a mixture Σ_k w_k p_k(z | x) of itself at several widths, z ↦ μ(x) + s_k (z − μ(x)),
in transformed units (ours). One width corrects a noise that is too small or too large; several widths describe tails
that are heavier than a Gaussian's. The widths are 2^(k/2), from 1/8 to 2.83 c, where c is 1 or, if it is larger, the
power of 2 that is nearest to the calibration rows' median of |z − μ|/sd over its value for a Gaussian: the predictive
is then too narrow for most rows. The shares w_k maximise

    Σ_i log Σ_k w_k p_k(z_i | x_i) + n_0 E_t log Σ_k w_k N(t; 0, (s_k/c)²),  t ~ N(0, 1),

the log-likelihood of the calibration rows and of n_0 = 40 imagined rows that the width c describes exactly.
If z is the logarithm of the target, a width above 1 stretches a row to a standard deviation of at most 1, or leaves it
as it is. Otherwise one far draw of a posterior sets the mean of exp(z): on one row of ``check_times`` it was 17,000,
and the median 68.

The conformal scores of the calibration rows are kept, too (:mod:`bdl_pipe.conformal`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from . import conformal
from .artifacts import State
from .data.examples import Examples
from .data.transform import Transform
from .derived_predictive import Mixture, best_shares, for_logarithms
from .errors import ArtifactError
from .predictive import Categorical, Continuous, Gaussian, Predictive, require_column, require_outputs
from .student_t import StudentT

_BOUNDS: Final = (math.log(0.02), math.log(50))  # bounds of log T
_EXPONENTS: Final = range(-6, 4)  # k, if c is 1; a width above 2.83 would move the mean of exp(z) by far
_MEDIAN: Final = NormalDist().inv_cdf(0.75)  # the median of |t|
_IMAGINED: Final = 40  # n_0; with 60 to 200 calibration rows of four tables, 20 and 80 gave about the same NLL
_STEPS: Final = 500  # the number of EM steps
Factor = float | Float[Tensor, "batch output"]


@dataclass(frozen=True)
class Recalibration:
    """A temperature, or widths with their shares, and the conformal scores of the calibration rows.

    Attributes:
        factors: (T,) for classes, the widths s_k for regression; above 1 if the posterior is over-confident.
        shares: w_k, which sum to 1; (1.0,) for classes.
        scores: the conformal scores of the calibration rows, ascending [n].
        groups: the group of each of these rows, a number [n]; None if the rows have no groups.
        grouped_by: the place of the column whose values are the groups, or ``conformal.OF_CLASSES``; None without them.
    """

    factors: tuple[float, ...]
    shares: tuple[float, ...]
    scores: Float[Tensor, " n"]
    groups: Float[Tensor, " n"] | None = None
    grouped_by: int | None = None

    @property
    def factor(self) -> float:
        """Return T, or for regression the factor of the predictive's standard deviation, √(Σ_k w_k s_k²)."""
        return math.sqrt(sum(share * factor**2 for share, factor in zip(self.shares, self.factors, strict=True)))

    def apply(self, predictive: Predictive, *, logs: bool = False) -> Predictive:
        """Return the recalibrated predictive.

        Args:
            predictive: probabilities, or for regression a predictive in the transformed units or a linear form of them.
            logs: whether the predictive is of natural logarithms of targets.
        """
        if isinstance(predictive, Categorical):
            tempered = torch.log_softmax(predictive.log_probs / self.factors[0], dim=-1)
            return Categorical(tempered[None], predictive.scores)
        assert isinstance(predictive, Continuous)
        most = torch.ones(1, dtype=torch.float64) if logs else None
        return Mixture([_stretched(predictive, factor, most) for factor in self.factors], self.shares)

    def class_set(
        self, predictive: Categorical, level: float, rows: np.ndarray | None = None
    ) -> Bool[Tensor, "batch class"]:
        """Return which classes are in the conformal set of each input; see :func:`.conformal.class_sets`."""
        return conformal.class_sets([predictive], [self], level, rows)

    def interval(
        self, predictive: Continuous, transform: Transform, level: float, rows: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the ends [batch, output] of the conformal intervals; see :func:`.conformal.intervals`."""
        low, high = conformal.intervals([predictive], [self], [transform.own_units], level, rows)
        return low, high

    def state(self) -> State:
        """Return the state, for :meth:`from_state`."""
        tensors, config = {"scores": self.scores}, {"factors": list(self.factors), "shares": list(self.shares)}
        if self.groups is None:
            return State(tensors, config)
        return State({**tensors, "groups": self.groups}, {**config, "grouped_by": self.grouped_by})

    @classmethod
    def from_state(cls, state: State) -> "Recalibration":
        """Rebuild the recalibration from its :meth:`state`.

        Raises:
            ArtifactError: the rows have groups, and the state does not say which.
        """
        factors, shares = tuple(state.config["factors"]), tuple(state.config["shares"])
        groups, grouped_by = state.tensors.get("groups"), state.config.get("grouped_by")
        if groups is not None and grouped_by is None:
            raise ArtifactError("a calibration by groups must store what its groups are, and does not; fit it again")
        return cls(factors, shares, state.tensors["scores"], groups, grouped_by)


def fit(
    batches: Iterator[tuple[slice, Predictive]],
    rows: Examples,
    transform: Transform,
    grouped_by: int | None = None,
) -> Recalibration:
    """Fit the recalibration to calibration rows.

    Args:
        batches: the posterior's predictives of the rows, in transformed units, in order.
        rows: the calibration rows, with targets in their own units.
        grouped_by: the place of the column of inputs whose values are groups of rows, each of which is calibrated
            apart, or ``conformal.OF_CLASSES``.
    """
    parts = [(predictive, transform.targets(rows.targets[at])) for at, predictive in batches]
    # in the standard deviations that intervals are made of: those of for_logarithms may be smaller
    scores, order = torch.cat([conformal.row_scores(predictive, targets) for predictive, targets in parts]).sort()
    if transform.log and transform.scale is not None:  # as the recalibration is applied
        parts = [(for_logarithms(of, transform.scale), targets) for of, targets in parts]
    groups = None
    if grouped_by is not None:
        of_row = rows.targets if grouped_by == conformal.OF_CLASSES else rows.inputs[:, grouped_by]
        groups = torch.tensor(of_row, dtype=torch.float64)[order]
    if isinstance(parts[0][0], Categorical):
        return Recalibration((_temperature(parts),), (1.0,), scores, groups, grouped_by)
    median = float(torch.cat([conformal.standardised(*part).flatten() for part in parts]).median())
    octaves = min(round(math.log2(max(median, _MEDIAN) / _MEDIAN)), 6)  # log2 c
    widths = [2 ** (k / 2) for k in range(_EXPONENTS.start, _EXPONENTS.stop + 2 * octaves)]
    most = 1 / transform.scale.double() if transform.log and transform.scale is not None else None
    densities = list[Tensor]()  # log p_k(z) of each row at each width [width, row]
    for predictive, targets in parts:
        assert isinstance(predictive, Continuous)
        there = targets.to(predictive.mean.device)
        of_widths = [_stretched(predictive, width, most).log_prob(there).double().cpu() for width in widths]
        densities.append(torch.stack(of_widths))
    shares = _shares(torch.cat(densities, 1).numpy(), np.array(widths) / 2**octaves).tolist()
    factors, kept = zip(*((width, share) for width, share in zip(widths, shares, strict=True) if share), strict=True)
    return Recalibration(factors, kept, scores, groups, grouped_by)


def _temperature(parts: Sequence[tuple[Predictive, Tensor]]) -> float:
    """Return the temperature of the least negative log-likelihood."""
    from scipy.optimize import minimize_scalar

    def loss(log_factor: float) -> float:
        tempered = Recalibration((math.exp(log_factor),), (1.0,), torch.zeros(0))
        return -sum(float(tempered.apply(p).log_prob(t.to(p.mean.device)).double().sum()) for p, t in parts)

    best = minimize_scalar(loss, bounds=_BOUNDS, method="bounded", options={"xatol": 1e-4})
    return math.exp(float(best.x)) if math.isfinite(best.fun) and best.fun < loss(0.0) else 1.0


def _stretched(predictive: Continuous, factor: float, most: Float[Tensor, " output"] | None) -> Continuous:
    """Return the predictive widened by ``factor``, for a factor above 1 up to a standard deviation of ``most``."""
    if most is None or factor <= 1:
        return widened(predictive, factor)
    sd = predictive.variance.double().sqrt()
    return widened(predictive, (most.to(sd.device) / sd).clamp(1, factor))


def _shares(
    log_densities: Float[np.ndarray, "width row"], relative: Float[np.ndarray, " width"]
) -> Float[np.ndarray, " width"]:
    """Return the shares of the widths.

    Args:
        relative: the widths over c.
    """
    t = np.linspace(-4, 4, _IMAGINED)[None]
    weight = np.exp(-(t**2) / 2)
    imagined = -(t**2) / (2 * relative[:, None] ** 2) - np.log(relative[:, None])
    counts = np.concatenate([np.ones(log_densities.shape[1]), (_IMAGINED * weight / weight.sum())[0]])
    return best_shares(np.concatenate([log_densities, imagined], axis=1), _STEPS, counts)


def widened(base: Continuous, factor: Factor) -> Continuous:
    """Return the distribution of μ + s (z − μ), where z has the distribution ``base`` with mean μ and s is ``factor``.

    A mixture of Gaussians or of Student ts stays one: its draws move away from the mean, and their scales grow.
    """
    if isinstance(base, StudentT):
        return base.widened(factor)
    if not isinstance(base, Gaussian):
        return Widened(base.quick, factor)
    centre = base.mean
    return Gaussian(centre + factor * (base.draw_mean - centre), factor**2 * base.draw_variance)


@final
class Widened(Continuous):
    """The distribution of :func:`widened`, for a ``base`` that is no mixture of Gaussians or Student ts."""

    def __init__(self, base: Continuous, factor: Factor) -> None:
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
        require_column(values, self._centre.shape)
        return self.base.cdf(self._narrow(values))

    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        low, high = self.base.bracket(level)
        return self._wide(low), self._wide(high)

    @property
    def survival(self) -> tuple[Tensor, Tensor, Tensor]:
        low, z, weight = self.base.survival  # all widths of a mixture share the base's
        return self._wide(low), self._wide(z), self.factor * weight

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        low, high = self.base.reach
        return self._wide(low), self._wide(high)

    @property
    def jumps(self) -> Float[Tensor, "jump batch output"] | None:
        jumps = self.base.jumps
        return None if jumps is None else self._wide(jumps)

    def log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, " batch"]:
        require_outputs(targets, self._centre.shape)
        stretch = torch.as_tensor(self.factor, dtype=torch.float64).log().expand_as(self._centre).sum(-1)
        return self.base.log_prob(self._narrow(targets)) - stretch

    def rescale(self, shift: Tensor, scale: Tensor) -> "Widened":
        return Widened(self.base.rescale(shift, scale), self.factor)

    def _narrow(self, values: Tensor) -> Tensor:
        return self._centre + (values - self._centre) / self.factor

    def _wide(self, values: Tensor) -> Tensor:
        return torch.where(values.isfinite(), self._centre + self.factor * (values - self._centre), values)
