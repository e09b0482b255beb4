"""Scores of Gaussian mixtures, of their quantiles and of the probability integral transform against definitions."""

import functools
import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch
from scipy.stats import binom

from bdl_pipe import metrics
from bdl_pipe.derived_predictive import Exponential, Mixture
from bdl_pipe.metrics import regression
from bdl_pipe.metrics.pit import pit, pit_histogram, quantile_error
from bdl_pipe.metrics.quantile_scores import Weight, interval_score, quantile_weighted_crps
from bdl_pipe.predictive import Gaussian
from bdl_pipe.seeds import Seed


def mixture(draws: int, batch: int = 6) -> tuple[Gaussian, np.ndarray, np.ndarray, np.ndarray]:
    random = Seed(5).numpy()
    mean, variance = random.normal(0, 2, size=(draws, batch, 1)), random.uniform(0.1, 3, size=(draws, batch, 1))
    return Gaussian(torch.tensor(mean), torch.tensor(variance)), mean, np.sqrt(variance), random.normal(size=(batch, 1))


@pytest.mark.parametrize("draws", [1, 2, 7])
def test_crps_is_the_integral_of_the_squared_distance_of_distributions(draws: int) -> None:
    predictive, mean, std, targets = mixture(draws)

    def one(row: int) -> float:
        def squared(y: float) -> float:
            return (scipy.stats.norm.cdf(y, mean[:, row, 0], std[:, row, 0]).mean() - (y >= targets[row, 0])) ** 2

        edge = targets[row, 0]
        below, right = scipy.integrate.quad(squared, -40, edge)[0], scipy.integrate.quad(squared, edge, 40)[0]
        return below + right

    oracle = np.mean([one(row) for row in range(6)])
    assert metrics.crps(predictive, torch.tensor(targets)).value == pytest.approx(oracle, abs=1e-6)


@pytest.mark.parametrize("sd", [0.05, 0.5, 1.0, 1.6, 3.0])
def test_the_crps_of_a_log_normal_equals_the_closed_form(sd: float) -> None:
    """Baran & Lerch 2015, eq. 3; an integral over z itself is off by 17 % at a width of 1.3, and by half at 3."""
    targets = np.exp(sd * np.array([-7, -3, -1, 0, 1, 2, 3, 7.0]))
    place, phi = np.log(targets) / sd, scipy.stats.norm.cdf
    exact = targets * (2 * phi(place) - 1) - 2 * np.exp(sd**2 / 2) * (phi(place - sd) + phi(sd / np.sqrt(2)) - 1)
    base = Gaussian(torch.zeros(1, 1, 1).double(), torch.full((1, 1, 1), sd**2).double())
    each = [metrics.crps(Exponential(base), torch.tensor([[y]])).value for y in targets]
    assert each == pytest.approx(exact.tolist(), rel=1e-7)


