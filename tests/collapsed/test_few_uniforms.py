"""The triangular density and piecewise polynomials under a box, radii, the sigmoid as cubics: 400 digits, edges."""

import math

import mpmath
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from torch import Tensor

from bdl_pipe.collapsed.integrals import Piecewise, cubic_sigmoid, few_uniforms, radius, sigmoid_error, triangular
from bdl_pipe.collapsed.integrals.piecewise import density_matched
from bdl_pipe.collapsed.integrals.softmax import mean_sigmoid
from bdl_pipe.seeds import Seed

from .cases import WIDTHS, Case, cases, double, numbers, tensors, width
from .oracle import DIGITS, density, expectation, relative_error


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("d", [0, 1, 2, 3, 5, 8])
def test_the_density_has_twelve_digits_for_any_widths(d: int, kind: str) -> None:
    chosen = cases(d, kind, 16 if d == 8 else 48)
    got = few_uniforms.triangular_density(*tensors(chosen))
    assert bool((got >= 0).all())
    worst = max(relative_error(float(g), density(*c)) for g, c in zip(got, chosen, strict=True))
    assert worst < 1e-12


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


def test_the_density_is_zero_beyond_the_support_and_positive_within() -> None:
    box, edge = (double([0.0])[0], double([0.5, 0.25, 0.0]), 1.0), 1.75
    beyond, inside = double([edge, -edge, 1.8, -50.0, 1e30, -1e300]), double([edge, -edge]) * (1 - 2**-52)
    assert not few_uniforms.triangular_density(beyond, *box).any()
    assert bool((few_uniforms.triangular_density(inside, *box) > 0).all())


def test_the_log_density_outside_is_minus_infinity_with_gradient_zero() -> None:
    y = double([0.2, 5.0]).requires_grad_()
    box = double([0.0, 0.0]), double([0.5, 0.1]), 1.0
    logs = few_uniforms.log_triangular_density(y, *box)
    assert logs[0] == few_uniforms.triangular_density(y, *box)[0].log() and logs[1] == -math.inf
    torch.logsumexp(logs, 0).backward()  # as in a mixture of which one sample is out of reach
    assert y.grad[0] < 0 and y.grad[1] == 0


@pytest.mark.parametrize("kind", WIDTHS)
def test_float32_results_are_rounded_once(kind: str) -> None:
    rounded = [part.float() for part in tensors(cases(3, kind, 40))]
    got, same = (few_uniforms.triangular_density(*parts) for parts in (rounded, [r.double() for r in rounded]))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), same, rtol=1e-7, atol=0)


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


def test_the_variance_radius_matches_the_variance() -> None:
    for sigma, reach in zip([0.5, 2.0], radius(double([0.5, 2.0]), "variance").tolist(), strict=True):
        second = quad(lambda t, reach=reach: t * t * (1 / reach - abs(t) / reach**2), -reach, reach)[0]
        assert second == pytest.approx(sigma**2, rel=1e-8)


def test_the_density_radius_is_nearest_to_the_gaussian_in_l2() -> None:
    """The distance, by quadrature, has its minimum at the radius."""

    def distance(r: float) -> float:
        inside = quad(lambda u: (max(1 / r - u / r**2, 0) - norm.pdf(u)) ** 2, 0, r, epsabs=1e-14)[0]
        return inside + quad(lambda u: norm.pdf(u) ** 2, r, 12, epsabs=1e-14)[0]

    nearest = minimize_scalar(distance, bounds=(1.5, 3.5), method="bounded", options={"xatol": 1e-9}).x
    assert density_matched() == pytest.approx(nearest, abs=1e-6)
    assert radius(2.0, "density") == 2 * density_matched()
    assert density_matched() ** 2 / 6 == pytest.approx(0.88, abs=0.005)


def test_the_piecewise_triangle_has_the_values_of_the_triangle() -> None:
    z = double([[-0.5, 0.0], [0.25, -1.0], [0.6, 3.0]])
    expected = double([[0, 1 / 3], [1, 2 / 9], [0, 0]])
    torch.testing.assert_close(triangular(double([0.5, 3.0]))(z), expected, rtol=1e-14, atol=1e-16)


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
    g, z = cubic_sigmoid(1, 5.0), torch.linspace(-6, 6, 101, dtype=torch.float64)
    assert g.breakpoints.tolist() == [-5.0, 5.0]
    torch.testing.assert_close(g(z) + g(-z), torch.ones_like(z), rtol=1e-9, atol=1e-9)
    assert (g(z)[z > 5] == 1).all()


