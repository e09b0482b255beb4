"""The exact E[softmax(z)] over a box of weights of all classes, with logits that are sums of uniforms.

    z_k = c_k + Σ_{i≤d} h_{ki}U_{ki},   U uniform on [−1, 1], all independent.

By the identity of :mod:`bdl_pipe.gumbel_maximum` it is one integral over t for any number of classes. The integrand is
analytic and bounded for |Im t| < π/2, and so is the distribution function of a perturbed logit in each h_iU_i. So both
sums converge exponentially:

    t     trapezoids STEP apart; the error is of the order of exp(−π²/STEP) = 6e-13. From 16 above the highest logit on
          the terms are a geometric series, which is summed.
    U_i   Gauss–Legendre, n nodes with 2n·log ρ ≥ NATS, ρ = x + √(1 + x²), x = π/(2h_i), for the ellipse within
          |Im h_iU_i| ≤ π/2: 4 nodes at h = .1, 5 at .35, 8 at 1, 22 at 4. The points of several weights are the
          products; more than LARGEST are refused. A single weight with h > WIDE needs none: with s = t − c, and E₁ the
          exponential integral, F(s) = [E₁(e^{−s−h}) − E₁(e^{−s+h})]/(2h); its terms are then far apart.

All terms are positive, so that small probabilities are accurate. Own derivation; Zeng and Van den Broeck 2023 (section
4) compute K integrals, each over one class's logit; divided by their sum, they are not this average.
"""

import math
from functools import cache
from itertools import product
from typing import Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ... import gumbel_maximum
from ...errors import DataError
from .layout import check, wide, widest

MOST: Final = 3  # the most weights of a logit, since the points are the product of their nodes
STEP: Final = 0.35  # the spacing of the grid
NATS: Final = 16.0  # the accuracy of a Gauss rule
WIDE: Final = 8.0  # the largest half-width of one Gauss rule; wider boxes are split into parts
LARGEST: Final = 1 << 13  # the most points of a logit
CACHE: Final = 1 << 17  # terms that are computed together


