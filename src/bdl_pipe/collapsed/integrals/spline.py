"""One-sided polynomials under a sum of uniforms, without cancellation.

    G(x) = E[φ(x + S)],   S = Σ_i w_iU_i,  U_i uniform on [−1, 1],   φ(u) = Σ_i a_i u_+^i / i!

The textbook form is the signed sum over the 2^d corners, Π(2w_i)⁻¹ Σ_s (Π s_i) φ⁽⁻ᵈ⁾(x + s·w). Its terms cancel
completely for small or zero widths. The sum is a tree of central differences with one width per level. We remove the
*widest first*, and take a difference only where the window of the remaining widths reaches the knot at zero:

    G_j(x) = 0                                                    x ≤ −δ_j       R_j = (w_{j+1}, …, w_d), δ_j = Σ R_j
           = Σ_k φ⁽⁻ʲ⁾⁽²ᵏ⁾(x) E[S_j²ᵏ]/(2k)!                       x ≥ +δ_j       the even moments of a polynomial
           = [G_{j+1}(x + w_{j+1}) − G_{j+1}(x − w_{j+1})]/(2w_{j+1})    else

with φ⁽⁻ʲ⁾ the j-fold antiderivative from −∞. In the third line |x| < δ_j ≤ (d − j)w_{j+1}. So the two values are never
close to each other, and a level multiplies the rounding error by a bounded factor for any ratio of the widths. Zero
widths come last and are never divided by. If φ is positive, all values are positive.

Positions are stored as the distance from the support's left edge, e = x + δ_j: the child at x + w has its parent's e,
unchanged, and the child at x − w has e − 2w. So the relative accuracy near the edge is the accuracy of e.

Tensors have points last, [..., point], and the nodes of a level first. A density is the same tree, starting from the
derivative of the step function with first order −1. de Boor, Höllig and Riemenschneider, "Box Splines" (1993), I.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

NEGLIGIBLE: Final = 1e-25  # relative to the widest: narrower widths become zero, so that no power of a width underflows


@dataclass(frozen=True)
class Box:
    """A box for each point: half-widths [d, point] in descending order, in units of the widest, or all 0.

    Attributes:
        orders: the highest order of a polynomial before widths are removed, which sets the number of moments.
    """

    widths: Tensor
    orders: int

    @cached_property
    def tails(self) -> Tensor:
        """Return δ_j, the sum of the widths after the j widest [d + 1, point]."""
        return F.pad(self.widths.flip(0).cumsum(0).flip(0), (0, 0, 0, 1))

    @cached_property
    def inverses(self) -> Tensor:
        """Return 1/(2w_j) [d, point], and an arbitrary finite number for a zero width."""
        return 0.5 / torch.where(self.widths > 0, self.widths, 1)

    @cached_property
    def moments(self) -> list[list[Tensor]]:
        """Return moments[j][k] = E[S_j²ᵏ]/(2k)!, S_j the sum of all but the j widest; [d] has only k = 0."""
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

        The first 2^j are the nodes of a higher level j.
        """
        nodes = edge[None]
        for width in self.widths[:level]:
            nodes = torch.cat([nodes, nodes - 2 * width])
        return nodes


def one_sided(edge: Tensor, box: Box, terms: list[Tensor], first: int) -> list[Tensor]:
    """Return G at every node of every level except the leaves: [2^j, point] for j = 0 … d − 1.

    Args:
        edge: x + δ_0, the distance of x from the left edge of the support [point].
        terms: a_i for i = ``first``, ``first`` + 1, … [point] each.
        first: 0, or −1 for a density; d + ``first`` ≥ 1.
    """
    depth = len(box.widths)
    # outside of these bounds the root is zero or a polynomial, and powers at deeper levels could overflow
    nodes = box.nodes(torch.minimum(edge.clamp_min(0), 2 * box.tails[0] + 1), depth - 1)
    # below 2w_d the last difference has only one nonzero value
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
    """Return the coefficients, ascending, of E[φ⁽⁻ʲ⁾(x + S_j)] as a polynomial of x, x ≥ δ_j; None means zero."""
    moments = box.moments[level]
    top = first + len(terms) - 1 + level
    coefficients: list[Tensor | None] = []
    for power in range(top + 1):
        orders = [(a, first + i + level - power) for i, a in enumerate(terms)]
        parts = [a * moments[m // 2] for a, m in orders if m >= 0 and m % 2 == 0 and m // 2 < len(moments)]
        coefficients.append(sum(parts[1:], parts[0]) / math.factorial(power) if parts else None)
    return coefficients


def horner(coefficients: list[Tensor | None], x: Tensor) -> Tensor:
    """Return Σ_r c_r x^r, by Horner's rule in x² for even and odd powers separately."""
    square = x * x
    even, odd = _same_parity(coefficients[::2], square), _same_parity(coefficients[1::2], square)
    if odd is None:
        return torch.zeros_like(x) if even is None else even.expand_as(x)
    return odd * x if even is None else torch.addcmul(even, odd, x)


def _same_parity(coefficients: list[Tensor | None], square: Tensor) -> Tensor | None:
    """Return Σ_k c_k (x²)^k; None if all coefficients are None."""
    total: Tensor | None = None
    for c in reversed(coefficients):
        if total is None or c is None:
            total = c if total is None else total * square
        else:
            total = torch.addcmul(c, total, square)
    return total


def _convolved(powers: list[Tensor], old: list[Tensor], k: int) -> Tensor:
    """Return Σ_i powers[i] old[k − i]; the first entry of both is one."""
    inner = [powers[i] * old[k - i] for i in range(1, k) if k - i < len(old)]
    ends = [old[k]] if 0 < k < len(old) else []
    return sum([*inner, *ends], powers[k])
