"""Probabilistic backpropagation: moments, updates and refinement against quadrature, differences and drawn networks."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe.baselines.moment_propagation import Beliefs, functions, log_normaliser, matched, outputs, rectified
from bdl_pipe.baselines.pbp import PbpPosterior, Prior
from bdl_pipe.data.examples import Examples
from bdl_pipe.seeds import Seed
from tests.baselines.cases import unscaled
from tests.cases import config_of, fit
from tests.conftest import make_tiny_table


def numbers(*shape: int, place: str) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=Seed(0).fold(place).generator())


def network(*widths: int, noise: float = 0.3, scale: float = 1.0) -> Beliefs:
    """Random beliefs of one member; the noise variance is known but for one part in 10⁹."""
    shapes = [(1, outputs, inputs + 1) for inputs, outputs in itertools.pairwise(widths)]
    means = [numbers(*shape, place=f"mean {layer}") for layer, shape in enumerate(shapes)]
    variances = [scale * numbers(*shape, place=f"variance {layer}").exp() for layer, shape in enumerate(shapes)]
    gamma = torch.full((1, widths[-1]), 1e9).double()
    return Beliefs(means, variances, gamma + 1, noise * gamma)


def tilted(density: Callable[[Any], Any], ends: list[Any]) -> tuple[float, float]:
    """Mean and variance of an unnormalised density, by mpmath's quadrature."""
    total, first, second = (mpmath.quad(lambda z, k=k: z**k * density(z), ends) for k in range(3))
    return float(first / total), float(second / total - (first / total) ** 2)


@pytest.mark.parametrize("mean", [-12.0, -2.0, -0.1, 0.7, 3.0, 40.0])
def test_the_moments_of_a_rectified_gaussian_equal_quadrature(mean: float) -> None:
    ends = np.unique(np.clip(mean + 1.5 * np.arange(-12, 25, 1.5), 0, None)).tolist()
    with mpmath.workdps(30):
        law = [mpmath.quad(lambda a, k=k: a**k * mpmath.npdf(a, mean, 1.5), ends) for k in (1, 2)]
        expected = [float(law[0]), float(law[1] - law[0] ** 2)]
    first, variance = (of.item() for of in rectified(*torch.tensor([mean, 2.25], dtype=torch.float64)))
    assert [first, variance] == pytest.approx(expected, rel=1e-9, abs=0)
    control = mean * torch.special.ndtr(torch.tensor(mean / 1.5)).item()  # without sd·φ
    assert mean > 20 or control != pytest.approx(expected[0], rel=1e-3, abs=0)


def test_the_moments_of_the_outputs_are_those_of_drawn_networks() -> None:
    """One hidden layer has exact moments. 12 z scores beyond 5.5: a false alarm in 2 of 10⁶ fresh seeds."""
    beliefs, draws = network(3, 6, 2), 30_000
    rows = numbers(3, 3, place="rows")
    mean, variance = beliefs.outputs(rows[None])
    first, last = (
        m + v.sqrt() * numbers(draws, *m.shape[1:], place=f"draw {n}")
        for n, (m, v) in enumerate(zip(beliefs.means, beliefs.variances, strict=True))
    )
    one = torch.ones(draws, 3, 1).double()
    hidden = (torch.cat([rows.expand(draws, 3, 3), one], -1) @ first.mT / 2).relu()
    drawn = torch.cat([hidden, one], -1) @ last.mT / math.sqrt(7)  # [draw, row, output]

    def scores(expected_mean: Tensor, expected_variance: Tensor) -> Tensor:
        centred = (drawn - expected_mean).square()
        each = [(drawn, expected_mean), (centred, expected_variance)]
        return torch.stack([(of.mean(0) - to) / of.std(0) * math.sqrt(draws) for of, to in each]).abs()

    assert scores(mean[0], variance[0]).max() < 5.5
    certain = [torch.full_like(v, 1e-12) for v in beliefs.variances[:1]]
    wrong = outputs(beliefs.means, [*certain, beliefs.variances[1]], rows[None])  # control: a certain first layer
    assert scores(wrong[0][0], wrong[1][0]).max() > 20


