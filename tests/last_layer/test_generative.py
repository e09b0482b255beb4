"""The generative last layer, its densities and other class shares against torch, SciPy and the published package."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.stats import multivariate_normal
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.last_layer import Generative
from bdl_pipe.last_layer.generative import Refit
from bdl_pipe.last_layer.methods import LastLayerPosterior
from bdl_pipe.networks.last_layer import log_densities
from bdl_pipe.predictive import Categorical
from bdl_pipe.seeds import Seed
from tests.cases import fit
from tests.refusals import refusal

from .generative_cases import CLASSES, COUNTS, ROWS, WIDTH, draws, make, mixture, parts


def literal_bound(layer: Generative, features: Tensor, labels: Tensor, widened: bool = True) -> Tensor:
    """Eq. 52 as it is printed, a row and a class at a time; not ``widened``: Σ for Σ + S in the LSE."""
    mean, spread, noise, alpha = parts(layer)
    terms = []
    for phi, y in zip(features, labels, strict=True):
        joint = [
            MultivariateNormal(mean[k], noise + widened * spread[k]).log_prob(phi) + alpha[k].log()
            for k in range(CLASSES)
        ]
        fit = MultivariateNormal(mean[y], noise).log_prob(phi) - 0.5 * torch.trace(torch.linalg.inv(noise) @ spread[y])
        terms.append(fit + alpha[y].log() - torch.logsumexp(torch.stack(joint), 0))
    return torch.stack(terms)


def test_the_bound_equals_equation_52_and_the_loss_adds_its_prior_terms_per_row(
    layer: Generative, features: Tensor, labels: Tensor
) -> None:
    """The oracle leaves log Σα out, as eq. 52 does; the layer has it in two terms, where it cancels."""
    mean, spread, _, _ = parts(layer)
    expected = literal_bound(layer, features, labels).mean()
    torch.testing.assert_close(layer.bound(features, labels), expected, rtol=1e-12, atol=1e-12)
    assert abs(literal_bound(layer, features, labels, widened=False).mean() - expected) > 0.01
    prior = MultivariateNormal(torch.zeros(WIDTH).double(), 1.7 * torch.eye(WIDTH).double())
    kl = kl_divergence(MultivariateNormal(mean, spread), prior).sum()
    torch.testing.assert_close(layer.kl(), kl, rtol=1e-12, atol=1e-12)
    variances = np.exp(-2 * layer.log_root_precision.detach().numpy())
    noise_prior = scipy.stats.invgamma(a=1.5, scale=0.3).logpdf(variances).sum()
    assert layer.noise_log_prior().item() == pytest.approx(noise_prior, rel=1e-12)
    expected = -(expected + (noise_prior - kl) / 49)
    torch.testing.assert_close(layer.loss(features, labels, num_train=49), expected, rtol=1e-12, atol=0)


def test_prediction_and_log_density_equal_bayes_rule_and_scipys_mixture(layer: Generative, features: Tensor) -> None:
    mean, spread, noise, alpha = parts(layer)
    joint = mixture(features, mean, noise + spread, alpha)
    predictive, density = layer.predict(features, rng=Seed(1)), np.log(joint.sum(1))
    np.testing.assert_allclose(predictive.mean.detach(), joint / joint.sum(1, keepdims=True), rtol=1e-9)
    assert predictive.draw_log_probs.shape == (1, ROWS, CLASSES)
    before = scipy.stats.multivariate_normal(np.zeros(WIDTH), 1.7 * np.eye(WIDTH) + noise.numpy()).logpdf(features)
    np.testing.assert_allclose(layer.log_density(features).detach(), density - before, atol=1e-10)
    assert torch.equal(predictive.scores["feature_density"], layer.log_density(features))


def test_the_layer_agrees_with_the_published_package(features: Tensor, labels: Tensor) -> None:
    """vbll 0.4.9 has no class prior (equal counts), N = h in eq. 65, and leaves out constants of KL and prior."""
    vbll = pytest.importorskip("vbll")
    dof = 8.0
    ours = Generative(
        WIDTH, CLASSES, class_counts=[9] * CLASSES, prior_variance=1.7, wishart_dof=dof, wishart_scale=0.6
    ).double()
    # their weight of logdet Σ⁻¹ is (dof + h + 1)/2, ours (ν + 2)/2
    theirs = vbll.GenClassification(
        WIDTH, CLASSES, 1 / 49, "diagonal", prior_scale=1.7, wishart_scale=0.6, dof=dof + 1 - WIDTH
    ).double()
    other = make(seed=1)
    theirs_by_name = {"mean": theirs.mu_mean, "log_std": theirs.mu_logdiag, "log_root_precision": theirs.noise_logdiag}
    with torch.no_grad():
        for name, their in theirs_by_name.items():
            getattr(ours, name).copy_(getattr(other, name))
            their.copy_(-getattr(other, name) if their is theirs.noise_logdiag else getattr(other, name))
    np.testing.assert_allclose(ours.predict(features).mean.detach(), theirs.predictive(features).detach(), rtol=1e-9)
    # their bound lacks log p(y) in both terms, which cancels where all classes are as frequent
    torch.testing.assert_close(ours.bound(features, labels), theirs.jensen_bound(features, labels).mean())
    kl_constant = -0.5 * WIDTH * CLASSES
    prior_constant = WIDTH * (dof / 2 * math.log(0.3) - math.lgamma(dof / 2))
    expected = theirs(features).train_loss_fn(labels) + (kl_constant - prior_constant) / 49
    torch.testing.assert_close(ours.loss(features, labels, num_train=49), expected)


def test_outputs_have_the_dtype_of_the_layer() -> None:
    layer = Generative(WIDTH, CLASSES, class_counts=COUNTS)
    features, labels = torch.randn(3, WIDTH, generator=Seed(0).generator()), torch.tensor([0, 1, 2], dtype=torch.int32)
    assert layer.loss(features, labels, num_train=3).dtype == torch.float32
    assert layer.log_density(features).dtype == torch.float32
    assert layer.refit_noise([(features, labels)]).log_density(features).dtype == torch.float32
    assert layer.double().predict(features.double()).log_probs.dtype == torch.float64


def test_the_seed_determines_the_start() -> None:
    one, same, other = (Generative(64, 50, class_counts=[1] * 50, prior_variance=4.0, rng=Seed(s)) for s in (0, 0, 1))
    assert torch.equal(one.mean, same.mean)
    assert not torch.equal(one.mean, other.mean)
    # 3,200 normals: the standard error of their deviation is 1.25 %
    assert one.mean.std().item() == pytest.approx(math.sqrt(4 / 64), rel=0.0625)


@pytest.mark.parametrize(("offset", "apart"), [(0.0, 0.3), (1e4, 0.3), (1e4, 30.0)])
def test_float32_keeps_four_digits_under_a_common_offset(offset: float, apart: float) -> None:
    """Against the direct formula in float64 at the same rounded values; the control expands the uncentred square."""
    mean = (offset + apart * draws(10, 640, at="far means")).float()
    features = (mean[torch.arange(64) % 10] + draws(64, 640, at="far rows")).float()
    variance = (0.5 + draws(10, 640, at="far variances").square()).float()
    x, m, v = features.double()[:, None], mean.double(), variance.double()
    expected = torch.distributions.Normal(m, v.sqrt()).log_prob(x).sum(-1)
    torch.testing.assert_close(log_densities(features, mean, variance).double(), expected, rtol=1e-6, atol=1e-3)
    quadratic = features.square() @ (1 / variance).T - 2 * features @ (mean / variance).T
    quadratic += (mean.square() / variance).sum(-1)
    plain = -0.5 * (quadratic + (variance.log() + math.log(2 * math.pi)).sum(-1))
    assert offset == 0 or not torch.allclose(plain.double(), expected, rtol=1e-4)


def test_float64_densities_keep_their_digits_far_from_0() -> None:
    mean = draws(10, 64, at="far means")
    features = mean[torch.arange(20) % 10] + draws(20, 64, at="far rows")
    variance = torch.full_like(mean, 0.5)
    shifted = log_densities(features + 2.0**27, mean + 2.0**27, variance)
    torch.testing.assert_close(shifted, log_densities(features, mean, variance), rtol=1e-5, atol=1e-5)


def numpy_refit(layer: Generative, features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 75 (with its inverse, by dense matrices) and the diagonal of eq. 77, a class at a time."""
    noise = np.diag(np.exp(-2 * layer.log_root_precision.detach().numpy()))
    before, after = np.linalg.inv(1.7 * np.eye(WIDTH)), np.linalg.inv(noise)
    means, variances = [], []
    for k in range(CLASSES):
        rows = features[labels == k]
        means.append(np.linalg.inv(before + len(rows) * after) @ after @ rows.sum(0))
        scatter = ((rows - rows.mean(0)) ** 2).sum(0) if len(rows) else np.zeros(WIDTH)
        variances.append((0.6 + scatter) / (len(rows) + 3.0 + 1 + 1))
    return np.stack(means), np.stack(variances)


