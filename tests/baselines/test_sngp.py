"""SNGP against the kernel that it approximates, dense formulas in float64 and an exact Gaussian process."""

import math

import numpy as np
import pytest
import scipy.special
import torch

from bdl_pipe.artifacts import State
from bdl_pipe.baselines.sngp import SNGP, Sngp, SngpConfig, SngpPosterior, SngpSpec
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData, HeldRows
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import MlpConfig
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed

from .cases import unscaled

SECTION = {
    "network": {"name": "mlp", "hidden": [8]},
    "features": 20,
    "length_scale": 2.0,
    "norm_bound": 0.5,
    "ridge": 0.7,
    "training": {"epochs": 4, "batch": 16, "optimiser": {"name": "adam", "lr": 3.0e-2}},
}
CONVNET = {"network": {"name": "convnet", "width": 4, "blocks": 2}}


def learner(features: int = 64, seed: int = 0, outputs: int = 1, noise: str = "one") -> Sngp:
    spec = SngpSpec(MlpConfig("mlp", (5,)), (4,), outputs, "regression", features, 2.0, 0.9, 0.7, noise)  # type: ignore[arg-type]
    return Sngp(spec, Seed(seed)).eval()


def made(data: FitData, **changes: object) -> State:
    config = read(SngpConfig, SECTION | changes, "methods.sngp")
    return SNGP.stages["student"].fit_one(data, {}, config, rng=Seed(1), report=Silent())


def phi_of(state: State, h: np.ndarray) -> np.ndarray:
    frequencies, phases = (state.tensors[k].double().numpy() for k in ("frequencies", "phases"))
    return np.sqrt(2 / len(phases)) * np.cos(h @ frequencies + phases)


def trunk(state: State, x: torch.Tensor) -> np.ndarray:
    """The one hidden layer of SECTION's network, in float64."""
    weight, bias = (state.tensors[f"trunk.trunk.1.{name}"].double().numpy() for name in ("weight", "bias"))
    return np.maximum(x.flatten(1).double().numpy() @ weight.T + bias, 0)


@torch.no_grad()
def test_random_features_approximate_the_kernel_at_the_monte_carlo_rate() -> None:
    """With δ a pair's difference, 2 cos a cos b has mean k(δ) and variance 1 + k(2δ)/2 − k(δ)².

    Within 5 deviations for few and for many features: false alarms 1e-6 in all. The control is another length scale.
    """
    x = torch.tensor([[0.3, -1.2, 0.5, 2.0], [1.0, 0.4, -0.7, -1.0]])
    for features in (1_000, 1_000_000):
        model = learner(features)
        (a, b), (p, q) = model.trunk(x).double(), model.features(x).double()
        apart = {}
        for length in (2.0, 2.6):
            squared = float((a - b).square().sum()) / length**2
            kernel, twice = math.exp(-0.5 * squared), math.exp(-2 * squared)
            apart[length] = abs(float(p @ q) - kernel) / math.sqrt((1 + twice / 2 - kernel**2) / features)
        assert apart[2.0] < 5
    assert apart[2.6] > 5


@pytest.mark.parametrize("changes", [{}, CONVNET], ids=["mlp", "convnet"])
def test_the_spectral_bound_holds_after_training(tiny_images: FitData, changes: dict[str, object]) -> None:
    """The norm of each layer equals the bound; without the bound it would be larger."""
    posterior = posterior_of(made(tiny_images, **changes))
    assert isinstance(posterior, SngpPosterior)
    layers = [m for m in posterior.learner.modules() if isinstance(m, (torch.nn.Linear, torch.nn.Conv2d))]
    assert len(layers) == (2 if changes else 1)
    for layer in layers:
        norm = np.linalg.svd(layer.weight.detach().double().flatten(1).numpy(), compute_uv=False)[0]
        assert norm == pytest.approx(0.5, rel=1e-6)


def test_a_prediction_runs_no_eigendecomposition_and_no_svd(tiny_images: FitData) -> None:
    posterior = posterior_of(made(tiny_images, **CONVNET))
    with torch.autograd.profiler.profile() as seen:
        posterior.predict(tiny_images.tensors("validation")[0], rng=Seed(0))
    assert not [event.name for event in seen.function_events if "eigh" in event.name or "svd" in event.name]
    learner = Sngp(read(SngpSpec, posterior.state().config["spec"], "spec"), Seed(0))
    with torch.autograd.profiler.profile() as seen:
        learner.features(tiny_images.tensors("validation")[0])
    assert [event.name for event in seen.function_events if "eigh" in event.name]  # control


