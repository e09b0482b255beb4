"""The triangular density under a box, its two radii and the sigmoid as cubics: 400 digits, edges, Monte Carlo."""

import itertools
import math

import mpmath
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from torch import Tensor

from bdl_pipe.collapsed.integrals import cubic_sigmoid, few_uniforms, radius, sigmoid_error, triangular
from bdl_pipe.collapsed.integrals.piecewise import density_matched
from bdl_pipe.collapsed.integrals.softmax import mean_sigmoid
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.seeds import Seed

from .cases import WIDTHS, Case, cases, numbers
from .oracle import DIGITS, density, relative_error


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tensors(chosen: list[Case], *, grad: bool = False) -> tuple[Tensor, ...]:
    """y, centre, half-widths and radius of the cases."""
    parts = ([c.y for c in chosen], [c.centre for c in chosen], [c.half_widths for c in chosen])
    y, centre, widths = (torch.tensor(part, dtype=torch.float64, requires_grad=grad) for part in parts)
    return y, centre, widths, torch.tensor([c.radius for c in chosen], dtype=torch.float64, requires_grad=grad)


def signed_sum(y: Tensor, centre: Tensor, half_widths: Tensor, radius: Tensor) -> Tensor:
    """The textbook form in float64, which loses digits."""
    widths = torch.cat([half_widths, (radius / 2)[:, None].expand(-1, 2)], -1)
    signs = torch.tensor(list(itertools.product([1.0, -1.0], repeat=widths.shape[-1])), dtype=torch.float64)
    corners = (y - centre)[:, None] + widths @ signs.T
    powers = corners.clamp_min(0) ** (widths.shape[-1] - 1) / math.factorial(widths.shape[-1] - 1)
    return (powers * signs.prod(-1)).sum(-1) / (2 * widths).prod(-1)


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("d", [0, 1, 2, 3, 5, 8])
def test_the_density_has_twelve_digits_for_any_widths(d: int, kind: str) -> None:
    chosen = cases(d, kind, 16 if d == 8 else 48)
    got = few_uniforms.triangular_density(*tensors(chosen))
    assert bool((got >= 0).all())
    worst = max(relative_error(float(g), density(*c)) for g, c in zip(got, chosen, strict=True))
    assert worst < 1e-12


@pytest.mark.parametrize("kind", ["spread", "clustered"])
def test_the_textbook_sum_loses_digits_in_the_cases(kind: str) -> None:
    """Control: in some cases the signed sum in float64 has a relative error above 1e-8."""
    chosen = cases(3, kind, 48)
    got = signed_sum(*tensors(chosen))
    assert max(relative_error(float(g), density(*c)) for g, c in zip(got, chosen, strict=True)) > 1e-8


@pytest.mark.parametrize("d", [1, 3, 5])
def test_gradients_have_twelve_digits(d: int) -> None:
    """Against differences in 400 digits, relative to the sum of all derivatives; 0 at a zero width off the kinks."""
    chosen = [c for kind in ("equal", "spread", "extreme") for c in cases(d, kind, 12)[::4]]  # inside
    leaves = tensors(chosen, grad=True)
    few_uniforms.triangular_density(*leaves).sum().backward()
    y, _, widths, radius = (leaf.grad for leaf in leaves)
    for row, c in enumerate(chosen):
        exact = [slope(c, None), *(slope(c, i) for i in range(d)), slope(c, d)]
        got = [float(y[row]), *widths[row].tolist(), float(radius[row])]
        scale = sum(map(abs, exact))
        assert all(abs(g - e) <= 1e-12 * scale for g, e in zip(got, exact, strict=True))


def slope(c: Case, width: int | None) -> mpmath.mpf:
    """The derivative by y (None), by a half-width, or by the radius (d)."""
    with mpmath.workdps(DIGITS):
        values = [mpmath.mpf(c.y), *map(mpmath.mpf, [*c.half_widths, c.radius])]
        place = 0 if width is None else width + 1
        if values[place] == 0 and place:
            return mpmath.mpf(0)
        step = mpmath.mpf(10) ** -60 * (values[place] if place else 1)
        ends = []
        for sign in (1, -1):
            moved = list(values)
            moved[place] += sign * step
            ends.append(density(moved[0], c.centre, moved[1:-1], moved[-1]))
        return (ends[0] - ends[1]) / (2 * step)


