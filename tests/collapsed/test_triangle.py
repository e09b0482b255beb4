"""The triangle's two radii, and the sigmoid as cubics."""

import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from bdl_pipe.collapsed.integrals import cubic_sigmoid, few_uniforms, radius, sigmoid_error, triangular
from bdl_pipe.collapsed.integrals.softmax import mean_sigmoid
from bdl_pipe.collapsed.integrals.triangle import density_matched
from bdl_pipe.errors import ConfigError

from .cases import numbers


def test_the_variance_is_matched() -> None:
    r = radius(torch.tensor([0.5, 2.0], dtype=torch.float64), "variance")
    for sigma, reach in zip([0.5, 2.0], r.tolist(), strict=True):
        second = quad(lambda t, reach=reach: t * t * (1 / reach - abs(t) / reach**2), -reach, reach)[0]
        assert second == pytest.approx(sigma**2, rel=1e-8)


def test_the_density_is_nearest_in_l2() -> None:
    """The distance itself, by quadrature, has its minimum there."""

    def distance(r: float) -> float:
        inside = quad(lambda u: (max(1 / r - u / r**2, 0) - norm.pdf(u)) ** 2, 0, r, epsabs=1e-14)[0]
        return inside + quad(lambda u: norm.pdf(u) ** 2, r, 12, epsabs=1e-14)[0]

    found = minimize_scalar(distance, bounds=(1.5, 3.5), method="bounded", options={"xatol": 1e-9}).x
    assert density_matched() == pytest.approx(found, abs=1e-6)
    assert radius(2.0, "density") == 2 * density_matched()
    assert density_matched() ** 2 / 6 == pytest.approx(0.88, abs=0.005)


def test_another_match_is_named() -> None:
    with pytest.raises(ConfigError, match='match must be "variance" or "density", got \'mean\''):
        radius(1.0, "mean")


def test_triangle_as_a_piecewise() -> None:
    g = triangular(torch.tensor([0.5, 3.0], dtype=torch.float64))
    z = torch.tensor([[-0.5, 0.0], [0.25, -1.0], [0.6, 3.0]], dtype=torch.float64)
    expected = torch.tensor([[0, 1 / 3], [1, 2 / 9], [0, 0]], dtype=torch.float64)
    torch.testing.assert_close(g(z), expected, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize(("pieces", "stated"), [(1, 0.0283), (3, 0.0075), (8, 0.0029), (32, 4e-5)])
def test_sigmoid_error_is_what_is_stated_and_bounds_every_box(pieces: int, stated: float) -> None:
    """The control is half the error."""
    g = cubic_sigmoid(pieces)
    error = sigmoid_error(g)
    assert 0.9 * stated < error <= stated
    random = numbers("sigmoid", pieces)
    centre, half = torch.tensor(random.uniform(-9, 9, 2000)), torch.tensor(10 ** random.uniform(-3, 1, 2000))
    off = (few_uniforms.expect(g, centre, half[:, None]) - mean_sigmoid(centre, half)).abs().max()
    assert error / 2 < off <= error * (1 + 1e-6)


def test_sigmoid_of_a_given_reach() -> None:
    g = cubic_sigmoid(1, 5.0)
    assert g.breakpoints.tolist() == [-5.0, 5.0]
    z = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(g(z) + g(-z), torch.ones_like(z), rtol=1e-9, atol=1e-9)
    assert (g(z)[z > 5] == 1).all()
    with pytest.raises(ConfigError, match=r"cubic_sigmoid\.pieces must be ≥ 1, got 0"):
        cubic_sigmoid(0)
    with pytest.raises(ConfigError, match=r"cubic_sigmoid\.reach must be > 0, got -1.0"):
        cubic_sigmoid(2, -1.0)
