"""The triangular density that approximates a Gaussian, its radius, and its sum with a uniform."""

import math
from functools import cache
from typing import Final, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import require
from .piecewise import Piecewise

Scale = TypeVar("Scale", float, Tensor)

SQRT_6: Final = math.sqrt(6)  # since Var = r²/6; the published code has 2.45
NARROW: Final = 2.0**-40  # relative to the radius: the least half-width of the additional uniform


@cache
def density_matched() -> float:
    """Return the radius α ≈ 2.3 of the triangular density that is nearest to N(0, 1) in L2.

    Source: Zeng and Van den Broeck 2023, section 3. It is the zero of the derivative, times r³/2, of ∫(tri − φ)² =
    2/(3r) − 4[(Φ(r) − ½)/r − (φ(0) − φ(r))/r²] + const.
    """
    from scipy.optimize import brentq  # here, because it takes half a second

    def slope(r: float) -> float:
        peak, here = 1 / math.sqrt(2 * math.pi), math.exp(-r * r / 2) / math.sqrt(2 * math.pi)
        return r * math.erf(r / math.sqrt(2)) - r / 3 - 4 * (peak - here)

    return float(brentq(slope, 1.0, 4.0, xtol=1e-15))


def radius(sigma: Scale, match: str) -> Scale:
    """Return the triangular radius for a Gaussian of standard deviation ``sigma``, in its units.

    Args:
        match: "variance" gives √6·σ; "density" gives the nearest in L2, which has 0.88 times the Gaussian's variance.

    Raises:
        ConfigError: ``match`` is neither.
    """
    require(match in ("variance", "density"), "match", 'must be "variance" or "density"', match)
    return sigma * (SQRT_6 if match == "variance" else density_matched())


def triangular(radius: Float[Tensor, "*batch"]) -> Piecewise:
    """Return the symmetric triangular density about 0 with the given radius."""
    zero, height = torch.zeros_like(radius), 1 / radius
    rise, fall = torch.stack([zero, height**2], -1), torch.stack([height, -(height**2)], -1)
    outside = torch.zeros_like(rise)
    return Piecewise(torch.stack([-radius, zero, radius], -1), torch.stack([outside, rise, fall, outside], -2))


class Noise(NamedTuple):
    """A symmetric distribution with a piecewise polynomial density, which is zero beyond the outer knots.

    Attributes:
        knots: the ascending knots; equal knots enclose an empty piece.
        density: the density after each knot, as a polynomial of the distance from it, by ascending power.
        cdf: the distribution function in the same format.
    """

    knots: Float[Tensor, "*batch 6"]
    density: Float[Tensor, "*batch 6 3"]
    cdf: Float[Tensor, "*batch 6 4"]


def triangle_and_uniform(radius: Float[Tensor, "*batch"], half_width: Float[Tensor, "*batch"]) -> Noise:
    """Return the distribution of T + gV, T triangular on [−r, r], V uniform on [−1, 1], g ≥ 0 the ``half_width``.

    The density's second derivative is [tri'(x + g) − tri'(x − g)]/(2g), where tri' is 0 or ±1/r²: between the six knots
    it is 1, c, d, c, 1 times 1/(2gr²). Values at the first three knots are summed from the left and mirrored to the
    others, so that nothing cancels for any ratio of g and r. Errors are of the order of 1e-15 relative to the largest
    density, or NARROW if g < NARROW·r.
    """
    r, g = radius, torch.maximum(half_width, NARROW * radius)
    far, near = torch.maximum(g, (r - g).abs()), torch.minimum(g, (r - g).abs())
    knots = torch.stack([-(r + g), -far, -near, near, far, r + g], -1)
    first, second = torch.minimum(r, 2 * g), torch.minimum((r - 2 * g).abs(), r)  # lengths of the pieces
    unit, zero, one = 1 / (2 * g * r.square()), torch.zeros_like(r), torch.ones_like(r)
    inner = torch.where(2 * g > r, -unit, zero)
    curves = [unit, inner, torch.where(g > r, zero, -2 * unit), inner, unit, zero]
    slope, value, mass = [zero], [zero], [zero]  # at the first three knots
    for length, curve in zip((first, second), curves[:2], strict=True):
        b, a, m = slope[-1], value[-1], mass[-1]
        slope.append(b + curve * length)
        value.append(a + (b + curve * length / 2) * length)
        mass.append(m + (a + (b / 2 + curve * length / 6) * length) * length)
    slope, value = slope + [-b for b in reversed(slope)], value + value[::-1]
    mass = mass + [one - m for m in reversed(mass)]
    density = [torch.stack([a, b, c / 2], -1) for a, b, c in zip(value, slope, curves, strict=True)]
    terms = zip(mass, value, slope, curves, strict=True)
    cdf = [torch.stack([m, a, b / 2, c / 6], -1) for m, a, b, c in terms]
    return Noise(knots, torch.stack(density, -2), torch.stack(cdf, -2))
