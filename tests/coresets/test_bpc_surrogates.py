"""Surrogates of divergences against closed forms: Bayesian linear regression in float64.

Prior N(0, I/ρ), y = Xθ + N(0, 1/γ). The posterior of the data and the posterior of the coreset are N(μ, Λ⁻¹) with
Λ = ρI + γXᵀX, and every state of a Langevin chain is Gaussian, too.

Sampled tests ask for Z = 4 standard errors in each of the 12 entries of a gradient: the false-alarm rate of one
comparison is at most 12 · 6.3e-5 = 7.6e-4 (two-sided Gaussian tails, Bonferroni). All seeds are fixed. A wrong variant
must be at least 2 Z away.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bdl_pipe.coresets.bpc import inner, surrogates
from bdl_pipe.coresets.bpc.experts import noisy
from bdl_pipe.seeds import Seed

from .cases import normal, relative

PRIOR, DATA_PRECISION, CORESET_PRECISION = 0.7, 1.3, 2.0
ROWS, CORESET_ROWS, WIDTH = 20, 3, 4
Z, REPEATS, DRAWS = 4.0, 20_000, 4
IDENTITY = torch.eye(WIDTH, dtype=torch.float64)
X, Y = normal(ROWS, WIDTH, at="x"), normal(ROWS, at="y")
IMAGES, LABELS = normal(CORESET_ROWS, WIDTH, at="images"), normal(CORESET_ROWS, at="labels")


def posterior(inputs: Tensor, targets: Tensor, precision: float) -> tuple[Tensor, Tensor]:
    """μ and Λ."""
    curvature = PRIOR * torch.eye(WIDTH, dtype=torch.float64) + precision * inputs.T @ inputs
    return precision * torch.linalg.solve(curvature, inputs.T @ targets), curvature


def kl(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """KL of two Gaussians given by mean and precision, computed by torch.distributions."""
    gaussians = [torch.distributions.MultivariateNormal(m, precision_matrix=p) for m, p in (first, second)]
    return torch.distributions.kl_divergence(*gaussians)


def exact(of: Callable[[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], Tensor]) -> Tensor:
    """∂/∂x̂ of a divergence, by differentiating its closed form."""
    images = IMAGES.clone().requires_grad_()
    value = of(posterior(X, Y, DATA_PRECISION), posterior(images, LABELS, CORESET_PRECISION))
    (slope,) = torch.autograd.grad(value, images)
    return slope


FORWARD = exact(lambda data, coreset: kl(data, coreset))
DATA_MEAN, DATA_CURVATURE = posterior(X, Y, DATA_PRECISION)
CORESET_MEAN, CORESET_CURVATURE = posterior(IMAGES, LABELS, CORESET_PRECISION)
DATA_COVARIANCE, CORESET_COVARIANCE = torch.linalg.inv(DATA_CURVATURE), torch.linalg.inv(CORESET_CURVATURE)


def data_likelihood(weights: Tensor) -> Tensor:
    return -0.5 * DATA_PRECISION * (Y - weights @ X.T).square().mean(-1)


def each(surrogate: Callable[[Tensor], Tensor], repeats: int = REPEATS) -> Tensor:
    """The gradient of each repeat's surrogate [repeat], [repeat, row, weight]; each repeat has its own images."""
    images = IMAGES.expand(repeats, *IMAGES.shape).clone().requires_grad_()
    (slopes,) = torch.autograd.grad(surrogate(images).sum(), images)
    return slopes


def deviation(estimates: Tensor, expected: Tensor) -> float:
    """The largest distance of the estimates' mean from what is expected, in standard errors."""
    error = estimates.std(0) / len(estimates) ** 0.5
    return float(((estimates.mean(0) - expected).abs() / error).max())


def likelihoods(weights: Tensor, images: Tensor) -> Tensor:
    """The coreset's mean log-likelihood up to constants, [repeat, draw]; each repeat has its own images."""
    return -0.5 * CORESET_PRECISION * (LABELS - torch.einsum("rdw,rnw->rdn", weights, images)).square().mean(-1)


def mean_slope(mean: Tensor, covariance: Tensor) -> Tensor:
    """E[h̃] under N(mean, covariance): h̃ = γ(ŷ − X̂θ)θᵀ, so E[h̃] = γ(ŷmᵀ − X̂(mmᵀ + C))."""
    return CORESET_PRECISION * (LABELS[:, None] * mean - IMAGES @ (torch.outer(mean, mean) + covariance))


