"""Bayesian linear regression against dense Gaussians of scipy and finite differences."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from bdl_pipe.errors import DataError
from bdl_pipe.linear_regression import (
    RecursiveLayer,
    best_variances,
    log_marginal_likelihood,
    posterior,
    scaled,
    with_bias,
)

PRIOR, NOISE = 0.7, 0.3


def rows(n: int = 30, h: int = 5, o: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    pair = [torch.randn(n, width, dtype=torch.float64, generator=random) for width in (h, o)]
    return pair[0], pair[1]


def dense_evidence(features: Tensor, targets: Tensor, prior: float, noise: float) -> float:
    """Σ_k log N(y_k | 0, sΦΦᵀ + σ²I), through the n×n covariance."""
    phi, y = features.numpy(), targets.numpy()
    law = scipy.stats.multivariate_normal(np.zeros(len(phi)), prior * phi @ phi.T + noise * np.eye(len(phi)))
    return float(sum(law.logpdf(column) for column in y.T))


@pytest.mark.parametrize(("n", "h"), [(30, 5), (4, 9), (6, 6)])
def test_the_evidence_equals_the_dense_gaussian_log_density(n: int, h: int) -> None:
    features, targets = rows(n, h)
    log_likelihood = float(log_marginal_likelihood(features, targets, PRIOR, NOISE))
    assert log_likelihood == pytest.approx(dense_evidence(features, targets, PRIOR, NOISE), abs=1e-9)
    assert abs(log_likelihood - dense_evidence(features, targets, PRIOR, 1.1 * NOISE)) > 1e-2  # negative control


@pytest.mark.parametrize(("n", "h"), [(30, 5), (4, 9)])
def test_predictions_equal_a_gaussian_process_with_a_linear_kernel(n: int, h: int) -> None:
    features, targets = rows(n, h)
    new, _ = rows(7, h, seed=1)
    phi, y, star = features.numpy(), targets.numpy(), new.numpy()
    solved = np.linalg.solve(PRIOR * phi @ phi.T + NOISE * np.eye(n), np.c_[y, PRIOR * phi @ star.T])
    mean = PRIOR * star @ phi.T @ solved[:, :2]
    variance = np.diag(PRIOR * star @ star.T - PRIOR * star @ phi.T @ solved[:, 2:]) + NOISE
    predictive = posterior(features, targets, PRIOR, NOISE).predict(new)
    np.testing.assert_allclose(predictive.mean.numpy(), mean, atol=1e-10)
    np.testing.assert_allclose(predictive.variance.numpy(), np.c_[variance, variance], atol=1e-10)


def test_the_bias_is_a_feature_of_ones_that_absorbs_a_shift_of_the_targets() -> None:
    features, targets = rows()
    biased = with_bias(features)
    torch.testing.assert_close(biased, torch.cat([features, torch.ones(30, 1, dtype=features.dtype)], 1))
    far = posterior(biased, targets + 50, 1e6, NOISE).mean[-1] - posterior(biased, targets, 1e6, NOISE).mean[-1]
    torch.testing.assert_close(far, torch.full_like(far, 50), atol=1e-4, rtol=0)


def test_rows_with_a_noise_of_their_own_are_weighted_rows() -> None:
    """Evidence, posterior, predictive and updates row by row, against the dense Gaussian of rows with those noises."""
    (features, targets), (new, _) = rows(12, 4, 1), rows(5, 4, 1, seed=1)
    log_noise, at = rows(12, 1, 1, seed=2)[0], rows(5, 1, 1, seed=3)[0]
    phi, star = features.numpy(), new.numpy()
    noises = NOISE * np.exp(log_noise.numpy()[:, 0])
    covariance = PRIOR * phi @ phi.T + np.diag(noises)
    evidence = scipy.stats.multivariate_normal(np.zeros(12), covariance).logpdf(targets.numpy()[:, 0])
    whole = scaled(features, targets, log_noise)
    log_likelihood = log_marginal_likelihood(*whole, PRIOR, NOISE) - log_noise.sum() / 2
    assert float(log_likelihood) == pytest.approx(evidence, abs=1e-10)
    gain = PRIOR * star @ phi.T @ np.linalg.inv(covariance)
    spread = PRIOR * star @ star.T - gain @ (PRIOR * phi @ star.T)
    layer = RecursiveLayer(torch.eye(4).double() / PRIOR, torch.zeros(4).double(), torch.tensor(NOISE).double())
    for row in np.random.default_rng(0).permutation(12):
        layer.learn(features[[row]], targets[[row]], log_noise[[row]])
    for q in (posterior(*whole, PRIOR, NOISE), layer.posterior()):
        predictive, functions = q.predict(new, at), q.functions(new[None], at[None])
        np.testing.assert_allclose(predictive.mean, gain @ targets.numpy(), atol=1e-10)
        np.testing.assert_allclose(functions.covariance[0, 0, 0], spread, atol=1e-10)
        np.testing.assert_allclose(functions.noise[0, 0], NOISE * at.exp(), atol=1e-12)
        total = spread.diagonal() + NOISE * at.exp().numpy()[:, 0]
        np.testing.assert_allclose(predictive.variance[:, 0], total, atol=1e-10)


def test_gradients_equal_finite_differences() -> None:
    features, targets = rows(8, 4)
    prior, noise = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (PRIOR, NOISE))
    leaves = (features.requires_grad_(), targets.requires_grad_(), prior, noise)
    assert torch.autograd.gradcheck(log_marginal_likelihood, leaves)
    assert torch.autograd.gradcheck(lambda *a: posterior(*a).predict(features[:3]).draw_variance, leaves)


def test_the_fitted_hyperparameters_maximise_the_evidence() -> None:
    features, _ = rows(60, 5)
    targets = features @ rows(5, 1, 2, seed=3)[1] + 0.5 * rows(60, 1, 2, seed=4)[1]
    logs = torch.tensor(best_variances(features, targets), dtype=torch.float64).log()

    def evidence(at: Tensor) -> Tensor:
        return log_marginal_likelihood(features, targets, at[0].exp(), at[1].exp())

    gradient = torch.autograd.functional.jacobian(evidence, logs)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-8, rtol=0)
    assert torch.linalg.eigvalsh(torch.autograd.functional.hessian(evidence, logs)).max() < 0
    grid = torch.linspace(-8, 8, 33, dtype=torch.float64)
    assert evidence(logs) >= max(evidence(torch.stack([a, b])) for a in grid for b in grid)
    off = torch.autograd.functional.jacobian(evidence, logs + 0.05)  # negative control
    assert off.abs().max() > 1e-2


def test_pure_noise_gives_a_prior_variance_near_zero_and_targets_of_nan_or_zero_are_refused() -> None:
    features, targets = rows(50, 3, 1, seed=0)
    outside = targets - features @ torch.linalg.lstsq(features, targets).solution
    prior, noise = best_variances(features, outside)
    assert prior < 1e-6
    assert noise == pytest.approx(float(outside.square().mean()), rel=1e-4)
    for factor, message in ((math.nan, "must be finite"), (0, "must not be all zero")):
        with pytest.raises(DataError, match=message):
            best_variances(features, targets * factor)
