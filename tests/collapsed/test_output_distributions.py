"""Distributions of collapsed regression: against quadrature, draws of the uniforms, and their own integrals."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from scipy.stats import chi2

from bdl_pipe.collapsed.output_distributions import Linear, Part
from bdl_pipe.collapsed.rectified import Rectified
from bdl_pipe.errors import DataError

from .cases import numbers


def linear(d: int, batch: int = 5, draws: int = 3) -> Linear:
    random = numbers("parts", "linear", d)
    centre, widths = random.normal(size=(draws, batch, 1)), random.uniform(0, 1, (draws, batch, 1, d))
    return Linear(*map(torch.tensor, (centre, widths, random.uniform(0.3, 2, (draws, batch, 1)))))


def rectified(d: int, batch: int = 5, draws: int = 3) -> Rectified:
    """Units that are on, off and between; a width of zero among them."""
    random = numbers("parts", "rectified", d)
    shape = (draws, batch, 1)
    widths = random.uniform(0.1, 1, (*shape, d))
    widths[0, 0] = 0
    sign = random.choice([-1.0, 1.0], shape)
    base, centre, radius = random.normal(size=shape), 1.2 * random.normal(size=shape), random.uniform(0.3, 2, shape)
    return Rectified(*map(torch.tensor, (base, sign, centre, widths, radius)))


PARTS = [linear(1), linear(3), linear(8), rectified(1), rectified(2), rectified(4)]
parts = pytest.mark.parametrize("part", PARTS, ids=lambda p: f"{type(p).__name__}{p.half_widths.shape[-1]}")


def targets(part: Part, share: float) -> torch.Tensor:
    """[batch, 1] within the reach of the first draw."""
    low, high = part.reach
    return low[0] + share * (high[0] - low[0])


def triangle(t: mpf, r: mpf) -> mpf:
    return max(mpf(0), r - abs(t)) / r**2


def by_quadrature(part: Rectified, s: int, row: int, y: float) -> mpf:
    """E[tri(y − b − s·relu(c + hU))] over one uniform, in 30 digits, split wherever the integrand has a kink."""
    q, sign, c, h, r = (
        mpf(float(v[s, row, 0])) for v in (part.base, part.sign, part.centre, part.half_widths[..., 0], part.radius)
    )
    q = sign * (mpf(y) - q)
    if h == 0:
        return triangle(q - max(c, mpf(0)), r)
    kinks = [k for k in (mpf(0), q - r, q, q + r) if c - h < k < c + h]
    ends = sorted([c - h, *kinks, c + h])
    pairs = pairwise(ends)
    return sum((mp.quad(lambda v: triangle(q - max(v, mpf(0)), r), pair) for pair in pairs), mpf(0)) / (2 * h)


@pytest.mark.parametrize("share", [1e-6, 0.1, 0.37, 0.5, 0.8, 0.999])
def test_the_density_of_a_rectified_unit_equals_quadrature_over_its_weight(share: float) -> None:
    part = rectified(1)
    y = targets(part, share)
    found = part.log_density(y).exp()
    with mp.workdps(30):
        for s, row in np.ndindex(3, 5):
            exact = by_quadrature(part, s, row, float(y[row, 0]))
            assert abs(float(found[s, row, 0]) - float(exact)) <= 1e-10 * float(exact) + 1e-17


@pytest.mark.parametrize("knot", [-1.0, 0.0, 1.0])
def test_the_density_is_exact_and_continuous_at_a_knot(knot: float) -> None:
    """Where the triangle's knot meets the unit's: the density is continuous there."""
    base, c, h, r = torch.zeros(1, 1, 1).double(), 0.3, 0.7, 1.0
    values = [torch.full((1, 1, 1), v, dtype=torch.float64) for v in (c, h, r)]
    part = Rectified(base, torch.ones_like(base), values[0], values[1][..., None], values[2])
    at, near = (part.log_density(torch.full((1, 1), knot * r + by).double()).exp().item() for by in (0.0, 1e-9))
    with mp.workdps(30):
        assert at == pytest.approx(float(by_quadrature(part, 0, 0, knot * r)), rel=1e-10, abs=1e-12)
    assert at == pytest.approx(near, abs=1e-8)


@parts
def test_a_density_is_the_derivative_of_its_distribution_function(part: Part) -> None:
    low, high = part.reach
    length = (high - low).max().item()
    for share in (0.05, 0.31, 0.5, 0.77):
        y, step = targets(part, share), 1e-5 * length
        slope = (part.cdf(y + step) - part.cdf(y - step)) / (2 * step)
        torch.testing.assert_close(part.log_density(y).exp(), slope, rtol=1e-4, atol=1e-6 / length)
    assert float(part.cdf(low.amin(0)).max()) < 1e-12
    assert float(part.cdf(high.amax(0)).min()) > 1 - 1e-12


def repeated(part: Part, s: int, row: int, count: int) -> Part:
    """One draw's distribution of one row, for ``count`` rows."""
    values = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name != "beside"}
    values = {name: v[s : s + 1, row : row + 1] for name, v in values.items()}
    return type(part)(**{name: v.expand(1, count, *v.shape[2:]) for name, v in values.items()})


