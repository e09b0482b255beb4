"""Intervals and CRPS of Gaussian mixtures against scipy and numerical integration."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from bdl_pipe import metrics
from bdl_pipe.derived_predictive import Exponential, Mixture
from bdl_pipe.metrics import regression
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