def batches(features: Tensor, labels: Tensor, sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(features.split(sizes), labels.split(sizes), strict=True))


def test_the_refit_equals_the_closed_form_of_each_class(layer: Generative, features: Tensor, labels: Tensor) -> None:
    labels = torch.where(labels == 1, 2, labels)  # class 1 has no rows
    noise = layer.refit_noise(batches(features, labels, [10, 1, 12]))
    mean, variance = numpy_refit(layer, features.numpy(), labels.numpy())
    np.testing.assert_allclose(noise.mean, mean, atol=1e-12)
    np.testing.assert_allclose(noise.variance, variance, atol=1e-12)
    np.testing.assert_allclose(noise.variance[1], 0.6 / 5)
    # the variance is the mode of an inverse gamma posterior
    rows = features[labels == 2, 0].numpy()
    grid = np.linspace(0.5, 1.5, 1001) * variance[2, 0]
    posterior = scipy.stats.invgamma(1.5, scale=0.3).logpdf(grid)
    posterior += sum(scipy.stats.norm(rows.mean(), np.sqrt(grid)).logpdf(r) for r in rows)
    assert grid[posterior.argmax()] == pytest.approx(variance[2, 0], rel=2e-3)


def test_the_refitted_density_equals_scipys_mixture(layer: Generative, features: Tensor, labels: Tensor) -> None:
    refitted = layer.refit_noise([(features, labels)])
    mean, variance = (torch.tensor(v) for v in numpy_refit(layer, features.numpy(), labels.numpy()))
    alpha, noise = parts(layer)[3], parts(layer)[2]
    density = np.log(mixture(features, mean, variance.diag_embed(), alpha).sum(1))
    before = scipy.stats.multivariate_normal(np.zeros(WIDTH), 1.7 * np.eye(WIDTH) + noise.numpy()).logpdf(features)
    np.testing.assert_allclose(refitted.log_density(features), density - before, atol=1e-10)


