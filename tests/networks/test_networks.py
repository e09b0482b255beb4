"""Parameter counts by hand, normalisation against torch, initial weights by their law, networks as functions."""

import copy
import dataclasses
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import (
    ConvNetConfig,
    MlpConfig,
    NetworkConfig,
    WideResNetConfig,
    build,
    dropout_masks,
    fastest_order,
)
from bdl_pipe.networks.convnet import BatchStatistics
from bdl_pipe.networks.flat import FlatNetwork
from bdl_pipe.networks.mlp import Periodic, PiecewiseLinear
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed

from .cases import parameters


def test_an_mlp_has_the_parameters_counted_by_hand_and_networks_the_expected_sizes() -> None:
    network = build(MlpConfig("mlp", (200, 100)), (1, 28, 28), 10, rng=Seed(0))
    assert parameters(network) == (784 * 200 + 200) + (200 * 100 + 100) + (100 * 10 + 10)
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    odd = build(ConvNetConfig("convnet", 4), (1, 28, 28), 10, rng=Seed(0))
    assert odd.width == 16 * 3 * 3  # a pool drops the last row and column
    bare = build(MlpConfig("mlp", (5,)), (3,), 0, rng=Seed(0))  # without outputs
    inputs = torch.randn(4, 3, generator=Seed(1).generator())
    assert torch.equal(bare(inputs), bare.trunk(inputs))


@pytest.mark.parametrize("norm", ["batch", "batch_stats", "instance", "group", "none"])
def test_a_convnet_has_the_parameters_counted_by_hand(norm: str) -> None:
    network = build(ConvNetConfig("convnet", 8, norm=norm), (3, 32, 32), 10, rng=Seed(0))  # type: ignore[arg-type]
    convolutions = (3 * 9 * 8 + 8) + (8 * 9 * 16 + 16) + (16 * 9 * 32 + 32)
    norms = 0 if norm == "none" else 2 * (8 + 16 + 32)
    assert parameters(network) == convolutions + norms + 32 * 4 * 4 * 10 + 10 and network.width == 32 * 4 * 4


def test_pooling_before_the_relu_changes_no_bit() -> None:
    """Against blocks with the ReLU before the pool, as they are described: outputs, and gradients of all weights."""
    images = torch.randn(6, 1, 28, 28, generator=Seed(0).generator())
    network = build(ConvNetConfig("convnet", 4, pool="max"), (1, 28, 28), 3, rng=Seed(1))
    described = copy.deepcopy(network)
    layers = list(described.trunk.children())
    swapped = [(i, i + 1) for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]
    for pool, relu in swapped:
        layers[pool], layers[relu] = layers[relu], layers[pool]
    described.trunk = nn.Sequential(*layers)
    assert len(swapped) == 3 and all(isinstance(layers[relu], nn.MaxPool2d) for _, relu in swapped)
    both_outputs = [n(images) for n in (network, described)]
    assert torch.equal(*both_outputs)
    slopes = [
        torch.autograd.grad(outputs.square().sum(), list(one.parameters()))
        for outputs, one in zip(both_outputs, (network, described), strict=True)
    ]
    assert all(map(torch.equal, *slopes))


def test_instance_norm_and_batch_statistics_match_torch() -> None:
    inputs = torch.randn(6, 4, 5, 5, generator=Seed(0).generator()) * 3 + 1
    expected = nn.BatchNorm2d(4).train()(inputs)
    ours = BatchStatistics(4)
    torch.testing.assert_close(ours.train()(inputs), expected)
    torch.testing.assert_close(ours.eval()(inputs), expected)
    assert not torch.allclose(nn.BatchNorm2d(4).eval()(inputs), expected, atol=0.1)
    network = build(ConvNetConfig("convnet", 4, 1, "instance"), (1, 5, 5), 2, rng=Seed(0))
    torch.testing.assert_close(network.trunk[1](inputs), nn.InstanceNorm2d(4)(inputs))


