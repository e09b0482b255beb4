"""Predictives against scipy and brute-force sums."""

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from bdl_pipe.derived_predictive import Exponential, Mixture
from bdl_pipe.errors import DataError
from bdl_pipe.predictive import Categorical, Draws, Gaussian
from bdl_pipe.recalibration import Widened
from bdl_pipe.student_t import StudentT


@pytest.fixture
def probs() -> np.ndarray:
    """Class probabilities [draw=5, batch=4, class=3], one of them exactly one-hot."""
    p = np.random.default_rng(0).dirichlet(np.ones(3), (5, 4))
    p[:, 3] = [0.0, 1.0, 0.0]
    return p


@pytest.fixture
def categorical(probs: np.ndarray) -> Categorical:
    return Categorical(torch.tensor(probs).log())


@pytest.fixture
def gaussian() -> Gaussian:
    """Moments [draw=4, batch=3, output=2]."""
    random = np.random.default_rng(1)
    return Gaussian(torch.tensor(random.normal(0, 2, (4, 3, 2))), torch.tensor(random.uniform(0.2, 2, (4, 3, 2))))


def test_classes_have_probabilities_averaged_over_draws(categorical: Categorical, probs: np.ndarray) -> None:
    targets = np.array([2, 0, 1, 1])
    of_target = probs.mean(0)[np.arange(4), targets]
    np.testing.assert_allclose(categorical.mean, probs.mean(0), atol=1e-12)
    np.testing.assert_allclose(categorical.log_probs.exp().sum(-1), np.ones(4), atol=1e-12)
    np.testing.assert_allclose(categorical.variance, scipy.stats.bernoulli(probs.mean(0)).var(), atol=1e-12)
    np.testing.assert_allclose(categorical.log_prob(torch.tensor(targets)), np.log(of_target), atol=1e-12)


def test_entropy_and_mutual_information_equal_scipy(categorical: Categorical, probs: np.ndarray) -> None:
    total = scipy.stats.entropy(probs.mean(0), axis=-1)
    np.testing.assert_allclose(categorical.entropy(), total, atol=1e-12)
    information = total - scipy.stats.entropy(probs, axis=-1).mean(0)
    np.testing.assert_allclose(categorical.mutual_information(), information, atol=1e-12)
    # another formula of the same number: the mean divergence of the draws from their mixture
    divergence = scipy.stats.entropy(probs[:, :3], probs.mean(0)[None, :3], axis=-1).mean(0)
    np.testing.assert_allclose(categorical.mutual_information()[:3], divergence, atol=1e-12)
    assert torch.equal(Categorical(torch.tensor(probs[:1]).log()).mutual_information(), torch.zeros(4).double())


def test_a_mixture_of_gaussians_equals_scipy_and_follows_a_change_of_units(gaussian: Gaussian) -> None:
    """Outputs are independent only given a draw: the density is no product over outputs."""
    targets = torch.tensor([[0.3, -0.2], [-1.0, 0.5], [2.0, 1.0]]).double()
    each = scipy.stats.norm(gaussian.draw_mean.numpy(), gaussian.draw_variance.sqrt().numpy()).pdf(targets)
    np.testing.assert_allclose(gaussian.log_prob(targets), np.log(each.prod(-1).mean(0)), atol=1e-12)
    assert not np.allclose(each.prod(-1).mean(0), each.mean(0).prod(-1), rtol=1e-2)
    within, between = gaussian.draw_variance.mean(0).numpy(), np.var(gaussian.draw_mean.numpy(), axis=0)
    np.testing.assert_allclose(gaussian.mean, gaussian.draw_mean.mean(0), atol=1e-12)
    np.testing.assert_allclose(gaussian.variance, within + between, atol=1e-12)
    np.testing.assert_allclose(gaussian.epistemic_variance, between, atol=1e-12)
    shift, scale = torch.tensor([20.0, -3.0]).double(), torch.tensor([9.0, 0.5]).double()
    wide = gaussian.rescale(shift, scale)
    expected = gaussian.log_prob(targets) - scale.log().sum()
    torch.testing.assert_close(wide.log_prob(shift + scale * targets), expected)
    torch.testing.assert_close(wide.mean, shift + scale * gaussian.mean)
    torch.testing.assert_close(wide.variance, scale**2 * gaussian.variance)


@pytest.mark.parametrize("kind", [Gaussian, lambda mean, scale: StudentT(mean, scale, 4.0)])
def test_targets_without_the_dimension_of_outputs_are_refused(kind: Callable[..., Draws]) -> None:
    """Each row's log density was the sum over the targets of all rows: [3] and [3, 1] are broadcast to [3, 3]."""
    predictive = kind(torch.zeros(1, 3, 1), torch.ones(1, 3, 1))
    with pytest.raises(DataError, match=r"targets must have the shape \[3, 1\], got \[3\]; pass y\[:, None\]"):
        inspect.unwrap(Draws.log_prob)(predictive, torch.zeros(3))
    for each in (predictive, Widened(predictive, 2.0)):  # P(y ≤ value) of each value in each row: [3, 3]
        with pytest.raises(DataError, match=r"targets must have the shape \[3, 1\], got \[3\]; pass y\[:, None\]"):
            inspect.unwrap(type(each).cdf)(each, torch.zeros(3))


