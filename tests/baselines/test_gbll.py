"""GBLL, LDGBLL and MAP-BLR, layers with an exact evidence: losses, predictives, derivatives, chosen epochs, errors."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe.artifacts import State
from bdl_pipe.baselines.exact_layer import ExactLayerPosterior, features
from bdl_pipe.baselines.gbll import GBLL, LDGBLL, Gbll, Ldgbll, derivative_kl, magnitude
from bdl_pipe.baselines.map_blr import MAP_BLR, PointNetwork
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import DataError, Diverged
from bdl_pipe.linear_regression import best_variances, posterior, scaled
from bdl_pipe.method import Method
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from tests import cases
from tests.cases import CONFIGS, LEAKY
from tests.conftest import make_tiny_table

METHODS = [GBLL, LDGBLL, MAP_BLR]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)


def config_of(method: Method, **changes: Any) -> Any:
    return cases.config_of(method.name, "regression", **changes)


def fitted(method: Method, data: FitData, **changes: Any) -> State:
    return cases.fit(method.name, "student", data, rng=Seed(3), **changes)


def trained_with(method: Method, changes: dict[str, Any]) -> dict[str, Any]:
    """Changes of the keys of training, which MAP-BLR has in a section."""
    return {"training": CONFIGS["map_blr", "regression"]["training"] | changes} if method is MAP_BLR else changes


def numpy_features(state: State, inputs: Tensor) -> np.ndarray:
    """The hidden layer of the test's network and a feature of ones, in float64."""
    weight, bias = (state.tensors[f"network.trunk.1.{k}"].double().numpy() for k in ("weight", "bias"))
    below = 0.01 if state.config["spec"]["network"]["activation"] == "leaky_relu" else 0.0
    hidden = inputs.double().numpy() @ weight.T + bias
    hidden = np.where(hidden > 0, hidden, below * hidden)
    return np.c_[hidden, np.ones(len(hidden))]


def gaussian_process(phi: np.ndarray, y: np.ndarray, star: np.ndarray, prior: float, noise: np.ndarray) -> Any:
    """Mean and variance of f at ``star`` in function space, through the n×n covariance with the noise of each row."""
    gain = prior * star @ phi.T @ np.linalg.inv(prior * phi @ phi.T + np.diag(noise))
    return gain @ y, prior * (star**2).sum(1) - (gain * (prior * star @ phi.T)).sum(1)


@pytest.mark.parametrize("noise_of", ["one", "each input"])
@each_method
def test_the_predictive_equals_a_gaussian_process_with_the_kernel_of_features(method: Method, noise_of: str) -> None:
    """The features are float32, hence the tolerance of 1e-5; the state holds no training row."""
    data = make_tiny_table()
    state = fitted(method, data, noise=noise_of)
    (x, y), (new, _) = data.tensors("train"), data.tensors("validation")
    phi, star = numpy_features(state, x), numpy_features(state, new)
    prior, noise = state.config["prior_variance"], float(state.tensors["noise_variance"])
    head = state.tensors["noise_head"].numpy() if noise_of == "each input" else np.zeros((phi.shape[1], 1))
    of_rows, of_new = (noise * np.exp(rows @ head)[:, 0] for rows in (phi, star))
    assert (of_rows.std() > 1e-3 * noise) == (noise_of == "each input")
    mean, spread = gaussian_process(phi, y.double().numpy(), star, prior, of_rows)
    posterior = ExactLayerPosterior.from_state(state)
    predictive, functions = posterior.predict(new), posterior.functions(new[None], rng=Seed(0))
    np.testing.assert_allclose(predictive.mean.numpy(), mean, atol=1e-5)
    np.testing.assert_allclose(predictive.variance.numpy()[:, 0], spread + of_new, atol=1e-5)
    np.testing.assert_allclose(functions.covariance[0, 0, 0].diagonal(), spread, atol=1e-5)
    np.testing.assert_allclose(np.broadcast_to(functions.noise.flatten(), len(new)), of_new, atol=1e-5)
    other = gaussian_process(phi, y.double().numpy(), star, prior, 1.1 * of_rows)
    assert np.abs(other[1] + 1.1 * of_new - spread - of_new).max() > 1e-3  # control
    names = {"network.trunk.1.weight", "network.trunk.1.bias", "mean", "factor", "noise_variance"}
    assert state.tensors.keys() == {*names, *["noise_head"] * (noise_of == "each input")}


