"""The discriminative layer against its formulas, dense algebra and the published package."""

import pytest
import torch
import torch.nn.functional as F

from bdl_pipe.last_layer import Discriminative
from bdl_pipe.last_layer import discriminative as softmax
from bdl_pipe.seeds import Seed

from .cases import FORMS, draw, perturbed

WIDTH, ROWS, CLASSES, PRIOR = 5, 8, 3, 1.7
LABELS = torch.arange(ROWS) % CLASSES


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_the_logit_moments_equal_dense_algebra(form: str, rank: int | None) -> None:
    layer, features = perturbed(Discriminative(WIDTH, CLASSES, covariance=form, rank=rank)), draw(1, ROWS, WIDTH)
    mean, variance = layer.logit_moments(features)
    torch.testing.assert_close(mean, torch.einsum("kh,bh->bk", layer.mean, features))
    dense = torch.einsum("bi,kij,bj->bk", features, layer.covariance().matrix(), features)
    torch.testing.assert_close(variance, dense + (-2 * layer.noise_log_root).exp(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_the_bound_equals_its_formula(form: str, rank: int | None) -> None:
    """Half of each logit's variance goes into the normaliser alone; without it the bound differs."""
    layer, features = perturbed(Discriminative(WIDTH, CLASSES, covariance=form, rank=rank)), draw(1, ROWS, WIDTH)
    mean, variance = layer.logit_moments(features)
    normaliser = torch.logsumexp(mean + 0.5 * variance, 1)
    expected = (mean[torch.arange(ROWS), LABELS] - normaliser).mean()
    torch.testing.assert_close(layer.bound(features, LABELS), expected, rtol=1e-10, atol=1e-12)
    assert not torch.isclose(expected, -F.cross_entropy(mean, LABELS), rtol=1e-2)


def test_the_noise_prior_is_a_product_of_inverse_gammas() -> None:
    """Eq. 65 with N = 1 is log InverseGamma(ν/2, m/2) of each σ², up to a constant."""
    layer = perturbed(Discriminative(WIDTH, CLASSES, wishart_dof=4.0, wishart_scale=0.6))
    other = perturbed(Discriminative(WIDTH, CLASSES, wishart_dof=4.0, wishart_scale=0.6), seed=6)
    density = torch.distributions.InverseGamma(*torch.tensor([2.0, 0.3], dtype=torch.float64))
    expected = (density.log_prob(layer.noise_variance) - density.log_prob(other.noise_variance)).sum()
    torch.testing.assert_close(layer.log_noise_prior() - other.log_noise_prior(), expected, rtol=1e-9, atol=1e-12)
    start = Discriminative(WIDTH, CLASSES, wishart_dof=4.0, wishart_scale=0.6)
    torch.testing.assert_close(start.noise_variance, torch.full((CLASSES,), 0.1))  # the mode, m/(ν + 2)


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_the_bound_and_the_loss_equal_the_published_package(form: str, rank: int | None) -> None:
    """The package scales the prior's variance by 2/in_features, takes N = classes in eq. 65, drops −h/2 a class."""
    vbll = pytest.importorskip("vbll", reason="compares with the published package, vbll 0.4.9")
    torch.manual_seed(0)
    theirs = vbll.DiscClassification(
        WIDTH, CLASSES, 1 / 50, parameterization=form, prior_scale=PRIOR, wishart_scale=0.2, dof=3.0, cov_rank=rank
    ).double()
    ours = Discriminative(
        WIDTH,
        CLASSES,
        covariance=form,
        rank=rank,
        prior_variance=2 * PRIOR / WIDTH,
        wishart_dof=3.0 + CLASSES - 1,
        wishart_scale=0.2,
    ).double()
    with torch.no_grad():
        if form != "diagonal":
            theirs.W_offdiag.add_(0.3 * draw(7, *theirs.W_offdiag.shape))  # it starts near zero
            ours.covariance.factor.copy_(theirs.W_offdiag.mT if form == "dense" else theirs.W_offdiag)
        ours.mean.copy_(theirs.W_mean)
        ours.noise_log_root.copy_(-theirs.noise_logdiag)
        ours.covariance.log_scale.copy_(theirs.W_logdiag / (2 if form == "lowrank" else 1))
    features = draw(1, ROWS, WIDTH)
    bound = theirs.jensen_bound(features, LABELS).mean()
    torch.testing.assert_close(ours.bound(features, LABELS), bound, rtol=1e-9, atol=0)
    expected = theirs(features).train_loss_fn(LABELS) - 0.5 * CLASSES * WIDTH / 50
    torch.testing.assert_close(ours.loss(features, LABELS, num_train=50), expected.squeeze(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("rule", ["sampled", "mean_field", "quadrature"])
def test_predict_uses_the_configured_rule(rule: str) -> None:
    layer = perturbed(Discriminative(WIDTH, CLASSES, predictive=rule, draws=7))
    features = draw(1, ROWS, WIDTH)
    predictive = layer.predict(features, rng=Seed(1))
    assert predictive.draw_log_probs.shape == (7 if rule == "sampled" else 1, ROWS, CLASSES)
    torch.testing.assert_close(predictive.mean.sum(-1), torch.ones(ROWS).double())
    again, other = (layer.predict(features, rng=Seed(seed)).draw_log_probs for seed in (1, 2))
    assert torch.equal(predictive.draw_log_probs, again)
    assert torch.equal(again, other) == (rule != "sampled")
    if rule in softmax.CLOSED:
        expected = softmax.CLOSED[rule](*layer.logit_moments(features))
        torch.testing.assert_close(again, expected, rtol=1e-12, atol=1e-12)
