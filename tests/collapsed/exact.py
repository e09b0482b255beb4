"""Sums of many uniforms on [0, 2w], at a distance from the left edge of the support, without the corners' 2^n terms."""

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from mpmath import mp, mpf


def on_lattice(half_widths: Sequence[int], edge: Fraction, *, tail: bool = False) -> Fraction:
    """The density at ``edge``, or the probability below it, for whole half-widths.

    The signed corners are the coefficients of Π(1 − z^2w).
    """
    corners = Counter({0: 1})
    for w in half_widths:
        moved = Counter({at + 2 * w: -sign for at, sign in corners.items() if at + 2 * w < edge})
        moved.update(corners)
        corners = Counter({at: sign for at, sign in moved.items() if sign})
    q = len(half_widths) - 1 + tail
    top, bottom = edge.numerator, edge.denominator
    total = sum(sign * (top - at * bottom) ** q for at, sign in corners.items())
    return Fraction(total, bottom**q * math.factorial(q) * math.prod(2 * w for w in half_widths))


def by_differences(half_widths: Sequence[float], edge: Fraction, *, tail: bool = False, digits: int = 400) -> mpf:
    """The same for widths that differ widely, with few corners below the edge: a tree of differences, in mpmath."""
    with mp.workdps(digits):
        widths = sorted((mpf(w) for w in half_widths if w > 0), reverse=True)
        n, first = len(widths), int(tail) - 1
        rest = [mp.fsum(widths[j:]) for j in range(n + 1)]
        moments = [[mpf(1)] + [mpf(0)] * (n // 2 + 1)]  # E[S²ᵐ]/(2m)!, S the sum of the rest
        for w in reversed(widths):
            powers = [w ** (2 * m) / mp.factorial(2 * m + 1) for m in range(n // 2 + 2)]
            moments.append([mp.fdot(powers[: m + 1], moments[-1][m::-1]) for m in range(n // 2 + 2)])

        def value(e: mpf, j: int) -> mpf:
            q = j + first
            if e <= 0:
                return mpf(0)
            if e < 2 * rest[j]:
                return (value(e, j + 1) - value(e - 2 * widths[j], j + 1)) / (2 * widths[j])
            x = e - rest[j]
            return mp.fsum(x ** (q - 2 * m) / mp.factorial(q - 2 * m) * moments[n - j][m] for m in range(q // 2 + 1))

        return value(mpf(edge.numerator) / edge.denominator, 0)


def relative_error(log: float, value: Fraction | mpf) -> float:
    """The relative error of exp(log)."""
    with mp.workdps(50):
        exact = value if isinstance(value, mpf) else mpf(value.numerator) / value.denominator
        return float(abs(mp.exp(mpf(log)) / exact - 1))
