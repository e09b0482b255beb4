"""The discriminative layer with one covariance of all weights, against dense matrices and Gauss–Hermite quadrature."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.last_layer import Discriminative
from bdl_pipe.last_layer.full import FullDiscriminative
from bdl_pipe.last_layer.layer import gaussian_kl
from bdl_pipe.last_layer.settings import GaussianLayer
from bdl_pipe.networks.covariance import Dense
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from tests.cases import CONFIGS, GAUSSIAN, fit
from tests.refusals import refusal

from .cases import draw, perturbed
from .test_bounds import expected

WIDTH, CLASSES, PRIOR = 4, 3, 1.7


def make() -> FullDiscriminative:
    """A layer whose classes depend on each other."""
    layer = perturbed(FullDiscriminative(WIDTH, CLASSES, prior_variance=PRIOR))
    assert layer.covariance.factor is not None
    with torch.no_grad():
        layer.covariance.factor.mul_(2)
        layer.noise_log_root.add_(1)
    return layer


def dense(layer: FullDiscriminative, features: Tensor) -> Tensor:
    """The covariance of the logits of each row by Kronecker products."""
    weights, identity = layer.covariance().matrix()[0], torch.eye(CLASSES).double()
    rows = [torch.kron(identity, row[None]) for row in features]
    return torch.stack([row @ weights @ row.T for row in rows]) + torch.diag(layer.noise_variance)


@torch.no_grad()
def test_moments_and_kl_equal_dense_algebra() -> None:
    """Wrong: without the covariances of classes."""
    layer, features = make(), draw(1, 5, WIDTH)
    mean, covariance = layer.logit_moments(features)
    reference = dense(layer, features)
    torch.testing.assert_close(mean, features @ layer.mean.T)
    torch.testing.assert_close(covariance, reference)
    assert (covariance[:, 0, 1] / covariance[:, 0, 0]).abs().max() > 0.1
    posterior = MultivariateNormal(layer.mean.flatten(), layer.covariance().matrix()[0])
    prior = MultivariateNormal(torch.zeros_like(posterior.mean), PRIOR * torch.eye(WIDTH * CLASSES).double())
    torch.testing.assert_close(layer.kl(), kl_divergence(posterior, prior))
    blocks = layer.covariance().matrix()[0] * torch.kron(torch.eye(CLASSES), torch.ones(WIDTH, WIDTH))
    alone = MultivariateNormal(layer.mean.flatten(), blocks)
    assert layer.kl() > kl_divergence(alone, prior) + 1e-3  # Fischer: Jensen's bound, equal for both, prefers blocks


@torch.no_grad()
def test_the_bound_is_below_the_expected_log_likelihood() -> None:
    """By quadrature over three dependent logits. Jensen's bound is below it, too, and more than twice as far."""
    layer, features, labels = make(), draw(1, 6, WIDTH), torch.tensor([0, 1, 2, 0, 1, 2])
    mean, covariance = layer.logit_moments(features)
    chosen = mean.gather(1, labels[:, None])[:, 0]
    truth = float((chosen - torch.tensor(expected(mean, covariance))).mean())
    of_jensen = float((chosen - torch.logsumexp(mean + covariance.diagonal(dim1=-2, dim2=-1) / 2, -1)).mean())
    gap = truth - float(layer.bound(features, labels))
    assert 0 < gap < 0.5 * (truth - of_jensen)
    total = -50 * layer.loss(features, labels, num_train=50)
    torch.testing.assert_close(total, 50 * layer.bound(features, labels) - layer.kl() + layer.log_noise_prior())


