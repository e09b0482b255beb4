"""A noise of each input, Σ exp g(x): the loss, the predictive and the exact posterior against dense formulas."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor
from torch.distributions import MultivariateNormal

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.joint_predictive import JointGaussian
from bdl_pipe.last_layer.learner import LastLayerLearner, LastLayerSpec
from bdl_pipe.last_layer.regression import Regression, condition
from bdl_pipe.last_layer.settings import GaussianLayer
from bdl_pipe.networks import MlpConfig
from bdl_pipe.predictive import Gaussian
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from tests.cases import GAUSSIAN, fit

ROWS = 9


def learner(outputs: int = 2, **layer: Any) -> LastLayerLearner:
    """A learner in float64 whose noise differs between inputs and depends between outputs."""
    settings = GaussianLayer("dense", None, 2.0, 3.0, 0.7, 1.0, noise="each input", **layer)
    spec = LastLayerSpec(MlpConfig("mlp", (4,)), (3,), outputs, "regression", settings, None)
    model, random = spec.build(Seed(0)).double(), Seed(1).generator()
    assert model.log_noise is not None and isinstance(model.layer, Regression)
    for weight in (model.log_noise.weight, model.log_noise.bias, model.layer.noise_factor, model.layer.noise_log_root):
        weight.data = torch.randn(weight.shape, generator=random).double()
    return model.eval()


def rows(outputs: int = 2) -> tuple[Tensor, Tensor]:
    random = Seed(2).generator()
    return torch.randn(ROWS, 3, generator=random).double(), torch.randn(ROWS, outputs, generator=random).double()


def known(made: LastLayerLearner, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return φ, exp g, S and Σ."""
    assert made.log_noise is not None and isinstance(made.layer, Regression)
    phi = made.trunk(inputs)
    return phi, made.log_noise(phi).exp(), made.layer.covariance().matrix()[0], made.layer.noise_covariance


@torch.no_grad()
def test_the_loss_is_minus_the_bound_of_each_row_with_its_own_covariance() -> None:
    model, (x, y) = learner(), rows()
    phi, factor, s, sigma = known(model, x)
    bounds = [
        MultivariateNormal(model.layer.mean @ row, e * sigma).log_prob(target)
        - 0.5 * (row @ s @ row) * torch.trace(torch.linalg.inv(e * sigma))
        for row, e, target in zip(phi, factor, y, strict=True)
    ]
    prior = (model.layer.log_noise_prior() - model.layer.kl()) / 50
    torch.testing.assert_close(model(x, y, 50, {}), -(torch.stack(bounds).mean() + prior))


@torch.no_grad()
def test_the_predictive_has_the_noise_of_its_input() -> None:
    model, (x, _) = learner(), rows()
    phi, factor, s, sigma = known(model, x)
    predictive = model.predict(x, rng=Seed(0))
    assert isinstance(predictive, Gaussian)
    spread = torch.einsum("ri,ij,rj->r", phi, s, phi)[:, None]
    torch.testing.assert_close(predictive.mean, phi @ model.layer.mean.mT)
    torch.testing.assert_close(predictive.variance, spread + factor * sigma.diagonal())


@torch.no_grad()
def test_the_exact_posterior_is_weighted_bayesian_linear_regression() -> None:
    model, (x, y) = learner(outputs=1), rows(outputs=1)
    phi, factor, _, sigma = known(model, x)
    assert isinstance(model.layer, Regression)
    model.exact = condition(model.layer, [model.row(x, y, 0, Seed(0))])
    weights = 1 / (factor * sigma)  # [row, 1]
    covariance = torch.linalg.inv(phi.mT @ (weights * phi) + torch.eye(4).double() / 2.0)
    mean = covariance @ phi.mT @ (weights * y)
    predictive = model.predict(x, rng=Seed(0))
    torch.testing.assert_close(predictive.mean, phi @ mean)
    spread = torch.einsum("ri,ij,rj->r", phi, covariance, phi)[:, None]
    torch.testing.assert_close(predictive.variance, spread + factor * sigma)


@torch.no_grad()
def test_the_joint_of_observations_has_the_noise_of_each_of_their_inputs() -> None:
    model, (x, y) = learner(outputs=1), rows(outputs=1)
    phi, factor, s, sigma = known(model, x)
    places = torch.tensor([[0, 0, 3]])
    joint = model.functions(x[None], rng=Seed(0)).joint(places, draws=1, rng=Seed(0))
    assert isinstance(joint, JointGaussian)
    some = places[0]
    covariance = phi[some] @ s @ phi[some].mT + torch.diag((factor * sigma)[some, 0])
    expected = multivariate_normal((phi @ model.layer.mean.mT)[some, 0], covariance).logpdf(y[some, 0])
    np.testing.assert_allclose(joint.log_prob(y[some][None]), [expected], rtol=1e-9)


@torch.no_grad()
def test_an_estimate_moves_the_log_noise_along_its_line() -> None:
    """The variance of the function is subtracted: the line is of the noise."""
    model, (x, _) = learner(outputs=1), rows(outputs=1)
    _, before, _, sigma = known(model, x)
    line = {"shift": torch.tensor(0.4), "slope": torch.tensor(0.3)}
    weights = model.with_estimated(model.state_dict(), line)
    model.load_state_dict(weights)
    _, after, _, again = known(model, x)
    torch.testing.assert_close((after * again).log(), 0.4 + 0.3 * (before * sigma).log())
    assert torch.equal(weights["layer.mean"], model.layer.mean)


def test_a_fitted_posterior_has_its_noise_after_it_was_stored_and_classes_have_none(tiny_table: FitData) -> None:
    layer = {**GAUSSIAN, "noise": "each input"}
    for exact in ("variational", "exact"):
        state = fit("vbll", "student", tiny_table, layer={**layer, "posterior": exact})
        inputs = tiny_table.tensors("validation")[0]
        functions = posterior_of(state).functions(inputs[None], rng=Seed(0))
        assert functions.noise.shape == (1, 1, len(inputs), 1) and functions.noise.std() > 0
    rule = r"^layer\.noise must be one: classes have no noise of targets, got 'each input'$"
    with pytest.raises(ConfigError, match=rule):
        LastLayerSpec(MlpConfig("mlp", (4,)), (3,), 2, "classification", GaussianLayer(**layer), None)
