"""Surrogates of divergences against closed forms: Bayesian linear regression in float64.

Prior N(0, I/ρ), y = Xθ + N(0, 1/γ); a posterior is N(μ, Λ⁻¹), Λ = ρI + γXᵀX, of the data and of the coreset alike.
Statistical tests average 60,000 estimates of a gradient of twelve entries and allow Z = 5 standard errors, a false
alarm in 1e-5 of runs.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bdl_pipe.coresets.bpc import surrogates
from bdl_pipe.seeds import Seed

from .cases import normal

PRIOR, DATA_PRECISION, CORESET_PRECISION = 0.7, 1.3, 2.0
ROWS, CORESET_ROWS, WIDTH = 20, 3, 4
Z, REPEATS = 5.0, 60_000


X, Y = normal(ROWS, WIDTH, at="x"), normal(ROWS, at="y")
IMAGES, LABELS = normal(CORESET_ROWS, WIDTH, at="images"), normal(CORESET_ROWS, at="labels")


def posterior(inputs: Tensor, targets: Tensor, precision: float) -> tuple[Tensor, Tensor]:
    """μ and Λ."""
    curvature = PRIOR * torch.eye(WIDTH, dtype=torch.float64) + precision * inputs.T @ inputs
    return precision * torch.linalg.solve(curvature, inputs.T @ targets), curvature


def kl(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """KL of two Gaussians given by mean and precision, by torch's own."""
    gaussians = [torch.distributions.MultivariateNormal(m, precision_matrix=p) for m, p in (first, second)]
    return torch.distributions.kl_divergence(*gaussians)


def exact(of: Callable[[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], Tensor]) -> Tensor:
    """∂/∂x̂ of a divergence, by differentiating its closed form."""
    images = IMAGES.clone().requires_grad_()
    value = of(posterior(X, Y, DATA_PRECISION), posterior(images, LABELS, CORESET_PRECISION))
    (slope,) = torch.autograd.grad(value, images)
    return slope


FORWARD = exact(lambda data, coreset: kl(data, coreset))


def data_likelihood(weights: Tensor) -> Tensor:
    return -0.5 * DATA_PRECISION * (Y - weights @ X.T).square().mean(-1)


def each(surrogate: Callable[[Tensor], Tensor], repeats: int = REPEATS) -> Tensor:
    """The gradient of each repeat's surrogate [repeat], [repeat, row, weight]; images are given once a repeat."""
    images = IMAGES.expand(repeats, *IMAGES.shape).clone().requires_grad_()
    (slopes,) = torch.autograd.grad(surrogate(images).sum(), images)
    return slopes


def deviation(estimates: Tensor, expected: Tensor) -> float:
    """The largest distance of the estimates' mean from what is expected, in standard errors."""
    error = estimates.std(0) / len(estimates) ** 0.5
    return float(((estimates.mean(0) - expected).abs() / error).max())


def likelihoods(weights: Tensor, images: Tensor) -> Tensor:
    """The coreset's mean log-likelihood but for constants, [repeat, draw], with images of each repeat's own."""
    return -0.5 * CORESET_PRECISION * (LABELS - torch.einsum("rdw,rnw->rdn", weights, images)).square().mean(-1)


def mean_slope(mean: Tensor, covariance: Tensor) -> Tensor:
    """E[h̃] under N(mean, covariance): h̃ = γ(ŷ − X̂θ)θᵀ, so E[h̃] = γ(ŷmᵀ − X̂(mmᵀ + C))."""
    return CORESET_PRECISION * (LABELS[:, None] * mean - IMAGES @ (torch.outer(mean, mean) + covariance))


def test_the_slope_of_an_expectation_is_that_of_forward_kl() -> None:
    """The closed form that sampled gradients are held to, against the divergence's own derivative."""
    means = [
        mean_slope(mean, torch.linalg.inv(curvature))
        for mean, curvature in (posterior(X, Y, DATA_PRECISION), posterior(IMAGES, LABELS, CORESET_PRECISION))
    ]
    torch.testing.assert_close(means[1] - means[0], FORWARD, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("weight", [1.0, ROWS / CORESET_ROWS])
def test_covariance_estimates_the_gradient_of_reverse_kl(weight: float) -> None:
    """With a coreset that weighs as it is, and as much as the data; M = 3 draws."""
    draws = 3
    precision = CORESET_PRECISION * weight  # a weight on a Gaussian likelihood is a factor of its precision

    def value(data: tuple[Tensor, Tensor], images: Tensor) -> Tensor:
        return kl(posterior(images, LABELS, precision), data)

    images = IMAGES.clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(posterior(X, Y, DATA_PRECISION), images), images)
    mean, curvature = posterior(IMAGES, LABELS, precision)
    root = torch.linalg.cholesky(torch.linalg.inv(curvature))
    weights = mean + normal(REPEATS, draws, WIDTH, at="r") @ root.T
    scale = weight * CORESET_ROWS * ROWS
    data = data_likelihood(weights)

    def surrogate(images: Tensor, ratio: float = weight * CORESET_ROWS / ROWS, data: Tensor = data) -> Tensor:
        of_each = torch.func.vmap(lambda c, d: surrogates.covariance(c, d, ratio))
        return of_each(likelihoods(weights, images), data)

    estimates = scale * each(surrogate)
    assert deviation(estimates, expected) < Z
    shrunk = (draws - 1) / draws * estimates  # divided by M, as published
    unweighted = scale * each(lambda images: surrogate(images, 5.0 * weight * CORESET_ROWS / ROWS))
    for wrong in (shrunk, -estimates, unweighted):
        assert deviation(wrong, expected) > 2 * Z


def test_function_draws_have_the_last_iterates_mean_and_the_empirical_covariance() -> None:
    """200,000 draws: a covariance's entries within Z standard errors, √((c_ii c_jj + c_ij²)/M) for a Gaussian."""
    iterates, noise, draws = normal(3, 2, 2, at="f"), 0.3, 200_000
    found = surrogates.function_draws(iterates, draws, noise, rng=Seed(1)).flatten(1)
    flat = iterates.flatten(1)
    expected = torch.cov(flat.T) + noise**2 * torch.eye(4, dtype=torch.float64)
    variances = expected.diagonal()
    error = ((variances[:, None] * variances + expected.square()) / draws).sqrt()

    def far(covariance: Tensor) -> float:
        return float(((torch.cov(found.T) - covariance).abs() / error).max())

    assert far(expected) < Z
    assert float(((found.mean(0) - flat[-1]).abs() / (variances / draws).sqrt()).max()) < Z
    assert float(((found.mean(0) - flat.mean(0)).abs() / (variances / draws).sqrt()).max()) > 2 * Z  # another mean
    assert far(torch.cov(flat.T)) > 2 * Z and far(torch.cov(flat.T, correction=0) + noise**2 * torch.eye(4)) > 2 * Z


def test_function_draws_are_differentiable_through_mean_and_covariance() -> None:
    iterates = normal(3, 2, 2, at="f").requires_grad_()
    assert torch.autograd.gradcheck(lambda f: surrogates.function_draws(f, 5, 0.1, rng=Seed(1)), (iterates,))
