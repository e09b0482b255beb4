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
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..predictive import GAUSS_LEGENDRE, Continuous, Draws, gaussian_quantile, require_column
from .integrals.series import Series
from .output_distributions import Part

_NODES, _WEIGHTS = GAUSS_LEGENDRE
# the barycentric weights of Gauss-Legendre nodes, but for a factor (Wang & Xiang 2012, eq. 1.7)
_BARYCENTRIC: Final = np.where(np.arange(len(_NODES)) % 2, -1, 1) * np.sqrt((1 - _NODES**2) * _WEIGHTS)
_LONGEST: Final = 8.0  # on random trajectories the error was at most 3e-4 below 8, and reached 8e-3 above


class CollapsedMixture(Draws):
    """A mixture of S equally weighted collapsed samples; outputs are independent given a sample."""

    def __init__(self, part: Part, tail: float) -> None:
        """Create the mixture of a ``part`` [draw, batch, output] with the Gaussian's share ``tail``, in [0, 1)."""
        self.part, self.tail = part, tail
        self.draw_mean, self.draw_variance = part.mean, part.variance

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        low, high = self.part.reach
        return low.amin(0), high.amax(0)

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
        require_column(values, self.draw_mean.shape[1:])
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
    def quick(self) -> "Interpolated":
        return Interpolated(self, self.draw_variance.double().sqrt().amin(0))

    def rows(self, index: Int[Tensor, " some"]) -> "CollapsedMixture":
        """Return the predictive of some of the inputs."""
        return CollapsedMixture(self.part.rows(index), self.tail)

    def rescale(self, shift: Tensor, scale: Tensor) -> "CollapsedMixture":
        return CollapsedMixture(self.part.rescale(shift.to(self.draw_mean), scale.to(self.draw_mean)), self.tail)


@final
class Interpolated(CollapsedMixture):
    """A predictive whose distribution function is a polynomial on each panel of its ``table``; the rest is the base's.

    A value of the polynomial takes less time than a value of the base, and a mixture of the base at several widths asks
    for hundreds. The distribution function is 0 and 1 beyond the outer ends. It is within 1e-3 of the base's for rows
    whose panels are at most ``_LONGEST`` standard deviations of a draw; for other rows it is the base's own.
    """

    def __init__(self, base: CollapsedMixture, narrowest: Float[Tensor, "batch output"]) -> None:
        """Create the predictive; ``narrowest`` is the least standard deviation of a draw of the base."""
        self.base, self.narrowest, self.part, self.tail = base, narrowest, base.part, base.tail
        self.draw_mean, self.draw_variance = base.draw_mean, base.draw_variance

    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        ends, _, below = self.base.table
        panel = (ends[1:-1] < values).sum(0, keepdim=True)
        start, stop = ends.gather(0, panel)[0], ends.gather(0, panel + 1)[0]
        t = 2 * (values - start) / (stop - start).clamp_min(1e-300) - 1
        apart = t - torch.tensor(_NODES, device=t.device)[:, None, None]
        parts = torch.tensor(_BARYCENTRIC, device=t.device)[:, None, None] / torch.where(apart == 0, 1e-300, apart)
        at_nodes = below.gather(0, panel[:, None].expand(-1, len(_NODES), -1, -1))[0]
        share = ((parts * at_nodes).sum(0) / parts.sum(0)).clamp(0, 1)
        share = torch.where(values <= ends[0], 0.0, share)
        share = torch.where(values >= ends[-1], 1.0, share)
        if self._exact is not None:
            long, some, index = self._exact
            share[index] = torch.where(long[index], some.cdf(values[index]), share[index])
        return share

    @cached_property
    def _exact(self) -> tuple[Bool[Tensor, "batch output"], Continuous, Int[Tensor, " some"]] | None:
        """Return which values have the base's own distribution function, the base of their rows, and the rows' indices.

        None if no value has. The base is not asked for other rows: one of 300 would make each call 40 times as slow.
        """
        long = self.base.table[0].diff(dim=0).amax(0) > _LONGEST * self.narrowest
        index = long.any(1).nonzero()[:, 0]
        return (long, self.base.rows(index), index) if len(index) else None

    @property
    def table(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.base.table

    @property
    def quick(self) -> "Interpolated":
        return self

    def rescale(self, shift: Tensor, scale: Tensor) -> "Interpolated":
        return Interpolated(self.base.rescale(shift, scale), scale.to(self.narrowest) * self.narrowest)