def test_the_crps_of_parts_of_very_different_widths_equals_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grimit et al. 2006, equation 5, with weights; the control: 32 nodes on each side of y miss the narrow part."""
    mean, sd, weight = (np.array([row]).T for row in ([0.3, 0.3, -0.1], [0.05, 0.9, 2.7], [0.4, 0.5, 0.1]))
    y = np.linspace(-4, 4, 17)

    def absolute(m: np.ndarray, s: np.ndarray) -> np.ndarray:
        return 2 * s * scipy.stats.norm.pdf(m / s) + m * (2 * scipy.stats.norm.cdf(m / s) - 1)

    products = weight * weight.T * absolute(mean - mean.T, np.sqrt(sd**2 + sd.T**2))
    exact = (weight * absolute(y - mean, sd)).sum(0) - products.sum() / 2
    pairs = zip(mean[:, 0], sd[:, 0], strict=True)
    parts = [Gaussian(*(torch.full((1, 17, 1), value).double() for value in (m, s**2))) for m, s in pairs]
    mixture, targets = Mixture(parts, weight[:, 0].tolist()), torch.tensor(y)[:, None]
    each = [(Mixture([row(p, i) for p in parts], mixture.shares), targets[i : i + 1]) for i in range(17)]
    crps = np.array([metrics.crps(*pair).value for pair in each])
    assert crps == pytest.approx(exact, rel=1e-4)
    monkeypatch.setattr(regression, "Mixture", type(None))
    plain = regression.integrated(mixture, targets, torch.square, torch.square)[:, 0].numpy()
    assert np.abs(plain / exact - 1).max() > 1e-3


def row(part: Gaussian, number: int) -> Gaussian:
    return Gaussian(part.draw_mean[:, number : number + 1], part.draw_variance[:, number : number + 1])


@pytest.mark.parametrize("draws", [1, 2, 7])
@pytest.mark.parametrize("level", [0.05, 0.5, 0.95])
def test_a_quantile_inverts_the_mixtures_distribution(draws: int, level: float) -> None:
    predictive, mean, std, _ = mixture(draws)
    quantiles = predictive.quantile(level).numpy()
    assert scipy.stats.norm.cdf(quantiles, mean, std).mean(0) == pytest.approx(level, abs=1e-9)


def test_an_interval_of_a_mixture_holds_its_level_of_the_mixture() -> None:
    """The interval of the single Gaussian of equal mean and variance, the wrong variant, holds another share."""
    mean, variance = np.array([-3.0, 3.0])[:, None, None], np.array([0.04, 4.0])[:, None, None]
    right = Gaussian(torch.tensor(mean), torch.tensor(variance))
    for predictive, close in ((right, True), (Gaussian(right.mean[None], right.variance[None]), False)):
        below = [scipy.stats.norm.cdf(end, mean, np.sqrt(variance)).mean() for end in metrics.interval(predictive, 0.9)]
        assert (below == pytest.approx([0.05, 0.95], abs=1e-9)) == close
    low, high = metrics.interval(Gaussian(torch.zeros(1, 3, 2), torch.full((1, 3, 2), 4.0)), 0.9)
    torch.testing.assert_close(high - low, torch.full((3, 2), 2 * 2 * 1.6448536, dtype=torch.float64))
    low, high = torch.zeros(2, 2), torch.ones(2, 2)
    assert metrics.covered(low, high, torch.tensor([[0.0, 1.0], [1.1, -0.1]])).value == 0.5


WEIGHTS: dict[Weight, Callable[[float], float]] = {
    "left": lambda a: (1 - a) ** 2,
    "right": lambda a: a**2,
    "centre": lambda a: a * (1 - a),
}


def four_rows(draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
    mean, std, _ = four_rows(draws)
    return functools.cache(functools.partial(quantile, mean[:, row, 0], std[:, row, 0]))


def by_definition(solve: Callable[[float], float], target: float, weight: Callable[[float], float]) -> float:
    """Integrate 2 ρ_α(F⁻¹(α), y) v(α) over levels, separately on both sides of the kink at F(y)."""

    def inside(level: float) -> float:
        quantile = solve(level)
        return 2 * ((target <= quantile) - level) * (quantile - target) * weight(level)

    kink = scipy.optimize.brentq(lambda a: solve(a) - target, 1e-12, 1 - 1e-12)
    edges = sorted({1e-12, kink, 1 - 1e-12})
    return sum(scipy.integrate.quad(inside, *pair, limit=200)[0] for pair in itertools.pairwise(edges))


@pytest.mark.parametrize("draws", [1, 5])
@pytest.mark.parametrize("weight", list(WEIGHTS))
def test_the_weighted_crps_is_the_integral_over_quantiles(draws: int, weight: Weight) -> None:
    """The mirrored weight, the wrong variant, gives an integral that differs by at least a twentieth."""
    mean, std, targets = four_rows(draws)
    crps = quantile_weighted_crps(gaussian(mean, std), torch.tensor(targets))[weight].numpy()
    for row in range(3):
        solve = solver(draws, row)
        right = by_definition(solve, targets[row, 0], WEIGHTS[weight])
        assert crps[row, 0] == pytest.approx(right, rel=1e-5)
        mirrored = by_definition(solve, targets[row, 0], lambda a: WEIGHTS[weight](1 - a))
        assert weight == "centre" or abs(crps[row, 0] / mirrored - 1) > 0.05


def test_the_weighted_crps_of_a_log_normal_is_the_integral_over_quantiles() -> None:
    """The quantiles of exp(z) are the exponentials of the quantiles of z; the target is above 0."""
    mean, std, _ = four_rows(1)
    target = 1.7
    crps = quantile_weighted_crps(Exponential(gaussian(mean, 0.5 * std)), torch.full((4, 1), target))["right"]
    for row in range(4):
        law = scipy.stats.lognorm(0.5 * std[0, row, 0], scale=np.exp(mean[0, row, 0]))
        assert crps[row, 0].item() == pytest.approx(by_definition(law.ppf, target, WEIGHTS["right"]), rel=1e-4)


@pytest.mark.parametrize("draws", [1, 5, 40])
def test_the_weighted_parts_add_up_to_the_crps(draws: int) -> None:
    """Because (1 − α)² + α² + 2α(1 − α) = 1; the closed form of the CRPS uses no quadrature."""
    mean, std, targets = four_rows(draws)
    predictive, wanted = gaussian(mean, std), torch.tensor(targets)
    parts = quantile_weighted_crps(predictive, wanted)
    whole = parts["left"] + parts["right"] + 2 * parts["centre"]
    assert whole.mean().item() == pytest.approx(metrics.crps(predictive, wanted).value, rel=1e-6)


def test_the_weighted_parts_of_a_mixture_of_far_widths_add_up_to_the_closed_form() -> None:
    """Two parts with equal shares are a mixture of two draws, whose CRPS has a closed form."""
    mean, variance = torch.tensor([0.3, -0.1]), torch.tensor([0.05, 2.7]).square()
    draws = [torch.stack([values.double()] * 17, 1)[..., None] for values in (mean, variance)]
    targets, predictive = torch.linspace(-4, 4, 17).double()[:, None], Gaussian(*draws)
    mixture = Mixture([Gaussian(*(values[k : k + 1] for values in draws)) for k in range(2)], [0.5, 0.5])
    parts = quantile_weighted_crps(mixture, targets)
    whole = parts["left"] + parts["right"] + 2 * parts["centre"]
    for row in range(17):
        one = Gaussian(*(values[:, row : row + 1] for values in draws))
        exact = metrics.crps(one, targets[row : row + 1]).value
        assert whole[row].item() == pytest.approx(exact, rel=1e-4)
    assert metrics.crps(predictive, targets).value == pytest.approx(metrics.crps(mixture, targets).value, rel=1e-5)


@pytest.mark.parametrize("sd", [0.2, 1.0])
def test_the_crps_of_widened_logarithms_equals_an_integral_over_their_logarithms(sd: float) -> None:
    """By scipy's adaptive quadrature of (F − 1{z ≥ y})²; the largest width reaches e^17 at one standard deviation."""
    shares, widths = [0.5, 0.4, 0.1], [0.125, 1.0, 2.83]
    one = torch.ones(1, 1, 1).double()
    mixture = Mixture([Exponential(Gaussian(0 * one, (sd * w) ** 2 * one)) for w in widths], shares)

    def cdf(u: float) -> float:
        return sum(s * scipy.stats.norm.cdf(u, scale=sd * w) for s, w in zip(shares, widths, strict=True))

    for y in (0.3, 1.0, 7.0):
        low = scipy.integrate.quad(lambda u: cdf(u) ** 2 * np.exp(u), -30 * sd, np.log(y), limit=400, points=[0])
        high = scipy.integrate.quad(lambda u: (1 - cdf(u)) ** 2 * np.exp(u), np.log(y), 25 * sd, limit=400, points=[0])
        target = torch.full((1, 1), y).double()
        parts = {weight: values.item() for weight, values in quantile_weighted_crps(mixture, target).items()}
        assert metrics.crps(mixture, target).value == pytest.approx(low[0] + high[0], rel=1e-3)
        assert parts["left"] + parts["right"] + 2 * parts["centre"] == pytest.approx(low[0] + high[0], rel=1e-3)
    below = [metrics.crps(mixture, torch.full((1, 1), y).double()).value for y in (1e-12, -2.0)]
    assert below[1] - below[0] == pytest.approx(2, rel=1e-6)


