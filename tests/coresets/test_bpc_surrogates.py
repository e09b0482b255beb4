"""Surrogates of divergences, and steps on a coreset, against closed forms of linear regression in float64.

Prior N(0, I/ρ), y = Xθ + N(0, 1/γ). The posterior of the data and the posterior of the coreset are N(μ, Λ⁻¹) with
Λ = ρI + γXᵀX. Draws are equally weighted points with the moments of a Gaussian up to the fifth, so that averages of
products of two quadratic functions are exact. How methods draw is in ``test_oracles_gradients``.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bdl_pipe.coresets.bpc import inner, surrogates
from bdl_pipe.seeds import Seed

from .cases import normal, relative

PRIOR, DATA_PRECISION, CORESET_PRECISION = 0.7, 1.3, 2.0
ROWS, CORESET_ROWS, WIDTH = 20, 3, 4
IDENTITY = torch.eye(WIDTH, dtype=torch.float64)
X, Y = normal(ROWS, WIDTH, at="x"), normal(ROWS, at="y")
IMAGES, LABELS = normal(CORESET_ROWS, WIDTH, at="images"), normal(CORESET_ROWS, at="labels")


def posterior(inputs: Tensor, targets: Tensor, precision: float) -> tuple[Tensor, Tensor]:
    """μ and Λ."""
    curvature = PRIOR * IDENTITY + precision * inputs.T @ inputs
    return precision * torch.linalg.solve(curvature, inputs.T @ targets), curvature


def kl(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """KL of two Gaussians given by mean and precision, computed by torch.distributions."""
    gaussians = [torch.distributions.MultivariateNormal(m, precision_matrix=p) for m, p in (first, second)]
    return torch.distributions.kl_divergence(*gaussians)


def slope(value: Callable[[Tensor], Tensor]) -> Tensor:
    """∂/∂x̂ of a function of the coreset's images."""
    images = IMAGES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(images), images)
    return gradient


def draws(law: tuple[Tensor, Tensor]) -> Tensor:
    """6⁴ points [draw, weight]: in each coordinate of a standard Gaussian −√3, 0 four times, and √3."""
    axis = 3**0.5 * torch.tensor([-1.0, 0, 0, 0, 0, 1], dtype=torch.float64)
    return law[0] + torch.cartesian_prod(*[axis] * WIDTH) @ torch.linalg.cholesky(torch.linalg.inv(law[1])).T


def data_likelihood(weights: Tensor) -> Tensor:
    return -0.5 * DATA_PRECISION * (Y - weights @ X.T).square().mean(-1)


def likelihood(weights: Tensor, images: Tensor) -> Tensor:
    """The coreset's mean log-likelihood up to constants [draw]."""
    return -0.5 * CORESET_PRECISION * (LABELS - weights @ images.T).square().mean(-1)


DATA = posterior(X, Y, DATA_PRECISION)


@pytest.mark.parametrize("weight", [1.0, ROWS / CORESET_ROWS])
def test_the_covariance_surrogate_has_the_gradient_of_reverse_kl(weight: float) -> None:
    """With a coreset of its own weight, and of the weight of the data. A division by M, as published, is noticed."""
    precision = CORESET_PRECISION * weight  # a weight on a Gaussian likelihood is a factor of its precision
    expected = slope(lambda images: kl(posterior(images, LABELS, precision), DATA))
    weights = draws(posterior(IMAGES, LABELS, precision))
    count, data = len(weights), data_likelihood(weights)

    def of(ratio: float) -> Tensor:
        return slope(lambda images: surrogates.covariance(likelihood(weights, images), data, ratio))

    ratio, scale = weight * CORESET_ROWS / ROWS, weight * CORESET_ROWS * ROWS
    unbiased = scale * (count - 1) / count * of(ratio)  # the points are the whole law, not a sample of it
    assert relative(unbiased, expected) < 1e-9
    for wrong in ((count - 1) / count * unbiased, scale * of(5 * ratio), -unbiased):
        assert relative(wrong, expected) > 1e-4


