"""The triangular likelihood averaged over a box of any number of weights: density and distribution function of

    X = c + Σ_{i≤d} h_iU_i + T,   U_i uniform on [−1, 1],  T triangular on [−r, r],

a sum of n = d + 2 uniforms of half-widths w = (h_1, …, h_d, r/2, r/2). The tree of :mod:`.spline` would double in size
with each width.

Distances are measured from the nearer edge of the support, e = Σw − |y − c|. As a function of e, the density is the
convolution of n uniforms on [0, 2w_i], and with an additional interval [0, ∞) it is the tail probability. Both are
computed as a Fourier series (:mod:`.tilted`) with a bounded relative error everywhere in the support.

If a few widths dominate, the series is long. Then the k widest intervals are split as in :mod:`.spline`, [0, 2w] = [0,
∞) − [2w, ∞), and the same series is summed for k intervals [0, ∞) and the narrow rest, at the corners (of 2^k) that the
rest reaches; its terms decay at least as t^(−k) on the scale of the rest. At other corners the value is zero or a
polynomial with the moments of the rest. No difference subtracts nearly equal values.
"""

import math
from collections.abc import Callable
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from .layout import Values, Widths, blocks, checked_batch, flat, flat_last, widest
from .tilted import CUMULANTS, LOG_ERROR, log_convolution

__all__ = ["cdf", "log_density"]

FLOOR: Final = 1e-20  # relative to the edge distance: narrower widths are set to this
LONGEST: Final = 96  # the most terms of a series without split widths
MOST: Final = 10  # the most split intervals
CHUNK: Final = 1 << 22  # widths in memory at a time
NODES: Final = 1 << 16  # corners at a time


@torch.no_grad()
def log_density(y: Values, centre: Values, half_widths: Widths, radius: float | Values) -> Float[Tensor, "*batch"]:
    """Return log E[tri(y − c − Σ_i h_iU_i)], −∞ off the support.

    tri is the symmetric triangular density on [−radius, radius].

    The relative error of the density is of the order of 1e-12, also deep in the tails. The proven bound of a series is
    1e-8, which differences of corners increase by a moderate factor. It is not differentiable.

    Raises:
        DataError: a value is not finite, a half-width is negative, or a radius is ≤ 0.
    """
    return _over_points(lambda edge, _, widths: _log_tail(edge, widths, 0), y, centre, half_widths, radius)


@torch.no_grad()
def cdf(y: Values, centre: Values, half_widths: Widths, radius: float | Values) -> Float[Tensor, "*batch"]:
    """Return Pr(X ≤ y).

    Below the centre it has the relative error of :func:`log_density`; above, it is one minus the other tail. It is not
    differentiable.

    Raises:
        DataError: see :func:`log_density`.
    """

    def compute(edge: Tensor, side: Tensor, widths: Tensor) -> Tensor:
        tail = _log_tail(edge, widths, 1).exp()
        return torch.where(side > 0, 1 - tail, tail)

    return _over_points(compute, y, centre, half_widths, radius)