@torch.no_grad()
def test_independent_classes_have_the_loss_of_the_layer_of_one_covariance_each() -> None:
    features, labels = draw(1, 6, WIDTH), torch.tensor([0, 1, 2, 0, 1, 2])
    alone = perturbed(Discriminative(WIDTH, CLASSES, prior_variance=PRIOR, bound="tilted"))
    layer = make()
    root = torch.linalg.cholesky(torch.block_diag(*alone.covariance().matrix()))
    assert layer.covariance.factor is not None
    layer.covariance.factor.copy_(root.tril(-1).mT)
    layer.covariance.log_scale.copy_(root.diagonal().log())
    layer.mean.copy_(alone.mean)
    layer.noise_log_root.copy_(alone.noise_log_root)
    torch.testing.assert_close(
        layer.loss(features, labels, num_train=50), alone.loss(features, labels, num_train=50), rtol=1e-4, atol=1e-4
    )
    form = layer.covariance()
    assert isinstance(form, Dense)
    torch.testing.assert_close(gaussian_kl(layer.mean, form, PRIOR, copies=1), alone.kl())


@torch.no_grad()
def test_predictions_and_joints_average_the_dependent_logits() -> None:
    """20,000 draws; 12 probabilities are within five standard errors (false alarm 7e-6). Wrong: no dependence."""
    layer, features = make(), draw(1, 4, WIDTH)
    mean, covariance = layer.logit_moments(features)
    draws = 20_000
    layer.draws = draws  # type: ignore[misc]
    normal = MultivariateNormal(mean, covariance)
    torch.manual_seed(3)
    reference = normal.sample((draws,)).softmax(-1)
    log_probs = {"predict": layer.predict(features, rng=Seed(1)).draw_log_probs}
    log_probs["joint"] = layer.drawn_log_probs(features[None], draws, Seed(2), None)[:, 0]
    for ours in log_probs.values():
        error = (ours.exp().var(0) / draws + reference.var(0) / draws).sqrt()
        assert ((ours.exp().mean(0) - reference.mean(0)).abs() < 5 * error).all()
    diagonal = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
    wrong = MultivariateNormal(mean, diagonal).sample((draws,)).softmax(-1)
    error = (wrong.var(0) / draws + reference.var(0) / draws).sqrt()
    assert ((wrong.mean(0) - reference.mean(0)).abs() > 5 * error).any()
    # two observations of one row share W: their logs are dependent, and each has its own noise
    places = torch.tensor([[0, 0, 1, 2, 3]])
    pair = layer.drawn_log_probs(features[None], 2000, Seed(2), places)[:, 0]
    assert pair.shape == (2000, 5, CLASSES) and not torch.equal(pair[:, 0], pair[:, 1])
    correlation = torch.corrcoef(torch.stack([pair[:, 0, 0], pair[:, 1, 0]]))[0, 1]
    assert correlation > 10 / math.sqrt(2000)


FULL = GAUSSIAN | {"covariance": "full", "bound": "tilted", "predictive": "sampled", "draws": 5}


def test_settings_that_the_covariance_full_lacks_are_refused() -> None:
    for changes, rule in (
        ({"bound": "jensen"}, "bound must be tilted for the covariance full, got 'jensen'"),
        ({"predictive": "quadrature"}, "predictive must be sampled for the covariance full, got 'quadrature'"),
        ({"rank": 2}, "rank must be null for full, got 2"),
    ):
        assert refusal(read, GaussianLayer, FULL | changes, "layer") == f"ConfigError: layer.{rule}"
    rule = (
        "ConfigError: covariance must be dense, diagonal or lowrank for more than 2,048 weights, here 6,400, got 'full'"
    )
    assert refusal(FullDiscriminative, 640, 10) == rule
    message = refusal(FullDiscriminative(4, 3).functions, torch.zeros(1, 2, 4))
    assert message.startswith("UserError: the functions of a last layer with the covariance full depend")
    read(METHODS["d_vbll"].config, CONFIGS["d_vbll", "classification"] | {"layer": FULL}, "d_vbll")


def test_a_regression_refuses_the_covariance_full(tiny_table: FitData) -> None:
    with pytest.raises(Exception, match="must be jensen"):
        fit("vbll", "student", tiny_table, {}, rng=Seed(5), layer=FULL)
