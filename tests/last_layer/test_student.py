"""The layer with a posterior over its noise, against SciPy's densities, quadrature, draws and the log evidence."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import multigammaln
from scipy.stats import invgamma, invwishart, multivariate_t, norm, t
from torch import Tensor

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.last_layer import StudentRegression
from bdl_pipe.last_layer.methods import LastLayerPosterior
from bdl_pipe.seeds import Seed
from bdl_pipe.student_t import StudentT
from tests.cases import CONFIGS, GAUSSIAN, fit
from tests.refusals import refusal

from .cases import draw, perturbed

WIDTH, ROWS, PRIOR, DOF, SCALE = 3, 12, 1.7, 4.0, 0.8


def make(outputs: int, **options: Any) -> StudentRegression:
    options = {"num_train": ROWS, "prior_variance": PRIOR, "wishart_dof": DOF, "wishart_scale": SCALE} | options
    return perturbed(StudentRegression(WIDTH, outputs, **options))


def rows(outputs: int) -> tuple[Tensor, Tensor]:
    features = draw(1, ROWS, WIDTH)
    return features, features @ draw(2, WIDTH, outputs) + 0.4 * draw(3, ROWS, outputs)


def evidence(features: Tensor, targets: Tensor) -> float:
    """log p(Y): a matrix t with the row covariance I + sΦΦᵀ (Gupta and Nagar 2000, section 4.2)."""
    count, outputs = targets.shape
    spread = np.eye(count) + PRIOR * (features @ features.T).numpy()
    scatter = SCALE * np.eye(outputs) + targets.numpy().T @ np.linalg.solve(spread, targets.numpy())
    gammas = multigammaln((DOF + count) / 2, outputs) - multigammaln(DOF / 2, outputs)
    logs = DOF * outputs * math.log(SCALE) - (DOF + count) * np.linalg.slogdet(scatter)[1]
    return float(gammas + 0.5 * (logs - outputs * (np.linalg.slogdet(spread)[1] + count * math.log(math.pi))))


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_bound_is_the_log_evidence_only_at_the_exact_posterior(outputs: int) -> None:
    """Wrong: one degree of freedom less, another scale of the noise, no KL of the noise."""
    layer, (features, targets) = make(outputs), rows(outputs)

    def elbo() -> float:
        return (ROWS * layer.bound(features, targets) - layer.kl()).item()

    expected = evidence(features, targets)
    if outputs == 1:
        covariance = SCALE / DOF * (np.eye(ROWS) + PRIOR * (features @ features.T).numpy())
        assert multivariate_t.logpdf(targets[:, 0], shape=covariance, df=DOF) == pytest.approx(expected, abs=1e-9)
    assert elbo() < expected - 0.1
    layer.condition([(features[:5], targets[:5]), (features[5:], targets[5:])])
    assert elbo() == pytest.approx(expected, abs=1e-9)
    assert ROWS * -layer.loss(features, targets, num_train=ROWS).item() == pytest.approx(expected, abs=1e-9)
    layer.degrees.sub_(1)
    assert elbo() < expected - 1e-3
    layer.degrees.add_(1)
    layer.load_state_dict(layer.state_dict() | layer.scaled_noise(0.2))
    assert elbo() < expected - 1e-3


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_degrees_are_those_of_the_largest_bound(weight: float) -> None:
    """For every other parameter: derived with T rows and the KL's weight, here at random parameters."""
    layer, (features, targets) = make(2, kl_weight=weight), rows(2)

    def loss(degrees: float) -> float:
        layer.degrees.fill_(degrees)
        return layer.loss(features, targets, num_train=ROWS, kl_weight=weight).item()

    at = float(layer.degrees)
    assert at == DOF + ROWS / weight
    assert loss(at) < min(loss(at * 1.02), loss(at * 0.98))


