"""Laplace's approximation against exact Bayesian linear regression, and what the method does with a trajectory."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from bdl_pipe.artifacts import State, stack
from bdl_pipe.config import to_mapping
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory import snapshots
from bdl_pipe.trajectory.curvature import LayerPosterior, evidence_precision
from bdl_pipe.trajectory.laplace import KFAC_LAPLACE, KfacLaplaceConfig, posterior
from tests.resuming import Watched, killed, resumed, same_bits

from .cases import covariance

NOISE, PRECISION = 0.3, 2.0
TABLE = NetworkSpec(MlpConfig("mlp", (5,)), (4,), 1, "gaussian", NOISE)
IMAGES = NetworkSpec(ConvNetConfig("convnet", 4, 2), (1, 8, 8), 3, "categorical")
CONFIG = KfacLaplaceConfig(
    layers="last",
    prior_precision=PRECISION,
    temperature=1.0,
    rows=None,
    predictive="draws",
    max_factor=100,
    draws=2,
    batch_norm_rows=None,
    batch_norm_batch=1000,
)


def weights_of(spec: NetworkSpec) -> dict[str, torch.Tensor]:
    """A network whose biases are not zero."""
    weights = spec.build(Seed(1)).state_dict()
    return {k: v + 0.1 if k.endswith("bias") else v for k, v in weights.items()}


def trajectory(spec: NetworkSpec, weights: dict[str, torch.Tensor]) -> State:
    """Two snapshots, of which the last is ``weights``."""
    return State(stack([spec.build(Seed(9)).state_dict(), weights]), {"spec": to_mapping(spec)})


def make(
    data: FitData, spec: NetworkSpec, weights: dict[str, torch.Tensor], report: Report | None = None, **changes: Any
) -> State:
    config, inputs = dataclasses.replace(CONFIG, **changes), {"trajectory": [trajectory(spec, weights)]}
    return KFAC_LAPLACE.stages["student"].fit_one(data, inputs, config, rng=Seed(3), report=report or Silent())


def features_of(data: FitData, weights: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Φ with a column of ones and targets, in float64."""
    network = TABLE.build(Seed(0))
    network.load_state_dict(weights)
    inputs, targets = data.tensors("train")
    with torch.no_grad():
        phi = network.double().trunk(inputs.double())
    return torch.cat([phi, torch.ones(len(phi), 1)], 1).numpy(), targets.double().numpy()


def exact(phi: np.ndarray, targets: np.ndarray, precision: float) -> tuple[np.ndarray, np.ndarray]:
    """The mean and covariance of Bayesian linear regression."""
    covariance = np.linalg.inv(phi.T @ phi / NOISE + precision * np.eye(phi.shape[1]))
    return covariance @ phi.T @ targets[:, 0] / NOISE, covariance


def at_mode(data: FitData, precision: float) -> dict[str, torch.Tensor]:
    """A network whose head is the mode of its exact posterior."""
    weights = weights_of(TABLE)
    mean, _ = exact(*features_of(data, weights), precision)
    head = torch.tensor(mean, dtype=torch.float32)
    return weights | {"head.weight": head[None, :-1], "head.bias": head[-1:]}


def layers(
    data: FitData, spec: NetworkSpec, weights: dict[str, torch.Tensor], **changes: Any
) -> dict[str, LayerPosterior]:
    network = spec.build(Seed(0))
    network.load_state_dict(weights)
    return posterior(network, spec, data, dataclasses.replace(CONFIG, **changes), Seed(3))


def test_the_head_of_a_regression_has_the_exact_posterior(tiny_table: FitData) -> None:
    weights = at_mode(tiny_table, PRECISION)
    mean, right = exact(*features_of(tiny_table, weights), PRECISION)
    (layer,) = layers(tiny_table, TABLE, weights).values()
    np.testing.assert_allclose(layer.mean[0].numpy(), mean, rtol=0, atol=1e-6)
    np.testing.assert_allclose(covariance(layer, PRECISION), right, rtol=0, atol=1e-9)
    assert np.abs(covariance(layer, 80 * PRECISION) - right).max() > 1e-2  # the prior counted once a row


def test_the_curvature_of_some_rows_is_scaled_up_to_all_rows(tiny_table: FitData) -> None:
    weights = weights_of(TABLE)
    phi, _ = features_of(tiny_table, weights)
    order = torch.randperm(80, generator=Seed(3).fold("curvature").generator())[:20].numpy()
    (layer,) = layers(tiny_table, TABLE, weights, rows=20).values()
    right = np.linalg.inv(4 * phi[order].T @ phi[order] / NOISE + PRECISION * np.eye(6))
    np.testing.assert_allclose(covariance(layer, PRECISION), right, rtol=1e-8, atol=1e-12)


def test_a_fitted_precision_is_reported_and_used(tiny_table: FitData) -> None:
    weights, report = at_mode(tiny_table, 1.0), Watched()
    precision = evidence_precision(list(layers(tiny_table, TABLE, weights).values()))
    state = make(tiny_table, TABLE, weights, report, prior_precision=None)
    assert report.seen[-1] == {"prior_precision": precision}
    fixed = make(tiny_table, TABLE, weights, prior_precision=precision)
    assert all(torch.equal(v, fixed.tensors[k]) for k, v in state.tensors.items())