def test_the_closed_form_of_the_mean_slopes_equals_the_gradient_of_forward_kl() -> None:
    """``mean_slope``, a reference for sampled gradients, against the derivative of the divergence itself."""
    means = [
        mean_slope(mean, torch.linalg.inv(curvature))
        for mean, curvature in (posterior(X, Y, DATA_PRECISION), posterior(IMAGES, LABELS, CORESET_PRECISION))
    ]
    torch.testing.assert_close(means[1] - means[0], FORWARD, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("weight", [1.0, ROWS / CORESET_ROWS])
def test_the_covariance_surrogate_estimates_the_gradient_of_reverse_kl(weight: float) -> None:
    """With a coreset of its own weight, and of the weight of the data; M = 3 draws in each of 30,000 repeats."""
    draws, repeats = 3, 30_000
    precision = CORESET_PRECISION * weight  # a weight on a Gaussian likelihood is a factor of its precision

    def value(data: tuple[Tensor, Tensor], images: Tensor) -> Tensor:
        return kl(posterior(images, LABELS, precision), data)

    images = IMAGES.clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(posterior(X, Y, DATA_PRECISION), images), images)
    mean, curvature = posterior(IMAGES, LABELS, precision)
    root = torch.linalg.cholesky(torch.linalg.inv(curvature))
    weights = mean + normal(repeats, draws, WIDTH, at="r") @ root.T
    scale = weight * CORESET_ROWS * ROWS
    data = data_likelihood(weights)

    def surrogate(images: Tensor, ratio: float = weight * CORESET_ROWS / ROWS, data: Tensor = data) -> Tensor:
        of_each = torch.func.vmap(lambda c, d: surrogates.covariance(c, d, ratio))
        return of_each(likelihoods(weights, images), data)

    estimates = scale * each(surrogate, repeats)
    assert deviation(estimates, expected) < Z
    shrunk = (draws - 1) / draws * estimates  # divided by M, as published
    unweighted = scale * each(lambda images: surrogate(images, 5.0 * weight * CORESET_ROWS / ROWS), repeats)
    for wrong in (shrunk, -estimates, unweighted):
        assert deviation(wrong, expected) > 2 * Z


def contrastive(steps: int, alpha: float) -> Tensor:
    """The gradient of contrastive divergence, by exact moments of Langevin's chain from the data's posterior."""
    shrink = IDENTITY - alpha / 2 * CORESET_CURVATURE
    mean, covariance = DATA_MEAN, DATA_COVARIANCE
    for _ in range(steps):
        mean = CORESET_MEAN + shrink @ (mean - CORESET_MEAN)
        covariance = shrink @ covariance @ shrink.T + alpha * IDENTITY
    return mean_slope(mean, covariance) - mean_slope(DATA_MEAN, DATA_COVARIANCE)


def squared_wasserstein(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """W₂² of two Gaussians by mean and covariance: ‖m − n‖² + tr(A + B − 2 (A^½ B A^½)^½)."""
    (m, a), (n, b) = first, second
    values, vectors = torch.linalg.eigh(a)
    root = vectors @ values.sqrt().diag() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ b @ root).sqrt().sum()
    return (m - n).square().sum() + a.trace() + b.trace() - 2 * cross


def test_the_unnormalised_distance_equals_squared_wasserstein_at_equal_covariances() -> None:
    start = normal(WIDTH, at="start")
    isotropic, scale = 1e-4 * IDENTITY, (start - DATA_MEAN).square().sum()
    whole = squared_wasserstein((CORESET_MEAN, isotropic), (DATA_MEAN, isotropic))
    found = surrogates.distance(CORESET_MEAN, DATA_MEAN, start) * scale
    assert relative(found, whole) < 1e-12
    assert float(surrogates.distance(start, DATA_MEAN, start)) == 1.0
    others = squared_wasserstein((CORESET_MEAN, CORESET_COVARIANCE), (DATA_MEAN, DATA_COVARIANCE))
    assert relative(found, others) > 0.01 and float(others) > float(found)  # the control: covariances that differ


def drawn(mean: Tensor, covariance: Tensor, at: str, draws: int = DRAWS) -> Tensor:
    """Exact draws [repeat, draw, weight]."""
    return mean + normal(REPEATS, draws, WIDTH, at=at) @ torch.linalg.cholesky(covariance).T


def contrasts(positive: Tensor, negative: Tensor) -> Tensor:
    """The gradient of the production contrast in each repeat, times n̂, as the divergence has it."""
    of_each = torch.func.vmap(surrogates.contrast)
    return CORESET_ROWS * each(
        lambda images: of_each(likelihoods(positive, images), likelihoods(negative, images)), len(positive)
    )


def covariances(weights: Tensor, ratio: float = CORESET_ROWS / ROWS) -> Tensor:
    """The gradient of the production covariance in each repeat, times n̂N, as the divergence has it at w = 1."""
    of_each, data = torch.func.vmap(surrogates.covariance, in_dims=(0, 0, None)), data_likelihood(weights)
    return CORESET_ROWS * ROWS * each(lambda images: of_each(likelihoods(weights, images), data, ratio), len(weights))


