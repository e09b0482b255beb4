"""The textbook signed sums over the corners of the box, in 400 digits, of which 50 remain after cancellation.

Widths down to 1e-10 of the widest, eight of them and two for the triangle, cost at most 100 + 250 digits.
"""

from collections.abc import Sequence

from mpmath import mp, mpf

DIGITS = 400
Numbers = Sequence[float | mpf]


def density(y: float | mpf, centre: float | mpf, half_widths: Numbers, radius: float | mpf) -> mpf:
    """Triangular density under a box: the density of d + 2 uniforms, zero widths left out."""
    with mp.workdps(DIGITS):
        widths = [mpf(w) for w in half_widths if w != 0] + [mpf(radius) / 2] * 2
        corners = _corners(-abs(mpf(y) - mpf(centre)), widths)
        order = len(widths) - 1
        total = sum((sign * x**order for x, sign in corners if x > 0), mpf(0))
        return total / mp.factorial(order) / mp.fprod(2 * w for w in widths)


def expectation(
    breakpoints: Numbers, coefficients: Sequence[Numbers], centre: float | mpf, half_widths: Numbers
) -> mpf:
    """E[g(c + ΣhU)], g as the first piece and a one-sided polynomial from each breakpoint on."""
    with mp.workdps(DIGITS):
        breaks, c = [mpf(b) for b in breakpoints], mpf(centre)
        pieces = [[mpf(a) for a in piece] for piece in coefficients]
        widths = [mpf(w) for w in half_widths if w != 0]
        total = _under_box(pieces[0], c - breaks[0], widths, one_sided=False)
        for k, start in enumerate(breaks):
            before = pieces[0] if k == 0 else _moved(pieces[k], start - breaks[k - 1])
            jump = [new - old for new, old in zip(pieces[k + 1], before, strict=True)]
            total += _under_box(jump, c - start, widths, one_sided=True)
        return total


def relative_error(got: float, exact: mpf) -> float:
    """The relative error, 0 for two zeros. An exact value below 1e-290, a rest of cancellation, counts as zero."""
    with mp.workdps(DIGITS):
        if abs(exact) < mpf(10) ** -290:
            return 0.0 if got == 0 else float("inf")
        return float(abs(mpf(got) - exact) / abs(exact))


def _corners(x: mpf, widths: list[mpf]) -> list[tuple[mpf, int]]:
    corners = [(x, 1)]
    for width in widths:
        corners = [(u + width, s) for u, s in corners] + [(u - width, -s) for u, s in corners]
    return corners


def _under_box(polynomial: list[mpf], x: mpf, widths: list[mpf], *, one_sided: bool) -> mpf:
    depth, total = len(widths), mpf(0)
    for u, sign in _corners(x, widths):
        if one_sided and (u < 0 or (u == 0 and depth)):
            continue
        terms = (a * mp.factorial(i) / mp.factorial(i + depth) * u ** (i + depth) for i, a in enumerate(polynomial))
        total += sign * sum(terms, mpf(0))
    return total / mp.fprod(2 * w for w in widths)


def _moved(polynomial: list[mpf], by: mpf) -> list[mpf]:
    """The same polynomial about a point that lies ``by`` further right."""
    size = len(polynomial)
    return [sum(mp.binomial(m, i) * polynomial[m] * by ** (m - i) for m in range(i, size)) for i in range(size)]