def test_the_kl_equals_its_estimate_from_draws() -> None:
    """z of 4,000 draws is beyond 5 with probability 6e-7. Wrong: the prior N(0, sI) of the weights, not N(0, sΣ)."""
    layer, count = make(2), 4_000
    with torch.no_grad():
        kl, precision = float(layer.kl()), torch.linalg.inv(layer.noise_covariance).numpy()
        mean, spread = layer.mean.numpy(), layer.covariance().matrix()[0].numpy()
    degrees = float(layer.degrees)
    posterior = invwishart(degrees, degrees * np.linalg.inv(precision))
    noise = posterior.rvs(count, random_state=0)
    normal = np.random.default_rng(1).standard_normal((count, 2, WIDTH))
    weights = mean + np.linalg.cholesky(noise) @ normal @ np.linalg.cholesky(spread).T

    def log_normal(centre: np.ndarray, of_rows: np.ndarray, of_columns: np.ndarray) -> np.ndarray:
        error = weights - centre
        solved = np.linalg.solve(of_rows, error) @ np.linalg.inv(of_columns)
        logs = WIDTH * np.linalg.slogdet(of_rows)[1] + 2 * np.linalg.slogdet(of_columns)[1]
        return -0.5 * ((error * solved).sum((1, 2)) + logs)  # without constants, which cancel

    stacked = np.moveaxis(noise, 0, -1)
    of_noise = posterior.logpdf(stacked) - invwishart(DOF, SCALE * np.eye(2)).logpdf(stacked)
    of_weights = log_normal(mean, noise, spread)
    prior = PRIOR * np.eye(WIDTH)
    for of_rows, right in ((noise, True), (np.broadcast_to(np.eye(2), noise.shape), False)):
        each = of_noise + of_weights - log_normal(np.zeros_like(mean), of_rows, prior)
        z = (each.mean() - kl) / (each.std() / math.sqrt(count))
        assert (abs(z) < 5) == right, z
    assert layer.kl().item() > 0


def test_the_predictive_integrates_over_the_noise() -> None:
    """By quadrature over Σ_ii of two outputs. Wrong: the Gaussian at the mean noise."""
    layer = make(2)
    features, targets = draw(5, 4, WIDTH), 1.5 * draw(6, 4, 2)
    with torch.no_grad():
        predictive, functions = layer.predict(features), layer.functions(features[None])
        spread = 1 + layer.covariance().quadratic(features)[:, 0].numpy()
        mean, scale = (features @ layer.mean.T).numpy(), float(layer.degrees) * layer.noise_covariance.numpy()
    shape = (float(layer.degrees) - 2 + 1) / 2
    expected, wrong = np.zeros(4), np.zeros(4)
    for row in range(4):
        for output in range(2):
            noise = invgamma(shape, scale=scale[output, output] / 2)
            y, centre, factor = float(targets[row, output]), mean[row, output], spread[row]

            def joint(variance: float) -> float:
                return float(norm.pdf(y, centre, math.sqrt(variance * factor)) * noise.pdf(variance))  # noqa: B023

            expected[row] += math.log(quad(joint, 0, noise.ppf(1 - 1e-13))[0])
            wrong[row] += norm.logpdf(y, centre, math.sqrt(noise.mean() * factor))
    np.testing.assert_allclose(predictive.log_prob(targets), expected, rtol=1e-6)
    assert (abs(wrong - expected) > 1e-3).all()
    near = predictive.mean + predictive.squared_scale[0].sqrt() * draw(7, 4, 2).clamp(-2, 2)  # the mixture has no tails
    by_mixture = functions.joint(None, draws=1, rng=Seed(0)).row_log_prob(near[None])[0]
    np.testing.assert_allclose(by_mixture, predictive.log_prob(near), atol=0.05)


CONJUGATE = {**GAUSSIAN, "noise_posterior": "conjugate"}