def test_the_covariance_between_rows_is_that_of_drawn_networks() -> None:
    """6 covariances, z scores beyond 5.5: a false alarm in 1 of 10⁶ fresh seeds; the variances are those of one row."""
    beliefs, draws = network(3, 6, 1), 20_000
    rows = numbers(4, 3, place="rows")
    means, variances = ([of[0] for of in part] for part in (beliefs.means, beliefs.variances))
    mean, covariance = functions(means, variances, rows[None])
    alone_mean, alone_variance = beliefs.outputs(rows[None])
    torch.testing.assert_close(mean, alone_mean)
    torch.testing.assert_close(covariance[0, 0].diagonal(), alone_variance[0, :, 0])
    assert torch.linalg.eigvalsh(covariance)[0, 0, 0] > 0
    first, last = (
        m + v.sqrt() * numbers(draws, *m.shape, place=f"row draw {n}")
        for n, (m, v) in enumerate(zip(means, variances, strict=True))
    )
    one = torch.ones(draws, 4, 1).double()
    hidden = (torch.cat([rows.expand(draws, 4, 3), one], -1) @ first.mT / 2).relu()
    centred = (torch.cat([hidden, one], -1) @ last.mT / math.sqrt(7))[..., 0] - mean[0, :, 0]
    products = centred[:, :, None] * centred[:, None]
    apart = ~torch.eye(4, dtype=torch.bool)

    def score(expected: Tensor) -> Tensor:
        return ((products.mean(0) - expected) / products.std(0) * math.sqrt(draws))[apart].abs().max()

    assert score(covariance[0, 0]) < 5.5
    assert score(0 * covariance[0, 0]) > 20  # control: rows without a common function


def test_an_update_of_a_linear_layer_is_the_exact_posterior_of_one_row() -> None:
    """Weights of an input and a bias; their posterior's moments by a sum over a grid of both."""
    beliefs = network(1, 1)
    row, target = (torch.tensor([[value]], dtype=torch.float64) for value in (1.3, 2.0))
    (m,), (v,) = beliefs.means, beliefs.variances
    (w, b), (sw, sb) = m[0, 0].tolist(), v[0, 0].sqrt().tolist()
    grid_w, grid_b = np.meshgrid(
        w + sw * np.linspace(-9, 9, 801), b + sb * np.linspace(-9, 9, 801), indexing="ij", sparse=True
    )
    residual = 2.0 - (1.3 * grid_w + grid_b) / math.sqrt(2)
    log_density = -0.5 * (((grid_w - w) / sw) ** 2 + ((grid_b - b) / sb) ** 2 + residual**2 / 0.3)
    density = np.exp(log_density)
    density /= density.sum()
    mean = np.array([(density * grid_w).sum(), (density * grid_b).sum()])
    variance = np.array([(density * grid_w**2).sum(), (density * grid_b**2).sum()]) - mean**2
    updated = beliefs.given(row, target).beliefs
    np.testing.assert_allclose(updated.means[0][0, 0], mean, rtol=1e-7)
    np.testing.assert_allclose(updated.variances[0][0, 0], variance, rtol=1e-7)
    unscaled_layer = beliefs.given(row * math.sqrt(2), target).beliefs  # control: without 1/√(k + 1) of the input
    assert np.abs(unscaled_layer.means[0][0, 0].numpy() - mean).max() > 0.01