def test_a_refit_loses_no_digits_to_a_common_offset(layer: Generative, features: Tensor, labels: Tensor) -> None:
    far = features + 1e7
    variance = layer.refit_noise(batches(far, labels, [10, 13])).variance
    expected = numpy_refit(layer, (far - 1e7).numpy(), labels.numpy())[1]
    np.testing.assert_allclose(variance, expected, rtol=1e-7)
    member = torch.nn.functional.one_hot(labels).double().T  # the control: sums of raw squares
    count = member.sum(1, keepdim=True)
    raw = (0.6 + member @ far.square() - (member @ far).square() / count) / (count + 5)
    assert not np.allclose(raw, expected, rtol=1e-4)


def test_a_refit_does_not_change_the_layer(layer: Generative, features: Tensor, labels: Tensor) -> None:
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    noise = layer.refit_noise([(features, labels)])
    assert isinstance(noise, Refit)
    for value in noise.buffers():
        value.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


SHARES = [0.7, 0.0, 0.3]
OF_FOUR = [0.7, 0.0, 0.2, 0.1]


def test_the_shares_replace_the_class_prior_in_bayes_rule(layer: Generative, features: Tensor) -> None:
    """Wrong: the training rows' shares stay in the product, or the shares count twice."""
    with torch.no_grad():
        predictive = layer.predict(features, class_shares=OF_FOUR)
        variance = layer.noise_variance + torch.exp(2 * layer.log_std)
        own = layer.class_log_probs.exp().numpy()
        unchanged = layer.predict(features, class_shares=own.tolist())
        before = layer.predict(features)
    densities = np.stack(
        [
            multivariate_normal.pdf(features.numpy(), mean.numpy(), np.diag(scale.numpy()))
            for mean, scale in zip(layer.mean.detach(), variance, strict=True)
        ],
        -1,
    )
    joint = densities * OF_FOUR
    np.testing.assert_allclose(predictive.mean, joint / joint.sum(-1, keepdims=True), rtol=1e-9)
    background = multivariate_normal.logpdf(features.numpy(), np.zeros(WIDTH), layer.feature_prior_variance.detach())
    np.testing.assert_allclose(predictive.scores["feature_density"], np.log(joint.sum(-1)) - background, rtol=1e-9)
    torch.testing.assert_close(unchanged.log_probs, before.log_probs)
    for wrong in (joint * own, joint * OF_FOUR):
        assert not np.allclose(predictive.mean, wrong / wrong.sum(-1, keepdims=True), atol=1e-3)


