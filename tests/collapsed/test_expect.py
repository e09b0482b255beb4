"""Piecewise polynomials under a box: digits against 400-digit sums, edges, derivatives."""

import math

import pytest
import torch
from torch import Tensor

from bdl_pipe.collapsed.integrals import Piecewise, few_uniforms, triangular
from bdl_pipe.errors import DataError

from .cases import WIDTHS, numbers, width
from .oracle import expectation, relative_error


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


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
    z = double([-3.0, -1.0, 0.5, 2.0, 4.0])
    expected = double([5.0 - 2.0, 1.0, 1.0, -2.0, 4.0])
    torch.testing.assert_close(steps(z), expected, rtol=0, atol=0)
    for widths in (torch.zeros(5, 3).double(), torch.zeros(5, 0).double(), torch.full((5, 1), 0.0).double()):
        torch.testing.assert_close(few_uniforms.expect(steps, z, widths), expected, rtol=0, atol=0)


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
    g = triangular(torch.tensor([0.5, 2.0]))
    centre, widths = torch.linspace(-1, 1, 6)[:, None], torch.tensor([0.7, 0.001, 0.0])
    got = few_uniforms.expect(g, centre, widths)
    assert got.dtype == torch.float32
    assert got.shape == (6, 2)
    same = few_uniforms.expect(g.to(centre.double()), centre.double(), widths.double())
    torch.testing.assert_close(got.double(), same, rtol=1e-7, atol=0)


@pytest.mark.parametrize(
    ("breaks", "pieces", "message"),
    [
        ([0.0, 0.0], [[1.0]] * 3, "breakpoints must increase strictly"),
        ([0.0, math.nan], [[1.0]] * 3, "breakpoints must increase strictly"),
        ([0.0], [[1.0], [math.inf]], "breakpoints and coefficients must be finite"),
        ([0.0], [[1.0]] * 3, r"coefficients must be \[..., 2, terms ≥ 1\] for 1 ≥ 1 breakpoints, got \(3, 1\)"),
        ([], [[1.0]], r"must be \[..., 1, terms ≥ 1\] for 0 ≥ 1 breakpoints"),
    ],
)
def test_a_bad_piecewise_polynomial_is_refused(breaks: list[float], pieces: list[list[float]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Piecewise(double(breaks), double(pieces))


@pytest.mark.parametrize(
    ("centre", "widths", "message"),
    [
        (math.nan, [1.0], "centre must be finite"),
        (0.0, [1.0, -1.0], "half_widths must be ≥ 0, got -1.0"),
        (0.0, [1.0] * 11, "half_widths must be at most 10 for a point"),
    ],
)
def test_a_bad_box_is_refused(centre: float, widths: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        few_uniforms.expect(triangular(double(1.0)), double(centre), double(widths))


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