def test_an_update_follows_finite_differences_of_the_normaliser() -> None:
    beliefs = network(3, 4, 5, 2, scale=0.3)
    rows, targets, step = numbers(1, 3, place="rows"), numbers(1, 2, place="targets"), 1e-5
    updated = beliefs.given(rows, targets)

    def log_z(means: list[Tensor], variances: list[Tensor]) -> float:
        mean, variance = outputs(means, variances, rows[:, None])
        return float(log_normaliser(targets, mean[:, 0], variance[:, 0], beliefs.shape, beliefs.rate).sum())

    assert updated.log_z.item() == pytest.approx(log_z(list(beliefs.means), list(beliefs.variances)), rel=1e-12)
    worst = 0.0
    for layer in range(3):
        for place in np.ndindex(*beliefs.means[layer].shape):
            slopes = []
            for part in range(2):
                ends = []
                for sign in (1, -1):
                    moved = [[of.clone() for of in each] for each in (beliefs.means, beliefs.variances)]
                    moved[part][layer][place] += sign * step
                    ends.append(log_z(*moved))
                slopes.append((ends[0] - ends[1]) / (2 * step))
            m, v = float(beliefs.means[layer][place]), float(beliefs.variances[layer][place])
            new = v - v * v * (slopes[0] ** 2 - 2 * slopes[1])
            assert float(updated.beliefs.means[layer][place]) == pytest.approx(m + v * slopes[0], abs=1e-8)
            assert float(updated.beliefs.variances[layer][place]) == pytest.approx(new if new > 0 else v, abs=1e-8)
            worst = max(worst, abs(4 * v * v * slopes[1]))
    assert worst > 1e-3, "control: the sign of h would be seen"


@pytest.mark.parametrize("residual", [0.1, 3.0])
def test_a_gamma_distribution_gets_the_moments_of_quadrature(residual: float) -> None:
    """With exact normalisers, Student's distribution of 2(α + k) degrees of freedom."""
    shape, rate = 4.0, 2.5

    def log_z(more: int) -> Tensor:
        a = shape + more
        student = torch.distributions.StudentT(2 * a, 0.0, math.sqrt(rate / a))
        return student.log_prob(torch.tensor(residual).double())

    mean, variance = tilted(
        lambda g: mpmath.sqrt(g) * mpmath.exp(-g * (rate + residual**2 / 2)) * g ** (shape - 1), [0, 0.5, 2, 8, 40]
    )
    new_shape, new_rate = matched(torch.stack([log_z(k) for k in range(3)]), torch.tensor(shape), torch.tensor(rate))
    assert float(new_shape / new_rate) == pytest.approx(mean, rel=1e-6)
    assert float(new_shape / new_rate**2) == pytest.approx(variance, rel=1e-5)
    assert abs(float(new_shape) - shape) > 0.1  # control: the row counts


def test_a_refined_weight_has_the_moments_of_cavity_and_prior() -> None:
    """λ is known but for one part in 10⁹: N(m, v) N(0, 1/λ) is Gaussian, before and after a second refinement."""
    precision, m, v = 2.0, 0.8, 0.5
    prior = Prior(1e9, 1e9 / precision, [(0.0, 0.0, 0.0, 0.0)])
    means, variances = [m], [v]
    for _ in range(2):
        prior.refine(means, variances)
        assert variances[0] == pytest.approx(1 / (1 / v + precision), rel=1e-6)
        assert means[0] == pytest.approx(variances[0] * m / v, rel=1e-6)
    assert prior.factors[0][:2] == pytest.approx((precision, 0.0), abs=1e-5)
    assert variances[0] < 0.6 * v  # control: the prior counts, and once


@pytest.mark.parametrize("m", [0.0, 2.0])
def test_the_precision_of_the_weights_moves_as_quadrature_says(m: float) -> None:
    """The Gaussian in the place of Student's distribution errs by about 1/α of the change."""
    a, b, v = 50.0, 25.0, 0.4
    prior = Prior(a, b, [(0.0, 0.0, 0.0, 0.0)])
    prior.refine([m], [v])
    mean, _ = tilted(
        lambda p: p ** (a - 1) * mpmath.exp(-b * p - m * m / (2 * (v + 1 / p))) / mpmath.sqrt(v + 1 / p), [0.3, 2, 5]
    )
    assert prior.shape / prior.rate - a / b == pytest.approx(mean - a / b, rel=0.1)
    assert (mean > a / b) == (m < 1)  # a large weight asks for a small precision


def test_first_factors_are_left_alone_until_rows_are_seen() -> None:
    config = config_of("pbp", "regression")
    prior, means, variances = Prior.first(3, config), [0.1, -0.2, 0.3], [1.2, 1.2, 0.7]
    prior.refine(means, variances)
    assert (means[:2], variances[:2]) == ([0.1, -0.2], [1.2, 1.2])
    assert prior.factors[:2] == [(5 / 6, 0.0, 0.0, 0.0)] * 2
    assert prior.factors[2] != prior.factors[0] and prior.shape != 6  # control: a weight that has seen a row