def _over_points(
    compute: Callable[[Tensor, Tensor, Tensor], Tensor],
    y: Tensor,
    centre: Tensor,
    half_widths: Tensor,
    radius: float | Tensor,
) -> Tensor:
    """Call ``compute`` on edge distances [point], sides [point] and widths [n, point], in chunks of bounded memory."""
    reach, batch = checked_batch(y, centre, half_widths, radius, math.inf)

    def at(y: Tensor, c: Tensor, r: Tensor, widths: Tensor) -> Tensor:
        side = (y - c).sign()
        edge = _sum(torch.cat([torch.stack([c * side, -y * side, r]), widths]))
        return compute(edge, side, torch.cat([(r / 2).expand(2, -1), widths]))

    points = [flat(value, batch) for value in (y, centre, reach)]
    done = blocks(at, CHUNK // (half_widths.shape[-1] + 2), *points, flat_last(half_widths, batch))
    return done.reshape(batch).to(widest(y, centre, half_widths))


def _sum(terms: Tensor) -> Tensor:
    """Sum over the first dimension in twice the precision, pairwise (Ogita, Rump and Oishi 2005, algorithm 4.1)."""
    error = torch.zeros_like(terms[0])
    while len(terms) > 1:
        half = len(terms) // 2
        a, b = terms[:half], terms[half : 2 * half]
        total = a + b
        part = total - a
        error = error + ((a - (total - part)) + (b - part)).sum(0)
        terms = torch.cat([total, terms[2 * half :]])
    return terms[0] + error


def _log_tail(edge: Tensor, widths: Tensor, endless: int) -> Tensor:
    """Return the log, at ``edge`` [point], of the convolution of uniforms and ``endless`` intervals [0, ∞).

    The uniforms have half-widths [n, point]. The result is −∞ if edge ≤ 0; edge must be ≤ Σw.
    """
    result = torch.full_like(edge, -torch.inf)
    inside = (edge > 0).nonzero().squeeze(-1)
    edge = edge[inside]
    scaled = (widths[:, inside] / edge).clamp_min(FLOOR).sort(0, descending=True).values
    log, terms = log_convolution(scaled, torch.full_like(edge, endless), LONGEST)
    for at in (terms > LONGEST).nonzero().squeeze(-1).split(NODES):
        log[at] = _taken_apart(scaled[:, at], endless, terms[at])
    result[inside] = log + (endless - 1) * edge.log()
    return result


def _taken_apart(widths: Tensor, endless: int, terms: Tensor) -> Tensor:
    """Return the log of the convolution at 1 [point] for half-widths [n, point], with some intervals split.

    A series without splits would have ``terms`` [point].
    """
    kept = widths.clamp_max(1)  # a width above the edge distance has the effect of [0, ∞)
    apart = _number_apart(kept, endless, terms)
    result = torch.empty_like(terms)
    for k in apart.unique().tolist():
        of_k = (apart == k).nonzero().squeeze(-1)
        for at in of_k.split(max(1, NODES >> k)):
            result[at] = _corners(kept[:, at], k, endless)
    return result + (kept / widths).log().sum(0)


def _number_apart(widths: Tensor, endless: int, terms: Tensor) -> Tensor:
    """Return the number of intervals to split [point], which minimises the estimated number of summed terms.

    A series of m intervals that are [0, ∞) or of similar width has about 2 (exp(LOG_ERROR) m^(m/2))^(1/(m − 1)) terms.
    The rest reaches a share of the corners equal to its share of the support. Widths [n, point] are in descending
    order.
    """
    most = min(MOST, len(widths))
    rest = _sums_after(widths)[: most + 1]
    k = torch.arange(most + 1, device=widths.device)[:, None]
    alike = k + endless + rest.square() / _sums_after(widths.square())[: most + 1].clamp_min(FLOOR**2)
    alike = alike.clamp_min(1.5)
    length = 2 * ((LOG_ERROR + alike / 2 * alike.log()) / (alike - 1)).exp()
    work = (1 + 2**k * rest / rest[0].clamp_min(1)) * length
    work[0] = terms
    if most == len(widths):
        work[most] = 2**most / 8  # no series is left
    return work.argmin(0)


def _sums_after(values: Tensor) -> Tensor:
    """Return Σ_{i>j} for j = 0 … n [n + 1, point]."""
    return torch.cat([values.flip(0).cumsum(0).flip(0), torch.zeros_like(values[:1])])


def _corners(widths: Tensor, k: int, endless: int) -> Tensor:
    """Return the log of the convolution at 1 [point] for half-widths [n, point], by differences of 2^k corners."""
    rest = _sums_after(widths)  # δ_j
    nodes = torch.ones_like(widths[:1])
    for width in widths[:k]:
        nodes = torch.cat([nodes, nodes - 2 * width])
    beyond = nodes >= 2 * rest[k]
    value = torch.where(beyond, _polynomial(nodes - rest[k], widths, k, endless), 0)
    reached = ((nodes > 0) & ~beyond).nonzero(as_tuple=True)
    log = torch.full_like(nodes, -torch.inf)
    if len(reached[0]):
        edge, count = nodes[reached], torch.full_like(nodes[reached], k + endless)
        narrow = (widths[k:, reached[1]] / edge).clamp_min(FLOOR)
        log[reached] = log_convolution(narrow, count)[0] + (k + endless - 1) * edge.log()
    unit = torch.where(log[0].isfinite(), log[0], 0)  # if the rest reaches the first corner, no other corner is passed
    value = value + (log - unit).exp()
    for j in reversed(range(k)):
        half = 1 << j
        difference = (value[:half] - value[half:]) / (2 * widths[j])
        beyond = nodes[:half] >= 2 * rest[j]
        value = torch.where(beyond, _polynomial(nodes[:half] - rest[j], widths, j, endless), difference)
    return value[0].log() + unit


def _polynomial(x: Tensor, widths: Tensor, j: int, endless: int) -> Tensor:
    """Return E[(x + S)^q]/q! with q = j + endless − 1, S the sum of all but the j widest; q must be ≥ 0."""
    order = j + endless - 1
    moments = [torch.ones_like(x[0])]  # E[S²ᵐ]/(2m)!
    powers = [c * widths[j:].pow(2 * m).sum(0) for m, c in enumerate(CUMULANTS[: max(order, 0) // 2], 1)]
    for m in range(1, len(powers) + 1):
        parts = (i * powers[i - 1] * moments[m - i] for i in range(1, m + 1))
        moments.append(sum(parts, torch.zeros_like(x[0])) / m)
    terms = (x ** (order - 2 * m) / math.factorial(max(order - 2 * m, 0)) * value for m, value in enumerate(moments))
    return sum(terms, torch.zeros_like(x))