def test_the_interval_score_of_a_gaussian_equals_its_closed_form() -> None:
    """For N(0, 4) at 90 %: the ends are ±2 z; a target 1 outside costs 20 more."""
    end = 2 * scipy.stats.norm.ppf(0.95)
    predictive = Gaussian(torch.zeros(1, 3, 1), torch.full((1, 3, 1), 4.0))
    score = interval_score(predictive, torch.tensor([[0.0], [end + 1], [-end - 2]]), 0.9)
    np.testing.assert_allclose(score.numpy().ravel(), [2 * end, 2 * end + 20, 2 * end + 40], rtol=1e-9)


ALARM = 1e-6


def test_the_transform_of_a_mixture_is_the_mean_over_its_draws() -> None:
    """With 50 digits. The Gaussian of the same mean and variance, a wrong variant, gives another value."""
    mean, sd = [-2.0, 0.5, 4.0], [0.1, 1.5, 0.7]
    predictive = Gaussian(torch.tensor(mean).reshape(3, 1, 1).double(), torch.tensor(sd).reshape(3, 1, 1).double() ** 2)
    with mpmath.workdps(50):
        exact = sum(mpmath.ncdf(-1, m, s) for m, s in zip(mean, sd, strict=True)) / 3
    place = pit(predictive, torch.tensor([[-1.0]]))[0, 0]
    assert place == pytest.approx(float(exact), rel=1e-12)
    moments = float(predictive.mean), math.sqrt(float(predictive.variance))
    assert abs(scipy.stats.norm.cdf(-1, *moments) - place) > 0.05


