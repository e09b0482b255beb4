"""The interval score and the quantile-weighted CRPS against their definitions over quantiles, which scipy finds."""

import functools
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch

from bdl_pipe import metrics
from bdl_pipe.derived_predictive import Exponential, Mixture
from bdl_pipe.metrics.quantile_scores import Weight, interval_score, quantile_weighted_crps
from bdl_pipe.predictive import Gaussian
from bdl_pipe.seeds import Seed

WEIGHTS: dict[Weight, Callable[[float], float]] = {
    "left": lambda a: (1 - a) ** 2,
    "right": lambda a: a**2,
    "centre": lambda a: a * (1 - a),
}


def mixture(draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means and standard deviations [draw, 4, 1], and targets [4, 1], of which one lies far out."""
    random = Seed(8).numpy()
    mean, std = random.normal(0, 1, (draws, 4, 1)), random.uniform(0.5, 1.5, (draws, 4, 1))
    return mean, std, np.array([[-0.3], [0.2], [1.4], [6.0]])


def gaussian(mean: np.ndarray, std: np.ndarray) -> Gaussian:
    return Gaussian(torch.tensor(mean), torch.tensor(std**2))


def quantile(mean: np.ndarray, std: np.ndarray, level: float) -> float:
    return float(scipy.optimize.brentq(lambda z: scipy.stats.norm.cdf(z, mean, std).mean() - level, -60, 60))


@functools.cache
def solver(draws: int, row: int) -> Callable[[float], float]:
    """Return the quantiles of a row, each solved once: the integrals of all weights begin with the same levels."""
    mean, std, _ = mixture(draws)
    return functools.cache(functools.partial(quantile, mean[:, row, 0], std[:, row, 0]))


def by_definition(solve: Callable[[float], float], target: float, weight: Callable[[float], float]) -> float:
    """Integrate 2 ρ_α(F⁻¹(α), y) v(α) over levels, separately on both sides of the kink at F(y)."""

    def inside(level: float) -> float:
        found = solve(level)
        return 2 * ((target <= found) - level) * (found - target) * weight(level)

    kink = scipy.optimize.brentq(lambda a: solve(a) - target, 1e-12, 1 - 1e-12)
    edges = sorted({1e-12, kink, 1 - 1e-12})
    return sum(scipy.integrate.quad(inside, *pair, limit=200)[0] for pair in itertools.pairwise(edges))


@pytest.mark.parametrize("draws", [1, 5])
@pytest.mark.parametrize("weight", list(WEIGHTS))
def test_the_weighted_crps_is_the_integral_over_quantiles(draws: int, weight: Weight) -> None:
    """The mirrored weight, the wrong variant, gives an integral that differs by at least a twentieth."""
    mean, std, targets = mixture(draws)
    found = quantile_weighted_crps(gaussian(mean, std), torch.tensor(targets))[weight].numpy()
    for row in range(3):
        solve = solver(draws, row)
        right = by_definition(solve, targets[row, 0], WEIGHTS[weight])
        assert found[row, 0] == pytest.approx(right, rel=1e-5)
        mirrored = by_definition(solve, targets[row, 0], lambda a: WEIGHTS[weight](1 - a))
        assert weight == "centre" or abs(found[row, 0] / mirrored - 1) > 0.05


def test_the_weighted_crps_of_a_log_normal_is_the_integral_over_quantiles() -> None:
    """The quantiles of exp(z) are the exponentials of the quantiles of z; the target is above 0."""
    mean, std, _ = mixture(1)
    target = 1.7
    found = quantile_weighted_crps(Exponential(gaussian(mean, 0.5 * std)), torch.full((4, 1), target))["right"]
    for row in range(4):
        law = scipy.stats.lognorm(0.5 * std[0, row, 0], scale=np.exp(mean[0, row, 0]))
        assert found[row, 0].item() == pytest.approx(by_definition(law.ppf, target, WEIGHTS["right"]), rel=1e-4)


@pytest.mark.parametrize("draws", [1, 5, 40])
def test_the_weighted_parts_add_up_to_the_crps(draws: int) -> None:
    """Because (1 − α)² + α² + 2α(1 − α) = 1; the closed form of the CRPS uses no quadrature."""
    mean, std, targets = mixture(draws)
    predictive, wanted = gaussian(mean, std), torch.tensor(targets)
    parts = quantile_weighted_crps(predictive, wanted)
    whole = parts["left"] + parts["right"] + 2 * parts["centre"]
    assert whole.mean().item() == pytest.approx(metrics.crps(predictive, wanted).value, rel=1e-6)


def test_the_weighted_parts_of_a_mixture_of_far_widths_add_up_to_the_closed_form() -> None:
    """Two parts with equal shares are a mixture of two draws, whose CRPS has a closed form."""
    mean, variance = torch.tensor([0.3, -0.1]), torch.tensor([0.05, 2.7]).square()
    draws = [torch.stack([values.double()] * 17, 1)[..., None] for values in (mean, variance)]
    targets, predictive = torch.linspace(-4, 4, 17).double()[:, None], Gaussian(*draws)
    made = Mixture([Gaussian(*(values[k : k + 1] for values in draws)) for k in range(2)], [0.5, 0.5])
    parts = quantile_weighted_crps(made, targets)
    whole = parts["left"] + parts["right"] + 2 * parts["centre"]
    for row in range(17):
        one = Gaussian(*(values[:, row : row + 1] for values in draws))
        exact = metrics.crps(one, targets[row : row + 1]).value
        assert whole[row].item() == pytest.approx(exact, rel=1e-4)
    assert metrics.crps(predictive, targets).value == pytest.approx(metrics.crps(made, targets).value, rel=1e-5)


@pytest.mark.parametrize("sd", [0.2, 1.0])
def test_the_crps_of_widened_logarithms_equals_an_integral_over_their_logarithms(sd: float) -> None:
    """By scipy's adaptive quadrature of (F − 1{z ≥ y})²; the largest width reaches e^17 at one standard deviation."""
    shares, widths = [0.5, 0.4, 0.1], [0.125, 1.0, 2.83]
    one = torch.ones(1, 1, 1).double()
    made = Mixture([Exponential(Gaussian(0 * one, (sd * w) ** 2 * one)) for w in widths], shares)

    def cdf(u: float) -> float:
        return sum(s * scipy.stats.norm.cdf(u, scale=sd * w) for s, w in zip(shares, widths, strict=True))

    for y in (0.3, 1.0, 7.0):
        low = scipy.integrate.quad(lambda u: cdf(u) ** 2 * np.exp(u), -30 * sd, np.log(y), limit=400, points=[0])
        high = scipy.integrate.quad(lambda u: (1 - cdf(u)) ** 2 * np.exp(u), np.log(y), 25 * sd, limit=400, points=[0])
        target = torch.full((1, 1), y).double()
        parts = {weight: values.item() for weight, values in quantile_weighted_crps(made, target).items()}
        assert metrics.crps(made, target).value == pytest.approx(low[0] + high[0], rel=1e-3)
        assert parts["left"] + parts["right"] + 2 * parts["centre"] == pytest.approx(low[0] + high[0], rel=1e-3)
    below = [metrics.crps(made, torch.full((1, 1), y).double()).value for y in (1e-12, -2.0)]
    assert below[1] - below[0] == pytest.approx(2, rel=1e-6)


def test_the_interval_score_of_a_gaussian_equals_its_closed_form() -> None:
    """For N(0, 4) at 90 %: the ends are ±2 z; a target 1 outside costs 20 more."""
    end = 2 * scipy.stats.norm.ppf(0.95)
    predictive = Gaussian(torch.zeros(1, 3, 1), torch.full((1, 3, 1), 4.0))
    found = interval_score(predictive, torch.tensor([[0.0], [end + 1], [-end - 2]]), 0.9)
    np.testing.assert_allclose(found.numpy().ravel(), [2 * end, 2 * end + 20, 2 * end + 40], rtol=1e-9)


def test_the_interval_score_is_proper() -> None:
    """Targets of N(0, 1): intervals of half and of twice the width score worse by more than 5 standard errors.

    The differences are paired; equal scores would pass with a probability below 1e-6.
    """
    targets = torch.tensor(Seed(9).numpy().normal(size=(20_000, 1)))
    scores = {s: interval_score(Gaussian(torch.zeros(1, 20_000, 1), torch.full((1, 20_000, 1), s**2)), targets, 0.9)
              for s in (0.5, 1.0, 2.0)}  # fmt: skip
    for wrong in (0.5, 2.0):
        more = scores[wrong] - scores[1.0]
        assert more.mean() > 5 * more.std() / np.sqrt(len(more))