def test_rescaling_classes_is_refused(categorical: Categorical) -> None:
    with pytest.raises(TypeError, match="classes have no scale"):
        categorical.rescale(torch.zeros(3), torch.ones(3))


def lognormal(draws: int) -> tuple[Exponential, Gaussian]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(draws, 4, 2, generator=generator)
    base = Gaussian(mean, 0.2 + 0.3 * torch.rand(draws, 4, 2, generator=generator))
    return Exponential(base), base


@pytest.mark.parametrize("draws", [1, 3])
def test_the_exponential_of_a_gaussian_equals_scipys_lognormal(draws: int) -> None:
    predictive, base = lognormal(draws)
    values = torch.rand(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3 + 0.01
    parts = scipy.stats.lognorm(base.draw_variance.double().sqrt().numpy(), scale=base.draw_mean.double().exp().numpy())
    expected = parts.cdf(values).mean(0)
    np.testing.assert_allclose(predictive.cdf(values), expected, rtol=1e-9, atol=1e-15)  # 1 + erf in the tail
    assert not predictive.cdf(-values).any()
    np.testing.assert_allclose(predictive.mean, parts.mean().mean(0), rtol=1e-9)
    square = (parts.var() + parts.mean() ** 2).mean(0)
    np.testing.assert_allclose(predictive.variance, square - predictive.mean.numpy() ** 2, rtol=1e-8)
    each = parts.logpdf(values)
    np.testing.assert_allclose(
        predictive.log_prob(values), np.logaddexp.reduce(each.sum(-1)) - np.log(draws), rtol=1e-5
    )
    np.testing.assert_allclose(predictive.epistemic_variance, parts.mean().var(0), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(predictive.cdf(predictive.quantile(0.95)), 0.95, rtol=1e-9)
    assert predictive.log_prob(-values).tolist() == [-torch.inf] * 4


def test_numerical_moments_of_an_exponential_equal_the_closed_form() -> None:
    """The Gaussian base is widened by 1, so that it is not seen as a Gaussian; the control omits half its variance."""
    predictive, base = lognormal(3)
    hidden = Exponential(Widened(base, 1.0))
    np.testing.assert_allclose(hidden.mean, predictive.mean, rtol=1e-5)
    np.testing.assert_allclose(hidden.variance, predictive.variance, rtol=1e-3)
    assert ((base.mean.exp() - predictive.mean).abs() > 0.05 * predictive.mean).all()


def of_two_parts() -> tuple[Mixture, Gaussian, Gaussian]:
    """Parts N(m, sd²) with shares .3 and .7, for three rows of two outputs."""
    generator = torch.Generator().manual_seed(0)
    mean, sd, other, width = (draw(1, 3, 2, generator=generator).double() for draw in (torch.randn, torch.rand) * 2)
    first, second = Gaussian(mean, sd + 0.1), Gaussian(other, width + 0.1)
    return Mixture([first, second], [0.3, 0.7]), first, second


def test_a_mixture_of_predictives_equals_sums_of_scipys_distributions() -> None:
    """The outputs of a row share a part, so that the density is no product over outputs."""
    mixture, *parts = of_two_parts()
    at = torch.linspace(-2, 2, 6).double().reshape(3, 2)
    normals = [scipy.stats.norm(part.mean.numpy(), part.variance.sqrt().numpy()) for part in parts]
    first, second = normals
    np.testing.assert_allclose(mixture.cdf(at), 0.3 * first.cdf(at) + 0.7 * second.cdf(at), rtol=1e-12)
    density = 0.3 * first.pdf(at).prod(1) + 0.7 * second.pdf(at).prod(1)
    np.testing.assert_allclose(mixture.log_prob(at).exp(), density, rtol=1e-12)
    assert not np.allclose(density, (0.3 * first.pdf(at) + 0.7 * second.pdf(at)).prod(1))
    mean = 0.3 * first.mean() + 0.7 * second.mean()
    square = 0.3 * (first.var() + first.mean() ** 2) + 0.7 * (second.var() + second.mean() ** 2)
    np.testing.assert_allclose(mixture.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(mixture.variance, square - mean**2, rtol=1e-12)
    np.testing.assert_allclose(mixture.cdf(mixture.quantile(0.95)), 0.95, atol=1e-9)
    moved = mixture.rescale(torch.tensor([1.0, -2.0]).double(), torch.tensor([3.0, 0.5]).double())
    there = torch.tensor([1.0, -2.0]) + torch.tensor([3.0, 0.5]) * at
    np.testing.assert_allclose(moved.log_prob(there) + np.log(1.5), mixture.log_prob(at), rtol=1e-12)
    assert mixture.reach[0].isinf().all() and mixture.epistemic_variance.eq(0).all()