def test_a_posterior_predicts_at_other_shares(tiny_images: FitData) -> None:
    posterior = LastLayerPosterior.from_state(fit("g_vbll_bnn", "student", tiny_images, {}, rng=Seed(5)))
    inputs, _ = tiny_images.tensors("validation")
    before = posterior.predict(inputs, rng=Seed(1))
    after = posterior.predict(inputs, rng=Seed(1), class_shares=SHARES)
    assert isinstance(before, Categorical) and isinstance(after, Categorical)
    layer = posterior.learner.layer
    assert isinstance(layer, Generative)
    shifted = before.draw_log_probs + torch.tensor(SHARES).log() - layer.class_log_probs.detach()
    torch.testing.assert_close(after.draw_log_probs.exp(), shifted.softmax(-1), rtol=1e-3, atol=1e-5)
    assert (after.mean - before.mean).abs().max() > 0.1 and (after.mean[:, 1] == 0).all()
    assert torch.equal(posterior.predict(inputs, rng=Seed(1)).mean, before.mean)  # the posterior is not changed


@pytest.mark.parametrize(
    "shares", [[0.5, 0.5], [0.5, 0.6, 0.0, -0.1], [0.5, 0.5, 0.5, 0.0], [0.5, 0.5, 0.0, float("nan")]]
)
def test_shares_that_are_no_distribution_are_refused(shares: list[float], layer: Generative, features: Tensor) -> None:
    message = refusal(layer.predict, features, class_shares=shares)
    assert message == f"DataError: class_shares must be 4 numbers >= 0 with the sum 1, got {shares}"


def test_other_layers_refuse_class_shares(tiny_images: FitData) -> None:
    posterior = LastLayerPosterior.from_state(fit("d_vbll", "student", tiny_images, {}, rng=Seed(5)))
    inputs, _ = tiny_images.tensors("validation")
    message = refusal(posterior.predict, inputs, rng=Seed(0), class_shares=SHARES)
    assert message == "UserError: class_shares are for a generative last layer: other layers have no class prior"
