"""Networks as functions of vectors: several perceptrons computed at once against each perceptron alone."""

import pytest
import torch

from bdl_pipe.networks.flat import FlatNetwork
from bdl_pipe.networks.mlp import MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed

RNG = Seed(5)


def spec(activation: str = "relu", dropout: float = 0.0, frequencies: tuple[float, ...] = ()) -> NetworkSpec:
    network = MlpConfig("mlp", (7, 5), activation, dropout, frequencies)  # type: ignore[arg-type]
    return NetworkSpec(network, (1, 2, 3), 4, "categorical", 1.0)


@pytest.mark.parametrize("frequencies", [(), (0.2, 0.7)])
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh", "mish", "silu"])
def test_perceptrons_computed_at_once_match_each_network_alone(activation: str, frequencies: tuple[float, ...]) -> None:
    network = FlatNetwork(spec(activation, frequencies=frequencies).build(Seed(0)).double())
    assert network.is_perceptron
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


@pytest.mark.parametrize("frequencies", [(), (0.2, 0.7)])
def test_perceptrons_computed_at_once_have_the_bits_of_vmap(frequencies: tuple[float, ...]) -> None:
    fast, general = (FlatNetwork(spec(frequencies=frequencies).build(Seed(0))) for _ in range(2))
    general._layers = None
    generator = RNG.generator()
    weights, inputs = torch.randn(4, fast.size, generator=generator), torch.randn(4, 50, 1, 2, 3, generator=generator)
    assert fast._layers is not None
    assert torch.equal(fast.each(weights, inputs), general.each(weights, inputs))


def test_a_perceptron_with_dropout_does_not_take_the_fast_path() -> None:
    assert FlatNetwork(spec(dropout=0.5).build(Seed(0)))._layers is None