def moved(start: Tensor, steps: int, alpha: float, *, scale: float = 1.0, noise: float = 1.0) -> Tensor:
    """The production chain on the coreset's energy, a sum over rows and the prior; a ``scale`` ≠ 1 is an error."""

    def energy(step: int, weights: Tensor, images: Tensor) -> Tensor:
        mean = 0.5 * CORESET_PRECISION * (LABELS - weights @ images.T).square().mean(-1)
        return scale * len(images) * mean + 0.5 * PRIOR * weights.square().sum(-1)

    flat = inner.langevin(energy, start.flatten(0, 1), IMAGES, steps, alpha, noise, rng=Seed(4))
    return flat.unflatten(0, start.shape[:2])


@pytest.mark.parametrize(("shared", "draws"), [(False, DRAWS), (True, DRAWS), (False, 1)])
def test_the_contrast_of_exact_draws_estimates_the_gradient_of_forward_kl(shared: bool, draws: int) -> None:
    """With noise that data and coreset share, and with independent noise; also with one draw."""
    data = drawn(DATA_MEAN, DATA_COVARIANCE, "d", draws)
    coreset = drawn(CORESET_MEAN, CORESET_COVARIANCE, "d" if shared else "s", draws)
    found = contrasts(data, coreset)
    assert deviation(found, FORWARD) < Z
    squared = CORESET_MEAN + normal(REPEATS, draws, WIDTH, at="s") @ CORESET_COVARIANCE  # σ² in place of σ
    for wrong in (contrasts(coreset, data), found / CORESET_ROWS, contrasts(data, squared)):
        assert deviation(wrong, FORWARD) > 2 * Z


def stand_in(gap: Tensor, curvature_gap: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """−Cov(h̃, f − f̃) under N(mean, covariance), where f − f̃ has slope ``gap`` and Hessian −``curvature_gap``."""
    residual, moved_by = LABELS - IMAGES @ mean, covariance @ gap
    outer = torch.outer(residual, moved_by) - torch.outer(IMAGES @ moved_by, mean)
    return -CORESET_PRECISION * (outer + IMAGES @ covariance @ curvature_gap @ covariance)


def test_the_covariance_surrogate_takes_sd_as_a_standard_deviation() -> None:
    """π_S ≈ N(θ_S, σ²I), as production code draws it; under any Gaussian the covariance of quadratics is exact."""
    mean, sd = CORESET_MEAN + 0.2, 0.3
    gap = DATA_CURVATURE @ (DATA_MEAN - mean) - CORESET_CURVATURE @ (CORESET_MEAN - mean)
    expected = stand_in(gap, DATA_CURVATURE - CORESET_CURVATURE, mean, sd**2 * IDENTITY)

    def draws(sd: float) -> Tensor:
        return noisy(mean, REPEATS * DRAWS, sd, Seed(6)).unflatten(0, (REPEATS, DRAWS))

    assert deviation(covariances(draws(sd)), expected) < Z
    for wrong in (sd**2, sd**0.5):
        assert deviation(covariances(draws(wrong)), expected) > 2 * Z


@pytest.mark.parametrize("steps", [1, 3])
def test_production_chains_estimate_the_gradient_of_contrastive_divergence(steps: int) -> None:
    """Langevin's production chains from exact draws of π_D, at a step that is far from both limits."""
    alpha, positive = 0.05, drawn(DATA_MEAN, DATA_COVARIANCE, "d")
    expected = contrastive(steps, alpha)
    found = contrasts(positive, moved(positive, steps, alpha))
    assert deviation(found, expected) < Z
    coreset = drawn(CORESET_MEAN, CORESET_COVARIANCE, "s")
    squared = DATA_MEAN + normal(REPEATS, DRAWS, WIDTH, at="d") @ DATA_COVARIANCE
    for wrong in (
        -found,
        found / CORESET_ROWS,
        contrasts(positive, moved(positive, steps, alpha, scale=1 / CORESET_ROWS)),  # the energy as a mean over rows
        contrasts(positive, moved(positive, steps, alpha, noise=0.0)),  # no noise, as in the published script
        contrasts(positive, moved(positive, steps, alpha / 2)),
        contrasts(squared, moved(squared, steps, alpha)),
        contrasts(positive, coreset),  # the gradient of forward KL
    ):
        assert deviation(wrong, expected) > 2 * Z
    assert float(contrasts(positive, moved(positive, 0, alpha)).abs().max()) == 0.0  # no step, no gradient
