"""The predictive of collapsed regression: exact integrals, mixed over a trajectory's snapshots.

    p(y | x, D) = (1/S) Σ_s Π_k [(1 − t) p_s(y_k | x) + t N(y_k; m_s, v_s)],

with p_s the exact average of a triangular likelihood over the box of the collapsed weights
(:mod:`.output_distributions`), m_s and v_s its mean and variance, and t the weight of the ``tail``. With t = 0 it is
the paper's predictive.

Deviation: the tail. A triangular likelihood is zero beyond √6 standard deviations of the noise and the box. So a target
that no snapshot reaches has log-likelihood −∞, and so has the test set, although the Gaussian that the triangle
approximates gives the target positive density. The paper reports finite scores and does not explain them. A share t of
a Gaussian with equal moments keeps p a density with the same mean and variance. It costs at most −log(1 − t) for other
rows, and a row out of reach is scored as an outlier. ``reach`` gives the ends of the support.
"""

import math
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..predictive import gaussian_quantile, mixture
from .integrals.series import Series
from .interpolated import Interpolated, Rowwise
from .output_distributions import Part


@final
class CollapsedMixture(Rowwise):
    """A mixture of S equally weighted collapsed samples; outputs are independent given a sample."""

    def __init__(self, part: Part, tail: float) -> None:
        """Create the mixture of a ``part`` [draw, batch, output] with the Gaussian's share ``tail``, in [0, 1)."""
        self.part, self.tail = part, tail
        self.draw_mean, self.draw_variance = part.mean, part.variance

    @property
    def mean(self) -> Float[Tensor, "batch output"]:
        return self.draw_mean.mean(0)

    @property
    def variance(self) -> Float[Tensor, "batch output"]:
        """Return E[Var] + Var[E] over samples (the population form)."""
        return self.draw_variance.mean(0) + self.epistemic_variance

    @property
    def epistemic_variance(self) -> Float[Tensor, "batch output"]:
        """Return the variance of the samples' means, which excludes the variance within the boxes."""
        return self.draw_mean.var(0, correction=0)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        low, high = self.part.reach
        return low.amin(0), high.amax(0)

    def log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, " batch"]:
        return mixture(self.draw_log_prob(targets))

    def draw_log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch"]:
        each = self.part.log_density(targets)  # [draw, batch, output]
        if self.tail > 0:
            squared = (targets - self.draw_mean).square() / self.draw_variance
            gaussian = -0.5 * (squared + self.draw_variance.log() + math.log(2 * math.pi))
            each = torch.logaddexp(each + math.log1p(-self.tail), gaussian + math.log(self.tail))
        return each.sum(-1)

    @cached_property
    def _series(self) -> Series | None:
        return self.part.series(self.tail)

    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        if self._series is not None:
            return self._series.cdf(values)
        each = self.part.cdf(values)
        if self.tail > 0:
            gaussian = torch.special.ndtr((values - self.draw_mean) / self.draw_variance.sqrt())
            each = (1 - self.tail) * each + self.tail * gaussian
        return each.mean(0)

    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        low, high = self.part.reach
        if self.tail > 0:
            at = gaussian_quantile(self.draw_mean, self.draw_variance, level)
            low, high = torch.minimum(low, at), torch.maximum(high, at)
        return low.amin(0), high.amax(0)

    @cached_property
    def quick(self) -> Interpolated:
        return Interpolated(self, self.draw_variance.double().sqrt().amin(0))

    def rows(self, index: Int[Tensor, " some"]) -> "CollapsedMixture":
        """Return the predictive of some of the inputs."""
        return CollapsedMixture(self.part.rows(index), self.tail)

    def rescale(self, shift: Tensor, scale: Tensor) -> "CollapsedMixture":
        return CollapsedMixture(self.part.rescale(shift.to(self.draw_mean), scale.to(self.draw_mean)), self.tail)