def test_first_and_second_derivatives_equal_finite_differences() -> None:
    c = Case(0.3, -0.2, [0.8, 0.05, 0.3], 0.7)
    leaves = tensors([c, c._replace(y=1.1)], grad=True)
    assert torch.autograd.gradcheck(few_uniforms.triangular_density, leaves)
    assert torch.autograd.gradgradcheck(few_uniforms.triangular_density, leaves)


def test_zero_widths_act_as_absent_widths() -> None:
    y, centre, widths, radius = tensors(cases(3, "spread", 40))
    padded = torch.stack([widths[:, 0] * 0, widths[:, 0], widths[:, 1], widths[:, 1] * 0, widths[:, 2]], -1)
    expected = few_uniforms.triangular_density(y, centre, widths, radius)
    torch.testing.assert_close(few_uniforms.triangular_density(y, centre, padded, radius), expected, rtol=1e-13, atol=0)
    alone = few_uniforms.triangular_density(y, centre, widths * 0, radius)
    plain = (1 / radius - (y - centre).abs() / radius**2).clamp_min(0)
    torch.testing.assert_close(alone, plain, rtol=1e-9, atol=0)


def test_the_density_is_zero_beyond_the_support_and_positive_within() -> None:
    widths, edge = double([0.5, 0.25, 0.0]), 1.75
    y = double([edge, -edge, 1.8, -50.0, 1e30, -1e300])
    zero = torch.zeros((), dtype=torch.float64)
    assert not few_uniforms.triangular_density(y, zero, widths, 1.0).any()
    inside = double([edge, -edge]) * (1 - 2**-52)
    assert bool((few_uniforms.triangular_density(inside, zero, widths, 1.0) > 0).all())


def test_the_log_density_outside_is_minus_infinity_with_gradient_zero() -> None:
    y = torch.tensor([0.2, 5.0], dtype=torch.float64, requires_grad=True)
    centre, widths = double([0.0, 0.0]), double([0.5, 0.1])
    logs = few_uniforms.log_triangular_density(y, centre, widths, 1.0)
    assert logs[0] == few_uniforms.triangular_density(y, centre, widths, 1.0)[0].log()
    assert logs[1] == -math.inf
    torch.logsumexp(logs, 0).backward()  # as in a mixture of which one sample is out of reach
    assert y.grad[0] < 0
    assert y.grad[1] == 0


@pytest.mark.parametrize("kind", WIDTHS)
def test_float32_results_are_rounded_once(kind: str) -> None:
    rounded = [part.float() for part in tensors(cases(3, kind, 40))]
    got = few_uniforms.triangular_density(*rounded)
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got.double(), few_uniforms.triangular_density(*(r.double() for r in rounded)), rtol=1e-7, atol=0
    )


def test_points_and_samples_broadcast_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(Seed(0).fold("broadcast").integer())
    y, centre = torch.randn(7, 1, generator=random).double(), torch.randn(5, generator=random).double()
    widths, radius = torch.rand(7, 5, 3, generator=random).double(), torch.rand(7, 1, generator=random).double() + 0.1
    whole = few_uniforms.triangular_density(y, centre, widths, radius)
    assert whole.shape == (7, 5)
    monkeypatch.setattr(few_uniforms, "BLOCK", {"cpu": 64})
    assert torch.equal(few_uniforms.triangular_density(y, centre, widths, radius), whole)
    one = few_uniforms.triangular_density(y[3, 0], centre[2], widths[3, 2], float(radius[3]))
    torch.testing.assert_close(one, whole[3, 2], rtol=1e-14, atol=0)
    assert few_uniforms.triangular_density(y[:0], centre, widths[:0], radius[:0]).shape == (0, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"radius": 0.0}, "radius must be > 0, got 0.0"),
        ({"radius": math.nan}, "radius must be finite, got nan"),
        ({"half_widths": torch.tensor([0.1, -0.5])}, "half_widths must be ≥ 0, got -0.5"),
        ({"half_widths": torch.tensor([math.inf])}, "half_widths must be finite, got inf"),
        ({"half_widths": torch.ones(11)}, "half_widths must be at most 10 for a point, got 11"),
        ({"y": torch.tensor(math.nan)}, "y must be finite, got nan"),
        ({"centre": torch.tensor(-math.inf)}, "centre must be finite, got -inf"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Tensor | float], message: str) -> None:
    good = {"y": torch.tensor(0.0), "centre": torch.tensor(0.0), "half_widths": torch.ones(2), "radius": 1.0}
    with pytest.raises(DataError, match=message):
        few_uniforms.triangular_density(**{**good, **change})


