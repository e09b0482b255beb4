"""The regression layer against vectorised algebra and the published package."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from bdl_pipe.errors import ConfigError
from bdl_pipe.last_layer import Regression
from bdl_pipe.seeds import Seed

from .cases import FORMS, draw, perturbed

WIDTH, ROWS, PRIOR = 4, 9, 1.7


@pytest.mark.parametrize(("form", "rank"), FORMS)
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_bound_equals_the_vectorised_model(form: str, rank: int | None, outputs: int) -> None:
    """E_q[log N(y | Wφ, Σ)] with vec(W) ~ N(vec W̄, I ⊗ S) and y − Wφ = y − (I ⊗ φᵀ) vec(W), written out."""
    layer = perturbed(Regression(WIDTH, outputs, covariance=form, rank=rank))
    features, targets = draw(1, ROWS, WIDTH), draw(2, ROWS, outputs)
    weights = torch.kron(torch.eye(outputs).double(), layer.covariance().matrix()[0])
    precision = torch.linalg.inv(layer.noise_covariance)
    total = 0.0
    for row, target in zip(features, targets, strict=True):
        design = torch.kron(torch.eye(outputs).double(), row[None])
        likelihood = MultivariateNormal(design @ layer.mean.flatten(), layer.noise_covariance)
        total += likelihood.log_prob(target) - 0.5 * torch.trace(precision @ design @ weights @ design.T)
    torch.testing.assert_close(layer.bound(features, targets), total / ROWS, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_the_predictive_equals_the_vectorised_model(form: str, rank: int | None) -> None:
    layer = perturbed(Regression(WIDTH, 3, covariance=form, rank=rank))
    features = draw(1, ROWS, WIDTH)
    predictive = layer.predict(features)
    weights = torch.kron(torch.eye(3).double(), layer.covariance().matrix()[0])
    for index, row in enumerate(features):
        design = torch.kron(torch.eye(3).double(), row[None])
        covariance = design @ weights @ design.T + layer.noise_covariance
        torch.testing.assert_close(predictive.variance[index], covariance.diagonal(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(predictive.mean[index], layer.mean @ row, rtol=1e-10, atol=1e-12)


def test_the_noise_prior_equals_equation_65_and_has_its_mode_at_the_start() -> None:
    """log p(Σ) + const of eq. 65 from dense Σ; its gradient in Σ's parameters is 0 at m/(ν + N + 1)·I."""
    layer = perturbed(Regression(WIDTH, 3, wishart_dof=4.0, wishart_scale=0.6))
    root = layer.noise_factor.tril(-1) + torch.diag(layer.noise_log_root.exp())
    torch.testing.assert_close(layer.noise_covariance @ root @ root.T, torch.eye(3).double(), rtol=0, atol=1e-12)
    precision = torch.linalg.inv(layer.noise_covariance)
    oracle = (4 + 3 + 1) / 2 * torch.logdet(precision) - 0.6 / 2 * precision.trace()
    torch.testing.assert_close(layer.log_noise_prior(), oracle, rtol=1e-10, atol=1e-10)
    start = Regression(WIDTH, 3, wishart_dof=4.0, wishart_scale=0.6).double()
    start.log_noise_prior().backward()
    for parameter in (start.noise_log_root, start.noise_factor):
        torch.testing.assert_close(parameter.grad, torch.zeros_like(parameter), rtol=0, atol=1e-6)
    with pytest.raises(ConfigError, match="kl_weight must be >= 0"):
        start.loss(draw(1, 2, WIDTH), draw(2, 2, 3), num_train=1, kl_weight=-1.0)


def test_initial_weights_follow_the_seed_and_have_the_stated_variance() -> None:
    """Mean square of 20,000 weights N(0, 1/50) against 1/50: 4 deviations, false alarm 6e-5."""
    first, again, other = (Regression(50, 400, rng=Seed(seed)).mean for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    bound = 4 * math.sqrt(2 / first.numel())
    mean_square = first.square().mean().item()
    assert abs(50 * mean_square - 1) < bound
    assert abs(25 * mean_square - 1) > bound  # the wrong variant: a variance of 2/50, as He's, would be seen


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_the_loss_and_the_predictive_equal_the_published_package(form: str, rank: int | None) -> None:
    """One output; the package scales the prior's variance by 1/in_features and drops the constant −h/2 of the KL."""
    vbll = pytest.importorskip("vbll", reason="compares with the published package, vbll 0.4.9")
    torch.manual_seed(0)
    theirs = vbll.Regression(
        WIDTH, 1, 1 / 50, parameterization=form, prior_scale=PRIOR, wishart_scale=0.2, dof=3.0, cov_rank=rank
    ).double()
    ours = Regression(
        WIDTH, 1, covariance=form, rank=rank, prior_variance=PRIOR / WIDTH, wishart_dof=3.0, wishart_scale=0.2
    ).double()
    with torch.no_grad():
        ours.mean.copy_(theirs.W_mean)
        ours.noise_log_root.copy_(-theirs.noise_logdiag)
        ours.covariance.log_scale.copy_(theirs.W_logdiag / (2 if form == "lowrank" else 1))
        if form != "diagonal":
            ours.covariance.factor.copy_(theirs.W_offdiag.mT if form == "dense" else theirs.W_offdiag)
    features, targets = draw(1, ROWS, WIDTH), draw(2, ROWS, 1)
    expected = theirs(features).train_loss_fn(targets) - 0.5 * WIDTH / 50
    torch.testing.assert_close(ours.loss(features, targets, num_train=50), expected[()].squeeze(), rtol=1e-9, atol=0)
    predictive = theirs(features).predictive
    torch.testing.assert_close(ours.predict(features).mean, predictive.mean)
    torch.testing.assert_close(ours.predict(features).variance, predictive.variance)
