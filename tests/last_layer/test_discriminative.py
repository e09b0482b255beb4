"""The discriminative layer against Monte Carlo, dense algebra and the published package."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bdl_pipe.errors import DataError
from bdl_pipe.last_layer import Discriminative
from bdl_pipe.seeds import Seed

from .cases import FORMS, draw, perturbed

WIDTH, ROWS, CLASSES, PRIOR = 5, 8, 3, 1.7
LABELS = torch.arange(ROWS) % CLASSES


def weight_draws(layer: Discriminative, count: int) -> Tensor:
    """W [draw, class, h] from q, by the dense Cholesky factor."""
    root = torch.linalg.cholesky(layer.covariance().matrix())
    return layer.mean + torch.einsum("khg,skg->skh", root, draw(3, count, CLASSES, WIDTH))


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_logit_moments_are_those_of_the_dense_matrices(form: str, rank: int | None) -> None:
    layer, features = perturbed(Discriminative(WIDTH, CLASSES, covariance=form, rank=rank)), draw(1, ROWS, WIDTH)
    mean, variance = layer.logit_moments(features)
    torch.testing.assert_close(mean, torch.einsum("kh,bh->bk", layer.mean, features))
    dense = torch.einsum("bi,kij,bj->bk", features, layer.covariance().matrix(), features)
    torch.testing.assert_close(variance, dense + (-2 * layer.noise_log_root).exp(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_bound_is_below_the_elbo(form: str, rank: int | None) -> None:
    """40,000 draws of W and ε: bound <= E_q[log softmax] by z-test at 4.5 deviations, false alarm 4e-6.

    The same formula without its ½(φᵀSφ + σ²) must lie above, and the one with the ½ missing below ours.
    """
    layer = perturbed(Discriminative(WIDTH, CLASSES, covariance=form, rank=rank))
    features = draw(1, ROWS, WIDTH)
    noise = layer.noise_variance.sqrt() * draw(4, 40_000, ROWS, CLASSES)
    logits = torch.einsum("bh,skh->sbk", features, weight_draws(layer, 40_000)) + noise
    terms = F.log_softmax(logits, -1)[:, torch.arange(ROWS), LABELS].mean(1)
    deviation = terms.std() / math.sqrt(len(terms))
    mean, variance = layer.logit_moments(features)
    variant = lambda factor: -F.cross_entropy(mean + factor * variance, LABELS)  # noqa: E731
    chosen = variance[torch.arange(ROWS), LABELS].mean()  # cross_entropy adds it to the label's logit too
    ours = layer.bound(features, LABELS)
    torch.testing.assert_close(ours, variant(0.5) - 0.5 * chosen, rtol=1e-10, atol=1e-12)
    assert ours <= terms.mean() + 4.5 * deviation
    assert variant(0.0) > terms.mean() + 4.5 * deviation
    assert variant(1.0) - chosen < ours


def test_noise_prior_is_a_product_of_inverse_gammas() -> None:
    """Eq. 65 with N = 1 is log InverseGamma(ν/2, m/2) of each σ², but for a constant."""
    layer = perturbed(Discriminative(WIDTH, CLASSES, wishart_dof=4.0, wishart_scale=0.6))
    other = perturbed(Discriminative(WIDTH, CLASSES, wishart_dof=4.0, wishart_scale=0.6), seed=6)
    density = torch.distributions.InverseGamma(*torch.tensor([2.0, 0.3], dtype=torch.float64))
    expected = (density.log_prob(layer.noise_variance) - density.log_prob(other.noise_variance)).sum()
    torch.testing.assert_close(layer.log_noise_prior() - other.log_noise_prior(), expected, rtol=1e-9, atol=1e-12)
    start = Discriminative(WIDTH, CLASSES, wishart_dof=4.0, wishart_scale=0.6)
    torch.testing.assert_close(start.noise_variance, torch.full((CLASSES,), 0.1))  # the mode, m/(ν + 2)


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_bound_and_loss_are_the_published_packages(form: str, rank: int | None) -> None:
    """There the prior's variance is scaled by 2/in_features, eq. 65 takes N = classes, the KL drops −h/2 a class."""
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


@pytest.mark.parametrize("rule", ["sampled", "mean_field", "laplace_bridge", "quadrature"])
def test_predict_answers_by_the_configured_rule(rule: str) -> None:
    layer = perturbed(Discriminative(WIDTH, CLASSES, predictive=rule, draws=7))
    features = draw(1, ROWS, WIDTH)
    predictive = layer.predict(features, rng=Seed(1))
    assert predictive.draw_log_probs.shape == (7 if rule == "sampled" else 1, ROWS, CLASSES)
    torch.testing.assert_close(predictive.mean.sum(-1), torch.ones(ROWS).double())
    again, other = (layer.predict(features, rng=Seed(seed)).draw_log_probs for seed in (1, 2))
    assert torch.equal(predictive.draw_log_probs, again)
    assert torch.equal(again, other) == (rule != "sampled")


def test_predict_is_the_mean_over_draws_of_the_weights() -> None:
    """Quadrature against softmax(Wφ + ε) of 40,000 draws: 5 deviations, false alarm 6e-7 × 24 numbers."""
    layer = perturbed(Discriminative(WIDTH, CLASSES, predictive="quadrature"))
    features = draw(1, ROWS, WIDTH)
    exact = torch.einsum("bh,skh->sbk", features, weight_draws(layer, 40_000))
    noisy = exact + layer.noise_variance.sqrt() * draw(4, 40_000, ROWS, CLASSES)
    ours = layer.predict(features).mean
    within = [((p := z.softmax(-1)).mean(0) - ours).abs() < 5 * p.std(0) / math.sqrt(len(p)) for z in (noisy, exact)]
    assert within[0].all()
    assert not within[1].all()  # the noise left out is told apart


def test_refuses_labels_of_another_shape() -> None:
    with pytest.raises(DataError, match="targets must be 8 class numbers"):
        Discriminative(WIDTH, CLASSES).bound(torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, 1, dtype=torch.long))