def test_the_variance_radius_matches_the_variance() -> None:
    r = radius(torch.tensor([0.5, 2.0], dtype=torch.float64), "variance")
    for sigma, reach in zip([0.5, 2.0], r.tolist(), strict=True):
        second = quad(lambda t, reach=reach: t * t * (1 / reach - abs(t) / reach**2), -reach, reach)[0]
        assert second == pytest.approx(sigma**2, rel=1e-8)


def test_the_density_radius_is_nearest_to_the_gaussian_in_l2() -> None:
    """The distance, by quadrature, has its minimum at the radius."""

    def distance(r: float) -> float:
        inside = quad(lambda u: (max(1 / r - u / r**2, 0) - norm.pdf(u)) ** 2, 0, r, epsabs=1e-14)[0]
        return inside + quad(lambda u: norm.pdf(u) ** 2, r, 12, epsabs=1e-14)[0]

    found = minimize_scalar(distance, bounds=(1.5, 3.5), method="bounded", options={"xatol": 1e-9}).x
    assert density_matched() == pytest.approx(found, abs=1e-6)
    assert radius(2.0, "density") == 2 * density_matched()
    assert density_matched() ** 2 / 6 == pytest.approx(0.88, abs=0.005)


def test_an_unknown_match_is_refused() -> None:
    with pytest.raises(ConfigError, match='match must be "variance" or "density", got \'mean\''):
        radius(1.0, "mean")


def test_the_piecewise_triangle_has_the_values_of_the_triangle() -> None:
    g = triangular(torch.tensor([0.5, 3.0], dtype=torch.float64))
    z = torch.tensor([[-0.5, 0.0], [0.25, -1.0], [0.6, 3.0]], dtype=torch.float64)
    expected = torch.tensor([[0, 1 / 3], [1, 2 / 9], [0, 0]], dtype=torch.float64)
    torch.testing.assert_close(g(z), expected, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize(("pieces", "stated"), [(1, 0.0283), (3, 0.0075), (8, 0.0029), (32, 4e-5)])
def test_the_sigmoid_error_is_as_stated_and_bounds_the_error_of_every_box(pieces: int, stated: float) -> None:
    """Control: half the error is not a bound."""
    g = cubic_sigmoid(pieces)
    error = sigmoid_error(g)
    assert 0.9 * stated < error <= stated
    random = numbers("sigmoid", pieces)
    centre, half = torch.tensor(random.uniform(-9, 9, 2000)), torch.tensor(10 ** random.uniform(-3, 1, 2000))
    off = (few_uniforms.expect(g, centre, half[:, None]) - mean_sigmoid(centre, half)).abs().max()
    assert error / 2 < off <= error * (1 + 1e-6)


def test_a_sigmoid_of_given_reach_is_symmetric_and_ends_at_one() -> None:
    g = cubic_sigmoid(1, 5.0)
    assert g.breakpoints.tolist() == [-5.0, 5.0]
    z = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(g(z) + g(-z), torch.ones_like(z), rtol=1e-9, atol=1e-9)
    assert (g(z)[z > 5] == 1).all()
    with pytest.raises(ConfigError, match=r"cubic_sigmoid\.pieces must be ≥ 1, got 0"):
        cubic_sigmoid(0)
    with pytest.raises(ConfigError, match=r"cubic_sigmoid\.reach must be > 0, got -1.0"):
        cubic_sigmoid(2, -1.0)
