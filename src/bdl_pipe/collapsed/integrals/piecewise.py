"""Piecewise polynomials: likelihoods with exact integrals over a box of weights.

triangular   approximates a Gaussian; see :mod:`.triangle` for its radius
sigmoid      0, cubics, 1; one cubic is the published form (Zeng and Van den Broeck 2023, appendix B)
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import DataError, require

GRID = 20_001  # points of the grid for fits and errors


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
            need, given = f"[..., {count + 1}, terms ≥ 1]", tuple(coefficients.shape)
            raise DataError(f"coefficients must be {need} for {count} ≥ 1 breakpoints, got {given}")
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
    found = [breakpoints[..., 0]]
    for point in breakpoints.unbind(-1)[1:]:
        found.append(torch.maximum(point, torch.nextafter(found[-1], torch.full_like(point, torch.inf))))
    return torch.stack(found, -1)


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
        found = minimize_scalar(
            lambda r: sigmoid_error(cubic_sigmoid(pieces, float(r))), bounds=(2, 20), method="bounded"
        )
        reach = float(found.x)
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
