"""Figure 1 of CIBER's paper: the numbers beside the surfaces, each with a wrong variant that fails."""

import math
from functools import cache

import numpy as np
import pytest
from mpmath import mp
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from benchmarks import ciber_figure1 as figure1

LIKELIHOODS = [None, "variance", "density"]


@cache
def reach(match: str) -> float:
    """Return the radius by code independent of the benchmark: a search for the least squared distance from N(0, 1)."""

    def distance(r: float) -> float:
        return quad(lambda u: (max(0.0, 1 - u / r) / r - norm.pdf(u)) ** 2, 0, 12, points=[r], epsabs=1e-14)[0]

    if match == "variance":
        return math.sqrt(6)
    return float(minimize_scalar(distance, bracket=(2, 2.3, 2.6), tol=1e-10).x)


def tri(u: float, match: str | None) -> float:
    """Return the density at u."""
    return float(norm.pdf(u)) if match is None else max(0.0, 1 - abs(u) / reach(match)) / reach(match)


@pytest.mark.parametrize("match", LIKELIHOODS)
def test_densities_of_y_agree_with_adaptive_quadrature(match: str | None) -> None:
    """Closed form, 50 digits and SciPy's quadrature agree; the half where the unit is off is large enough to matter."""
    likelihood = figure1.Likelihood(match)
    for y in (-1.3, 0.4, 2.0, 4.1):
        bends = [] if match is None else [y - reach(match), y, y + reach(match)]
        inside = sorted({0.0, *(w for w in bends if -3 < w < 3)})
        slow = quad(lambda w, y=y: tri(y - max(w, 0), match) / 6, -3, 3, points=inside, epsabs=1e-12)[0]
        with mp.workdps(figure1.DIGITS):
            gap = abs(figure1.closed(likelihood, y) - figure1.by_quadrature(likelihood, y))
        assert gap < mp.mpf(10) ** -30
        assert float(figure1.by_quadrature(likelihood, y)) == pytest.approx(slow, rel=1e-6)
        if match is not None:
            assert figure1.density_of(match, y) == pytest.approx(float(figure1.closed(likelihood, y)), rel=1e-13)
        assert tri(y, match) / 2 > 1e-3 * slow or y > 4  # the half where the unit is off must matter


@pytest.mark.parametrize("match", LIKELIHOODS)
def test_the_mean_is_three_quarters(match: str | None) -> None:
    """In 50 digits, from the library and from the sum of the drawn surface; without the ReLU, f = w, the sum is 0."""
    with mp.workdps(figure1.DIGITS):
        assert abs(figure1.mean_by_quadrature(figure1.Likelihood(match)) - mp.mpf(3) / 4) < mp.mpf(10) ** -40
    if match is not None:
        assert float(figure1.exact(match).mean) == pytest.approx(0.75, abs=1e-15)
    density = list(figure1.densities().values())[LIKELIHOODS.index(match)]
    w, y = np.linspace(-3, 3, 301), np.linspace(-9, 12, 2101)
    drawn = np.trapezoid(np.trapezoid(figure1.surface(density, w, y), y), w)
    assert drawn == pytest.approx(0.75, abs=2e-4)
    linear = y * density(y - w[:, None]) / 6
    assert np.trapezoid(np.trapezoid(linear, y), w) == pytest.approx(0, abs=2e-4)


def test_peaks_and_pits_are_counted_as_connected_parts() -> None:
    """Two hills are two parts, a ridge along the diagonal of the grid is one, and a pit is counted apart from hills."""
    x, y = np.meshgrid(np.linspace(-4, 4, 81), np.linspace(-4, 4, 81))
    hill = np.exp(-(x**2) - y**2)
    assert figure1.parts(hill - 0.5 * np.exp(-((x - 3) ** 2) - y**2)) == (1, 1)
    two = np.exp(-((x - 2) ** 2) - y**2) + np.exp(-((x + 2) ** 2) - y**2)
    assert figure1.parts(two - 0.1 * hill)[0] == 2
    ridge = np.eye(81) * np.linspace(0.1, 1, 81)[:, None]
    assert figure1.parts(ridge - 0.1 * hill)[0] == 1


def test_the_highest_point_of_the_surface_is_at_the_largest_weight() -> None:
    """The Gaussian's highest point is in closed form: w = 3, y = (3 + √13)/2."""
    w, y = np.linspace(-3, 3, 61), np.linspace(-4, 7, 1101)
    z = figure1.surface(figure1.densities()[figure1.GAUSSIAN], w, y)
    row, column = np.unravel_index(z.argmax(), z.shape)
    top = (3 + math.sqrt(13)) / 2
    assert w[row] == 3 and y[column] == pytest.approx(top, abs=0.01)
    assert z.max() == pytest.approx(top * norm.pdf(top - 3) / 6, abs=1e-5)


@pytest.mark.soak
@pytest.mark.slow
def test_the_page_lists_every_likelihood_and_the_picture_is_drawn(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(figure1, "PAGES", tmp_path)
    figure1.draw(figure1.densities())
    assert (tmp_path / "figure1.png").stat().st_size > 10_000
    rows, worst = figure1.values()
    assert len(rows) == len(figure1.POINTS) and worst < 1e-13
    text = "\n".join(figure1.page(rows, worst))
    assert all(f"| {name} | " in text for name in (figure1.GAUSSIAN, *figure1.LIKELIHOODS)) and "TODO" not in text
