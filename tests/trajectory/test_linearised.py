"""Linearised networks against dense Jacobians."""

import dataclasses

import pytest
import torch
from torch.func import functional_call, jacrev

from bdl_pipe.networks import ConvNetConfig, MlpConfig, NetworkConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.linearised import LinearisedDraws

TABLE = NetworkSpec(MlpConfig("mlp", (6, 5), "leaky_relu"), (4,), 1, "gaussian_head")
IMAGES = NetworkSpec(ConvNetConfig("convnet", 4, 2, pool="max"), (1, 8, 8), 3, "categorical")


def draws_of(spec: NetworkSpec, part: str) -> tuple[NetworkDraws, dict[str, torch.Tensor]]:
    """Three draws around random weights, of the parameters whose names begin with ``part``, and the weights."""
    network, random = spec.build(Seed(1)), torch.Generator().manual_seed(2)
    center = network.state_dict()
    moved = {name for name, _ in network.named_parameters() if name.startswith(part)}
    stacked = {k: v.expand(3, *v.shape).clone() for k, v in center.items()}
    for name in moved:
        stacked[name] += 0.3 * torch.randn(stacked[name].shape, generator=random)
    return NetworkDraws(spec, stacked), center


def inputs_of(spec: NetworkSpec) -> torch.Tensor:
    return torch.randn(7, *spec.input_shape, generator=torch.Generator().manual_seed(3))


def dense(draws: NetworkDraws, center: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """f + J(w − w*) with the whole Jacobian in float64, [draw, row, output]."""
    network = draws.spec.build(Seed(0)).double().eval()
    at = {k: v.double() if v.is_floating_point() else v for k, v in center.items()}
    names = [name for name, _ in network.named_parameters()]

    def outputs(part: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(network, at | part, (inputs.double(),))

    jacobian = jacrev(outputs)({name: at[name] for name in names})
    total = outputs({}).detach().expand(3, -1, -1).clone()
    for name in names:
        change = (draws.weights[name].double() - at[name]).flatten(1)  # [draw, weight]
        total += torch.einsum("now,dw->dno", jacobian[name].flatten(2), change)
    return total


@pytest.mark.parametrize("spec", [TABLE, IMAGES], ids=["mlp", "convnet"])
@pytest.mark.parametrize("part", ["", "trunk", "head"])
def test_the_outputs_equal_the_dense_linearisation(spec: NetworkSpec, part: str) -> None:
    (draws, center), inputs = draws_of(spec, part), inputs_of(spec)
    found, right = LinearisedDraws.of(draws, center).predict(inputs), spec.predictive(dense(draws, center, inputs))
    drawn = draws.predict(inputs)
    if isinstance(found, Gaussian):
        assert isinstance(right, Gaussian) and isinstance(drawn, Gaussian)
        torch.testing.assert_close(found.draw_mean.double(), right.draw_mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.draw_variance.double(), right.draw_variance, rtol=1e-4, atol=1e-5)
        near = torch.allclose(drawn.draw_mean, found.draw_mean, rtol=1e-4, atol=1e-5)
    else:
        assert isinstance(found, Categorical) and isinstance(right, Categorical) and isinstance(drawn, Categorical)
        torch.testing.assert_close(found.draw_log_probs.double(), right.draw_log_probs, rtol=1e-4, atol=1e-5)
        near = torch.allclose(drawn.draw_log_probs, found.draw_log_probs, rtol=1e-4, atol=1e-5)
    assert near == (part == "head")  # the network is linear in its head alone


@pytest.mark.parametrize("norm", ["batch", "instance", "group", "none"])
def test_networks_of_every_norm_equal_the_dense_linearisation(norm: str) -> None:
    network: NetworkConfig = ConvNetConfig("convnet", 8, 2, norm=norm)  # type: ignore[arg-type]
    spec = dataclasses.replace(IMAGES, network=network)
    draws, center = draws_of(spec, "trunk.0")
    found = LinearisedDraws.of(draws, center).predict(inputs_of(spec))
    assert isinstance(found, Categorical)
    right = spec.predictive(dense(draws, center, inputs_of(spec)))
    assert isinstance(right, Categorical)
    torch.testing.assert_close(found.draw_log_probs.double(), right.draw_log_probs, rtol=1e-4, atol=1e-5)
