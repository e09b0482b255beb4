"""One-sided polynomials under a sum of uniforms, without cancellation.

    G(x) = E[φ(x + S)],   S = Σ_i w_iU_i,  U_i uniform on [−1, 1],   φ(u) = Σ_i a_i u_+^i / i!

The textbook form is the signed sum over the 2^d corners, Π(2w_i)⁻¹ Σ_s (Π s_i) φ⁽⁻ᵈ⁾(x + s·w), whose terms cancel
to nothing when widths are small or zero. It is a tree of central differences, one width a level. We remove the
*widest first*, and take a difference only where the window of what is left reaches the knot at zero:

    G_j(x) = 0                                                    x ≤ −δ_j       R_j = (w_{j+1}, …, w_d), δ_j = Σ R_j
           = Σ_k φ⁽⁻ʲ⁾⁽²ᵏ⁾(x) E[S_j²ᵏ]/(2k)!                       x ≥ +δ_j       the even moments of a polynomial
           = [G_{j+1}(x + w_{j+1}) − G_{j+1}(x − w_{j+1})]/(2w_{j+1})    else

with φ⁽⁻ʲ⁾ the j-fold antiderivative from −∞. Where the third line is used, |x| < δ_j ≤ (d − j)w_{j+1}: the two
values are never close to each other, and a level costs a bounded factor of the rounding error whatever the ratio of
the widths; zero widths come last and are never divided by. All values of a positive φ are positive.

Positions are kept as the distance from the left edge of the support, e = x + δ_j: the child at x + w has that of its
parent, unchanged, and the child at x − w has e − 2w. So the relative accuracy near the edge is that of e.

All tensors have the points last, [..., point]; nodes of a level come first. A density is the same tree from the
derivative of the step function, first order −1. de Boor, Höllig and Riemenschneider, "Box Splines" (1993), I.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

NEGLIGIBLE: Final = 1e-25  # of the widest: narrower is zero, so that no power of a width underflows


@dataclass(frozen=True)
class Box:
    """A box for each point: half-widths [d, point], the widest first.

    Their unit is any in which the widest is 1, or all of them 0.

    Attributes:
        orders: highest order of a polynomial before any width is removed; sets how many moments are kept.
    """

    widths: Tensor
    orders: int

    @cached_property
    def tails(self) -> Tensor:
        """Return δ_j, what is left after j of them [d + 1, point]."""
        return F.pad(self.widths.flip(0).cumsum(0).flip(0), (0, 0, 0, 1))

    @cached_property
    def inverses(self) -> Tensor:
        """Return 1/(2w_j) [d, point], and anything finite for a zero width."""
        return 0.5 / torch.where(self.widths > 0, self.widths, 1)

    @cached_property
    def moments(self) -> list[list[Tensor]]:
        """Return moments[j][k] = E[S_j²ᵏ]/(2k)!, S_j the sum of what is left after j of them: [d] has k = 0 alone."""
        one = torch.ones_like(self.tails[0])
        levels = [[one]]
        for j in reversed(range(len(self.widths))):
            square, powers, old = self.widths[j].square(), [one], levels[-1]
            for k in range(1, (j + self.orders) // 2 + 1):
                powers.append(powers[-1] * square / (2 * k * (2 * k + 1)))  # w²ᵏ/(2k + 1)!
            levels.append([_convolved(powers, old, k) for k in range(len(powers))])
        return levels[::-1]

    def nodes(self, edge: Tensor, level: int) -> Tensor:
        """Return the left-edge distances of the nodes of a level [2^level, point].

        Those of a level j above are the first 2^j.
        """
        nodes = edge[None]
        for width in self.widths[:level]:
            nodes = torch.cat([nodes, nodes - 2 * width])
        return nodes


def one_sided(edge: Tensor, box: Box, terms: list[Tensor], first: int) -> list[Tensor]:
    """Return G of every node of every level but the leaves: [2^j, point] for j = 0 … d − 1.

    Args:
        edge: x + δ_0, the distance of x from the left edge of the support [point].
        terms: a_i for i = ``first``, ``first`` + 1, … [point] each.
        first: 0, or −1 for a density; d + ``first`` ≥ 1.
    """
    depth = len(box.widths)
    # beyond these the root is zero or a polynomial, whose deeper powers could overflow
    nodes = box.nodes(torch.minimum(edge.clamp_min(0), 2 * box.tails[0] + 1), depth - 1)
    # below 2w_d the last difference has one value that is not zero
    difference = horner(smooth(box, terms, first, depth), nodes.clamp_min(0)) * box.inverses[-1]
    levels: list[Tensor] = []
    for j in reversed(range(depth)):
        here = nodes[: 1 << j] if j else edge[None]
        beyond = horner(smooth(box, terms, first, j), here - box.tails[j])
        value = torch.where(here >= 2 * box.tails[j], beyond, difference)
        levels.append(value)
        if j:
            difference = (value[: 1 << j - 1] - value[1 << j - 1 :]) * box.inverses[j - 1]
    return levels[::-1]


def smooth(box: Box, terms: list[Tensor], first: int, level: int) -> list[Tensor | None]:
    """Return the coefficients, ascending, of E[φ⁽⁻ʲ⁾(x + S_j)] as a polynomial of x, x ≥ δ_j; None stands for zero."""
    moments = box.moments[level]
    top = first + len(terms) - 1 + level
    coefficients: list[Tensor | None] = []
    for power in range(top + 1):
        orders = [(a, first + i + level - power) for i, a in enumerate(terms)]
        found = [a * moments[m // 2] for a, m in orders if m >= 0 and m % 2 == 0 and m // 2 < len(moments)]
        coefficients.append(sum(found[1:], found[0]) / math.factorial(power) if found else None)
    return coefficients


def horner(coefficients: list[Tensor | None], x: Tensor) -> Tensor:
    """Return Σ_r c_r x^r, by Horner's rule in x², the even and the odd powers apart."""
    square = x * x
    even, odd = _same_parity(coefficients[::2], square), _same_parity(coefficients[1::2], square)
    if odd is None:
        return torch.zeros_like(x) if even is None else even.expand_as(x)
    return odd * x if even is None else torch.addcmul(even, odd, x)


def _same_parity(coefficients: list[Tensor | None], square: Tensor) -> Tensor | None:
    """Return Σ_k c_k (x²)^k, None where all are."""
    total: Tensor | None = None
    for c in reversed(coefficients):
        if total is None or c is None:
            total = c if total is None else total * square
        else:
            total = torch.addcmul(c, total, square)
    return total


def _convolved(powers: list[Tensor], old: list[Tensor], k: int) -> Tensor:
    """Return Σ_i powers[i] old[k − i], of which the first of each is one."""
    inner = [powers[i] * old[k - i] for i in range(1, k) if k - i < len(old)]
    ends = [old[k]] if 0 < k < len(old) else []
    return sum([*inner, *ends], powers[k])
