"""A predictive with a slow distribution function, which is interpolated from a table of it."""

from abc import abstractmethod
from functools import cached_property
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..predictive import GAUSS_LEGENDRE, Continuous

_NODES, _WEIGHTS = GAUSS_LEGENDRE
# the barycentric weights of Gauss-Legendre nodes, but for a factor (Wang & Xiang 2012, eq. 1.7)
_BARYCENTRIC: Final = np.where(np.arange(len(_NODES)) % 2, -1, 1) * np.sqrt((1 - _NODES**2) * _WEIGHTS)
_LONGEST: Final = 8.0  # on random trajectories the error was at most 3e-4 below 8, and reached 8e-3 above


class Rowwise(Continuous):
    """A predictive that can be restricted to some of its inputs."""

    @abstractmethod
    def rows(self, index: Int[Tensor, " some"]) -> Continuous:
        """Return the predictive of some of the inputs."""

    @abstractmethod
    def rescale(self, shift: Tensor, scale: Tensor) -> "Rowwise": ...


@final
class Interpolated(Continuous):
    """A predictive whose distribution function is a polynomial on each panel of its ``table``; the rest is the base's.

    A value of the polynomial takes less time than a value of the base, and a mixture of the base at several widths asks
    for hundreds. The distribution function is 0 and 1 beyond the outer ends. It is within 1e-3 of the base's for rows
    whose panels are at most ``_LONGEST`` standard deviations of a draw; for other rows it is the base's own.
    """

    def __init__(self, base: Rowwise, narrowest: Float[Tensor, "batch output"]) -> None:
        """Create the predictive; ``narrowest`` is the least standard deviation of a draw of the base."""
        self.base, self.narrowest = base, narrowest

    @property
    def mean(self) -> Tensor:
        return self.base.mean

    @property
    def variance(self) -> Tensor:
        return self.base.variance

    @property
    def epistemic_variance(self) -> Float[Tensor, "batch output"]:
        return self.base.epistemic_variance

    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        ends, _, below = self.base.table
        panel = (ends[1:-1] < values).sum(0, keepdim=True)
        start, stop = ends.gather(0, panel)[0], ends.gather(0, panel + 1)[0]
        t = 2 * (values - start) / (stop - start).clamp_min(1e-300) - 1
        apart = t - torch.tensor(_NODES, device=t.device)[:, None, None]
        parts = torch.tensor(_BARYCENTRIC, device=t.device)[:, None, None] / torch.where(apart == 0, 1e-300, apart)
        known = below.gather(0, panel[:, None].expand(-1, len(_NODES), -1, -1))[0]
        found = ((parts * known).sum(0) / parts.sum(0)).clamp(0, 1)
        found = torch.where(values <= ends[0], 0.0, found)
        found = torch.where(values >= ends[-1], 1.0, found)
        if self._exact is not None:
            long, some, index = self._exact
            found[index] = torch.where(long[index], some.cdf(values[index]), found[index])
        return found

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

    def bracket(self, level: float) -> tuple[Tensor, Tensor]:
        return self.base.bracket(level)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        return self.base.reach

    def log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, " batch"]:
        return self.base.log_prob(targets)

    def draw_log_prob(self, targets: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch"]:
        return self.base.draw_log_prob(targets)

    def rescale(self, shift: Tensor, scale: Tensor) -> "Interpolated":
        return Interpolated(self.base.rescale(shift, scale), scale.to(self.narrowest) * self.narrowest)
