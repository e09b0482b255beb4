"""VGG-16: parameters by hand, its layers from the paper's table, and the network against plain arithmetic."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bdl_pipe.networks import Network, VggConfig, build
from bdl_pipe.seeds import Seed

from .cases import images, parameters

TABLE_1 = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]  # column D
PLAIN = VggConfig("vgg", "none", 0.5)
NORMAL = VggConfig("vgg", "batch", 0.0)


@pytest.fixture(scope="module", params=[PLAIN, NORMAL], ids=["none", "batch"])
def network(request: pytest.FixtureRequest) -> Network:
    """A network of each norm, for tests that do not change its weights."""
    return build(request.param, (3, 32, 32), 10, rng=Seed(0))


def by_hand(norm: str, channels: int, pixels: int, classes: int) -> int:
    """Convolutions of 9uv + v (2v more with a norm), then 512·pixels → 512 → 512 → classes."""
    total, before = 0, channels
    for after in (v for v in TABLE_1 if v != "M"):
        total += 9 * before * after + after + (2 * after if norm == "batch" else 0)
        before = after
    return total + 512 * pixels * 512 + 512 + 512**2 + 512 + 512 * classes + classes


def test_the_number_of_parameters_equals_the_count_by_hand(network: Network) -> None:
    """15.2 million: torchvision's 14,714,688 in convolutions, 262,656 in each hidden layer and 5,130 in the head."""
    norm = "batch" if any(isinstance(m, nn.BatchNorm2d) for m in network.modules()) else "none"
    known = 14_714_688 + 2 * 262_656 + 5_130
    assert parameters(network) == by_hand(norm, 3, 1, 10) == known + (2 * 4_224 if norm == "batch" else 0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("shape", "pixels", "classes", "known"),
    [((3, 32, 32), 1, 100, 15_245_130 + 90 * 513), ((1, 40, 95), 2, 7, None)],
)
def test_images_of_32_pixels_or_more_give_the_expected_sizes(
    shape: tuple[int, int, int], pixels: int, classes: int, known: int | None
) -> None:
    network = build(PLAIN, shape, classes, rng=Seed(0)).eval()
    assert parameters(network) == by_hand("none", shape[0], pixels, classes)
    assert known is None or parameters(network) == known
    assert network(torch.zeros(2, *shape)).shape == (2, classes)
    assert network.trunk(torch.zeros(2, *shape)).shape == (2, network.width) == (2, 512)


@torch.no_grad()
def test_the_network_equals_its_formula(network: Network) -> None:
    """At evaluation, in float64; a pool is the maximum of each 2×2 square."""
    network.train()(images(4, 32) + 1)  # running statistics that are not 0 and 1
    network.eval().double()
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    x, batch = (images(2, 32).double(),) * 2
    for kind in TABLE_1:
        if kind == "M":
            x = x.reshape(2, x.shape[1], x.shape[2] // 2, 2, -1, 2).amax((3, 5))
            continue
        layer = layers.pop(0)
        x = F.conv2d(x, layer.weight, layer.bias, padding=1)
        if norms:
            mean, variance = norms[0].running_mean, norms.pop(0).running_var
            x = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
        x = x.clamp(min=0)
    x = x.flatten(1)
    for layer in layers[:-1]:
        x = (x @ layer.weight.T + layer.bias).clamp(min=0)
    torch.testing.assert_close(network(batch), x @ layers[-1].weight.T + layers[-1].bias, rtol=1e-9, atol=1e-9)
    network.float()


@torch.no_grad()
def test_dropout_comes_before_both_hidden_layers_and_does_nothing_at_evaluation(network: Network) -> None:
    places = [i for i, m in enumerate(network.trunk) if isinstance(m, nn.Dropout)]
    hidden = [i for i, m in enumerate(network.trunk) if isinstance(m, nn.Linear)]
    if len(places) == 0:
        assert any(isinstance(m, nn.BatchNorm2d) for m in network.trunk)
        return
    assert places == [i - 1 for i in hidden] and {network.trunk[i].p for i in places} == {0.5}
    bare = build(dataclasses.replace(PLAIN, dropout=0.0), (3, 32, 32), 10, rng=Seed(0))
    assert torch.equal(network.eval()(images(2, 32)), bare(images(2, 32)))
