"""Predictives that follow from others: the mixture of several, and the distribution of the exponential of one."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .predictive import Continuous, Gaussian, Predictive
from .student_t import StudentT

_LEAST_SHARE: Final = 1e-3  # of a part of a mixture


def best_shares(
    log_densities: Float[np.ndarray, "part row"], steps: int, counts: Float[np.ndarray, " row"] | None = None
) -> Float[np.ndarray, " part"]:
    """Return the shares w of a mixture's parts that maximise Σ_i n_i log Σ_k w_k p_k(y_i), by EM.

    The maximum is one of a concave function (Laird 1978; Lindsay 1983). A row whose densities are all 0 plays no part;
    if there is no other row, the shares are equal. A share below .001 becomes 0.

    Args:
        log_densities: log p_k(y_i).
        steps: the number of EM steps.
        counts: n_i; all 1 if None.
    """
    possible = np.isfinite(log_densities.max(0))
    logs, shares = log_densities[:, possible], np.full(len(log_densities), 1 / len(log_densities))
    if not possible.any():
        return shares
    density, count = np.exp(logs - logs.max(0)), np.ones(logs.shape[1]) if counts is None else counts[possible]
    for _ in range(steps):
        joint = shares[:, None] * density
        shares = (joint / joint.sum(0)) @ count / count.sum()
    shares[shares < _LEAST_SHARE] = 0
    return shares / shares.sum()


@final
class Mixture(Continuous):
    """A mixture Σ_k share_k p_k(y | x) of several distributions of the same targets.

    A component is one distribution of all outputs of a row: outputs are dependent if components differ.

    Attributes:
        parts: the components p_k.
        shares: their probabilities, which sum to 1, the same for all inputs.
    """

    def __init__(self, parts: Sequence[Continuous], shares: Sequence[float]) -> None:
        self.parts, self.shares = tuple(parts), tuple(shares)

    @property
    def mean(self) -> Float[Tensor, "batch output"]:
        return self._expected([part.mean for part in self.parts])

    @property
    def variance(self) -> Float[Tensor, "batch output"]:
        """Return the mean of the components' variances, plus the variance of their means."""
        mean = self.mean
        return self._expected([part.variance + (part.mean - mean).square() for part in self.parts])

    @property
    def epistemic_variance(self) -> Float[Tensor, "batch output"]:
        """Return the mean of the components' variances over draws."""
        return self._expected([part.epistemic_variance for part in self.parts])

    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        return self._expected([part.cdf(values) for part in self.parts])

    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        lows, highs = zip(*(part.bracket(level) for part in self.parts), strict=True)
        return torch.stack(lows).amin(0), torch.stack(highs).amax(0)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        lows, highs = zip(*(part.reach for part in self.parts), strict=True)
        return torch.stack(lows).amin(0), torch.stack(highs).amax(0)

    @property
    def jumps(self) -> Float[Tensor, "jump batch output"] | None:
        each = [jumps for part in self.parts if (jumps := part.jumps) is not None]
        return torch.cat(each) if each else None

    def log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, " batch"]:
        terms = [part.log_prob(targets) + math.log(share) for part, share in zip(self.parts, self.shares, strict=True)]
        return torch.logsumexp(torch.stack(terms), dim=0)

    def rescale(self, shift: Tensor, scale: Tensor) -> "Mixture":
        return Mixture([part.rescale(shift, scale) for part in self.parts], self.shares)

    def _expected(self, values: Sequence[Tensor]) -> Tensor:
        return torch.stack([share * value for share, value in zip(self.shares, values, strict=True)]).sum(0)


@final
class Exponential(Continuous):
    """The distribution of exp(z), where z has the distribution ``base``, for targets that were fitted as logarithms.

    Densities, quantiles and distribution functions are exact. Moments are exact if ``base`` is a mixture of Gaussians;
    otherwise they are integrals of a distribution whose outermost 1e-6 is at its ends.
    """

    def __init__(self, base: Continuous) -> None:
        self.base = base

    @property
    def mean(self) -> Float[Tensor, "batch output"]:
        return self._moments[0]

    @property
    def variance(self) -> Float[Tensor, "batch output"]:
        return self._moments[1]

    @property
    def epistemic_variance(self) -> Float[Tensor, "batch output"]:
        if not isinstance(self.base, Gaussian):
            return self.base.epistemic_variance * self.mean.square()  # to first order
        return self._draw_means.var(0, correction=0)

    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        below = self.base.cdf(values.double().clamp_min(torch.finfo(torch.float64).tiny).log())
        return torch.where(values > 0, below, torch.zeros_like(below))

    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        low, high = self.base.bracket(level)
        return low.exp(), high.exp()

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        low, high = self.base.reach
        return low.exp(), high.exp()

    @property
    def jumps(self) -> Float[Tensor, "jump batch output"] | None:
        jumps = self.base.jumps
        return None if jumps is None else jumps.exp()

    def log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, " batch"]:
        """Return log p(log y | x) − Σ log y; −∞ where a target is not above 0."""
        return self._own_units(self.base.log_prob, targets)

    def draw_log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch"]:
        return self._own_units(self.base.draw_log_prob, targets)

    def _own_units(self, log_density: Callable[[Tensor], Tensor], targets: Tensor) -> Tensor:
        logs = targets.log()
        return torch.where((targets > 0).all(-1), log_density(logs) - logs.sum(-1), -torch.inf)

    def rescale(self, shift: Tensor, scale: Tensor) -> "Continuous":
        raise TypeError("the exponential of a predictive cannot be rescaled")

    @cached_property
    def _draw_means(self) -> Tensor:
        assert isinstance(self.base, Gaussian)
        return (self.base.draw_mean.double() + self.base.draw_variance.double() / 2).exp()

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance, in float64."""
        if isinstance(self.base, Gaussian):
            within = self._draw_means.square() * torch.expm1(self.base.draw_variance.double())
            return self._draw_means.mean(0), within.mean(0) + self._draw_means.var(0, correction=0)
        low, z, weight = self.base.survival
        first, values = low.exp(), z.exp()
        mean = first + (weight * values).sum(0)
        return mean, (first - mean).square() + (weight * 2 * (values - mean) * values).sum(0)


def for_logarithms(predictive: Predictive, scale: Float[Tensor, " output"]) -> Predictive:
    """Return a predictive of logarithms whose exponential has moments: each Student t as a mixture of Gaussians.

    ``scale`` is the number of logarithmic units in one of the predictive's units.
    """
    if isinstance(predictive, Mixture):
        parts = [part.gaussians(1 / scale) if isinstance(part, StudentT) else part for part in predictive.parts]
        return Mixture(parts, predictive.shares)
    return predictive.gaussians(1 / scale) if isinstance(predictive, StudentT) else predictive
