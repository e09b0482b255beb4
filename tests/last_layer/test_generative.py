"""The generative last layer and its densities against torch.distributions, scipy and the published package."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import functional_call, stack_module_state, vmap

from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.last_layer import Generative
from bdl_pipe.last_layer.densities import Refit, log_densities
from bdl_pipe.seeds import Seed

from .cases import Loss
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


def test_the_bound_equals_equation_52(layer: Generative, features: Tensor, labels: Tensor) -> None:
    """The oracle leaves log Σα out, as eq. 52 does; the layer has it in two terms, where it cancels."""
    expected = literal_bound(layer, features, labels).mean()
    torch.testing.assert_close(layer.bound(features, labels), expected, rtol=1e-12, atol=1e-12)
    wrong = literal_bound(layer, features, labels, widened=False).mean()
    assert abs(wrong - expected) > 0.01


def test_the_kl_equals_torch_distributions(layer: Generative) -> None:
    mean, spread, _, _ = parts(layer)
    prior = MultivariateNormal(torch.zeros(WIDTH).double(), 1.7 * torch.eye(WIDTH).double())
    expected = kl_divergence(MultivariateNormal(mean, spread), prior).sum()
    torch.testing.assert_close(layer.kl(), expected, rtol=1e-12, atol=1e-12)


def test_the_kl_is_zero_at_the_prior_and_not_negative_near_it() -> None:
    layer = Generative(WIDTH, CLASSES, class_counts=COUNTS, prior_variance=1.7)
    with torch.no_grad():
        layer.mean.zero_()
        layer.log_std.fill_(0.5 * math.log(1.7))
        assert layer.kl() == pytest.approx(0, abs=1e-12)
        for step in (1e-4, -1e-4, 1e-3):
            layer.log_std.fill_(0.5 * math.log(1.7) + step)
            assert layer.kl() >= 0


def test_the_noise_prior_equals_scipys_inverse_gamma(layer: Generative) -> None:
    variances = np.exp(-2 * layer.log_root_precision.detach().numpy())
    expected = scipy.stats.invgamma(a=1.5, scale=0.3).logpdf(variances).sum()
    assert layer.noise_log_prior().item() == pytest.approx(expected, rel=1e-12)


def test_the_loss_divides_the_prior_terms_by_the_training_rows(
    layer: Generative, features: Tensor, labels: Tensor
) -> None:
    """The terms themselves are checked by the tests above."""
    expected = -(layer.bound(features, labels) + (layer.noise_log_prior() - layer.kl()) / 49)
    torch.testing.assert_close(layer.loss(features, labels, num_train=49), expected, rtol=1e-12, atol=0)


def test_the_prediction_equals_bayes_rule(layer: Generative, features: Tensor) -> None:
    mean, spread, noise, alpha = parts(layer)
    joint = mixture(features, mean, noise + spread, alpha)
    predictive = layer.predict(features, rng=Seed(1))
    np.testing.assert_allclose(predictive.mean.detach(), joint / joint.sum(1, keepdims=True), rtol=1e-9)
    assert predictive.draw_log_probs.shape == (1, ROWS, CLASSES)
    assert torch.equal(predictive.scores["feature_density"], layer.log_density(features))


def test_the_log_density_equals_scipys_mixture(layer: Generative, features: Tensor) -> None:
    mean, spread, noise, alpha = parts(layer)
    density = np.log(mixture(features, mean, noise + spread, alpha).sum(1))
    np.testing.assert_allclose(layer.log_density(features, normalised=False).detach(), density, rtol=1e-10)
    before = scipy.stats.multivariate_normal(np.zeros(WIDTH), 1.7 * np.eye(WIDTH) + noise.numpy()).logpdf(features)
    np.testing.assert_allclose(layer.log_density(features).detach(), density - before, atol=1e-10)


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
    with torch.no_grad():
        for mine, their, at in (
            (ours.mean, theirs.mu_mean, other.mean),
            (ours.log_std, theirs.mu_logdiag, other.log_std),
            (ours.log_root_precision, theirs.noise_logdiag, other.log_root_precision),
        ):
            mine.copy_(at)
            their.copy_(-at if their is theirs.noise_logdiag else at)
    np.testing.assert_allclose(ours.predict(features).mean.detach(), theirs.predictive(features).detach(), rtol=1e-9)
    # their bound lacks log p(y) in both terms, which cancels where all classes are as frequent
    torch.testing.assert_close(ours.bound(features, labels), theirs.jensen_bound(features, labels).mean())
    kl_constant = -0.5 * WIDTH * CLASSES
    prior_constant = WIDTH * (dof / 2 * math.log(0.3) - math.lgamma(dof / 2))
    expected = theirs(features).train_loss_fn(labels) + (kl_constant - prior_constant) / 49
    torch.testing.assert_close(ours.loss(features, labels, num_train=49), expected)


def test_gradients_equal_finite_differences(layer: Generative, labels: Tensor) -> None:
    features = draws(6, WIDTH, at="six").requires_grad_()
    names = list(dict(layer.named_parameters()))

    def loss(features: Tensor, *values: Tensor) -> Tensor:
        state = {f"layer.{name}": value for name, value in zip(names, values, strict=True)}
        return functional_call(Loss(layer, 49), state, (features, labels[:6]))

    assert torch.autograd.gradcheck(loss, (features, *layer.parameters()))


@pytest.mark.parametrize("shared", [True, False], ids=["rows shared", "rows of their own"])
def test_stacked_layers_equal_the_layers_one_by_one(features: Tensor, labels: Tensor, shared: bool) -> None:
    layers = [Loss(make(seed), 49) for seed in range(3)]
    state = stack_module_state(layers)
    rows = features if shared else torch.stack([features + i for i in range(3)])
    own = labels if shared else torch.stack([labels.roll(i) for i in range(3)])
    at = None if shared else 0
    found = vmap(lambda s, x, y: functional_call(layers[0], s, (x, y)), in_dims=(0, at, at))(state, rows, own)
    each = [m(rows, own) if shared else m(rows[i], own[i]) for i, m in enumerate(layers)]
    torch.testing.assert_close(found, torch.stack(each))
    log_joint = vmap(lambda s: functional_call(layers[0].layer, {k[6:]: v for k, v in s.items()}, (features,)))
    torch.testing.assert_close(log_joint(state[0] | state[1]), torch.stack([m.layer(features) for m in layers]))


def test_autocast_does_not_change_the_loss(features: Tensor, labels: Tensor) -> None:
    layer = make().float()
    x = features.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = layer.loss(x, labels, num_train=49)
    torch.testing.assert_close(inside, layer.loss(x, labels, num_train=49))


def test_outputs_have_the_dtype_of_the_layer() -> None:
    layer = Generative(WIDTH, CLASSES, class_counts=COUNTS)
    features, labels = torch.randn(3, WIDTH, generator=Seed(0).generator()), torch.tensor([0, 1, 2], dtype=torch.int32)
    assert layer.loss(features, labels, num_train=3).dtype == torch.float32
    assert layer.log_density(features).dtype == torch.float32
    assert layer.refit_noise([(features, labels)]).log_density(features).dtype == torch.float32
    assert layer.double().predict(features.double()).log_probs.dtype == torch.float64


def test_a_trained_layer_separates_classes_and_gives_a_far_row_less_density() -> None:
    centres = 3 * torch.eye(CLASSES, WIDTH)
    labels = torch.arange(200) % CLASSES
    features = centres[labels] + 0.5 * draws(200, WIDTH, at="blobs").float()
    layer = Generative(WIDTH, CLASSES, class_counts=torch.bincount(labels))
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        layer.loss(features, labels, num_train=200).backward()
        optimiser.step()
    assert (layer.predict(features).log_probs.argmax(-1) == labels).float().mean() > 0.98
    refitted = layer.refit_noise([(features, labels)])
    far = -3 * torch.ones(1, WIDTH)
    assert layer.log_density(far) < layer.log_density(features).min()
    assert refitted.log_density(far) < refitted.log_density(features).min()
    np.testing.assert_allclose(refitted.mean, centres, atol=0.3)  # 50 rows of deviation 0.5: 4 standard errors
    np.testing.assert_allclose(refitted.variance, 0.25, atol=0.2)


def test_the_seed_determines_the_start() -> None:
    one, same, other = (Generative(64, 50, class_counts=[1] * 50, prior_variance=4.0, rng=Seed(s)) for s in (0, 0, 1))
    assert torch.equal(one.mean, same.mean)
    assert not torch.equal(one.mean, other.mean)
    # 3,200 normals: the standard error of their deviation is 1.25 %
    assert one.mean.std().item() == pytest.approx(math.sqrt(4 / 64), rel=0.0625)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_counts": (1, 2, 3)}, r"^class_counts must have one entry for each of 4 classes, got \[3\]$"),
        ({"class_counts": (1, 2, 3, -1)}, "^class_counts must be >= 0 and finite, got"),
        ({"class_counts": (1, 2, 3, math.nan)}, "^class_counts must be >= 0 and finite, got"),
        ({"dirichlet": 0.0}, r"^dirichlet must be > 0 and finite, got 0\.0$"),
        ({"prior_variance": -1.0}, "^prior_variance must be > 0"),
        ({"wishart_dof": 0.0}, "^wishart_dof must be > 0"),
        ({"wishart_scale": math.inf}, "^wishart_scale must be > 0 and finite, got inf$"),
        ({"in_features": 0}, "^in_features must be > 0"),
        ({"num_classes": 0}, "^num_classes must be > 0"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict, message: str) -> None:
    settings = {"in_features": WIDTH, "num_classes": CLASSES, "class_counts": COUNTS} | options
    with pytest.raises(ConfigError, match=message):
        Generative(**settings)


def test_bad_rows_and_a_row_count_of_0_are_refused(layer: Generative, features: Tensor, labels: Tensor) -> None:
    with pytest.raises(DataError, match=r"^features must have 5 columns, got 1$"):
        layer.bound(features[:, :1], labels)
    with pytest.raises(DataError, match=r"^features must have 5 columns, got 4$"):
        layer.refit_noise([(features[:, 1:], labels)])
    with pytest.raises(DataError, match=r"^features must be finite$"):
        layer.refit_noise([(features.masked_fill(features > 1, math.inf), labels)])
    for nothing in ([], [(features[:0], labels[:0])]):
        with pytest.raises(DataError, match=r"^batches must have at least one row, got none$"):
            layer.refit_noise(nothing)
    with pytest.raises(ConfigError, match=r"^num_train must be > 0, got 0$"):
        layer.loss(features, labels, num_train=0)


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
    found = layer.refit_noise(batches(features, labels, [10, 1, 12]))
    mean, variance = numpy_refit(layer, features.numpy(), labels.numpy())
    np.testing.assert_allclose(found.mean, mean, atol=1e-12)
    np.testing.assert_allclose(found.variance, variance, atol=1e-12)
    np.testing.assert_allclose(found.variance[1], 0.6 / 5)
    # the variance is the mode of an inverse gamma posterior
    rows = features[labels == 2, 0].numpy()
    grid = np.linspace(0.5, 1.5, 1001) * variance[2, 0]
    posterior = scipy.stats.invgamma(1.5, scale=0.3).logpdf(grid)
    posterior += sum(scipy.stats.norm(rows.mean(), np.sqrt(grid)).logpdf(r) for r in rows)
    assert grid[posterior.argmax()] == pytest.approx(variance[2, 0], rel=2e-3)


def test_the_refitted_density_equals_scipys_mixture(layer: Generative, features: Tensor, labels: Tensor) -> None:
    found = layer.refit_noise([(features, labels)])
    mean, variance = (torch.tensor(v) for v in numpy_refit(layer, features.numpy(), labels.numpy()))
    alpha, noise = parts(layer)[3], parts(layer)[2]
    density = np.log(mixture(features, mean, variance.diag_embed(), alpha).sum(1))
    np.testing.assert_allclose(found.log_density(features, normalised=False), density, rtol=1e-10)
    before = scipy.stats.multivariate_normal(np.zeros(WIDTH), 1.7 * np.eye(WIDTH) + noise.numpy()).logpdf(features)
    np.testing.assert_allclose(found.log_density(features), density - before, atol=1e-10)


def test_a_refit_loses_no_digits_to_a_common_offset(layer: Generative, features: Tensor, labels: Tensor) -> None:
    far = features + 1e7
    found = layer.refit_noise(batches(far, labels, [10, 13])).variance
    expected = numpy_refit(layer, (far - 1e7).numpy(), labels.numpy())[1]
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    member = torch.nn.functional.one_hot(labels).double().T  # the control: sums of raw squares
    count = member.sum(1, keepdim=True)
    raw = (0.6 + member @ far.square() - (member @ far).square() / count) / (count + 5)
    assert not np.allclose(raw, expected, rtol=1e-4)


def test_a_refit_does_not_change_the_layer(layer: Generative, features: Tensor, labels: Tensor) -> None:
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    found = layer.refit_noise([(features, labels)])
    assert isinstance(found, Refit)
    for value in found.buffers():
        value.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
