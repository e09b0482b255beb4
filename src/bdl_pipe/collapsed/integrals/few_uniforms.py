"""Exact integrals over a box of few weights, for the collapsed samples of CIBER.

A network's output is linear in the collapsed weights, f = c + Σ_i h_iU_i with U_i uniform on [−1, 1] and independent
(h_i: half the range of a weight, times its input), so the average of a piecewise polynomial likelihood over the box has
a closed form (Zeng and Van den Broeck 2023, "Collapsed Inference for Bayesian Deep Learning", section 4.3; they use a
solver for it). Our form is in :mod:`.spline`, without a solver, sampling or cancellation.

    triangular_density    E[tri(y − f)]: a regression likelihood, itself the density of d + 2 uniforms
    triangular_cdf        its distribution function
    expect                E[g(f)] of any piecewise polynomial: classes, rectified outputs
    softmax_one           E[softmax] over one weight, without approximation

In float64 the relative error is of the order of 1e-15 for d ≤ 8, for any ratio of the widths and at any distance from
the support's edge. The same holds for derivatives, relative to the norm of all of them. Inputs of any floating dtype
are computed in float64 (or float32 if the device lacks float64) and rounded once, except by softmax_one. All functions
are differentiable; at a kink the derivative is one-sided. The work doubles with each weight, even one of zero width.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .layout import Values, Widths, blocks, broadcast, check, checked_batch, flat, flat_last, wide, widest
from .piecewise import Piecewise
from .softmax import softmax_one
from .spline import NEGLIGIBLE, Box, horner, one_sided, smooth

__all__ = ["expect", "log_triangular_density", "softmax_one", "triangular_cdf", "triangular_density"]

MOST: Final = 10  # the most collapsed weights of an output, since the work doubles with each
BLOCK: Final = {"cpu": 1 << 17}  # leaves of trees at a time, which fit in a cache
LARGE_BLOCK: Final = 1 << 22  # for devices without such a cache
SLACK: Final = 1e-12  # a multiple of the relative rounding error of a box's ends


def triangular_density(
    y: Values, centre: Values, half_widths: Widths, radius: float | Values
) -> Float[Tensor, "*batch"]:
    """Return E[tri(y − c − Σ_i h_iU_i)], tri the symmetric triangular density on [−radius, radius].

    It is the density of c + ΣhU + T at y, T triangular: exactly 0 beyond |y − c| = Σh + radius, never negative, and
    integrates to one.

    Args:
        y, centre, radius: [*batch]; these and the half-widths [*batch, d] broadcast.

    Raises:
        DataError: a value is not finite, a half-width is negative, there are more than ``MOST`` half-widths, or a
            radius is ≤ 0.
    """
    return _wide_density(y, centre, half_widths, radius).to(widest(y, centre, half_widths))


def log_triangular_density(
    y: Values, centre: Values, half_widths: Widths, radius: float | Values
) -> Float[Tensor, "*batch"]:
    """Return the log of :func:`triangular_density`: −∞ outside of the support, with a gradient of zero there.

    In a mixture by ``logsumexp`` some samples may have −∞; a point outside of all supports has −∞.
    """
    density = _wide_density(y, centre, half_widths, radius)
    log = torch.where(density > 0, density, 1).log().where(density > 0, -torch.inf)
    return log.to(widest(y, centre, half_widths))


def triangular_cdf(y: Values, centre: Values, half_widths: Widths, radius: float | Values) -> Float[Tensor, "*batch"]:
    """Return P(c + Σ_i h_iU_i + T ≤ y), T triangular on [−radius, radius]: a step under d + 2 uniforms.

    Raises:
        DataError: see :func:`triangular_density`; or there are more than ``MOST`` − 2 half-widths.
    """
    reach, batch = checked_batch(y, centre, half_widths, radius, MOST)
    triangle = (wide(reach) / 2)[..., None].expand(*batch, 2)
    widths = torch.cat([triangle, wide(half_widths).expand(*batch, half_widths.shape[-1])], -1)
    step = Piecewise(triangle.new_zeros(1), triangle.new_tensor([[0.0], [1.0]]))
    return expect(step, wide(y) - wide(centre), widths).to(widest(y, centre, half_widths))


def expect(piecewise: Piecewise, centre: Values, half_widths: Widths) -> Float[Tensor, "*batch"]:
    """Return E[g(c + Σ_i h_iU_i)].

    The integrals of the pieces are added. If g has both signs, the rounding error is therefore relative to E|g|. Near
    the edge of g's support the result is as accurate as the coefficients of g.

    Raises:
        DataError: a value is not finite, a half-width is negative, or there are more than ``MOST`` half-widths.
    """
    check(half_widths, MOST, centre=centre)
    g, shape = piecewise.to(wide(piecewise.breakpoints)), piecewise.coefficients.shape[-2:]
    batch = broadcast(centre.shape, half_widths.shape[:-1], g.breakpoints.shape[:-1], g.coefficients.shape[:-2])
    dtype, at_centre = widest(centre, half_widths), g(wide(centre)).expand(batch)
    if not half_widths.shape[-1]:
        return at_centre.to(dtype)
    parts = [flat(centre, batch), flat_last(half_widths, batch), flat_last(g.breakpoints, batch)]
    coefficients = flat_last(g.coefficients.flatten(-2), batch).unflatten(0, shape)  # [pieces, terms, point]
    value = _blocks(_expect, half_widths.shape[-1], *parts, coefficients)
    return torch.where((half_widths == 0).all(-1), at_centre, value.reshape(batch)).to(dtype)


def _wide_density(y: Tensor, centre: Tensor, half_widths: Tensor, radius: float | Tensor) -> Tensor:
    """Check the arguments and return the triangular density before it is rounded [*batch]."""
    reach, batch = checked_batch(y, centre, half_widths, radius, MOST)
    points = [flat(value, batch) for value in (y, centre, reach)]
    return _blocks(_density, half_widths.shape[-1] + 1, *points, flat_last(half_widths, batch)).reshape(batch)


def _density(y: Tensor, centre: Tensor, radius: Tensor, half_widths: Tensor) -> Tensor:
    """Return the triangular density [point] for half-widths [d, point]; the triangle is two uniforms of r/2."""
    uniforms, unit = _kept(torch.cat([(radius / 2).expand(2, -1), half_widths]))
    side = (y - centre).sign().detach()
    edge = _sum(centre * side, -y * side, *uniforms)  # Σh + r − |y − c|, correctly rounded
    box = Box((uniforms / unit).sort(0, descending=True).values, -1)
    return one_sided(edge / unit, box, [torch.ones_like(unit)], -1)[0][0] / unit


def _expect(centre: Tensor, half_widths: Tensor, breaks: Tensor, coefficients: Tensor) -> Tensor:
    """Return E[g] [point] for breakpoints [k, point] and coefficients [pieces, terms, point]."""
    half_widths, unit = _kept(half_widths)
    order = coefficients.shape[1]
    box = Box((half_widths / unit).sort(0, descending=True).values, order - 1)
    scale = torch.stack([unit**i for i in range(order)])  # [terms, point]
    first, last = _mirrored(scale * _factorials(coefficients[0])), scale * _factorials(coefficients[-1])
    left = one_sided(_sum(-centre, breaks[0], *half_widths) / unit, box, list(first), 0)[0][0]
    right = one_sided(_sum(centre, -breaks[-1], *half_widths) / unit, box, list(last), 0)[0][0]
    spread = half_widths.sum(0)
    spread = spread + SLACK * (spread + centre.abs() + breaks.abs().amax(0))
    within = (breaks[:-1] <= centre + spread) & (breaks[1:] >= centre - spread)
    piece, point = within.nonzero(as_tuple=True)  # bounded pieces, and the points whose box (nearly) reaches them
    if not len(piece):
        return left + right
    wider = Box(box.widths[:, point], order - 1)
    ends, inner = (breaks[piece, point], breaks[piece + 1, point]), coefficients[piece + 1, :, point].T
    between = _between(centre[point], half_widths[:, point], unit[point], wider, ends, inner)
    return (left + right).index_add(0, point, between)


def _between(
    centre: Tensor, half_widths: Tensor, unit: Tensor, box: Box, ends: tuple[Tensor, Tensor], piece: Tensor
) -> Tensor:
    """Return the contribution to E[g] of a bounded piece [terms, point], one piece for each point."""
    start, end = ends
    scale = torch.stack([unit**i for i in range(len(piece))])
    at_start, at_end = scale * _factorials(piece), scale * _factorials(_shifted(piece, end - start))
    mirrored = centre - start > end - centre  # so that the nearer end is on the left
    side = torch.where(mirrored, -1.0, 1.0).to(centre)
    edge = _sum(centre * side, -torch.where(mirrored, end, start) * side, *half_widths)
    near = torch.where(mirrored, _mirrored(at_end), at_start)
    far = torch.where(mirrored, _mirrored(at_start), at_end)
    return _one_piece(edge / unit, (end - start) / unit, box, list(near), list(far))


def _one_piece(edge: Tensor, length: Tensor, box: Box, left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Return E[p(z)·1(a ≤ z < b)], z = x + Σ_i w_iU_i, for each point's piece.

    If no width is above L = b − a, it is the difference of the one-sided polynomials that start at a and at b, as in
    :mod:`.spline`. With wider widths the two would cancel by (w/L)^(degree + 1), so these widths are removed first,
    from the whole piece. Its j-fold antiderivative beyond b is a polynomial given by the piece's moments:

        C_j(x) = 0                                                             left of a by more than δ_j
               = E[∫_a^b p(s) (x + S_j − s)^(j−1)/(j−1)! ds]                    right of b by as much; 0 for j = 0
               = [C_{j+1}(x + w_{j+1}) − C_{j+1}(x − w_{j+1})]/(2w_{j+1})       w_{j+1} > L
               = A_j(x) − B_j(x)                                               else, A from a and B from b

    so that a narrow piece under a wide box is as accurate as a wide piece under a narrow box.

    Args:
        edge: x + δ_0 − a [point]; x should be nearer to a than to b (otherwise mirror the piece).
        length: L [point], > 0.
        left: derivatives p⁽ⁱ⁾(a), i = 0, 1, … [point] each.
        right: derivatives p⁽ⁱ⁾(b), in the same format.
    """
    depth, tails = len(box.widths), box.tails
    from_a, from_b = one_sided(edge, box, left, 0), one_sided(edge - length, box, right, 0)
    short = length.clamp_max(1)  # the recursion below is used where L < w_1 = 1
    nodes = box.nodes(torch.minimum(edge.clamp_min(0), 2 * tails[0] + 1), depth)
    mass = _moments(left, short, depth)
    value = horner(smooth(box, left, 0, depth), nodes.clamp_min(0))  # A_d
    value = torch.where(nodes >= short, horner(_passed(box, mass, depth), nodes - short / 2), value)
    for j in reversed(range(depth)):
        half = 1 << j
        here, width = nodes[:half], box.widths[j]
        difference = (value[:half] - value[half:]) * box.inverses[j]
        value = torch.where(width > length, difference, from_a[j] - from_b[j])
        if j:
            passed = horner(_passed(box, mass, j), here - tails[j] - short / 2)
            value = torch.where(here - short >= 2 * tails[j], passed, value)
    # without a removed width, the part that the window has passed is 0
    return torch.where(edge - length >= 2 * tails[0], 0, value[0])