def test_initial_mlp_weights_have_the_he_normal_deviation() -> None:
    """157,000 hidden weights: the deviation is within 5 standard errors (1.8e-3) of the He-normal law's; seed fixed."""
    weight = build(MlpConfig("mlp", (200,)), (784,), 10, rng=Seed(0)).trunk[1].weight
    assert weight.std().item() == pytest.approx((2 / 784) ** 0.5, rel=0.009)
    assert weight.std().item() != pytest.approx((1 / 784) ** 0.5, rel=0.009)


def test_default_networks_keep_their_weights_and_outputs() -> None:
    """The weights and, to rounding, the outputs from before activation and dropout could be chosen."""
    mlp = build(MlpConfig("mlp", (5, 4)), (3,), 2, rng=Seed(7))
    weights = ["0x1.4864820000000p-1", "0x1.eb082c0000000p-2", "-0x1.a85fde0000000p-2", "-0x1.66cfd00000000p+0"]
    assert mlp.trunk[1].weight.flatten()[:4].tolist() == [float.fromhex(w) for w in weights]
    expected = [[-0.0923963189, -0.2659274340], [-0.0081532821, -0.3586479425]]
    torch.testing.assert_close(mlp(torch.linspace(-1, 1, 6).reshape(2, 3)), torch.tensor(expected))
    assert [k for k in mlp.state_dict() if "weight" in k] == ["trunk.1.weight", "trunk.3.weight", "head.weight"]
    convnet = build(ConvNetConfig("convnet", 2, 2), (1, 8, 8), 2, rng=Seed(7)).eval()
    expected = [[0.0305166170, -0.0523338243], [-0.0000091811, -0.0007887523]]
    torch.testing.assert_close(convnet(torch.linspace(-1, 1, 128).reshape(2, 1, 8, 8)), torch.tensor(expected))


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("leaky_relu", lambda x: np.where(x > 0, x, 0.01 * x)),
        ("tanh", np.tanh),
        ("elu", lambda x: np.where(x > 0, x, np.expm1(x))),
        ("mish", lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    ],
)
def test_an_activation_matches_numpy(activation: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
    network, plain = (build(MlpConfig("mlp", (6,), a), (3,), 0, rng=Seed(0)) for a in (activation, "relu"))
    inputs = torch.randn(50, 3, generator=Seed(1).generator())
    linear = network.trunk[1](inputs).detach().numpy()
    np.testing.assert_allclose(network(inputs).detach(), function(linear), rtol=1e-5, atol=1e-6)
    assert torch.equal(network.trunk[1].weight, plain.trunk[1].weight)  # all activations start from one law


@pytest.mark.parametrize(
    ("config", "places"),
    [
        (MlpConfig("mlp", (300, 200), dropout=0.4), ["trunk.3", "trunk.6"]),
        (ConvNetConfig("convnet", 8, 2, dropout=0.4), ["trunk.4", "trunk.9"]),
        (WideResNetConfig("wide_resnet", 10, 1, dropout=0.4), [f"trunk.group{g}_block0.dropout" for g in range(3)]),
    ],
)
def test_dropout_layers_have_their_places_and_act_in_training_only(config: NetworkConfig, places: list[str]) -> None:
    network = build(config, (1, 16, 16), 2, rng=Seed(0))
    layers = {name: m for name, m in network.named_modules() if isinstance(m, nn.Dropout)}
    assert list(layers) == places and all(m.p == 0.4 for m in layers.values())
    bare = build(dataclasses.replace(config, dropout=0.0), (1, 16, 16), 2, rng=Seed(0))
    images = torch.rand(4, 1, 16, 16, generator=Seed(1).generator())
    assert torch.equal(network.eval()(images), bare.eval()(images))
    assert not torch.equal(network.train()(images), bare.train()(images))


def test_dropout_masks_depend_on_their_seed_alone() -> None:
    """Of 40,000 units 60 % stay, within 5 standard errors (0.0122); false alarm 6e-7."""
    network = build(MlpConfig("mlp", (400,), dropout=0.4), (3,), 0, rng=Seed(0)).train()
    inputs, before = torch.rand(100, 3, generator=Seed(1).generator()), torch.get_rng_state()
    active = network.trunk[:3](inputs) > 0

    def outputs(seed: int) -> torch.Tensor:
        with dropout_masks(network, Seed(seed)):
            return network(inputs)

    assert torch.equal(outputs(3), outputs(3)) and not torch.equal(outputs(3), outputs(4))
    assert torch.equal(torch.get_rng_state(), before)
    kept = (outputs(3) > 0)[active].double().mean()
    assert kept.item() == pytest.approx(0.6, abs=5 * (0.24 / int(active.sum())) ** 0.5)


@pytest.mark.parametrize("config", [MlpConfig("mlp", (4,)), ConvNetConfig("convnet", 4)])
def test_masks_are_the_same_while_another_thread_builds_a_network(config: NetworkConfig) -> None:
    """torch's own initial weights would be drawn from the masks' generator; a build that waits would not end."""
    network = build(MlpConfig("mlp", (40,), dropout=0.4), (3,), 0, rng=Seed(0)).train()
    inputs = torch.rand(10, 3, generator=Seed(1).generator())
    shape = (3,) if config.name == "mlp" else (1, 16, 16)
    with dropout_masks(network, Seed(3)):
        alone = network(inputs)
    with dropout_masks(network, Seed(3)), ThreadPoolExecutor(1) as other:
        other.submit(build, config, shape, 2, rng=Seed(0)).result(timeout=60)
        assert torch.equal(network(inputs), alone)


ORDERS = [(4, 1, 2, 0), (8, 1, 2, 1), (4, 1, 1, 1), (4, 3, 2, 1)]


@pytest.mark.parametrize(("channels", "side", "stride", "fast"), ORDERS)
def test_no_channels_last_where_torch_writes_beyond_a_buffer(channels: int, side: int, stride: int, fast: int) -> None:
    network = nn.Sequential(nn.ReLU(), nn.Conv2d(channels, 8, side, stride))
    assert fastest_order(network) is (torch.channels_last if fast else torch.contiguous_format)


FREQUENCIES = (0.1, 0.35)


def test_the_encoding_matches_its_formula() -> None:
    encoded = Periodic(FREQUENCIES).double()(torch.tensor([[0.0, 2.5], [-1.0, 3.0]], dtype=torch.float64))
    for row, numbers in enumerate([[0.0, 2.5], [-1.0, 3.0]]):
        expected = []
        for x in numbers:
            angles = [2 * math.pi * c * x for c in FREQUENCIES]
            expected += [x, *(math.sin(a) for a in angles), *(math.cos(a) - 1 for a in angles)]
        assert encoded[row].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_periodic_perceptron_equals_a_plain_perceptron_of_encoded_rows() -> None:
    config = MlpConfig("mlp", (6,), "mish", frequencies=FREQUENCIES)
    network = build(config, (3,), 2, rng=Seed(4))
    plain = build(MlpConfig("mlp", (6,), "mish"), (15,), 2, rng=Seed(4))
    plain.load_state_dict({name.replace("trunk.2.", "trunk.1."): v for name, v in network.state_dict().items()})
    rows = torch.randn(5, 3, generator=Seed(5).generator())
    assert torch.equal(network(rows), plain(Periodic(FREQUENCIES)(rows)))
    assert sorted(network.state_dict()) == ["head.bias", "head.weight", "trunk.2.bias", "trunk.2.weight"]


def test_inputs_that_are_not_encoded_stay_as_they_are_and_lose_no_function() -> None:
    some = build(MlpConfig("mlp", (6,), frequencies=FREQUENCIES, encoded=(1,)), (3,), 2, rng=Seed(4))
    every = build(MlpConfig("mlp", (6,), frequencies=FREQUENCIES), (3,), 2, rng=Seed(4))
    rows = torch.randn(5, 3, generator=Seed(5).generator())
    rows[:, 0], rows[:, 2] = torch.tensor([0.0, 1, 1, 0, 1]), 0.5
    features = some.trunk[1](rows)
    assert features.shape == (5, 7)
    assert torch.equal(features[:, :3], rows)
    assert torch.equal(features[:, 3:], Periodic(FREQUENCIES)(rows[:, 1:2])[:, 1:])
    # Input 0 is 0 or 1, so its five features are multiples of it, and one weight can replace their five weights.
    angles = 2 * math.pi * torch.tensor(FREQUENCIES)
    at_one = torch.cat([torch.ones(1), angles.sin(), angles.cos() - 1])
    weight, state = every.trunk[2].weight, some.state_dict()
    state["trunk.2.weight"] = torch.cat([weight[:, :5] @ at_one[:, None], weight[:, 5:6], torch.zeros(6, 1)], 1)
    state["trunk.2.weight"] = torch.cat([state["trunk.2.weight"], weight[:, 6:10]], 1)
    state |= {name: value for name, value in every.state_dict().items() if name != "trunk.2.weight"}
    some.load_state_dict(state)
    rows[:, 2] = 0
    assert torch.allclose(some(rows), every(rows), rtol=0, atol=1e-5)


def test_the_piecewise_linear_encoding_matches_its_formula() -> None:
    """Equation 1 of Gorishniy et al. 2022, where the first and the last bin do not extrapolate."""
    edges = ((-1.0, 0.5, 2.0), (), (0.0, 0.25, 1.0))
    rows = torch.tensor([[-3.0, 1, 0.5], [0.0, 0, -2.0], [9.0, 1, 1.0]])
    expected = [
        [
            x
            for each, number in zip(edges, row, strict=True)
            for x in [bin_share(number, a, b) for a, b in pairwise(each)]
        ]
        for row in rows.tolist()
    ]
    encoded = PiecewiseLinear(edges, range(3))(rows)
    assert encoded[:, :3].equal(rows)
    assert encoded[:, 3:].tolist() == [pytest.approx(numbers) for numbers in expected]


def bin_share(number: float, start: float, end: float) -> float:
    return 0.0 if number < start else 1.0 if number > end else (number - start) / (end - start)


def test_edges_are_quantiles_of_the_rows_and_a_truth_value_has_none() -> None:
    rows = torch.randn(50, 3, generator=Seed(3).generator())
    rows[:, 1] = (rows[:, 1] > 0).float()
    rows[:, 2] = rows[:, 2].round()
    config = MlpConfig("mlp", (4,), bins=8).with_rows(rows)
    assert config.edges[0] == pytest.approx(np.quantile(rows[:, 0].double().numpy(), np.linspace(0, 1, 9)))
    assert (config.edges[1], list(config.edges[2])) == ((), np.unique(rows[:, 2].numpy()).tolist())
    assert build(config, (3,), 2, rng=Seed(0))(rows).shape == (50, 2)
    with pytest.raises(ConfigError, match="edges must come from a fit"):
        build(MlpConfig("mlp", (4,), bins=8), (3,), 2, rng=Seed(0))


RNG = Seed(5)


def spec(activation: str = "relu", dropout: float = 0.0, frequencies: tuple[float, ...] = ()) -> NetworkSpec:
    network = MlpConfig("mlp", (7, 5), activation, dropout, frequencies)  # type: ignore[arg-type]
    return NetworkSpec(network, (1, 2, 3), 4, "categorical", 1.0)


@pytest.mark.parametrize("frequencies", [(), (0.2, 0.7)])
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh", "elu", "silu"])
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
    assert fast._layers is not None and FlatNetwork(spec(dropout=0.5).build(Seed(0)))._layers is None
    assert torch.equal(fast.each(weights, inputs), general.each(weights, inputs))
