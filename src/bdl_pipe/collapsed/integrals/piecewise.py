"""Piecewise polynomials: likelihoods with exact integrals over a box of weights.

triangular   approximates a Gaussian, by its radius; its sum with a uniform is piecewise polynomial as well
sigmoid      0, cubics, 1; one cubic is the published form (Zeng and Van den Broeck 2023, appendix B)
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import DataError, require

Scale = TypeVar("Scale", float, Tensor)

GRID: Final = 20_001  # points of the grid for fits and errors
SQRT_6: Final = math.sqrt(6)  # since Var = r²/6; the published code has 2.45
NARROW: Final = 2.0**-40  # relative to the radius: the least half-width of the additional uniform


@dataclass(frozen=True)
class Piecewise:
    """A piecewise polynomial g, one for all points or one for each.

    Attributes:
        breakpoints: b_1 < … < b_K, K ≥ 1; a point at b_k belongs to the piece on its right.
        coefficients: the coefficients of K + 1 pieces, by ascending power. The first piece is left of b_1, as a
            polynomial of z − b_1; piece k ≥ 1 starts at b_k, as a polynomial of z − b_k; the last piece is unbounded.

    Raises:
        DataError: shapes do not fit, a value is not finite, or breakpoints do not increase.
    """

    breakpoints: Float[Tensor, "*#batch k"]
    coefficients: Float[Tensor, "*#batch pieces terms"]

    def __post_init__(self) -> None:
        breaks, coefficients = self.breakpoints, self.coefficients
        count = breaks.shape[-1]
        if count < 1 or coefficients.shape[-2] != count + 1 or coefficients.shape[-1] < 1:
            rule = f"[..., {count + 1}, terms ≥ 1] for {count} ≥ 1 breakpoints"
            raise DataError(f"coefficients must be {rule}, got {tuple(coefficients.shape)}")
        if not bool((breaks[..., 1:] > breaks[..., :-1]).all()):
            raise DataError("breakpoints must increase strictly")
        if not (bool(breaks.isfinite().all()) and bool(coefficients.isfinite().all())):
            raise DataError("breakpoints and coefficients must be finite")

    def to(self, like: Tensor) -> "Piecewise":
        """Return the polynomial on the device and in the dtype of another tensor."""
        return Piecewise(self.breakpoints.to(like), self.coefficients.to(like))

    def __call__(self, z: Float[Tensor, "*#batch"]) -> Float[Tensor, "*batch"]:
        """Return g(z)."""
        piece = (z[..., None] >= self.breakpoints).sum(-1)  # [...]
        shape = (*piece.shape, self.breakpoints.shape[-1])
        start = self.breakpoints.expand(shape).gather(-1, (piece - 1).clamp_min(0)[..., None])[..., 0]
        all_pieces = self.coefficients.expand(*piece.shape, *self.coefficients.shape[-2:])
        index = piece[..., None, None].expand(*piece.shape, 1, all_pieces.shape[-1])
        chosen = all_pieces.gather(-2, index)[..., 0, :]  # [..., terms]
        total = chosen[..., -1]
        for power in reversed(range(chosen.shape[-1] - 1)):
            total = total * (z - start) + chosen[..., power]
        return total


def increasing(breakpoints: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
    """Make ascending breakpoints strictly increasing: a repeated value becomes the next floating-point number."""
    points = [breakpoints[..., 0]]
    for point in breakpoints.unbind(-1)[1:]:
        points.append(torch.maximum(point, torch.nextafter(points[-1], torch.full_like(point, torch.inf))))
    return torch.stack(points, -1)


def cubic_sigmoid(pieces: int, reach: float | None = None) -> Piecewise:
    """Fit cubics to 1/(1 + e⁻ᶻ) on ``pieces`` equal parts of [−reach, reach]; 0 and 1 beyond; float64, on the CPU.

    The cubics are a least-squares spline on a fine grid. Without ``reach``, the chosen reach minimises
    :func:`sigmoid_error`. The fit may leave [0, 1] by this error: .028 for 1 piece, which is the published form (Zeng
    and Van den Broeck 2023, appendix B), .0074 for 3, .0029 for 8 and 4e-5 for 32.

    Raises:
        ConfigError: ``pieces`` < 1, or ``reach`` ≤ 0.
    """
    require(pieces >= 1, "cubic_sigmoid.pieces", "must be ≥ 1", pieces)
    require(reach is None or reach > 0, "cubic_sigmoid.reach", "must be > 0", reach)
    from scipy.interpolate import PPoly, make_lsq_spline  # here, because it takes half a second
    from scipy.optimize import minimize_scalar
    from scipy.special import expit

    if reach is None:
        best = minimize_scalar(
            lambda r: sigmoid_error(cubic_sigmoid(pieces, float(r))), bounds=(2, 20), method="bounded"
        )
        reach = float(best.x)
    grid = np.linspace(-reach, reach, GRID)
    inner = np.linspace(-reach, reach, pieces + 1)
    knots = np.concatenate([[-reach] * 3, inner, [reach] * 3])
    spline = PPoly.from_spline(make_lsq_spline(grid, expit(grid), knots, 3))
    cubics = spline.c[::-1].T[3:-3]  # without the repeated end knots
    outer = np.zeros((1, 4))
    one = np.array([[1.0, 0, 0, 0]])
    return Piecewise(torch.tensor(inner), torch.tensor(np.concatenate([outer, cubics, one])))


def sigmoid_error(approximation: Piecewise) -> float:
    """Return max |g(z) − 1/(1 + e⁻ᶻ)|, on a grid between g's outer breakpoints, including the steps there."""
    ends = approximation.breakpoints[[0, -1]]
    grid = torch.linspace(float(ends[0]), float(torch.nextafter(ends[1], ends[0])), GRID, dtype=ends.dtype)
    inside = (approximation(grid) - grid.sigmoid()).abs().max()
    return max(float(inside), float(ends[0].sigmoid()), float((-ends[1]).sigmoid()))


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