def test_an_update_to_a_negative_variance_is_not_made() -> None:
    """Wide weights and precise noise: without the rule, variances of some weights would be negative."""
    negative = 0
    for number in range(20):
        beliefs = network(2, 3, 1, noise=1e-3, scale=5.0)
        row, target = numbers(1, 2, place=f"row {number}"), 8 * numbers(1, 1, place=f"target {number}")
        updated = beliefs.given(row, target)
        leaves = [of.clone().requires_grad_() for of in (*beliefs.means, *beliefs.variances)]
        mean, variance = outputs(leaves[:2], leaves[2:], row[:, None])
        log_z = log_normaliser(target, mean[:, 0], variance[:, 0], beliefs.shape, beliefs.rate)
        slopes = torch.autograd.grad(log_z.sum(), leaves)
        rejected = 0
        for layer in range(2):
            v, g, h = beliefs.variances[layer], slopes[layer], slopes[2 + layer]
            wrong = v - v * v * (g * g - 2 * h) <= 0
            rejected += int(wrong.sum())
            assert torch.equal(updated.beliefs.variances[layer][wrong], v[wrong])
            assert torch.equal(updated.beliefs.means[layer][wrong], beliefs.means[layer][wrong])
            assert (updated.beliefs.variances[layer] > 0).all()
        assert updated.rejected == rejected
        negative += rejected
    assert negative > 0, "control: the rule was needed"


def test_a_fit_learns_a_line_and_its_noise() -> None:
    """70 rows of y = 0.9 x + N(0, 0.19): the mean is near the line, and the noise near its variance."""
    x = numbers(70, 1, place="x").numpy()
    y = 0.9 * x + math.sqrt(0.19) * numbers(70, 1, place="noise").numpy()
    state = fit("pbp", "student", unscaled(x, y), rng=Seed(3), epochs=5)
    grid = torch.linspace(-1.5, 1.5, 7)[:, None]
    predictive = PbpPosterior.from_state(state).predict(grid)
    assert (predictive.mean - 0.9 * grid).abs().max() < 0.2
    shape, rate = state.tensors["noise"][:, 0].tolist()
    assert rate / (shape - 1) == pytest.approx(0.19, rel=0.5)
    assert (predictive.variance > rate / (shape - 1)).all()


def test_each_target_column_has_a_noise_of_its_own() -> None:
    x = numbers(60, 1, place="x").numpy()
    noise = numbers(60, 2, place="two columns").numpy()
    y = np.c_[0.99 * x[:, 0] + 0.14 * noise[:, 0], noise[:, 1]]
    one = unscaled(x, y)
    transform = dataclasses.replace(one.transform, shift=torch.zeros(2).double(), scale=torch.ones(2).double())
    state = fit("pbp", "student", dataclasses.replace(one, transform=transform), rng=Seed(3), epochs=5)
    shapes, rates = state.tensors["noise"]
    variances = (rates / (shapes - 1)).tolist()
    assert variances[0] < 0.2 and 0.6 < variances[1] < 1.4
    assert PbpPosterior.from_state(state).predict(torch.zeros(4, 1)).mean.shape == (4, 2)


def test_other_rows_change_the_fit_and_validation_rows_do_not() -> None:
    data = make_tiny_table()
    one = fit("pbp", "student", data, rng=Seed(3), epochs=1)
    other = Examples(data.validation.inputs + 1, data.validation.targets - 1)
    assert torch.equal(
        fit("pbp", "student", dataclasses.replace(data, validation=other), rng=Seed(3), epochs=1).tensors["mean.0"],
        one.tensors["mean.0"],
    )
    half = Examples(data.train.inputs[::2], data.train.targets[::2])
    changed = fit("pbp", "student", dataclasses.replace(data, train=half), rng=Seed(3), epochs=1)
    assert not torch.equal(changed.tensors["mean.0"], one.tensors["mean.0"])
