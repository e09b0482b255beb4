"""The target's distribution for one collapsed sample: triangular noise around an output that depends on uniforms.

    Linear      y = c + Σ_i h_iU_i + T                          weights of the last layer
    Rectified   y = b + s·relu(c + Σ_i h_iU_i) + gV + T         weights of one ReLU unit (:mod:`.rectified`)
    Pieces      a mixture of such distributions                 one for each pattern of active units

U_i and V are uniform on [−1, 1], T is triangular on [−radius, radius], and all are independent (Zeng and Van den Broeck
2023, section 4). All distributions are exact. Tensors are [draw, batch, output] in float64; pieces are an additional
first dimension.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .integrals import few_uniforms, many_uniforms
from .integrals.series import Series

_TREE: Final = 6  # the most weights for which a tree of corners is faster


class Part(ABC):
    """A distribution of each output, for each draw and input."""

    @property
    @abstractmethod
    def mean(self) -> Float[Tensor, "*piece draw batch output"]:
        """Return E[y]."""

    @property
    @abstractmethod
    def variance(self) -> Float[Tensor, "*piece draw batch output"]:
        """Return Var[y]."""

    @property
    @abstractmethod
    def reach(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the support [draw, batch, output]."""

    @abstractmethod
    def log_density(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "*piece draw batch output"]:
        """Return log p(y), −∞ outside of the support."""

    @abstractmethod
    def cdf(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "*piece draw batch output"]:
        """Return P(Y ≤ y)."""

    def series(self, tail: float) -> Series | None:
        """Return the mixture's distribution function with a Gaussian's share ``tail``; None if a series is slower."""
        return None

    @abstractmethod
    def rescale(self, shift: Tensor, scale: Tensor) -> "Part":
        """Return the distribution of shift + scale·y, both [output], scale > 0."""

    @abstractmethod
    def rows(self, index: Int[Tensor, " some"]) -> "Part":
        """Return the distributions of some of the inputs."""


@final
@dataclass(frozen=True)
class Linear(Part):
    """The distribution of y = centre + Σ_i half_widths_i U_i + T."""

    centre: Float[Tensor, "*piece draw batch output"]
    half_widths: Float[Tensor, "*piece draw batch output d"]
    radius: Float[Tensor, "*piece draw batch output"]

    @property
    def mean(self) -> Float[Tensor, "*piece draw batch output"]:
        return self.centre

    @property
    def variance(self) -> Float[Tensor, "*piece draw batch output"]:
        return self.radius.square() / 6 + self.half_widths.square().sum(-1) / 3

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        length = self.half_widths.sum(-1) + self.radius
        return self.centre - length, self.centre + length

    def log_density(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "*piece draw batch output"]:
        density = many_uniforms.log_density if self._wide else few_uniforms.log_triangular_density
        return density(y.double(), self.centre, self.half_widths, self.radius)

    def cdf(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "*piece draw batch output"]:
        cdf = many_uniforms.cdf if self._wide else few_uniforms.triangular_cdf
        return cdf(y.double(), self.centre, self.half_widths, self.radius)

    def series(self, tail: float) -> Series | None:
        return Series.of(self.centre, self.half_widths, self.radius, tail) if self._wide else None

    @property
    def _wide(self) -> bool:
        return self.half_widths.shape[-1] > _TREE

    def rescale(self, shift: Tensor, scale: Tensor) -> "Linear":
        return Linear(shift + scale * self.centre, scale[:, None] * self.half_widths, scale * self.radius)

    def rows(self, index: Int[Tensor, " some"]) -> "Linear":
        return Linear(self.centre[..., index, :], self.half_widths[..., index, :, :], self.radius[..., index, :])


@final
@dataclass(frozen=True)
class Pieces(Part):
    """A mixture of several parts.

    Attributes:
        part: all parts [piece, draw, batch, output].
        share: the probability of each piece, with the sum 1 over pieces.
    """

    part: Part
    share: Float[Tensor, "piece draw batch output"]

    @property
    def mean(self) -> Float[Tensor, "draw batch output"]:
        return (self.share * self.part.mean).sum(0)

    @property
    def variance(self) -> Float[Tensor, "draw batch output"]:
        within, apart = self.part.variance, self.part.mean - self.mean
        return (self.share * (within + apart.square())).sum(0)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        low, high = self.part.reach
        there = self.share > 0
        return torch.where(there, low, torch.inf).amin(0), torch.where(there, high, -torch.inf).amax(0)

    def log_density(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch output"]:
        return (self.share.log() + self.part.log_density(y)).logsumexp(0)

    def cdf(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch output"]:
        return (self.share * self.part.cdf(y)).sum(0)

    def rescale(self, shift: Tensor, scale: Tensor) -> "Pieces":
        return Pieces(self.part.rescale(shift, scale), self.share)

    def rows(self, index: Int[Tensor, " some"]) -> "Pieces":
        return Pieces(self.part.rows(index), self.share[..., index, :])
