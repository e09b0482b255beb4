"""Networks as functions of vectors: several perceptrons at once are each of them alone."""

import pytest
import torch

from bdl_pipe.networks.flat import FlatNetwork
from bdl_pipe.networks.mlp import MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed

RNG = Seed(5)


def spec(activation: str = "relu", dropout: float = 0.0) -> NetworkSpec:
    return NetworkSpec(MlpConfig("mlp", (7, 5), activation, dropout), (1, 2, 3), 4, "categorical", 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh"])
def test_perceptrons_at_once_are_the_networks_one_by_one(activation: str) -> None:
    network = FlatNetwork(spec(activation).build(Seed(0)).double())
    generator = RNG.fold(activation).generator()
    weights = torch.randn(3, network.size, generator=generator, dtype=torch.float64)
    inputs = torch.randn(3, 6, 1, 2, 3, generator=generator, dtype=torch.float64)
    leaf = weights.clone().requires_grad_()
    outputs = network.each(leaf, inputs)
    (slopes,) = torch.autograd.grad(outputs.square().sum(), leaf)
    for k in range(3):
        alone = network.tied(weights[k])(inputs[k])
        torch.testing.assert_close(outputs[k], alone, rtol=0, atol=1e-12)
        slope = torch.empty_like(weights[k])
        network.gradient(alone.square().sum(), slope)
        torch.testing.assert_close(slopes[k], slope, rtol=0, atol=1e-9)


def test_perceptrons_at_once_have_the_bits_of_vmap() -> None:
    fast, general = (FlatNetwork(spec().build(Seed(0))) for _ in range(2))
    general._layers = None
    generator = RNG.generator()
    weights, inputs = torch.randn(4, fast.size, generator=generator), torch.randn(4, 50, 1, 2, 3, generator=generator)
    assert fast._layers is not None
    assert torch.equal(fast.each(weights, inputs), general.each(weights, inputs))


def test_a_perceptron_with_dropout_is_computed_as_any_network() -> None:
    assert FlatNetwork(spec(dropout=0.5).build(Seed(0)))._layers is None