@torch.no_grad()
def log_expected_softmax(
    centre: Float[Tensor, "*batch class"], half_widths: Float[Tensor, "*batch class d"]
) -> Float[Tensor, "*batch class"]:
    """Return log E[softmax(c + Σ_i h_iU_i)].

    The relative error of a probability is below 1e-11 in float64 for half-widths of 1e-4 to 3,000, as tests show.
    Inputs of any floating dtype are computed in float64 (or float32 if the device lacks float64) and rounded once. It
    is not differentiable. Each input needs classes × (20/STEP + 2·(widest h)/STEP) × points exponentials.

    Raises:
        DataError: a value is not finite, a half-width is negative, there are more than ``MOST`` per logit, or several
            are so wide that they need more than ``LARGEST`` points.
    """
    check(half_widths, MOST, centre=centre)
    classes, count = half_widths.shape[-2:]
    centres, widths = wide(centre).reshape(-1, classes), wide(half_widths).reshape(-1, classes, count)
    alike = widths.amax((-2, -1)).argsort()  # sorted, because the widest box of a block sets its grid
    reach, end, result = widths.sum(-1).amax(-1)[alike], len(alike), torch.empty_like(centres)
    while end > 0:  # blocks of about CACHE terms
        rows = max(1, CACHE // (classes * _grid(float(reach[end - 1]), classes)))
        index = alike[max(0, end - rows) : end]
        result[index] = _log_shares(centres[index], widths[index])
        end -= rows
    still = (widths == 0).all((-2, -1))
    result = torch.where(still[:, None], centres, result).log_softmax(-1)
    return result.reshape(centre.shape).to(widest(centre, half_widths))


def _grid(reach: float, classes: int) -> int:
    return math.ceil((2 * reach + math.log(classes) + 20) / STEP) + 1


def _log_shares(centre: Tensor, half_widths: Tensor) -> Tensor:
    """Return the log of the integral for each class [row, class], up to a constant of the row."""
    reach = half_widths.sum(-1)
    lowest = (centre - reach).amax(-1, keepdim=True) - 4  # a lower bound of the largest perturbed logit
    count = _grid(float(reach.max()), centre.shape[-1])
    t = lowest + STEP * torch.arange(count, dtype=centre.dtype, device=centre.device)  # [row, grid]
    distance = t[:, None] - centre[..., None]
    below, density = gumbel_maximum.mixture(distance, *_points(half_widths))
    closed = (half_widths[..., :1] > WIDE).expand_as(distance) & (half_widths.shape[-1] == 1)
    if bool(closed.any()):
        wide_below, wide_density = _one_wide(distance, half_widths.clamp_min(WIDE))
        below, density = torch.where(closed, wide_below, below), torch.where(closed, wide_density, density)
    log_terms = gumbel_maximum.log_terms(below, density)
    log_terms[..., -1] -= math.log(-math.expm1(-STEP))  # the rest of the sum is a geometric series
    return torch.logsumexp(log_terms, -1)


def _points(half_widths: Tensor) -> tuple[gumbel_maximum.Points, Tensor]:
    """Return the points of each logit, and the farthest; one wide weight has a closed form and is cut at WIDE.

    Raises:
        DataError: there would be more than LARGEST points.
    """
    if half_widths.shape[-1] == 1:
        half_widths = half_widths.clamp_max(WIDE)
    rules = [_rule(width) for width in half_widths.amax((0, 1)).tolist()]
    number = math.prod(map(len, rules))
    if len(rules) > 1 and number > LARGEST:
        rule = f"be so narrow that {LARGEST} points are enough where several weights of a class are averaged at once"
        raise DataError(f"half_widths must {rule}, got {float(half_widths.max()):.3g}, which needs {number}")
    nodes = [(tuple(n for n, _ in chosen), math.prod(w for _, w in chosen)) for chosen in product(*rules)]
    points = (((half_widths * half_widths.new_tensor(at)).sum(-1, keepdim=True), share) for at, share in nodes)
    return points, half_widths.sum(-1, keepdim=True)


def _one_wide(distance: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Return log F and log f of a Gumbel and a uniform of half-width ≥ WIDE [row, class, 1], in closed form."""
    upper, lower = _integrated(distance + half), _integrated(distance - half)
    steepest = torch.exp(half - distance) - torch.exp(-half - distance)
    # for tiny x, log(1 − e⁻ˣ) is log x = h − s + log(1 − e⁻²ʰ)
    gap = torch.where(
        steepest > 1e-12, torch.log(-torch.expm1(-steepest)), half - distance + torch.log1p(-torch.exp(-2 * half))
    )
    return ((upper - lower) / (2 * half)).log(), gap - torch.exp(-half - distance) - (2 * half).log()


def _integrated(x: Tensor) -> Tensor:
    """Return E₁(e⁻ˣ), the integral of a Gumbel's distribution function up to x."""
    from scipy.special import exp1  # here, because it takes half a second

    near = torch.from_numpy(exp1(np.exp(-x.clamp(-7, 50).cpu().numpy()))).to(x)
    return torch.where(x > 50, x - float(np.euler_gamma), torch.where(x < -7, 0, near))


def _rule(half_width: float) -> list[tuple[float, float]]:
    """Return the nodes and the shares of a Gauss–Legendre rule on [−1, 1] for the widest of some half-widths."""
    if half_width == 0:
        return [(0.0, 1.0)]
    parts = math.ceil(half_width / WIDE)
    x = math.pi / 2 / (half_width / parts)
    rule = _gauss(math.ceil(NATS / 2 / math.asinh(x)) + 1)
    middles = [(2 * i + 1 - parts) / parts for i in range(parts)]
    return [(middle + node / parts, share / parts) for middle in middles for node, share in rule]


@cache
def _gauss(count: int) -> list[tuple[float, float]]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return list(zip(nodes.tolist(), (weights / 2).tolist(), strict=True))
