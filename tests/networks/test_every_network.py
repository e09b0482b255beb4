"""The properties of every architecture: gradients, memory order, seeds, initial weights, statistics, rules."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bdl_pipe.config import read
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import (
    AlexNetConfig,
    ConvNetConfig,
    MlpConfig,
    Network,
    NetworkConfig,
    PreResNetConfig,
    ResNetConfig,
    Vgg11Config,
    VggConfig,
    WideResNetConfig,
    build,
    dropout_masks,
    fastest_order,
    overruns_channels_last,
)
from bdl_pipe.seeds import Seed

from .cases import images

NETWORKS: dict[str, NetworkConfig] = {
    "resnet18": ResNetConfig("resnet", 18),
    "resnet50": ResNetConfig("resnet", 50),
    "preresnet": PreResNetConfig("preresnet", 20),
    "vgg": VggConfig("vgg", "none", 0.5),
    "vgg batch": VggConfig("vgg", "batch", 0.0),
    "wide": WideResNetConfig("wide_resnet", 16, 4),
    "convnet": ConvNetConfig("convnet", 64),
    "alexnet": AlexNetConfig("alexnet"),
    "vgg11 group": Vgg11Config("vgg11", "group", 64),
    "vgg11": Vgg11Config("vgg11", "none", 64),
}
NORMALISED = ["resnet18", "resnet50", "preresnet", "vgg batch", "wide", "convnet"]  # with statistics of the batch
# residual networks: the blocks of each group, and the channels of the first group
GROUPS: list[tuple[NetworkConfig, tuple[int, ...], int]] = [
    (ResNetConfig("resnet", 18), (2, 2, 2, 2), 64),
    (ResNetConfig("resnet", 50), (3, 4, 6, 3), 256),
    (PreResNetConfig("preresnet", 20), (2, 2, 2), 64),
    (WideResNetConfig("wide_resnet", 16, 2), (2, 2, 2), 32),
]
LARGE = {"resnet18": 16, "resnet50": 16, "preresnet": 2, "vgg": 14, "vgg batch": 14, "wide": 7}  # large layers
DISTILLED = {"convnet": 2, "alexnet": 4, "vgg11 group": 7, "vgg11": 7}  # the variance of their weights is 1/fan-in
RULES: dict[type, tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]] = {
    ResNetConfig: (
        {"name": "resnet"},
        [({"depth": depth}, f"depth must be one of 18, 50, got {depth}") for depth in (0, 34, -18)],
    ),
    PreResNetConfig: (
        {"name": "preresnet"},
        [({"depth": depth}, f"depth must be 9n + 2, n >= 1, got {depth}") for depth in (2, 10, 163, -7)],
    ),
    VggConfig: (
        {"name": "vgg", "norm": "none", "dropout": 0.5},
        [
            ({"norm": "group"}, "norm must be one of none, batch, got 'group'"),
            ({"dropout": 1.0}, "dropout must be in [0, 1), got 1.0"),
        ],
    ),
    Vgg11Config: (
        {"name": "vgg11", "norm": "group", "width": None},
        [
            ({"norm": "batch"}, "norm must be one of group, none, got 'batch'"),
            ({"width": 0}, "width must be > 0 or null, got 0"),
            ({"width": 12}, "width must be a multiple of 8 for group norm, got 12"),
        ],
    ),
    WideResNetConfig: (
        {"name": "wide_resnet", "depth": 28, "widen": 10},
        [
            *(({"depth": depth}, f"depth must be 6n + 4, n >= 1, got {depth}") for depth in (27, 4, -2)),
            ({"widen": 0}, "widen must be > 0, got 0"),
            ({"dropout": 1.0}, "dropout must be in [0, 1), got 1.0"),
        ],
    ),
    ConvNetConfig: (
        {"name": "convnet", "width": 4},
        [
            ({"width": 0}, "width must be > 0, got 0"),
            ({"dropout": -0.5}, "dropout must be in [0, 1), got -0.5"),
            ({"blocks": 0}, "blocks must be > 0, got 0"),
            ({"norm": "group"}, "width must be a multiple of 8 for group norm, got 4"),
        ],
    ),
    MlpConfig: (
        {"name": "mlp", "hidden": [4]},
        [
            ({"hidden": [4, 0]}, "hidden must list widths > 0, got [4, 0]"),
            ({"dropout": 1.0}, "dropout must be in [0, 1), got 1.0"),
        ],
    ),
}


def made(name: str, seed: int = 0) -> Network:
    return build(NETWORKS[name], (3, side(name), side(name)), 10, rng=Seed(seed))


def side(name: str) -> int:
    return 32 if name in ("vgg", "vgg batch") else 8


@pytest.fixture(scope="module", params=NETWORKS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def network(name: str) -> Network:
    """One network of each architecture, for tests that do not change its weights."""
    return made(name)


def test_every_parameter_has_a_gradient(name: str, network: Network) -> None:
    """Except the bias of a convolution before a batch norm, which subtracts it again."""
    with dropout_masks(network.train(), Seed(0)):
        loss = F.cross_entropy(network(images(4, side(name))), torch.arange(4))
    layers = list(network.trunk.named_children())
    followed = {f"trunk.{layers[i - 1][0]}.bias" for i, (_, m) in enumerate(layers) if isinstance(m, nn.BatchNorm2d)}
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    for (parameter, _), gradient in zip(network.named_parameters(), gradients, strict=True):
        assert gradient.isfinite().all(), parameter
        assert parameter in followed or gradient.abs().max() > 0, parameter


@torch.no_grad()
def test_channels_last_changes_the_memory_order_and_no_output(name: str, network: Network) -> None:
    assert (fastest_order(network) is torch.channels_last) != overruns_channels_last(network)
    batch = images(2, side(name))
    plain = network.eval()(batch)
    fast = network.to(memory_format=torch.channels_last)(batch.contiguous(memory_format=torch.channels_last))
    network.to(memory_format=torch.contiguous_format)
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-4 * plain.abs().max().item())


@torch.no_grad()
def test_equal_seeds_give_equal_weights_and_a_loaded_state_equal_predictions(name: str) -> None:
    network, again, other = made(name), made(name), made(name, 1)
    first, same, else_ = ([p for p in n.parameters() if p.ndim > 1] for n in (network, again, other))
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, else_, strict=True))
    network.train()(images(2, side(name)))  # running statistics are a part of the state
    batch = images(2, side(name), seed=2)
    assert not torch.allclose(other.eval()(batch), network.eval()(batch), atol=1e-3)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(batch), network(batch))


def test_initial_weights_have_the_deviation_of_their_fan_in(name: str) -> None:
    """Each layer of 36,864 weights or more: 5 standard errors are 1.9 %; false alarm below 5e-5 for 80 layers."""
    layers = [m for m in made(name).trunk.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    large = [m.weight for m in layers if m.weight.numel() >= 36_864]
    assert len(large) >= (LARGE | DISTILLED)[name] and not any(m.bias.any() for m in layers if m.bias is not None)
    gain = 1 if name in DISTILLED else 2
    for weight in large:
        assert weight.std().item() == pytest.approx(math.sqrt(gain / weight[0].numel()), rel=0.019)


@torch.no_grad()
@pytest.mark.parametrize("normalised", NORMALISED)
def test_evaluation_uses_running_statistics(normalised: str) -> None:
    network, batch = made(normalised), images(4, side(normalised))
    assert not torch.allclose(network.train()(batch)[:2], network(batch[:2]), atol=1e-2)  # rows depend on the batch
    torch.testing.assert_close(network.eval()(batch)[:2], network(batch[:2]), rtol=1e-3, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize(("config", "blocks", "wide"), GROUPS, ids=lambda value: getattr(value, "name", None))
@pytest.mark.parametrize(("channels", "side"), [(1, 9), (3, 16), (5, 14)])
def test_groups_halve_the_image_and_double_the_width(
    config: NetworkConfig, blocks: tuple[int, ...], wide: int, channels: int, side: int
) -> None:
    """The first group sees the image's whole size: no stride and no pool before it."""
    network, seen = build(config, (channels, side, side), 10, rng=Seed(0)), []
    for module in network.modules():
        if type(module).__name__ == "Block":
            module.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))
    batch = images(2, side, channels)
    assert network(batch).shape == (2, 10)
    sides = [math.ceil(side / 2**group) for group in range(len(blocks))]
    assert seen == [(2, wide * 2**g, sides[g], sides[g]) for g, count in enumerate(blocks) for _ in range(count)]
    assert network.trunk(batch).shape == (2, network.width) == (2, wide * 2 ** (len(blocks) - 1))