@pytest.mark.parametrize("noise_of", ["one", "each input"])
def test_the_loss_is_minus_the_log_evidence_per_row(noise_of: str) -> None:
    data = make_tiny_table()
    model = Gbll(config_of(GBLL, noise=noise_of), data, Seed(0))
    x, y = data.tensors("train")
    noise = torch.full((len(x),), 0.1).double()
    with torch.no_grad():
        phi = features(model.network, x)
        if model.noise_head is not None:
            model.noise_head.copy_(torch.linspace(-1, 1, phi.shape[1])[:, None])
            noise *= (phi @ torch.linspace(-1, 1, phi.shape[1]).double()).exp()
        loss = model(x, y, len(x), {})
    law = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), 1.0 * phi @ phi.T + noise.diag())
    torch.testing.assert_close(loss, -law.log_prob(y.double()[:, 0]) / len(x), atol=1e-6, rtol=1e-6)
    with pytest.raises(AssertionError, match="all rows at once"):
        model(x[:-1], y[:-1], len(x), {})


def test_the_latent_derivative_loss_equals_finite_differences() -> None:
    """KL of N(μ, τ) from N(0, v), μ and τ by central differences of the predictive's weights and features."""
    data = make_tiny_table()
    config = config_of(LDGBLL, derivative_variance=0.7, weight=0.3)
    model = Ldgbll(config, data, Seed(0)).double()
    model.rows, model.targets = model.rows.double(), model.targets.double()
    x, y, at = model.rows, model.targets, torch.tensor([4, 0, 17])
    with torch.no_grad():
        difference = float(model(x, y, len(x), {"rows": at}) - Gbll.forward(model, x, y, len(x), {}))
        q, step, total = model.posterior(), 1e-6, 0.0
        for j in range(4):
            shift = step * torch.eye(4).double()[j]
            slopes = (features(model.network, x[at] + shift) - features(model.network, x[at] - shift)) / (2 * step)
            mean = (slopes @ q.mean)[:, 0]
            scale = (slopes @ torch.cholesky_inverse(q.factor) * slopes).sum(1).sqrt()
            prior = torch.distributions.Normal(torch.zeros(3).double(), math.sqrt(0.7))
            kl = torch.distributions.kl_divergence(torch.distributions.Normal(mean, scale), prior)
            total += 0.3 * float(kl.mean())
    assert difference == pytest.approx(total, rel=1e-6)
    with torch.no_grad():  # control: other rows have other derivatives
        other = float(model(x, y, len(x), {"rows": at + 1}) - Gbll.forward(model, x, y, len(x), {}))
    assert abs(other - difference) > 1e-3 * abs(difference)


def test_the_derivative_kl_is_finite_with_more_inputs_than_features_and_has_gradients() -> None:
    inputs = torch.randn(3, 6, generator=Seed(0).generator()).double()
    weight = torch.randn(4, 6, generator=Seed(1).generator()).double().requires_grad_()

    def kl(weight: Tensor) -> Tensor:
        def trunk(x: Tensor) -> Tensor:
            return torch.tanh(weight @ x)

        return derivative_kl(posterior(trunk(inputs.T).T, inputs[:, :1], 0.7, 0.3), trunk, inputs, 0.8)

    assert kl(weight).isfinite().all() and torch.autograd.gradcheck(kl, (weight,))


@pytest.mark.parametrize("rows", [None, 20])
def test_ldgbll_with_weight_zero_equals_gbll_bit_for_bit(rows: int | None) -> None:
    data = make_tiny_table()
    plain = fitted(GBLL, data, network=LEAKY)
    latent = fitted(LDGBLL, data, weight=0.0, derivative_rows=rows)
    assert all(torch.equal(value, latent.tensors[name]) for name, value in plain.tensors.items())
    weighted = fitted(LDGBLL, data, weight=0.1, derivative_rows=rows)
    assert any(not torch.equal(value, weighted.tensors[name]) for name, value in plain.tensors.items())


def test_each_step_draws_distinct_rows_for_its_derivatives() -> None:
    model = Ldgbll(config_of(LDGBLL), make_tiny_table(), Seed(0))
    drawn = model.noise(6, 80, Seed(1).generator())["rows"]
    assert drawn.shape == (6, 20) and int(drawn.min()) >= 0 and int(drawn.max()) < 80
    assert all(len(set(row.tolist())) == 20 for row in drawn)
    assert not torch.equal(drawn[0], drawn[1])
    assert model.noise(6, 20, Seed(1).generator()) == {}  # the batch has 20 rows and all are used: no draw


def test_the_chosen_epochs_have_the_best_validation_score_of_the_exact_predictive() -> None:
    """The score of a number of epochs is the score of a fit that stops there (at a constant rate)."""
    data = make_tiny_table()
    section = {"optimiser": {"name": "adam", "lr": 3e-2}, "network": {"name": "mlp", "hidden": [40]}}
    new, targets = data.tensors("validation")
    rng, stage = Seed(3), GBLL.stages["student"]
    scores = []
    for epochs in (10, 20, 30, 40, 50):
        config = config_of(GBLL, epochs=epochs, early_stopping=None, **section)
        state = stage.fit_one(data, {}, config, rng=rng.fold("search"), report=Silent())
        scores.append(-float(ExactLayerPosterior(state).predict(new).log_prob(targets).mean()))
    config = config_of(GBLL, epochs=50, early_stopping={"every": 10, "patience": None}, **section)
    chosen = stage.fit_one(data, {}, config, rng=rng, report=Silent()).config["epochs"]
    assert chosen == 10 * (1 + int(np.argmin(scores)))
    assert 10 < chosen < 50  # a choice at either end would prove less


