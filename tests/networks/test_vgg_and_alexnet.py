"""VGG-16, and the AlexNet and VGG-11 of dataset distillation: parameters by hand, networks against plain arithmetic."""

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe import networks
from bdl_pipe.config import read
from bdl_pipe.networks import AlexNetConfig, NetworkConfig, Vgg11Config, VggConfig, build
from bdl_pipe.networks.flat import FlatNetwork
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed
from tests.case_files import cases_of

from .cases import images, parameters

cases = cases_of(__file__)

Layers = list[tuple[int, int] | str]  # side and channels of each convolution, and M for a pool
ALEXNET: Layers = [(5, 128), "M", (5, 192), "M", (3, 256), (3, 192), (3, 192), "M"]
# Simonyan & Zisserman 2015, table 1
COLUMN_A: Layers = [(3, c) if c else "M" for c in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)]
COLUMN_D: Layers = [(3, c) if c else "M" for n in (64, 128, 256, 512, 512) for c in [n] * (2 if n < 256 else 3) + [0]]
PLAIN, NORMAL = VggConfig("vgg", "none", 0.5), VggConfig("vgg", "batch", 0.0)
GROUP = Vgg11Config("vgg11", "group", 16)
LAYERS = {"ALEXNET": ALEXNET, "A": COLUMN_A, "D": COLUMN_D}
LAYERS |= {f"A of {width}": [(3, width) if layer != "M" else layer for layer in COLUMN_A] for width in (12, 16, 128)}


@torch.no_grad()
@cases("counts", "kind section column shape widths published")
def test_the_number_of_parameters_equals_the_count_by_hand(
    kind: str, section: dict[str, Any], column: str, shape: list[int], widths: list[int], published: int | None
) -> None:
    config, before, count = read(getattr(networks, kind), section, "n"), shape[0], 0
    network = build(config, tuple(shape), widths[-1], rng=Seed(0)).eval()
    for side, after in (layer for layer in LAYERS[column] if layer != "M"):
        count += side**2 * before * after + after + 2 * after * (section.get("norm", "none") != "none")
        before = after
    assert parameters(network) == count + sum(a * b + b for a, b in pairwise(widths))
    assert published in (None, parameters(network))
    assert network(torch.zeros(2, *shape)).shape == (2, widths[-1])
    assert network.trunk(torch.zeros(2, *shape)).shape == (2, network.width) == (2, widths[-2])


def normalised(x: Tensor, norm: nn.Module) -> Tensor:
    """By the running statistics of a batch norm, or by the mean and variance of each of eight groups of channels."""
    if isinstance(norm, nn.BatchNorm2d):
        mean, variance = norm.running_mean[:, None, None], norm.running_var[:, None, None]
        normal = (x - mean) / (variance + 1e-5).sqrt()
    else:
        parts = x.reshape(len(x), 8, -1)
        normal = (parts - parts.mean(2, keepdim=True)) / (parts.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
    return normal.reshape(x.shape) * norm.weight[:, None, None] + norm.bias[:, None, None]


SHAPES = [(1, 28, 28), (3, 32, 32), (2, 31, 33), (1, 8, 64)]
NETWORKS = [(AlexNetConfig("alexnet"), "ALEXNET"), (GROUP, "A of 16"), (Vgg11Config("vgg11", "none", 16), "A of 16")]
FORMULAS = [(*network, shape) for network in NETWORKS for shape in SHAPES]
FORMULAS += [pytest.param(config, "D", (3, 32, 32), marks=pytest.mark.slow) for config in (PLAIN, NORMAL)]


@torch.no_grad()
@pytest.mark.parametrize(("config", "column", "shape"), FORMULAS)
def test_the_network_equals_its_formula(config: Any, column: str, shape: tuple[int, int, int]) -> None:
    """At evaluation, in float64: zeros around a small image first, then each layer in turn, its pool after its ReLU."""
    network, batch = build(config, shape, 3, rng=Seed(0)), torch.randn(4, *shape, generator=Seed(1).generator())
    network.train()(batch + 1)  # running statistics that are not 0 and 1
    network.eval().double()
    modules = list(network.trunk.children())
    places = [i for i, m in enumerate(modules) if isinstance(m, nn.Conv2d)]
    around = [max(0, -((side - 32) // 2)) for side in shape[1:]]
    x = F.pad(batch.double(), (around[1], around[1], around[0], around[0]))
    for layer in LAYERS[column]:
        if layer == "M":
            height, width = x.shape[2] // 2, x.shape[3] // 2
            x = x[:, :, : 2 * height, : 2 * width].reshape(4, x.shape[1], height, 2, width, 2).amax((3, 5))
            continue
        convolution, after = (modules[i] for i in (places[0], places.pop(0) + 1))
        side, channels = layer
        assert convolution.weight.shape == (channels, x.shape[1], side, side)
        x = F.conv2d(x, convolution.weight, convolution.bias, padding=side // 2)
        x = (normalised(x, after) if hasattr(after, "weight") else x).clamp(min=0)
    assert not places
    x = x.flatten(1)
    for hidden in (m for m in modules if isinstance(m, nn.Linear)):
        x = (x @ hidden.weight.T + hidden.bias).clamp(min=0)
    expected = x @ network.head.weight.T + network.head.bias
    torch.testing.assert_close(network(batch.double()), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("config", [AlexNetConfig("alexnet"), GROUP])
def test_networks_stored_as_stacked_vectors_give_their_own_outputs(config: NetworkConfig) -> None:
    """Several networks of one architecture at once, like the chains of ``coreset_sgmcmc``."""
    spec = NetworkSpec(config, (1, 28, 28), 3, "categorical")
    both = [spec.build(Seed(seed)) for seed in (0, 1)]
    flat, batch = FlatNetwork(both[0]), images(2, 28, 1, seed=2)
    outputs = flat.outputs(torch.stack([flat.flat(n.state_dict()) for n in both]), batch)
    torch.testing.assert_close(outputs, torch.stack([n(batch) for n in both]), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_dropout_comes_before_both_hidden_layers_and_does_nothing_at_evaluation() -> None:
    network, bare = (build(c, (3, 32, 32), 10, rng=Seed(0)) for c in (PLAIN, dataclasses.replace(PLAIN, dropout=0.0)))
    places = [i for i, m in enumerate(network.trunk) if isinstance(m, nn.Dropout)]
    hidden = [i for i, m in enumerate(network.trunk) if isinstance(m, nn.Linear)]
    assert places == [i - 1 for i in hidden] and {network.trunk[i].p for i in places} == {0.5}
    assert torch.equal(network.eval()(images(2, 32)), bare(images(2, 32)))
