"""Bayesian linear regression against dense Gaussians of scipy and finite differences."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.func import vmap

from bdl_pipe.baselines.evidence import fit_hyperparameters
from bdl_pipe.baselines.linear import (
    JacobianMoments,
    derivative_kl,
    gbll_loss,
    jacobian_moments,
    log_marginal_likelihood,
    posterior,
    predict,
    with_bias,
)
from bdl_pipe.errors import ConfigError, DataError

PRIOR, NOISE = 0.7, 0.3


def rows(n: int = 30, h: int = 5, o: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    made = [torch.randn(n, width, dtype=torch.float64, generator=random) for width in (h, o)]
    return made[0], made[1]


def dense_evidence(features: Tensor, targets: Tensor, prior: float, noise: float) -> float:
    """Σ_k log N(y_k | 0, sΦΦᵀ + σ²I), through the n×n covariance."""
    phi, y = features.numpy(), targets.numpy()
    law = scipy.stats.multivariate_normal(np.zeros(len(phi)), prior * phi @ phi.T + noise * np.eye(len(phi)))
    return float(sum(law.logpdf(column) for column in y.T))


class Trunk:
    """A smooth φ: [3] -> [6] with fixed weights, and a bias feature."""

    def __init__(self, inputs: int = 3, hidden: int = 5) -> None:
        self.first, _ = rows(hidden, inputs, seed=7)
        self.shift = torch.linspace(-1, 1, hidden, dtype=torch.float64)

    def __call__(self, x: Tensor) -> Tensor:
        return with_bias(torch.tanh(self.first @ x + self.shift))


@pytest.mark.parametrize(("n", "h"), [(30, 5), (4, 9), (6, 6)])
def test_the_evidence_equals_the_dense_gaussian_log_density(n: int, h: int) -> None:
    features, targets = rows(n, h)
    found = float(log_marginal_likelihood(features, targets, PRIOR, NOISE))
    assert found == pytest.approx(dense_evidence(features, targets, PRIOR, NOISE), abs=1e-9)
    assert abs(found - dense_evidence(features, targets, PRIOR, 1.1 * NOISE)) > 1e-2  # negative control
    assert float(gbll_loss(features, targets, PRIOR, NOISE)) == pytest.approx(-found / n, abs=1e-12)


@pytest.mark.parametrize(("n", "h"), [(30, 5), (4, 9)])
def test_predictions_equal_a_gaussian_process_with_a_linear_kernel(n: int, h: int) -> None:
    features, targets = rows(n, h)
    new, _ = rows(7, h, seed=1)
    phi, y, star = features.numpy(), targets.numpy(), new.numpy()
    solved = np.linalg.solve(PRIOR * phi @ phi.T + NOISE * np.eye(n), np.c_[y, PRIOR * phi @ star.T])
    mean = PRIOR * star @ phi.T @ solved[:, :2]
    variance = np.diag(PRIOR * star @ star.T - PRIOR * star @ phi.T @ solved[:, 2:]) + NOISE
    predictive = predict(posterior(features, targets, PRIOR, NOISE), new)
    np.testing.assert_allclose(predictive.mean.numpy(), mean, atol=1e-10)
    np.testing.assert_allclose(predictive.variance.numpy(), np.c_[variance, variance], atol=1e-10)


def test_the_bias_is_a_feature_of_ones_that_absorbs_a_shift_of_the_targets() -> None:
    features, targets = rows()
    biased = with_bias(features)
    torch.testing.assert_close(biased, torch.cat([features, torch.ones(30, 1, dtype=features.dtype)], 1))
    far = posterior(biased, targets + 50, 1e6, NOISE).mean[-1] - posterior(biased, targets, 1e6, NOISE).mean[-1]
    torch.testing.assert_close(far, torch.full_like(far, 50), atol=1e-4, rtol=0)


def test_members_agree_by_broadcasting_by_vmap_and_one_by_one() -> None:
    features = torch.stack([rows(seed=s)[0] for s in range(3)])
    targets, noise = rows()[1], torch.tensor([0.1, 0.3, 2.0], dtype=torch.float64)
    each = torch.stack([log_marginal_likelihood(f, targets, PRIOR, s) for f, s in zip(features, noise, strict=True)])
    torch.testing.assert_close(log_marginal_likelihood(features, targets, PRIOR, noise), each)
    mapped = vmap(lambda f, s: log_marginal_likelihood(f, targets, PRIOR, s))(features, noise)
    torch.testing.assert_close(mapped, each)
    mixture = predict(posterior(features, targets, PRIOR, noise), features[:, :4])
    for m in range(3):
        alone = predict(posterior(features[m], targets, PRIOR, noise[m]), features[m, :4])
        torch.testing.assert_close(mixture.draw_mean[m], alone.draw_mean[0])
        torch.testing.assert_close(mixture.draw_variance[m], alone.draw_variance[0])


def test_gradients_equal_finite_differences() -> None:
    features, targets = rows(8, 4)
    prior, noise, slope = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (PRIOR, NOISE, 0.9))
    leaves = (features.requires_grad_(), targets.requires_grad_(), prior, noise)
    assert torch.autograd.gradcheck(log_marginal_likelihood, leaves)
    assert torch.autograd.gradcheck(lambda *a: predict(posterior(*a), features[:3]).draw_variance, leaves)

    trunk, (inputs, _) = Trunk(), rows(8, 3, seed=2)
    first = trunk.first.clone().requires_grad_()

    def loss(weights: Tensor, *variances: Tensor) -> Tensor:
        trunk.first = weights
        prior, noise, slope = variances
        features = vmap(trunk)(inputs)
        jacobian = jacobian_moments(posterior(features, targets, prior, noise), trunk, inputs)
        return gbll_loss(features, targets, prior, noise) + derivative_kl(jacobian, slope).mean()

    assert torch.autograd.gradcheck(loss, (first, prior, noise, slope))


def test_the_fitted_hyperparameters_maximise_the_evidence() -> None:
    features, _ = rows(60, 5)
    targets = features @ rows(5, 1, 2, seed=3)[1] + 0.5 * rows(60, 1, 2, seed=4)[1]
    found = fit_hyperparameters(features, targets)
    logs = torch.tensor([found.prior_variance, found.noise_variance], dtype=torch.float64).log()

    def evidence(at: Tensor) -> Tensor:
        return log_marginal_likelihood(features, targets, at[0].exp(), at[1].exp())

    gradient = torch.autograd.functional.jacobian(evidence, logs)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-8, rtol=0)
    assert torch.linalg.eigvalsh(torch.autograd.functional.hessian(evidence, logs)).max() < 0
    grid = torch.linspace(-8, 8, 33, dtype=torch.float64)
    assert evidence(logs) >= max(evidence(torch.stack([a, b])) for a in grid for b in grid)
    off = torch.autograd.functional.jacobian(evidence, logs + 0.05)  # negative control
    assert off.abs().max() > 1e-2


def test_pure_noise_gives_a_prior_variance_near_zero() -> None:
    features, targets = rows(50, 3, 1, seed=0)
    outside = targets - features @ torch.linalg.lstsq(features, targets).solution
    found = fit_hyperparameters(features, outside)
    assert found.prior_variance < 1e-6
    assert found.noise_variance == pytest.approx(float(outside.square().mean()), rel=1e-4)


def jacobians(inputs: int = 3) -> tuple[Trunk, Tensor, Tensor, JacobianMoments]:
    trunk, (x, targets) = Trunk(inputs), rows(20, inputs, seed=8)
    features = vmap(trunk)(x)
    q = posterior(features, targets, PRIOR, NOISE)
    return trunk, x, targets, jacobian_moments(q, trunk, x[:4])


def test_the_mean_jacobian_equals_finite_differences_of_the_mean_prediction() -> None:
    trunk, x, targets, found = jacobians()
    q, step = posterior(vmap(trunk)(x), targets, PRIOR, NOISE), 1e-5
    for j in range(3):
        shift = step * torch.eye(3, dtype=x.dtype)[j]
        up, down = (predict(q, vmap(trunk)(x[:4] + sign * shift)).mean for sign in (1, -1))
        torch.testing.assert_close(found.mean[:, j], (up - down) / (2 * step), atol=1e-8, rtol=1e-7)


def test_the_jacobian_covariance_follows_from_the_covariance_of_the_weights() -> None:
    """Slopes are a linear map of the weights, found by reverse mode. Control: 1.1 times the root does not match."""
    trunk, x, targets, found = jacobians()
    q = posterior(vmap(trunk)(x), targets, PRIOR, NOISE)
    slopes = torch.autograd.functional.jacobian(lambda z: vmap(trunk)(z).sum(0), x[:4])  # [h, b, d]
    covariance = torch.linalg.inv(q.factor @ q.factor.mT)
    expected = torch.einsum("hbd,hg,gbe->bde", slopes, covariance, slopes)
    torch.testing.assert_close(found.root @ found.root.mT, expected)
    assert not torch.allclose(1.21 * found.root @ found.root.mT, expected)


def test_the_derivative_kl_equals_the_kl_of_torch() -> None:
    *_, found = jacobians()
    scale = found.variance.sqrt()[..., None].expand_as(found.mean)
    prior = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), math.sqrt(0.8))
    expected = torch.distributions.kl_divergence(torch.distributions.Normal(found.mean, scale), prior).sum((1, 2))
    torch.testing.assert_close(derivative_kl(found, 0.8), expected)
    exact = JacobianMoments(torch.zeros(2, 3, 1), torch.full((2, 3, 4), 0.5))  # variances 1
    torch.testing.assert_close(derivative_kl(exact, 1.0), torch.zeros(2))


def test_the_derivative_kl_is_finite_with_more_inputs_than_features() -> None:
    *_, found = jacobians(inputs=9)
    assert torch.linalg.matrix_rank(found.root[0] @ found.root[0].mT) < 9
    assert derivative_kl(found, 1.0).isfinite().all()


def test_zero_noise_and_targets_of_nan_or_zero_are_refused() -> None:
    features, targets = rows()
    with pytest.raises(ConfigError, match=r"^noise_variance must be > 0, got 0.0"):
        posterior(features, targets, 1.0, 0.0)
    with pytest.raises(DataError, match="must be finite"):
        fit_hyperparameters(features, targets * math.nan)
    with pytest.raises(DataError, match="must not be all zero"):
        fit_hyperparameters(features, torch.zeros_like(targets))