def test_null_starts_at_the_magnitude_of_each_splits_training_targets_alone() -> None:
    """With variances of 1 and 100 · 10^±.3 in one call; validation rows a thousand times as far apart play no part."""
    data = make_tiny_table()
    far = Examples(data.validation.inputs, 1e3 * data.validation.targets)
    scaled_by = [1.0, 10.0 * 10**0.15, 10.0 * 10**-0.15]
    of = [
        dataclasses.replace(data, validation=far, transform=dataclasses.replace(data.transform, scale=scale))
        for scale in (data.transform.scale / by for by in scaled_by)
    ]
    still = {"optimiser": {"name": "sgd", "lr": 1e-30}, "epochs": 2, "early_stopping": None}
    null, stage = {"noise_variance": None, "derivative_variance": None}, LDGBLL.stages["student"]
    assert stage.fit_many is not None
    rngs = [Seed(m) for m in range(3)]
    states = stage.fit_many(of, [{}] * 3, config_of(LDGBLL, **still, **null), rngs=rngs, report=Silent())
    for rows, state, rng, variance in zip(of, states, rngs, (1.0, 100.0, 100.0), strict=True):
        assert float(state.tensors["noise_variance"]) == pytest.approx(variance, rel=1e-6)
        given = config_of(LDGBLL, **still, noise_variance=variance, derivative_variance=variance)
        loss = stage.fit_one(rows, {}, given, rng=rng, report=Silent()).config["loss"]
        assert state.config["loss"] == pytest.approx(loss, rel=1e-5)
        wrong = config_of(LDGBLL, **still, noise_variance=variance, derivative_variance=1e3 * variance)  # control
        assert abs(stage.fit_one(rows, {}, wrong, rng=rng, report=Silent()).config["loss"] - loss) > 1e-3 * abs(loss)
    assert magnitude(torch.ones(5, 1)) == 1


@each_method
def test_without_early_stopping_validation_rows_do_not_change_the_fit(method: Method) -> None:
    data = make_tiny_table()
    wild = Examples(1e3 * data.validation.inputs[::-1].copy(), -data.validation.targets.copy())
    changes = trained_with(method, {"early_stopping": None})
    one, other = (fitted(method, d, **changes) for d in (data, dataclasses.replace(data, validation=wild)))
    assert one.config == other.config
    assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def test_an_estimate_moves_the_log_noise_of_map_blr_along_its_line() -> None:
    data = make_tiny_table()
    model = PointNetwork(config_of(MAP_BLR), data, Seed(0))
    assert model.noise_head is not None
    torch.nn.init.normal_(model.noise_head)
    x, _ = data.tensors("validation")
    with torch.no_grad():
        before = model.predict(x, rng=Seed(0)).variance.log()
        line = {"shift": torch.tensor(0.4), "slope": torch.tensor(0.3)}
        model.load_state_dict(model.with_estimated(model.state_dict(), line))
        torch.testing.assert_close(model.predict(x, rng=Seed(0)).variance.log(), 0.4 + 0.3 * before)


def test_the_variances_of_map_blr_maximise_the_evidence_of_its_features() -> None:
    data = make_tiny_table()
    exact = ExactLayerPosterior(fitted(MAP_BLR, data))
    assert exact.noise_head is not None
    x, y = data.tensors("train")
    with torch.no_grad():
        phi = exact.features(x)
    variances = exact.state().config["prior_variance"], float(exact.layer.noise_variance)
    assert variances == pytest.approx(best_variances(*scaled(phi, y.double(), phi @ exact.noise_head)), rel=1e-9)


@pytest.mark.parametrize("method", [GBLL, LDGBLL], ids=lambda m: m.name)
def test_decay_does_not_move_the_noise_variance(method: Method) -> None:
    still = {"name": "sgd", "lr": 1e-30, "weight_decay": 1e25}
    kept = fitted(method, make_tiny_table(), epochs=1, early_stopping=None, optimiser=still)
    assert float(kept.tensors["noise_variance"]) == pytest.approx(0.1, rel=1e-6)


def test_too_many_rows_and_a_diverging_fit_are_refused() -> None:
    many = Examples(np.zeros((600_000, 4)), np.zeros((600_000, 1)))
    for method in METHODS:
        with pytest.raises(DataError, match=rf"^{method.name}: the data must have at most 555555 training rows for 9 "):
            fitted(method, dataclasses.replace(make_tiny_table(), train=many))
    with pytest.raises(Diverged, match="lower the learning rate"):
        fitted(GBLL, make_tiny_table(), optimiser={"name": "sgd", "lr": 1e30})
