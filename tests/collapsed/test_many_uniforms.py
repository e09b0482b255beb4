"""Sums of any number of uniforms: digits in the tails and in the middle, against exact rationals and 400 digits."""

import math
from fractions import Fraction
from typing import Final

import numpy as np
import pytest
import torch

from bdl_pipe.collapsed.integrals import few_uniforms, many_uniforms
from bdl_pipe.seeds import Seed

from .cases import WIDTHS, cases, double, tensors
from .exact import by_differences, on_lattice, relative_error

ZERO: Final = torch.zeros((), dtype=torch.float64)
PLACES: Final = (1e-6, 1e-3, 0.1, 0.3, 0.7, 1.0)  # shares of the way from the edge to the centre
SPREAD: Final = (  # weights, decades of their half-widths, radius over the widest, place
    (9, 10, 1.0, 0.3),
    (9, 4, 1e-3, 1e-6),
    (16, 10, 1e3, 1e-3),
    (16, 10, 1e-3, 0.9),
    (26, 10, 0.1, 0.05),
    (26, 10, 10.0, 0.999),
    (26, 10, 1e-3, 0.4),
    (51, 10, 1.0, 1e-6),
    (51, 10, 1e-3, 1e-4),
)


def numbers(*address: str | int) -> np.random.Generator:
    return Seed(0).fold("many", *address).numpy()


def at(edge_share: float, half_widths: list[float], radius: float) -> tuple[float, Fraction]:
    """y as a float, and its exact distance from the edge, for a centre of zero."""
    support = sum((Fraction(h) for h in half_widths), Fraction(radius))
    y = float(support * (1 - Fraction(edge_share)))
    return y, support - Fraction(y)


def log_density(y: float, half_widths: list[float], radius: float) -> float:
    return many_uniforms.log_density(double(y), ZERO, double(half_widths), radius).item()


def spread(d: int, decades: float, ratio: float, share: float) -> tuple[list[float], float, float, Fraction]:
    """Half-widths log-uniform over the decades, the radius, y and its distance from the edge."""
    half_widths = (10 ** -(decades * numbers("spread", d).uniform(size=d))).tolist()
    radius = ratio * max(half_widths)
    return half_widths, radius, *at(share, half_widths, radius)


def whole_widths(d: int, decades: float) -> tuple[list[int], int]:
    """Half-widths, and half the radius."""
    random = numbers("whole", d, str(decades))
    half_widths = np.rint(10 ** random.uniform(0, decades, d)).astype(int).tolist()
    return half_widths, int(np.rint(max(half_widths) * 10 ** random.uniform(-2, 1))) or 1


@pytest.mark.parametrize(("d", "decades"), [(9, 1), (9, 3), (16, 2), (26, 0.5), (26, 2.5), (51, 1), (51, 2), (200, 1)])
def test_whole_widths_agree_with_exact_rationals(d: int, decades: float) -> None:
    whole, half_radius = whole_widths(d, decades)
    widths, radius = [float(w) for w in whole], 2.0 * half_radius
    for share in PLACES[::2] if d > 26 else PLACES:
        y, edge = at(share, widths, radius)
        exact = on_lattice([*whole, half_radius, half_radius], edge)
        assert relative_error(log_density(y, widths, radius), exact) < 1e-11
        tail = float(on_lattice([*whole, half_radius, half_radius], edge, tail=True))
        got = many_uniforms.cdf(double([y, -y]), ZERO, double(widths), radius)
        assert torch.allclose(got, double([1 - tail, tail]), rtol=0, atol=1e-11)


@pytest.mark.parametrize("case", SPREAD)
def test_widths_over_ten_decades_agree_with_400_digits(case: tuple[int, float, float, float]) -> None:
    half_widths, radius, y, edge = spread(*case)
    expected = by_differences([*half_widths, radius / 2, radius / 2], edge)
    assert relative_error(log_density(y, half_widths, radius), expected) < 1e-11


@pytest.mark.parametrize("d", [9, 51, 200])
def test_the_density_at_the_very_edge_keeps_its_digits(d: int) -> None:
    """Nearer to the edge than any width the density is e^(n − 1)/(n − 1)!/Π 2w; e must be free of cancellation."""
    widths = numbers("edge", d).uniform(0.1, 1, d).tolist()
    n, all_widths = d + 2, [Fraction(w) for w in (*widths, 0.15, 0.15)]
    for share in (1e-9, 1e-7, 1e-4):
        y, edge = at(share, widths, 0.3)
        density = edge ** (n - 1) / math.factorial(n - 1) / math.prod(2 * w for w in all_widths)
        assert relative_error(log_density(y, widths, 0.3), density) < 1e-11


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("d", [0, 1, 3, 8])
def test_many_uniforms_agrees_with_few_uniforms(d: int, kind: str) -> None:
    parts = tensors(cases(d, kind, 48))
    got, expected = many_uniforms.log_density(*parts), few_uniforms.log_triangular_density(*parts)
    assert torch.equal(got.isfinite(), expected.isfinite())
    assert torch.allclose(got, expected, rtol=0, atol=1e-11)


def test_zero_and_negligible_widths_do_not_change_the_density() -> None:
    parts = y, centre, widths, radius = tensors(cases(5, "spread", 48))
    densities = many_uniforms.log_density(*parts)
    for more in (0.0, 1e-300, 1e-40):
        got = many_uniforms.log_density(y, centre, torch.cat([widths, torch.full((48, 60), more).double()], -1), radius)
        assert torch.allclose(got, densities, rtol=0, atol=1e-11)


def test_the_density_is_zero_outside_and_at_the_edge_and_positive_within() -> None:
    y = double([-4.0, -3.0, math.nextafter(-3, 0), 1.0, math.nextafter(5, 0), 5.0, 6.0])
    widths = double([[0.25] * 12])
    got, probability = many_uniforms.log_density(y, ZERO + 1, widths, 1.0), many_uniforms.cdf(y, ZERO + 1, widths, 1.0)
    assert got.isfinite().tolist() == [False, False, True, True, True, False, False]
    assert bool((got[~got.isfinite()] == -torch.inf).all())
    assert probability.tolist() == pytest.approx([0, 0, 0, 0.5, 1, 1, 1], abs=1e-11)


def test_points_and_widths_broadcast_in_float32() -> None:
    random = numbers("shape")
    widths = torch.as_tensor(random.uniform(size=(3, 1, 20)), dtype=torch.float32)
    y, centre = torch.linspace(-5, 5, 7), torch.as_tensor(random.normal(size=(3, 1)), dtype=torch.float32)
    got = many_uniforms.log_density(y, centre, widths, 0.5)
    assert (got.shape, got.dtype) == ((3, 7), torch.float32)
    one = many_uniforms.log_density(y[2].double(), centre[1, 0].double(), widths[1, 0].double(), 0.5)
    assert got[1, 2].item() == pytest.approx(one.item(), rel=1e-6)
    assert many_uniforms.cdf(y[:0], ZERO, widths[0, 0], 0.5).shape == (0,)