@torch.no_grad()
@pytest.mark.parametrize(
    "config", [PreResNetConfig("preresnet", 164), *(WideResNetConfig("wide_resnet", d, 1) for d in (10, 40, 100))]
)
def test_features_keep_their_scale_with_depth(config: NetworkConfig) -> None:
    """The last norm makes each channel standard; were it normal, the mean of its relu is 1/√(2π) = 0.399."""
    network = build(config, (3, 16, 16), 10, rng=Seed(0)).train()
    features = network.trunk(images(8, 16))
    assert features.isfinite().all() and features.min() >= 0
    assert features.mean().item() == pytest.approx(1 / math.sqrt(2 * math.pi), rel=0.1)
    assert 0.01 < features.std().item() < 0.3


@pytest.mark.parametrize("config", RULES)
def test_a_bad_setting_of_a_network_is_refused_with_its_rule(config: type) -> None:
    good, broken = RULES[config]
    for changed, message in broken:
        with pytest.raises(ConfigError) as caught:
            read(config, good | changed, "n")
        assert str(caught.value) == f"n.{message}"


@pytest.mark.parametrize(
    ("name", "shape"),
    [*(("vgg", s) for s in ((1, 28, 28), (3, 31, 64), (3, 64, 31), (13,))), ("alexnet", (13,)), ("vgg11 group", (13,))],
)
def test_images_that_are_too_small_and_tables_are_refused(name: str, shape: tuple[int, ...]) -> None:
    config, size = NETWORKS[name], " of 32×32 or more" if name == "vgg" else ""
    with pytest.raises(ConfigError) as caught:
        build(config, shape, 10, rng=Seed(0))
    rule = f"network.name must not be {config.name} for rows of shape {list(shape)}: it takes images{size}"
    assert str(caught.value) == rule
