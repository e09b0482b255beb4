"""The divergences of Bayesian linear regression, in closed form, and the production estimators against them.

The prior is N(0, I/ρ), the targets of data and coreset are Gaussian around Xθ: both posteriors are Gaussian, and so is
every state of a Langevin chain. Sampled tests ask for Z = 4 standard errors in each of the 12 entries of a gradient:
the false-alarm rate of one comparison is at most 12 · 6.3e-5 = 7.6e-4 (two-sided Gaussian tails, Bonferroni). All
seeds are fixed. A wrong variant must be at least 2 Z away.
"""

import pytest
import torch
from torch import Tensor

from bdl_pipe.coresets.bpc import inner, surrogates
from bdl_pipe.coresets.bpc.descent import noisy
from bdl_pipe.seeds import Seed

from .cases import normal, relative
from .test_bpc_surrogates import (
    CORESET_PRECISION,
    CORESET_ROWS,
    DATA_PRECISION,
    FORWARD,
    IMAGES,
    LABELS,
    PRIOR,
    ROWS,
    WIDTH,
    X,
    Y,
    data_likelihood,
    deviation,
    each,
    likelihoods,
    mean_slope,
    posterior,
)

Z, REPEATS, DRAWS = 4.0, 20_000, 4
IDENTITY = torch.eye(WIDTH, dtype=torch.float64)
DATA_MEAN, DATA_CURVATURE = posterior(X, Y, DATA_PRECISION)
CORESET_MEAN, CORESET_CURVATURE = posterior(IMAGES, LABELS, CORESET_PRECISION)
DATA_COVARIANCE, CORESET_COVARIANCE = torch.linalg.inv(DATA_CURVATURE), torch.linalg.inv(CORESET_CURVATURE)


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


def test_distance_is_the_wasserstein_distance_where_covariances_are_equal() -> None:
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
    """The production contrast's gradient of each repeat, as that of the divergence: times n̂."""
    of_each = torch.func.vmap(surrogates.contrast)
    return CORESET_ROWS * each(
        lambda images: of_each(likelihoods(positive, images), likelihoods(negative, images)), len(positive)
    )


def covariances(weights: Tensor, ratio: float = CORESET_ROWS / ROWS) -> Tensor:
    """The production covariance's gradient of each repeat, as that of the divergence at w = 1: times n̂N."""
    of_each, data = torch.func.vmap(surrogates.covariance, in_dims=(0, 0, None)), data_likelihood(weights)
    return CORESET_ROWS * ROWS * each(lambda images: of_each(likelihoods(weights, images), data, ratio), len(weights))


def moved(start: Tensor, steps: int, alpha: float, *, scale: float = 1.0, noise: float = 1.0) -> Tensor:
    """The production chain on the coreset's energy, Σ over rows and the prior; ``scale`` is a fault of the energy."""

    def energy(step: int, weights: Tensor, images: Tensor) -> Tensor:
        mean = 0.5 * CORESET_PRECISION * (LABELS - weights @ images.T).square().mean(-1)
        return scale * len(images) * mean + 0.5 * PRIOR * weights.square().sum(-1)

    flat = inner.langevin(energy, start.flatten(0, 1), IMAGES, steps, alpha, noise, rng=Seed(4))
    return flat.unflatten(0, start.shape[:2])


@pytest.mark.parametrize(("shared", "draws"), [(False, DRAWS), (True, DRAWS), (False, 1)])
def test_contrast_of_exact_draws_has_the_mean_of_forward_kls_gradient(shared: bool, draws: int) -> None:
    """With shared noise and each with its own; of one draw, too."""
    data = drawn(DATA_MEAN, DATA_COVARIANCE, "d", draws)
    coreset = drawn(CORESET_MEAN, CORESET_COVARIANCE, "d" if shared else "s", draws)
    found = contrasts(data, coreset)
    assert deviation(found, FORWARD) < Z
    squared = CORESET_MEAN + normal(REPEATS, draws, WIDTH, at="s") @ CORESET_COVARIANCE  # σ² in place of σ
    for wrong in (contrasts(coreset, data), found / CORESET_ROWS, contrasts(data, squared)):
        assert deviation(wrong, FORWARD) > 2 * Z


def stand_in(gap: Tensor, curvature_gap: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """−Cov(h̃, f − f̃) under N(mean, covariance), f − f̃ having the slope ``gap`` and the Hessian −``curvature_gap``."""
    residual, moved_by = LABELS - IMAGES @ mean, covariance @ gap
    outer = torch.outer(residual, moved_by) - torch.outer(IMAGES @ moved_by, mean)
    return -CORESET_PRECISION * (outer + IMAGES @ covariance @ curvature_gap @ covariance)


def test_covariance_under_the_isotropic_stand_in_has_sd_for_a_standard_deviation() -> None:
    """π_S ≈ N(θ_S, σ²I), as the production draws it; the law of a quadratic's covariance is exact for any Gaussian."""
    mean, sd = CORESET_MEAN + 0.2, 0.3
    gap = DATA_CURVATURE @ (DATA_MEAN - mean) - CORESET_CURVATURE @ (CORESET_MEAN - mean)
    expected = stand_in(gap, DATA_CURVATURE - CORESET_CURVATURE, mean, sd**2 * IDENTITY)

    def draws(sd: float) -> Tensor:
        return noisy(mean, REPEATS * DRAWS, sd, Seed(6)).unflatten(0, (REPEATS, DRAWS))

    assert deviation(covariances(draws(sd)), expected) < Z
    for wrong in (sd**2, sd**0.5):
        assert deviation(covariances(draws(wrong)), expected) > 2 * Z


@pytest.mark.parametrize("steps", [1, 5])
def test_contrast_of_production_chains_has_the_mean_of_contrastive_divergence(steps: int) -> None:
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
        contrasts(positive, moved(positive, steps, alpha, scale=1 / CORESET_ROWS)),  # the energy a mean over rows
        contrasts(positive, moved(positive, steps, alpha, noise=0.0)),  # as in the published script
        contrasts(positive, moved(positive, steps, alpha / 2)),
        contrasts(squared, moved(squared, steps, alpha)),
        contrasts(positive, coreset),  # forward KL's own
    ):
        assert deviation(wrong, expected) > 2 * Z
    assert float(contrasts(positive, moved(positive, 0, alpha)).abs().max()) == 0.0  # no step, no gradient


def test_shared_noise_lowers_the_variance() -> None:
    data, shared, own = (
        drawn(DATA_MEAN, DATA_COVARIANCE, "d"),
        drawn(CORESET_MEAN, CORESET_COVARIANCE, "d"),
        drawn(CORESET_MEAN, CORESET_COVARIANCE, "s"),
    )
    variances = [float(contrasts(data, coreset).var(0).sum()) for coreset in (shared, own)]
    assert variances[0] < 0.9 * variances[1]