def test_a_fit_has_the_degrees_of_its_rows_and_may_end_with_the_exact_posterior(tiny_table: FitData) -> None:
    inputs, targets = tiny_table.tensors("train")
    new, held = tiny_table.tensors("validation")
    training = {**CONFIGS["vbll", "regression"]["training"], "noise": "validation"}
    predicted = {}
    for kind, more in {"variational": {}, "exact": {"posterior": "exact"}, "held out": {"training": training}}.items():
        layer = CONJUGATE | {key: value for key, value in more.items() if key == "posterior"}
        changes = {key: value for key, value in more.items() if key == "training"}
        state = fit("vbll", "student", tiny_table, {}, rng=Seed(5), layer=layer, **changes)
        posterior = LastLayerPosterior.from_state(state)
        of_rows = posterior.learner.layer
        assert isinstance(of_rows, StudentRegression) and float(of_rows.degrees) == 1 + len(inputs)
        predicted[kind] = posterior.predict(new, rng=Seed(0))
        assert isinstance(predicted[kind], StudentT) and predicted[kind].log_prob(held).isfinite().all()
        if kind == "exact":
            with torch.no_grad():
                features = posterior.learner.features(inputs, 0, Seed(0)).double()
                gram = features.T @ features + torch.eye(features.shape[1])
                mean = torch.linalg.solve(gram, features.T @ targets.double())
                of_new = posterior.learner.features(new, 0, Seed(0)).double()
            torch.testing.assert_close(predicted[kind].mean.double(), of_new @ mean, rtol=1e-3, atol=1e-3)
            scatter = 1 + float((targets.double() * (targets.double() - features @ mean)).sum())
            spread = 1 + (of_new * torch.linalg.solve(gram, of_new.T).T).sum(-1, keepdim=True)
            expected = scatter / (len(inputs) + 1) * spread
            torch.testing.assert_close(predicted[kind].squared_scale[0].double(), expected, rtol=1e-3, atol=1e-4)
    assert (predicted["variational"].mean - predicted["exact"].mean).abs().max() > 1e-2
    ratio = predicted["held out"].squared_scale / predicted["variational"].squared_scale
    assert (ratio - 1).abs().min() > 1e-2


def test_the_scale_of_held_out_rows_is_the_likeliest() -> None:
    layer, (features, targets) = make(1), rows(1)
    with torch.no_grad():
        predictive = layer.predict(features)
        score, log_factor = layer.least_scale([(predictive, targets)])
        scale = float(layer.noise_covariance) * float(layer.degrees) / predictive.degrees
    grid = np.exp(log_factor) * scale * np.exp(np.linspace(-0.5, 0.5, 41))
    errors = (targets - predictive.mean).numpy()
    scores = [-t(predictive.degrees, scale=math.sqrt(value)).logpdf(errors).mean() for value in grid]
    assert np.argmin(scores) == 20 and scores[20] == pytest.approx(score)


def test_variational_features_make_a_mixture_of_student_ts(tiny_table: FitData) -> None:
    state = fit("vbll_bnn", "student", tiny_table, {}, rng=Seed(5), layer=CONJUGATE)
    new, held = tiny_table.tensors("validation")
    posterior = LastLayerPosterior.from_state(state)
    predictive = posterior.predict(new, rng=Seed(0))
    assert isinstance(predictive, StudentT) and len(predictive.draw_mean) > 1
    densities = [
        t(float(predictive.degrees), mean, squared.sqrt()).pdf(held).prod(-1)
        for mean, squared in zip(predictive.draw_mean, predictive.squared_scale, strict=True)
    ]
    np.testing.assert_allclose(predictive.log_prob(held), np.log(np.mean(densities, 0)), rtol=1e-4)


def test_a_prior_that_is_improper_for_the_outputs_is_refused() -> None:
    improper = "ConfigError: wishart_dof must be > 1, the outputs less one, for conjugate noise, got 1.0"
    assert refusal(StudentRegression, WIDTH, 2, num_train=3) == improper