@pytest.mark.parametrize("chosen", ["last", "all"])
def test_draws_follow_from_their_addresses_in_blocks_and_after_a_kill(
    chosen: str, tiny_images: FitData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each draw's z follows from its number, layer after layer; draws in blocks of 3 equal draws made all at once."""
    spec = dataclasses.replace(IMAGES, network=ConvNetConfig("convnet", 4, 2, norm="instance"))
    weights = weights_of(spec)
    of_layers = layers(tiny_images, spec, weights, layers=chosen)

    def made(report: Report | None = None, **changes: Any) -> State:
        return make(tiny_images, spec, weights, report, layers=chosen, draws=7, **changes)

    def worst(state: State, dtype: torch.dtype, temperature: float) -> float:
        """The largest distance of a weight from the map of the numbers at its draw's address."""
        far = 0.0
        for number in range(7):
            generator = Seed(3).fold("draw", number).generator()
            for name, layer in of_layers.items():
                z = torch.randn(layer.mean.shape, generator=generator, dtype=dtype).double()
                bias = state.tensors[f"{name}.bias"][number, :, None]
                drawn = torch.cat([state.tensors[f"{name}.weight"][number].flatten(1), bias], 1)
                far = max(far, float((drawn - layer.draw(z, PRECISION, temperature)).abs().max()))
        return far

    state, single = made(temperature=0.25), made(dtype="float32")
    assert worst(state, torch.float64, 0.25) < 1e-6 and worst(single, torch.float32, 1.0) < 1e-3
    assert worst(state, torch.float64, 1.0) > 0.1 and worst(single, torch.float32, 0.9) > 1e-2
    state = made()
    monkeypatch.setattr(snapshots, "_ELEMENTS", 3 * sum(p.numel() for p in spec.build(Seed(0)).parameters()))
    for stop in (1, 2):
        watched = killed(made, stop)
        assert len(watched.tensors["head.weight"]) == 3 * stop
        assert same_bits(resumed(made, stop), made())
    for name, value in made().tensors.items():
        torch.testing.assert_close(value, state.tensors[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", ["batch", "instance"])
@pytest.mark.parametrize("chosen", ["last", "all"])
def test_only_the_chosen_layers_of_a_convnet_are_drawn(norm: str, chosen: str, tiny_images: FitData) -> None:
    config = ConvNetConfig("convnet", 4, 2, norm=norm, pool="max")  # type: ignore[arg-type]
    spec = dataclasses.replace(IMAGES, network=config)
    weights, rows = weights_of(spec), tiny_images.tensors("train")[0]
    state = make(tiny_images, spec, weights, layers=chosen, prior_precision=None).tensors
    same = {k for k, v in state.items() if torch.equal(v, weights[k].expand_as(v))}
    norms = {k for k in state if k.startswith(("trunk.1.", "trunk.5.")) and k.endswith(("weight", "bias"))}
    assert norms <= same and not any(k.startswith("head") for k in same)
    if chosen == "last":
        assert {k for k in state if k.startswith("trunk")} == same
    else:
        assert not any(k.startswith(("trunk.0", "trunk.4")) for k in same)
    if chosen == "all" and norm == "batch":  # each draw has the statistics of its own weights
        for draw in range(2):
            w = {k: v[draw] for k, v in state.items()}
            convolved = torch.nn.functional.conv2d(rows, w["trunk.0.weight"], w["trunk.0.bias"], padding=1)
            torch.testing.assert_close(w["trunk.1.running_mean"], convolved.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    posterior = make(tiny_images, spec, weights, layers=chosen)
    assert posterior_of(posterior).predict(rows[:5], rng=Seed(0)).draw_log_probs.shape == (2, 5, 3)


def test_the_linearised_posterior_has_the_draws_and_the_trajectorys_statistics(tiny_images: FitData) -> None:
    weights = weights_of(IMAGES)
    drawn = make(tiny_images, IMAGES, weights, layers="all").tensors
    state = make(tiny_images, IMAGES, weights, layers="all", predictive="linearised")
    assert state.config["posterior"] == "linearised_laplace"
    for name, value in state.tensors.items():
        if name.startswith("laplace."):  # the Gaussian, which :mod:`tests.trajectory.test_linearised_joint` tests
            continue
        assert torch.equal(value[0], weights[name])
        right = weights[name].expand_as(value[1:]) if "running" in name or "tracked" in name else drawn[name]
        assert torch.equal(value[1:], right)


def test_the_error_of_too_large_factors_names_the_layer(tiny_images: FitData, tiny_table: FitData) -> None:
    """Batch statistics, weights of zero, and a precision of zero are refused, too."""
    statistics = dataclasses.replace(IMAGES, network=ConvNetConfig("convnet", 4, 2, norm="batch_stats"))
    zero = weights_of(TABLE) | {"head.weight": torch.zeros(1, 5), "head.bias": torch.zeros(1)}
    images, free = (tiny_images, IMAGES, weights_of(IMAGES)), {"prior_precision": None}
    rule = r"methods\.kfac_laplace\.max_factor must be >= 37, for the factors \[37, 37\] and \[8, 8\] of the layer "
    for section, changes, message in (
        (images, {"layers": "all", "max_factor": 36}, rule + r"trunk\.4, got 36$"),
        ((tiny_images, statistics, weights_of(statistics)), {}, r"methods\.sgd\.network\.norm must not be batch_stats"),
        ((tiny_table, TABLE, zero), free, r"methods\.kfac_laplace\.prior_precision must be a number: .* all zero"),
        (images, {"prior_precision": 0.0}, r"prior_precision must be > 0 or null"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}"):
            make(*section, **changes)
    make(*images, layers="last", max_factor=36)
