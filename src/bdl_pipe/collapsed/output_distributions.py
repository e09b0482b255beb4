"""The target's distribution for one collapsed sample: triangular noise around an output that depends on uniforms.

    Linear      y = c + Σ_i h_iU_i + T                      weights of the last layer
    Rectified   y = b + s·relu(c + Σ_i h_iU_i) + T          incoming weights of one ReLU unit, times its outgoing one

U_i uniform on [−1, 1], T triangular on [−radius, radius], all independent (Zeng and Van den Broeck 2023, section 4).
Both are exact: the second is the expectation, over a sum of uniforms, of a function polynomial between four knots.
Everything is [draw, batch, output], in float64.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from .integrals import few_uniforms, many_uniforms
from .integrals.piecewise import Piecewise
from .integrals.series import Series

_TREE: Final = 6  # weights up to which a tree of corners is the faster
_BELOW: Final = 2.0**-60  # of the radius: how far below zero a knot at zero is put


class Part(ABC):
    """A distribution of each output, one for each draw and input."""

    @property
    @abstractmethod
    def mean(self) -> Float[Tensor, "draw batch output"]:
        """Return E[y]."""

    @property
    @abstractmethod
    def variance(self) -> Float[Tensor, "draw batch output"]:
        """Return Var[y]."""

    @property
    @abstractmethod
    def reach(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the support [draw, batch, output]."""

    @abstractmethod
    def log_density(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch output"]:
        """Return log p(y), −∞ outside of the support."""

    @abstractmethod
    def cdf(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch output"]:
        """Return P(Y ≤ y)."""

    def series(self, tail: float) -> Series | None:
        """Return the mixture's distribution function, with a Gaussian's share ``tail``, where one series is faster."""
        return None

    @abstractmethod
    def rescale(self, shift: Tensor, scale: Tensor) -> "Part":
        """Return the distribution of shift + scale·y, both [output], scale > 0."""


@final
@dataclass(frozen=True)
class Linear(Part):
    """The distribution of y = centre + Σ_i half_widths_i U_i + T."""

    centre: Float[Tensor, "draw batch output"]
    half_widths: Float[Tensor, "draw batch output d"]
    radius: Float[Tensor, "draw batch output"]

    @property
    def mean(self) -> Float[Tensor, "draw batch output"]:
        return self.centre

    @property
    def variance(self) -> Float[Tensor, "draw batch output"]:
        return self.radius.square() / 6 + self.half_widths.square().sum(-1) / 3

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        length = self.half_widths.sum(-1) + self.radius
        return self.centre - length, self.centre + length

    def log_density(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch output"]:
        density = many_uniforms.log_density if self._wide else few_uniforms.log_triangular_density
        return density(y.double(), self.centre, self.half_widths, self.radius)

    def cdf(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch output"]:
        cdf = many_uniforms.cdf if self._wide else few_uniforms.triangular_cdf
        return cdf(y.double(), self.centre, self.half_widths, self.radius)

    def series(self, tail: float) -> Series | None:
        return Series.of(self.centre, self.half_widths, self.radius, tail) if self._wide else None

    @property
    def _wide(self) -> bool:
        """Say whether there are more weights than corners are taken of."""
        return self.half_widths.shape[-1] > _TREE

    def rescale(self, shift: Tensor, scale: Tensor) -> "Linear":
        return Linear(shift + scale * self.centre, scale[:, None] * self.half_widths, scale * self.radius)


@final
@dataclass(frozen=True)
class Rectified(Part):
    """The distribution of y = base + sign·relu(v) + T, v = centre + Σ_i half_widths_i U_i, ``sign`` 1 or −1."""

    base: Float[Tensor, "draw batch output"]
    sign: Float[Tensor, "draw batch output"]
    centre: Float[Tensor, "draw batch output"]
    half_widths: Float[Tensor, "draw batch output d"]
    radius: Float[Tensor, "draw batch output"]

    @property
    def mean(self) -> Float[Tensor, "draw batch output"]:
        return self.base + self.sign * self._rectified()

    @property
    def variance(self) -> Float[Tensor, "draw batch output"]:
        """Return radius²/6 + E[(relu(v) − m)²], m its mean: of a function that is nowhere negative."""
        m = self._rectified()
        left = torch.stack([m.square(), torch.zeros_like(m), torch.zeros_like(m)], -1)
        right = torch.stack([m.square(), -2 * m, torch.ones_like(m)], -1)
        squared = Piecewise(torch.zeros_like(m)[..., None], torch.stack([left, right], -2))
        return self.radius.square() / 6 + few_uniforms.expect(squared, self.centre, self.half_widths)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        length = self.half_widths.sum(-1)
        least, most = (self.centre - length).clamp_min(0), (self.centre + length).clamp_min(0)
        ends = self.sign * least, self.sign * most
        return self.base + torch.minimum(*ends) - self.radius, self.base + torch.maximum(*ends) + self.radius

    def log_density(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch output"]:
        """Return the log of E[tri(q − relu(v))], q = sign·(y − base), for tri is even."""
        q, height = self._offset(y), 1 / self.radius
        zero, slope = torch.zeros_like(q), height.square()
        flat, rise, fall = (torch.stack(p, -1) for p in ([zero, zero], [zero, slope], [height, -slope]))
        at_zero = (self.radius - q.abs()).clamp_min(0) * slope
        g = _of_rectified(q, self.radius, [flat, rise, fall, flat], at_zero)
        density = few_uniforms.expect(g, self.centre, self.half_widths)
        return torch.where(density > 0, density, 1).log().where(density > 0, -torch.inf)

    def cdf(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "draw batch output"]:
        """Return E[F(q − relu(v))], or one less that where sign is −1, F the triangular distribution function."""
        q, r = self._offset(y), self.radius
        zero, one, curve = torch.zeros_like(q), torch.ones_like(q), 0.5 / r.square()
        pieces = ([one, zero, zero], [one, zero, -curve], [0.5 * one, -1 / r, curve], [zero, zero, zero])
        below, above = (q + r).clamp_min(0).square() * curve, 1 - (r - q).clamp_min(0).square() * curve
        at_zero = torch.where(q < 0, below, above)
        g = _of_rectified(q, r, [torch.stack(p, -1) for p in pieces], at_zero)
        value = few_uniforms.expect(g, self.centre, self.half_widths)
        return torch.where(self.sign > 0, value, 1 - value)

    def rescale(self, shift: Tensor, scale: Tensor) -> "Rectified":
        moved = (scale * self.centre, scale[:, None] * self.half_widths, scale * self.radius)
        return Rectified(shift + scale * self.base, self.sign, *moved)

    def _offset(self, y: Tensor) -> Tensor:
        return self.sign * (y.double() - self.base)

    def _rectified(self) -> Tensor:
        """Return E[relu(v)]."""
        ramp = Piecewise(self.centre.new_zeros(1), self.centre.new_tensor([[0.0, 0.0], [0.0, 1.0]]))
        return few_uniforms.expect(ramp, self.centre, self.half_widths)


def _of_rectified(q: Tensor, radius: Tensor, pieces: list[Tensor], at_zero: Tensor) -> Piecewise:
    """Return H(relu(v)) as a piecewise polynomial of v.

    H has four ``pieces`` [..., terms] around the knots q − r, q, q + r.

    Args:
        pieces: H left of the first knot, a constant, and from each knot on, as a polynomial of the distance from it.
        at_zero: H(0).
    """
    knots = torch.stack([q - radius, q, q + radius], -1)
    knots = torch.where(knots == 0, -_BELOW * radius[..., None], knots)
    # right of zero H goes on from the last knot before it
    last = (knots < 0).sum(-1)
    shifted = [pieces[0], *(_moved(pieces[k + 1], -knots[..., k]) for k in range(3))]
    onward = torch.stack(shifted, -2).gather(-2, _index(last, pieces[0]))[..., 0, :]
    constant = torch.zeros_like(onward)
    constant[..., 0] = onward[..., 0] = at_zero
    starts = torch.where((knots < 0)[..., None], constant[..., None, :], torch.stack(pieces[1:], -2))
    breaks, order = torch.cat([knots, torch.zeros_like(q)[..., None]], -1).sort(-1)
    each = torch.cat([starts, onward[..., None, :]], -2)  # by knot, then zero
    each = each.gather(-2, order[..., None].expand(each.shape))
    return Piecewise(breaks, torch.cat([constant[..., None, :], each], -2))


def _index(which: Tensor, like: Tensor) -> Tensor:
    """Return the index that gathers one of several pieces [..., piece, terms]."""
    return which[..., None, None].expand(*which.shape, 1, like.shape[-1])


def _moved(polynomial: Tensor, by: Tensor) -> Tensor:
    """Return the polynomial [..., terms ≤ 3] about a point further right by ``by``."""
    terms = list(polynomial.unbind(-1))
    if len(terms) == 2:
        return torch.stack([terms[0] + terms[1] * by, terms[1]], -1)
    a, b, c = terms
    return torch.stack([a + (b + c * by) * by, b + 2 * c * by, c], -1)