@parts
def test_moments_are_the_integrals_of_the_density(part: Part) -> None:
    """A Gauss rule on 100 cells of the support."""
    axis, weight = (torch.tensor(v) for v in np.polynomial.legendre.leggauss(20))
    for s, row in ((0, 0), (1, 2), (2, 4)):
        low, high = (float(end[s, row, 0]) for end in part.reach)
        size = (high - low) / 100
        y = (low + size * (torch.arange(100)[:, None] + (axis + 1) / 2)).flatten()
        density = repeated(part, s, row, len(y)).log_density(y[:, None]).exp()[0, :, 0] * (weight / 2 * size).repeat(
            100
        )
        mean, variance = part.mean[s, row, 0], part.variance[s, row, 0]
        found = torch.stack([density.sum(), density @ y, density @ (y - mean) ** 2])
        expected = torch.stack([torch.ones_like(mean), mean, variance])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def from_draws(part: Rectified, y: torch.Tensor, found: torch.Tensor, relu: bool = True) -> float:
    """p-value of Σ z² over draws and rows, the likelihood averaged over 20,000 draws of the uniforms.

    Where fewer than 500 of them reach the target, their average is not Gaussian, and is left out.
    """
    random, total, cells = numbers("parts", "draws"), 0.0, 0
    b, s, c, h, r = (v.numpy() for v in (part.base, part.sign, part.centre, part.half_widths, part.radius))
    for k, row in np.ndindex(*found.shape[:2]):
        v = c[k, row, 0] + random.uniform(-1, 1, (20_000, h.shape[-1])) @ h[k, row, 0]
        mean = b[k, row, 0] + s[k, row, 0] * (np.maximum(v, 0) if relu else v)
        tri = np.maximum(0, r[k, row, 0] - np.abs(y[row, 0].item() - mean)) / r[k, row, 0] ** 2
        if (tri > 0).sum() > 500 and tri.std() > 1e-9:
            total, cells = total + (found[k, row, 0].item() - tri.mean()) ** 2 / (tri.var() / len(tri)), cells + 1
    assert cells > 4
    return float(chi2.sf(total, cells))


@pytest.mark.parametrize("d", [2, 4])
def test_the_density_agrees_with_draws_of_the_uniforms(d: int) -> None:
    """A false alarm in 1e-6. A unit that is not rectified must fail."""
    part = rectified(d)
    y = targets(part, 0.45)
    found = part.log_density(y).exp()
    assert from_draws(part, y, found) > 1e-6
    assert from_draws(part, y, found, relu=False) < 1e-6


@parts
def test_rescaling_to_other_units_keeps_the_distribution(part: Part) -> None:
    shift, scale, y = torch.tensor([20.0]).double(), torch.tensor([9.0]).double(), targets(part, 0.4)
    other = part.rescale(shift, scale)
    torch.testing.assert_close(
        other.log_density(shift + scale * y), part.log_density(y) - math.log(9), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(other.cdf(shift + scale * y), part.cdf(y), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(other.mean, shift + scale * part.mean)
    torch.testing.assert_close(other.variance, scale**2 * part.variance)


def test_the_density_beyond_the_reach_is_zero() -> None:
    for part in PARTS:
        low, high = part.reach
        for y in (low.amin(0) - 1e-6, high.amax(0) + 1e-6):
            assert (part.log_density(y) == -torch.inf).all()


def test_more_than_ten_weights_of_a_unit_are_refused() -> None:
    with pytest.raises(DataError, match="half_widths must be at most 10"):
        rectified(11).log_density(torch.zeros(5, 1))