def test_the_contrast_has_the_gradient_of_forward_kl() -> None:
    coreset = posterior(IMAGES, LABELS, CORESET_PRECISION)
    expected = slope(lambda images: kl(DATA, posterior(images, LABELS, CORESET_PRECISION)))
    positive, negative = draws(DATA), draws(coreset)

    def of(positive: Tensor, negative: Tensor) -> Tensor:
        contrast = surrogates.contrast
        return CORESET_ROWS * slope(lambda images: contrast(likelihood(positive, images), likelihood(negative, images)))

    assert relative(of(positive, negative), expected) < 1e-9
    alone = torch.stack([of(p[None], n[None]) for p, n in zip(positive[:3], negative[:3], strict=True)])
    assert relative(alone.mean(0), of(positive[:3], negative[:3])) < 1e-12
    assert float(of(positive, positive).abs().max()) == 0.0
    squared = coreset[0] + (negative - coreset[0]) @ torch.linalg.inv(coreset[1])  # σ² in place of σ
    for wrong in (of(negative, positive), of(positive, negative) / CORESET_ROWS, of(positive, squared)):
        assert relative(wrong, expected) > 1e-2


def squared_wasserstein(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """W₂² of two Gaussians by mean and covariance: ‖m − n‖² + tr(A + B − 2 (A^½ B A^½)^½)."""
    (m, a), (n, b) = first, second
    values, vectors = torch.linalg.eigh(a)
    root = vectors @ values.sqrt().diag() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ b @ root).sqrt().sum()
    return (m - n).square().sum() + a.trace() + b.trace() - 2 * cross


def test_the_unnormalised_distance_equals_squared_wasserstein_at_equal_covariances() -> None:
    start, coreset = normal(WIDTH, at="start"), posterior(IMAGES, LABELS, CORESET_PRECISION)
    whole = squared_wasserstein((coreset[0], 1e-4 * IDENTITY), (DATA[0], 1e-4 * IDENTITY))
    distance = surrogates.distance(coreset[0], DATA[0], start) * (start - DATA[0]).square().sum()
    assert relative(distance, whole) < 1e-12
    assert float(surrogates.distance(start, DATA[0], start)) == 1.0
    others = squared_wasserstein(*((mean, torch.linalg.inv(curvature)) for mean, curvature in (coreset, DATA)))
    assert relative(distance, others) > 0.01 and float(others) > float(distance)  # the control: unlike covariances


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_descent_on_a_quadratic_and_its_gradients_equal_the_closed_form(steps: int) -> None:
    """θ_L = θ* + (I − ηX̂ᵀX̂/n̂)^L (θ₀ − θ*), for any solution θ* of the normal equations."""
    lr, target = torch.tensor(0.2, dtype=torch.float64, requires_grad=True), normal(WIDTH, at="target")
    start, images = normal(1, WIDTH, at="start"), IMAGES.clone().requires_grad_()

    def loss(step: int, weights: Tensor, images: Tensor) -> Tensor:
        return -likelihood(weights, images) / CORESET_PRECISION

    def algebra(images: Tensor, lr: Tensor) -> Tensor:
        best = images.T @ torch.linalg.solve(images @ images.T, LABELS)  # n̂ < d, so that a θ* interpolates
        shrink = torch.linalg.matrix_power(IDENTITY - lr * images.T @ images / CORESET_ROWS, steps)
        return best + shrink @ (start[0] - best)

    end = inner.unrolled(loss, start, images, steps, lr)[0]
    torch.testing.assert_close(end, algebra(IMAGES, lr), rtol=1e-12, atol=1e-13)
    path = inner.descended(loss, start, IMAGES, steps, 0.2)
    assert torch.equal(path[-1][0], end)
    assert torch.equal(inner.langevin(loss, start, IMAGES, steps, 0.4, 0.0, rng=Seed(0)), path[-1])  # without noise
    if steps > 0:
        pairs = (torch.autograd.grad((e - target).square().sum(), (images, lr)) for e in (end, algebra(images, lr)))
        for a, b in zip(*pairs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
