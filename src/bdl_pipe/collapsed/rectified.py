"""The target's distribution if weights before rectified units are collapsed, with triangular noise around the output.

    y = b + Σ_k w_k·relu(c_k + Σ_i h_{ki}U_{ki}) + T,   U uniform on [−1, 1], T triangular on [−r, r]

One unit                           E[H(relu(v))] over a sum of uniforms: H is polynomial between knots (``Rectified``).
Units of one weight each           An active unit adds a uniform on a part of its interval, an inactive unit nothing:
                                   with m units y is one of 2^m sums of uniforms, with known probabilities.
One of several, one of one weight  Both: H is then the distribution of one more uniform and the noise.

All three are exact. Own derivation; Zeng and Van den Broeck 2023 (section 4) use a solver for such integrals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import DataError
from .integrals import few_uniforms
from .integrals.piecewise import Piecewise, increasing, triangle_and_uniform
from .output_distributions import Linear, Part, Pieces

_BELOW: Final = 2.0**-60  # relative to the radius: a knot at zero is moved below zero by this


@final
@dataclass(frozen=True)
class Rectified(Part):
    """The distribution of y = base + sign·relu(v) + beside·V + T, v = centre + Σ_i half_widths_i U_i, sign 1 or −1.

    Attributes:
        beside: the half-width of an additional uniform; None without one.
    """

    base: Float[Tensor, "*piece draw batch output"]
    sign: Float[Tensor, "*piece draw batch output"]
    centre: Float[Tensor, "*piece draw batch output"]
    half_widths: Float[Tensor, "*piece draw batch output d"]
    radius: Float[Tensor, "*piece draw batch output"]
    beside: Float[Tensor, "*piece draw batch output"] | None = None

    @property
    def mean(self) -> Float[Tensor, "*piece draw batch output"]:
        return self.base + self.sign * self._rectified()

    @property
    def variance(self) -> Float[Tensor, "*piece draw batch output"]:
        """Return radius²/6 + beside²/3 + E[(relu(v) − m)²], m the mean: the integral of a nonnegative function."""
        m = self._rectified()
        left = torch.stack([m.square(), torch.zeros_like(m), torch.zeros_like(m)], -1)
        right = torch.stack([m.square(), -2 * m, torch.ones_like(m)], -1)
        squared = Piecewise(torch.zeros_like(m)[..., None], torch.stack([left, right], -2))
        variance = self.radius.square() / 6 + few_uniforms.expect(squared, self.centre, self.half_widths)
        return variance if self.beside is None else variance + self.beside.square() / 3

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        length = self.half_widths.sum(-1)
        least, most = (self.centre - length).clamp_min(0), (self.centre + length).clamp_min(0)
        ends = self.sign * least, self.sign * most
        noise = self.radius if self.beside is None else self.radius + self.beside
        return self.base + torch.minimum(*ends) - noise, self.base + torch.maximum(*ends) + noise

    def log_density(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "*piece draw batch output"]:
        """Return the log of E[f(q − relu(v))], q = sign·(y − base), f the density of beside·V + T, which is even."""
        q, r = self._offset(y), self.radius
        if self.beside is None:
            zero, height, slope = torch.zeros_like(q), 1 / r, (1 / r).square()
            flat, rise, fall = (torch.stack(p, -1) for p in ([zero, zero], [zero, slope], [height, -slope]))
            pieces, at_zero = [flat, rise, fall, flat], (r - q.abs()).clamp_min(0) * slope
            g = _of_rectified(torch.stack([q - r, q, q + r], -1), r, pieces, at_zero)
        else:
            noise = triangle_and_uniform(r, self.beside)
            pieces = [noise.density.new_zeros(*q.shape, 3), *noise.density.unbind(-2)]
            at_zero = few_uniforms.triangular_density(q, torch.zeros_like(q), self.beside[..., None], r)
            g = _of_rectified(_around(q, r, noise.knots), r, pieces, at_zero)
        density = few_uniforms.expect(g, self.centre, self.half_widths)
        return torch.where(density > 0, density, 1).log().where(density > 0, -torch.inf)

    def cdf(self, y: Float[Tensor, "batch output"]) -> Float[Tensor, "*piece draw batch output"]:
        """Return E[F(q − relu(v))], or one minus this if sign is −1, F the distribution function of beside·V + T."""
        q, r = self._offset(y), self.radius
        if self.beside is None:
            zero, one, curve = torch.zeros_like(q), torch.ones_like(q), 0.5 / r.square()
            terms = ([one, zero, zero], [one, zero, -curve], [0.5 * one, -1 / r, curve], [zero, zero, zero])
            pieces = [torch.stack(p, -1) for p in terms]
            below, above = (q + r).clamp_min(0).square() * curve, 1 - (r - q).clamp_min(0).square() * curve
            knots, at_zero = torch.stack([q - r, q, q + r], -1), torch.where(q < 0, below, above)
        else:
            noise = triangle_and_uniform(r, self.beside)  # symmetric: F(q − v) = 1 − F(v − q)
            one = torch.nn.functional.one_hot(torch.zeros_like(q, dtype=torch.long), 4).to(q)
            pieces = [one, *(one - piece for piece in noise.cdf.unbind(-2))]
            at_zero = few_uniforms.triangular_cdf(q, torch.zeros_like(q), self.beside[..., None], r)
            knots = _around(q, r, noise.knots)
        g = _of_rectified(knots, r, pieces, at_zero)  # as a function of v
        value = few_uniforms.expect(g, self.centre, self.half_widths)
        return torch.where(self.sign > 0, value, 1 - value)

    def rescale(self, shift: Tensor, scale: Tensor) -> "Rectified":
        moved = (scale * self.centre, scale[:, None] * self.half_widths, scale * self.radius)
        beside = None if self.beside is None else scale * self.beside
        return Rectified(shift + scale * self.base, self.sign, *moved, beside)

    def rows(self, index: Int[Tensor, " some"]) -> "Rectified":
        base, sign, centre, radius = (t[..., index, :] for t in (self.base, self.sign, self.centre, self.radius))
        beside = None if self.beside is None else self.beside[..., index, :]
        return Rectified(base, sign, centre, self.half_widths[..., index, :, :], radius, beside)

    def _offset(self, y: Tensor) -> Tensor:
        return self.sign * (y.double() - self.base)

    def _rectified(self) -> Tensor:
        """Return E[relu(v)]."""
        ramp = Piecewise(self.centre.new_zeros(1), self.centre.new_tensor([[0.0, 0.0], [0.0, 1.0]]))
        return few_uniforms.expect(ramp, self.centre, self.half_widths)


def _around(q: Tensor, r: Tensor, knots: Tensor) -> Tensor:
    """Return the knots around q, strictly increasing.

    Raises:
        DataError: the radius is below the rounding of q, so that pieces would be empty.
    """
    lost = (q - r >= q) | (q + r <= q)
    if bool(lost.any()):
        pair = f"{float(r[lost][0]):.3g} and {float(q[lost].abs()[0]):.3g}"
        raise DataError(f"radius must be above the rounding of a target's distance from the base, got {pair}")
    return increasing(q[..., None] + knots)


def _of_rectified(knots: Tensor, radius: Tensor, pieces: list[Tensor], at_zero: Tensor) -> Piecewise:
    """Return H(relu(v)) as a piecewise polynomial of v.

    Args:
        knots: the knots of H, ascending [..., k].
        radius: the radius of the noise, the scale of distances.
        pieces: H left of the first knot, a constant, and after each knot, as a polynomial of the distance from it; k +
            1 of [..., terms].
        at_zero: H(0).
    """
    knots = torch.where(knots == 0, -_BELOW * radius[..., None], knots)
    # right of zero H continues from the last knot before it
    last = (knots < 0).sum(-1)
    shifted = [pieces[0], *(_moved(piece, -knots[..., k]) for k, piece in enumerate(pieces[1:]))]
    index = last[..., None, None].expand(*last.shape, 1, pieces[0].shape[-1])
    onward = torch.stack(shifted, -2).gather(-2, index)[..., 0, :]
    constant = torch.zeros_like(onward)
    constant[..., 0] = onward[..., 0] = at_zero
    starts = torch.where((knots < 0)[..., None], constant[..., None, :], torch.stack(pieces[1:], -2))
    breaks, order = torch.cat([knots, torch.zeros_like(at_zero)[..., None]], -1).sort(-1)
    each = torch.cat([starts, onward[..., None, :]], -2)  # by knot, then zero
    each = each.gather(-2, order[..., None].expand(each.shape))
    return Piecewise(breaks, torch.cat([constant[..., None, :], each], -2))


def _moved(polynomial: Tensor, by: Tensor) -> Tensor:
    """Return the polynomial [..., terms ≤ 4] about a point ``by`` further right."""
    terms = list(polynomial.unbind(-1))
    if len(terms) == 2:
        return torch.stack([terms[0] + terms[1] * by, terms[1]], -1)
    if len(terms) == 3:
        a, b, c = terms
        return torch.stack([a + (b + c * by) * by, b + 2 * c * by, c], -1)
    a, b, c, d = terms
    return torch.stack([a + (b + (c + d * by) * by) * by, b + (2 * c + 3 * d * by) * by, c + 3 * d * by, d], -1)


class Unit(NamedTuple):
    """A unit's contribution to the output: outgoing·relu(centre + Σ_i half_widths_i U_i), in float64.

    Attributes:
        outgoing: the unit's weight in the output.
        centre: the unit's pre-activation in the middle of the box.
        half_widths: h_i of its collapsed weights, at least one.
    """

    outgoing: Float[Tensor, "draw batch output"]
    centre: Float[Tensor, "draw batch output"]
    half_widths: Float[Tensor, "draw batch output d"]


def of_units(base: Float[Tensor, "draw batch output"], units: Sequence[Unit], radius: Tensor) -> Part:
    """Return the distribution of y = base + Σ_k outgoing_k·relu(v_k) + T, exactly.

    Args:
        base: the output without the units.
        units: one unit with any number of collapsed weights, any number of units with one collapsed weight each, or two
            units if one of them has one collapsed weight.
        radius: the radius of the noise [draw, batch, output].
    """
    several = [unit for unit in units if len(units) == 1 or unit.half_widths.shape[-1] > 1]
    alone = [unit for unit in units if len(units) > 1 and unit.half_widths.shape[-1] == 1]
    assert len(several) <= 1 and (not several or len(alone) <= 1)
    centre, share, widths = base[None], torch.ones_like(base)[None], list[Tensor]()  # [piece, draw, batch, output]
    for unit in alone:
        half, most = unit.half_widths[..., 0], unit.centre + unit.half_widths[..., 0]
        least = (unit.centre - half).clamp_min(0)
        width = torch.where(half > 0, 2 * half, 1)
        on = torch.where(half > 0, most / width, (unit.centre > 0).to(half)).clamp(0, 1)
        off = torch.where(half > 0, (half - unit.centre) / width, (unit.centre <= 0).to(half)).clamp(0, 1)
        most = most.clamp_min(0)
        share = torch.cat([share * off, share * on])
        centre = torch.cat([centre, centre + unit.outgoing * (least + most) / 2])
        added = (unit.outgoing.abs() * (most - least) / 2).expand(len(share) // 2, *base.shape)
        widths = [torch.cat([width, width]) for width in widths] + [torch.cat([torch.zeros_like(added), added])]

    def each(values: Tensor) -> Tensor:
        """Broadcast values to all pieces."""
        return values.expand(len(share), *values.shape)

    if not several:
        return Pieces(Linear(centre, torch.stack(widths, -1), each(radius)), share)
    unit = several[0]
    size, sign = unit.outgoing.abs(), torch.where(unit.outgoing < 0, -1.0, 1.0).to(base)
    inside, half_widths = size * unit.centre, size[..., None] * unit.half_widths
    if not alone:
        return Rectified(base, sign, inside, half_widths, radius)
    return Pieces(Rectified(centre, each(sign), each(inside), each(half_widths), each(radius), widths[0]), share)
