"""The exact posteriors of the last layers at fixed features, against dense algebra in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.last_layer import Generative, Regression
from bdl_pipe.last_layer.methods import LastLayerPosterior
from bdl_pipe.last_layer.regression import condition
from bdl_pipe.linear_regression import posterior
from bdl_pipe.predictive import Categorical
from bdl_pipe.seeds import Seed
from tests.cases import GAUSSIAN, GENERATIVE, fit

from .cases import draw, perturbed
from .generative_cases import CLASSES
from .generative_cases import WIDTH as GENERATIVE_WIDTH

WIDTH, ROWS, PRIOR = 4, 9, 1.7
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def dense(layer: Regression, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of vec(W), its rows stacked: prior N(0, sI), y = (I ⊗ φᵀ) vec(W) + ε of each row."""
    outputs, precision = len(layer.mean), torch.linalg.inv(layer.noise_covariance.detach())
    total = torch.eye(outputs * WIDTH).double() / PRIOR
    shift = torch.zeros(outputs * WIDTH).double()
    for row, target in zip(features, targets, strict=True):
        design = torch.kron(torch.eye(outputs).double(), row[None])
        total = total + design.T @ precision @ design
        shift = shift + design.T @ precision @ target
    covariance = torch.linalg.inv(total)
    return covariance @ shift, covariance


@pytest.mark.parametrize("rows", [ROWS, 2])  # 2: fewer rows than features
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_exact_regression_equals_the_dense_posterior(outputs: int, rows: int) -> None:
    layer = perturbed(Regression(WIDTH, outputs, prior_variance=PRIOR, covariance="diagonal"))
    with torch.no_grad():
        layer.noise_factor.mul_(5)  # strongly correlated noise
    features, targets, new = draw(1, rows, WIDTH), draw(2, rows, outputs), draw(3, 2, 5, WIDTH)
    exact = condition(layer, [(features[:1], targets[:1]), (features[1:], targets[1:])])
    mean, covariance = dense(layer, features, targets)
    torch.testing.assert_close(exact.mean, mean.view(outputs, WIDTH), **CLOSE)
    functions = exact.functions(new)
    for group, inputs in enumerate(new):
        predictive = exact.predict(inputs)
        for output in range(outputs):
            block = slice(output * WIDTH, (output + 1) * WIDTH)
            expected = inputs @ covariance[block, block] @ inputs.T
            torch.testing.assert_close(functions.covariance[0, group, output], expected, **CLOSE)
            noise = layer.noise_covariance[output, output]
            torch.testing.assert_close(predictive.variance[:, output], expected.diagonal() + noise, **CLOSE)
            torch.testing.assert_close(predictive.mean[:, output], inputs @ mean[block], **CLOSE)
            # wrong: the variational posterior, no prior on the weights, no correlation of the noise
            wrong = [layer.predict(inputs).variance[:, output] - noise]
            gram = features.T @ features
            wrong += [torch.einsum("bh,hg,bg->b", inputs, torch.linalg.pinv(gram / noise), inputs)]
            if outputs > 1:
                alone = torch.linalg.inv(gram / noise + torch.eye(WIDTH) / PRIOR)
                wrong += [torch.einsum("bh,hg,bg->b", inputs, alone, inputs)]
            for other in wrong:
                assert not torch.allclose(other, expected.diagonal(), rtol=1e-3)


def test_functions_can_be_drawn_at_a_thousand_rows_that_span_three_directions() -> None:
    """In float32 their covariance has an eigenvalue below 0 that no jitter mends."""
    rows, weights, targets = draw(1, 1030, 3).float(), draw(2, 3, 64).float(), draw(3, 30, 1).float()
    features = torch.relu(rows @ weights)
    layer = Regression(64, 1, prior_variance=10.0, wishart_scale=1e-3).float()
    exact = condition(layer, [(features[:30], targets)])
    assert exact.functions(features[None, 30:]).sample(3, Seed(0)).isfinite().all()


def test_the_bound_equals_the_log_evidence_only_at_the_exact_posterior() -> None:
    """T · bound − KL = log N(y | 0, sΦΦᵀ + σ²I) where q is exact (theorem 1 is tight there)."""
    layer = perturbed(Regression(WIDTH, 1, prior_variance=PRIOR))
    features, targets = draw(1, ROWS, WIDTH), draw(2, ROWS, 1)
    noise = layer.noise_covariance.detach()
    covariance = PRIOR * features @ features.T + noise * torch.eye(ROWS).double()
    evidence = MultivariateNormal(torch.zeros(ROWS).double(), covariance).log_prob(targets[:, 0])
    assert ROWS * layer.bound(features, targets) - layer.kl() < evidence - 0.1
    exact = condition(layer, [(features, targets)])
    root = torch.linalg.cholesky(exact.basis * exact.variance[0] @ exact.basis.mT)
    with torch.no_grad():
        layer.mean.copy_(exact.mean)
        layer.covariance.log_scale.copy_(root.diagonal().log())
        assert layer.covariance.factor is not None
        layer.covariance.factor.copy_(root.tril(-1).mT)
    torch.testing.assert_close(layer.covariance().matrix()[0], root @ root.T, **CLOSE)
    torch.testing.assert_close(ROWS * layer.bound(features, targets) - layer.kl(), evidence, **CLOSE)