def _moments(left: list[Tensor], length: Tensor, count: int) -> list[Tensor]:
    """Return ∫_0^L p(a + s) (L/2 − s)^r / r! ds for r = 0 … count − 1 [point] each, by an exact Gauss rule."""
    nodes, weights = np.polynomial.legendre.leggauss((len(left) + count) // 2 + 1)
    total = [torch.zeros_like(length) for _ in range(count)]
    taylor: list[Tensor | None] = [a / math.factorial(i) for i, a in enumerate(left)]
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        here = weight / 2 * length * horner(taylor, length * ((1 + node) / 2))
        for r in range(count):
            total[r] = total[r] + here
            here = here * (-node / 2) * length / (r + 1)
    return total


def _passed(box: Box, mass: list[Tensor], level: int) -> list[Tensor | None]:
    """Return the coefficients of C_j beyond the piece, as a polynomial of x minus the piece's middle, j ≥ 1."""
    moments = box.moments[level]
    joint: list[Tensor] = []
    for order in range(level):
        both = [moments[k] * mass[order - 2 * k] for k in range(min(order // 2 + 1, len(moments)))]
        joint.append(sum(both[1:], both[0]))
    return [joint[level - 1 - power] / math.factorial(power) for power in range(level)]


def _factorials(coefficients: Tensor) -> Tensor:
    """Return the derivatives i!·c_i of a polynomial's coefficients [terms, ...]."""
    return torch.stack([math.factorial(i) * c for i, c in enumerate(coefficients)])


def _mirrored(derivatives: Tensor) -> Tensor:
    """Return the derivatives of p(−u) [terms, ...]."""
    return torch.stack([-d if i % 2 else d for i, d in enumerate(derivatives)])


def _shifted(coefficients: Tensor, by: Tensor) -> Tensor:
    """Return the polynomial's coefficients [terms, point] about a point ``by`` further right."""
    rows = []
    for i in range(len(coefficients)):
        later: list[Tensor | None] = [math.comb(m, i) * coefficients[m] for m in range(i, len(coefficients))]
        rows.append(horner(later, by))
    return torch.stack(rows)


def _kept(widths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the widths [d, point], with widths that are negligible relative to the widest set to 0, and the widest.

    If all widths are zero, the second result is 1.
    """
    unit = widths.detach().amax(0)  # detached, because the result does not depend on the unit
    unit = torch.where(unit > 0, unit, 1)
    # a zero is kept, with its zero gradient and its second derivative
    return torch.where((widths > 0) & (widths < NEGLIGIBLE * unit), 0, widths), unit


def _sum(*terms: Tensor) -> Tensor:
    """Sum in twice the precision (Ogita, Rump and Oishi 2005, algorithm 4.1), with the gradient of a sum."""
    total, error = terms[0], torch.zeros_like(terms[0])
    for term in terms[1:]:
        new = total + term
        with torch.no_grad():
            part = new - total
            error = error + ((total - (new - part)) + (term - part))
        total = new
    return total + error


def _blocks(compute: Callable[..., Tensor], levels: int, *parts: Tensor) -> Tensor:
    """Call ``compute`` on blocks of points (the last dimension), where a point has 2^levels leaves."""
    return blocks(compute, BLOCK.get(parts[0].device.type, LARGE_BLOCK) >> levels, *parts)
