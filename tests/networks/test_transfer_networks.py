"""AlexNet and VGG-11 of dataset distillation: parameters by hand, and the networks against plain arithmetic."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bdl_pipe.config import read
from bdl_pipe.networks import AlexNetConfig, NetworkConfig, Vgg11Config, build
from bdl_pipe.networks.flat import FlatNetwork
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed

from .cases import parameters

ALEXNET = AlexNetConfig("alexnet")
GROUP, PLAIN = (Vgg11Config("vgg11", norm, 16) for norm in ("group", "none"))
ALEXNET_LAYERS = ["5:128", "M", "5:192", "M", "3:256", "3:192", "3:192", "M"]
COLUMN_A = [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"]  # of Simonyan & Zisserman 2015, table 1
VGG_LAYERS = ["M" if layer == "M" else "3:16" for layer in COLUMN_A]
CASES = [(ALEXNET, ALEXNET_LAYERS), (GROUP, VGG_LAYERS), (PLAIN, VGG_LAYERS)]


@pytest.mark.parametrize(("shape", "classes"), [((3, 32, 32), 10), ((1, 28, 28), 10), ((1, 8, 8), 7), ((3, 39, 32), 3)])
def test_alexnet_has_the_parameters_counted_by_hand(shape: tuple[int, int, int], classes: int) -> None:
    """An image of up to 39 pixels a side has 4×4 features a channel before the head."""
    convolutions = 25 * (shape[0] * 128 + 128 * 192) + 9 * (192 * 256 + 256 * 192 + 192 * 192)
    biases = 128 + 192 + 256 + 192 + 192
    network = build(ALEXNET, shape, classes, rng=Seed(0))
    assert parameters(network) == convolutions + biases + 192 * 4 * 4 * classes + classes
    assert network.width == 192 * 4 * 4


@pytest.mark.parametrize(("norm", "per_channel"), [("none", 0), ("group", 2)])
@pytest.mark.parametrize(("width", "known"), [(None, 9_220_480), (128, None)])
def test_vgg11_has_the_parameters_counted_by_hand(
    norm: str, per_channel: int, width: int | None, known: int | None
) -> None:
    """With the published channels: torchvision's 9,220,480 in the convolutions of configuration A."""
    channels = [3, *(width or layer for layer in COLUMN_A if isinstance(layer, int))]
    convolutions = sum(9 * before * after + after for before, after in pairwise(channels))
    assert known is None or convolutions == known
    network = build(
        read(Vgg11Config, {"name": "vgg11", "norm": norm, "width": width}, "n"), (3, 32, 32), 10, rng=Seed(0)
    )
    last = channels[-1]
    assert (
        parameters(network) == convolutions + per_channel * sum(channels[1:]) + last * 10 + 10 and network.width == last
    )


@torch.no_grad()
@pytest.mark.parametrize(("config", "layers"), CASES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 31, 33), (1, 8, 64)])
def test_the_network_equals_its_formula(config: NetworkConfig, layers: list[str], shape: tuple[int, int, int]) -> None:
    """In float64: zeros around a small image first, then each layer in turn, its pool after its ReLU."""
    network = build(config, shape, 3, rng=Seed(0)).double().eval()
    weights = dict(network.named_parameters())
    kernels = [name for name, value in weights.items() if value.ndim == 4]
    images = torch.randn(2, *shape, generator=Seed(1).generator()).double()
    around = [max(0, -((side - 32) // 2)) for side in shape[1:]]
    x = F.pad(images, (around[1], around[1], around[0], around[0]))
    for layer in layers:
        if layer == "M":
            height, width = x.shape[2] // 2, x.shape[3] // 2
            x = x[:, :, : 2 * height, : 2 * width].reshape(2, x.shape[1], height, 2, width, 2).amax((3, 5))
            continue
        side, channels = map(int, layer.split(":"))
        name = kernels.pop(0)
        assert weights[name].shape == (channels, x.shape[1], side, side)
        x = F.conv2d(x, weights[name], weights[name.replace("weight", "bias")], padding=side // 2)
        if config == GROUP:
            place = int(name.split(".")[1]) + 1
            x = grouped(x, weights[f"trunk.{place}.weight"], weights[f"trunk.{place}.bias"])
        x = x.clamp(min=0)
    assert not kernels
    expected = x.flatten(1) @ weights["head.weight"].T + weights["head.bias"]
    torch.testing.assert_close(network(images), expected, rtol=1e-9, atol=1e-9)


def grouped(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    parts = x.reshape(len(x), 8, -1)
    normal = (parts - parts.mean(2, keepdim=True)) / (parts.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
    return normal.reshape(x.shape) * scale[:, None, None] + shift[:, None, None]


@torch.no_grad()
@pytest.mark.parametrize("config", [ALEXNET, GROUP])
def test_networks_stored_as_stacked_vectors_give_their_own_outputs(config: NetworkConfig) -> None:
    """Several networks of one architecture at once, like the chains of ``coreset_sgmcmc``."""
    spec = NetworkSpec(config, (1, 28, 28), 3, "categorical")
    networks = [spec.build(Seed(seed)) for seed in (0, 1)]
    flat = FlatNetwork(networks[0])
    images = torch.randn(2, 1, 28, 28, generator=Seed(2).generator())
    found = flat.outputs(torch.stack([flat.flat(n.state_dict()) for n in networks]), images)
    torch.testing.assert_close(found, torch.stack([n(images) for n in networks]), rtol=1e-4, atol=1e-5)


def test_only_group_norm_needs_a_width_that_is_a_multiple_of_8() -> None:
    good = {"name": "vgg11", "norm": "group", "width": None}
    assert read(Vgg11Config, good, "n") == Vgg11Config("vgg11", "group")
    assert read(Vgg11Config, good | {"norm": "none", "width": 12}, "n").width == 12