def test_the_exact_class_means_equal_the_dense_posterior(layer: Generative, features: Tensor, labels: Tensor) -> None:
    labels = torch.where(labels == 1, 2, labels)  # class 1 has no rows: it keeps its prior
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    noise = torch.exp(-2 * layer.log_root_precision.detach()).diag()
    densities = layer.refit_noise([(features, labels)])
    layer.condition([(features[:10], labels[:10]), (features[10:], labels[10:])])
    identity = torch.eye(GENERATIVE_WIDTH).double() / 1.7
    for k in range(CLASSES):
        rows = features[labels == k]
        covariance = torch.linalg.inv(identity + len(rows) * torch.linalg.inv(noise))
        mean = covariance @ torch.linalg.solve(noise, rows.sum(0))
        torch.testing.assert_close(layer.mean.detach()[k], mean, **CLOSE)
        torch.testing.assert_close((2 * layer.log_std.detach()[k]).exp().diag(), covariance, **CLOSE)
        # wrong: the variational posterior, the class's own noise, the noise over the count without the prior
        scale = layer.log_std.detach()[k].exp()
        assert not torch.allclose(before["log_std"][k].exp(), scale, rtol=1e-2)
        assert not torch.allclose(densities.variance[k].sqrt(), scale, rtol=1e-2)
        assert not torch.allclose((noise.diagonal() / len(rows)).sqrt(), scale, rtol=1e-3)
    torch.testing.assert_close(densities.mean, layer.mean.detach(), **CLOSE)  # eq. 75 is the exact posterior's mean
    for name in ("log_root_precision", "concentration"):
        assert torch.equal(before[name], layer.state_dict()[name])


RNG, EXACT = Seed(5).fold("member", 0), {"posterior": "exact"}


def test_a_regression_fit_ends_with_the_exact_posterior(tiny_table: FitData) -> None:
    """The oracle is ``linear_regression`` on the features of all training rows; the trunk and Σ do not change."""
    states = [fit("vbll", "student", tiny_table, {}, rng=RNG, layer=GAUSSIAN | more) for more in ({}, EXACT)]
    assert all(torch.equal(value, states[1].tensors[name]) for name, value in states[0].tensors.items())
    plain, exact = map(LastLayerPosterior.from_state, states)
    assert isinstance(exact, LastLayerPosterior) and isinstance(plain.learner.layer, Regression)
    assert exact.learner.exact is not None and not [*exact.learner.exact.parameters()]
    (inputs, targets), (new, _) = tiny_table.tensors("train"), tiny_table.tensors("validation")
    with torch.no_grad():
        phi, phi_new = (plain.learner.features(x, 0, Seed(0)).double() for x in (inputs, new))
        noise = float(plain.learner.layer.noise_covariance)
        expected = posterior(phi, targets.double(), 1.0, noise).predict(phi_new)
    predictive, variational = exact.predict(new, rng=Seed(0)), plain.predict(new, rng=Seed(0))
    torch.testing.assert_close(predictive.mean.double(), expected.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(predictive.variance.double(), expected.variance, rtol=1e-4, atol=1e-5)
    assert (variational.mean - predictive.mean).abs().max() > 1e-2
    functions = exact.functions(new[None], rng=Seed(0))
    variance = (functions.covariance[0, 0, 0].diagonal() + functions.noise[0]).float()
    torch.testing.assert_close(variance, predictive.variance[:, 0])


def test_a_generative_fit_ends_with_the_exact_class_means(tiny_images: FitData) -> None:
    states = [fit("g_vbll", "student", tiny_images, {}, rng=RNG, layer=GENERATIVE | more) for more in ({}, EXACT)]
    changed = {name for name, value in states[0].tensors.items() if not torch.equal(value, states[1].tensors[name])}
    assert changed == {"layer.mean", "layer.log_std"} and states[0].tensors.keys() == states[1].tensors.keys()
    plain, exact = map(LastLayerPosterior.from_state, states)
    inputs, labels = tiny_images.tensors("train")
    with torch.no_grad():
        features = plain.learner.features(inputs, 0, Seed(0))
        assert isinstance(plain.learner.layer, Generative)
        before = plain.predict(inputs, rng=Seed(0))
        plain.learner.layer.condition([(features, labels)])
        expected, predictive = plain.predict(inputs, rng=Seed(0)), exact.predict(inputs, rng=Seed(0))
    assert isinstance(before, Categorical) and isinstance(predictive, Categorical) and isinstance(expected, Categorical)
    torch.testing.assert_close(predictive.log_probs, expected.log_probs, rtol=1e-4, atol=1e-4)
    assert (before.log_probs - predictive.log_probs).abs().max() > 1e-2
    assert torch.equal(before.scores["refit_density"], predictive.scores["refit_density"])