def test_the_histogram_counts_values_at_both_ends() -> None:
    histogram = pit_histogram(np.array([0, 0.05, 0.1, 0.55, 1.0]), bins=10)
    assert histogram.count.tolist() == [2, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert pit_histogram(np.array([0.3]), bins=1).outside.size == 0
    assert (pit_histogram(np.array([0.3]), bins=1).low, pit_histogram(np.array([0.3]), bins=1).high) == (1, 1)


def test_all_bins_are_in_the_band_as_often_as_stated() -> None:
    """2,000 samples of 80 uniform values at 80 %; a separate band for each bin, a wrong variant, fails too often."""
    random = Seed(1).numpy()
    samples = [pit_histogram(random.random(80), bins=8, level=0.8) for _ in range(2000)]
    outside = sum(one.outside.size > 0 for one in samples)
    assert outside <= binom.isf(ALARM, 2000, 0.2)
    low, high = binom.ppf(0.1, 80, 1 / 8), binom.isf(0.1, 80, 1 / 8)
    alone = sum(((one.count < low) | (one.count > high)).any() for one in samples)
    assert alone > binom.isf(ALARM, 2000, 0.2)


def test_the_quantile_error_matches_a_hand_calculation() -> None:
    """Shares at .25, .5, .75 of four values are .5, .5, 1."""
    error = quantile_error(np.array([0.1, 0.25, 0.6, 0.7]), levels=3)
    np.testing.assert_allclose(error.shares, [0.5, 0.5, 1])
    assert error.value == pytest.approx(2 * 0.0625 / 3)
    assert error.expected == pytest.approx((0.1875 * 2 + 0.25) / 3 / 4)
    assert error.p_value == pytest.approx(scipy.stats.kstest([0.1, 0.25, 0.6, 0.7], "uniform").pvalue)
