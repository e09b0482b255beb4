"""A polynomial on an interval under a sum of uniforms: E[p(z)·1(a ≤ z < b)], z = x + Σ_i w_iU_i.

If no width is above L = b − a, it is the difference of the one-sided polynomials that start at a and at b, as in
:mod:`.spline`. With wider widths the two would cancel by (w/L)^(degree + 1), so these widths are removed first, from
the whole piece. Its j-fold antiderivative beyond b is a polynomial given by the piece's moments:

    C_j(x) = 0                                                             left of a by more than δ_j
           = E[∫_a^b p(s) (x + S_j − s)^(j−1)/(j−1)! ds]                    right of b by as much; 0 for j = 0
           = [C_{j+1}(x + w_{j+1}) − C_{j+1}(x − w_{j+1})]/(2w_{j+1})       w_{j+1} > L
           = A_j(x) − B_j(x)                                               else, A from a and B from b

so that a narrow piece under a wide box is as accurate as a wide piece under a narrow box.
"""

import math

import numpy as np
import torch
from torch import Tensor

from .spline import Box, horner, one_sided, smooth


def one_piece(edge: Tensor, length: Tensor, box: Box, left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Return the expectation for each point's piece.

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