def random_piecewise(d: int, kind: str, case: int) -> tuple[list[float], list[list[float]], float, list[float]]:
    """Breakpoints as unevenly spaced as the widths, positive cubics, outer pieces zero, constant or growing."""
    random = numbers("expect", d, kind, case)
    gaps = [width(str(random.choice(["equal", "spread", "extreme"])), random) + 1e-10 for _ in range(case % 4)]
    first = random.normal()
    breaks = [float(first + sum(gaps[:k])) for k in range(len(gaps) + 1)]
    pieces = random.uniform(size=(len(breaks) + 1, 4))
    pieces[0] = [random.integers(0, 2), 0, 0, 0]
    pieces[-1] *= [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]][random.integers(0, 3)]
    half_widths = [float(width(kind, random)) for _ in range(d)]
    beside = random.choice([0, sum(half_widths)]) * random.uniform(-1, 1) + random.integers(0, 2) * random.normal()
    return breaks, pieces.tolist(), float(random.choice(breaks) + beside), half_widths


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("d", [1, 2, 3, 5, 8])
def test_expectations_have_twelve_digits_for_any_widths_and_gaps(d: int, kind: str) -> None:
    for case in range(4 if d == 8 else 24):
        breaks, pieces, centre, half_widths = random_piecewise(d, kind, case)
        got = few_uniforms.expect(Piecewise(double(breaks), double(pieces)), double(centre), double(half_widths))
        exact = expectation(breaks, pieces, centre, half_widths)
        assert relative_error(float(got), exact) < 1e-12, (breaks, pieces, centre, half_widths)


def test_without_widths_the_expectation_equals_the_piecewise_polynomial() -> None:
    steps = Piecewise(double([-1.0, 2.0]), double([[5.0, 1.0], [1.0, 0.0], [-2.0, 3.0]]))
    z, expected = double([-3.0, -1.0, 0.5, 2.0, 4.0]), double([5.0 - 2.0, 1.0, 1.0, -2.0, 4.0])
    assert torch.equal(steps(z), expected)
    for count in (3, 0, 1):
        assert torch.equal(few_uniforms.expect(steps, z, torch.zeros(5, count).double()), expected)


def test_gradients_by_every_argument_equal_finite_differences() -> None:
    """Both sides of a piece, widths wider and narrower than it, and a breakpoint of its own for each point."""
    breaks = double([[-0.4, 0.3, 0.9], [0.1, 0.2, 2.5]]).requires_grad_()
    pieces = double(numbers("gradcheck").normal(size=(2, 4, 3))).requires_grad_()
    centre = double([0.2, 0.7]).requires_grad_()
    widths = double([[0.5, 0.06], [0.9, 0.3]]).requires_grad_()

    def value(b: Tensor, p: Tensor, c: Tensor, w: Tensor) -> Tensor:
        return few_uniforms.expect(Piecewise(b, p), c, w)

    assert torch.autograd.gradcheck(value, (breaks, pieces, centre, widths))


def test_float32_results_are_rounded_once_and_points_broadcast() -> None:
    g, centre, widths = triangular(torch.tensor([0.5, 2.0])), torch.linspace(-1, 1, 6)[:, None], [0.7, 0.001, 0.0]
    got = few_uniforms.expect(g, centre, torch.tensor(widths))
    assert (got.dtype, got.shape) == (torch.float32, (6, 2))
    same = few_uniforms.expect(g.to(centre.double()), centre.double(), torch.tensor(widths).double())
    torch.testing.assert_close(got.double(), same, rtol=1e-7, atol=0)


def test_values_and_gradients_are_finite_for_extreme_boxes() -> None:
    """No width, far away, far narrower and far wider than the pieces: the form not chosen must not spoil gradients."""
    g = Piecewise(double([0.0, 1.0, 1e12]), double([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [2.0, 0.0]]))
    centre = double([0.5, 1e20, -1e20, 0.0, 0.3, 0.0, 1.0]).requires_grad_()
    widths = double(
        [[0.0] * 3, [1.0, 0, 0], [1.0, 0, 0], [1e-20, 1e-24, 0], [1e8, 1e-8, 1e-3], [1e-30] * 3, [1e15] * 3]
    )
    widths.requires_grad_()
    value = few_uniforms.expect(g, centre, widths)
    value.sum().backward()
    for tensor in (value, centre.grad, widths.grad):
        assert bool(tensor.isfinite().all())
    torch.testing.assert_close(value[:4], double([0.5, 2.0, 0.0, 2.5e-21]), rtol=1e-6, atol=0)