def test_class_covariance_and_predictive_equal_the_dense_formulas(tiny_images: FitData) -> None:
    state = made(tiny_images)
    phi = phi_of(state, trunk(state, tiny_images.tensors("train")[0]))
    beta = state.tensors["head"].double().numpy()
    p = scipy.special.softmax(phi @ beta, axis=1)
    weight = (p * (1 - p)).max(1)  # of the class of the largest variance
    precision = 0.7 * np.eye(20) + sum(w * np.outer(f, f) for w, f in zip(weight, phi, strict=True))
    factor = state.tensors["factor"].numpy()
    np.testing.assert_allclose(factor @ factor.T, precision, rtol=1e-4, atol=1e-4)

    inputs = tiny_images.tensors("validation")[0]
    test = phi_of(state, trunk(state, inputs))
    variance = np.einsum("nd,de,ne->n", test, np.linalg.inv(precision), test)
    predictive = posterior_of(state).predict(inputs, rng=Seed(0))
    assert isinstance(predictive, Categorical)
    expected = scipy.special.log_softmax(test @ beta / np.sqrt(1 + np.pi / 8 * variance)[:, None], axis=1)
    np.testing.assert_allclose(predictive.log_probs.numpy(), expected, atol=1e-4)
    functions = posterior_of(state).functions(inputs[:6].unflatten(0, (2, 3)), rng=Seed(0))
    groups = test[:6].reshape(2, 3, -1)
    together = groups @ np.linalg.inv(precision) @ groups.transpose(0, 2, 1)
    np.testing.assert_allclose(functions.covariance[0, :, 0], together, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(functions.mean[0], groups @ beta, atol=1e-4)
    assert functions.classes and functions.noise.count_nonzero() == 0
    unshrunk = scipy.special.log_softmax(test @ beta, axis=1)
    assert np.abs(unshrunk - expected).max() > 1e-2  # control: the variance matters


@pytest.mark.parametrize("noise_of", ["one", "each input"])
def test_regression_on_a_fixed_trunk_equals_exact_bayesian_linear_regression(noise_of: str) -> None:
    """The MAP and Λ against the Gaussian process of kernel φᵀφ/τ in function space, in float64."""
    random = np.random.default_rng(2)
    x, y = torch.tensor(random.normal(0, 1, (30, 4))), torch.tensor(random.normal(0, 1, (30, 2)))
    model = learner(features=12, outputs=2, noise=noise_of).double()
    with torch.no_grad():
        model.log_noise.fill_(math.log(0.3))
        slope = torch.linspace(-2, 2, 12).double()[:, None] * (noise_of == "each input")
        if noise_of == "each input":
            model.noise_head.copy_(slope)
    optimiser = torch.optim.LBFGS([model.head], max_iter=500, tolerance_grad=1e-12, tolerance_change=0.0)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = model(x, y, len(x), {})
        loss.backward()
        return loss

    optimiser.step(closure)
    test = torch.tensor(random.normal(0, 2, (7, 4)))
    with torch.no_grad():
        model.factor = model.precision_factor(HeldRows(x, x))
        predictive = model.predict(test, rng=Seed(0))
        phi, star = model.features(x).numpy(), model.features(test).numpy()
        functions = model.functions(test[None])
    assert isinstance(predictive, Gaussian)
    of_rows, of_new = (0.3 * np.exp(rows @ slope.numpy()) for rows in (phi, star))  # [row, 1]
    inner = np.linalg.inv(phi @ phi.T / 0.7 + np.diag(of_rows[:, 0]))
    cross = star @ phi.T / 0.7
    variance = (star**2).sum(1) / 0.7 - np.einsum("ti,ij,tj->t", cross, inner, cross)
    np.testing.assert_allclose(predictive.mean.numpy(), cross @ inner @ y.numpy(), atol=1e-6)
    np.testing.assert_allclose(predictive.variance.numpy(), (variance[:, None] + of_new).repeat(2, 1), rtol=1e-8)
    np.testing.assert_allclose(functions.covariance[0, 0, 0].diagonal(), variance, rtol=1e-8)
    np.testing.assert_allclose(np.broadcast_to(functions.noise[0], (1, 7, 2))[0], of_new.repeat(2, 1), rtol=1e-8)
    model.factor = None
    if noise_of == "each input":
        line = {name: torch.tensor(v, dtype=torch.float64) for name, v in (("shift", 0.4), ("slope", 0.3))}
        model.load_state_dict(model.with_estimated(model.state_dict(), line))
        moved = model.predict(test, rng=Seed(0)).variance[:, :1].detach().log()
        np.testing.assert_allclose(moved, 0.4 + 0.3 * np.log(of_new), rtol=1e-8)


def test_classes_have_no_noise(tiny_images: FitData) -> None:
    with pytest.raises(ConfigError, match=r"^noise must be one: classes have no noise, got 'each input'$"):
        made(tiny_images, noise="each input")


def test_the_estimated_noise_is_the_mean_squared_residual_and_enters_the_precision() -> None:
    """After few steps the learned noise is still near 1; Λ of the fit uses the estimated noise."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(200, 4))
    data = unscaled(inputs, inputs[:, :1] + 0.1 * random.normal(size=(200, 1)))
    learned, trained = (made(data, training={**SECTION["training"], "noise": rule}) for rule in ("learned", "training"))  # type: ignore[dict-item]
    x, y = data.rows("train").slice(0, 200)
    head = learned.tensors["head"].double().numpy()
    phi = phi_of(learned, trunk(learned, x))
    mean_square = float(np.square(phi @ head - y.double().numpy()).mean())
    noise = math.exp(trained.tensors["log_noise"])
    assert noise == pytest.approx(mean_square, rel=1e-3) and noise < 0.8 * math.exp(learned.tensors["log_noise"])
    precision = trained.tensors["factor"].numpy() @ trained.tensors["factor"].numpy().T
    np.testing.assert_allclose(precision, 0.7 * np.eye(20) + phi.T @ phi / noise, rtol=1e-4, atol=1e-3)
