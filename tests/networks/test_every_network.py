"""The properties of every architecture: gradients, memory order, seeds, initial weights, statistics, rules."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bdl_pipe import networks
from bdl_pipe.config import read
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import Network, NetworkConfig, build, dropout_masks, fastest_order, overruns_channels_last
from bdl_pipe.seeds import Seed
from tests.case_files import cases_of, sections_of

from .cases import images

cases = cases_of(__file__)
NETWORKS = sections_of(__file__)["networks"]


def config_of(kind: str, section: dict[str, Any]) -> NetworkConfig:
    config: NetworkConfig = read(getattr(networks, kind), section, "n")
    return config


def made(name: str, seed: int = 0) -> Network:
    return build(config_of(*NETWORKS[name][:2]), (3, side(name), side(name)), 10, rng=Seed(seed))


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
    least, gain = NETWORKS[name][2:4]
    assert len(large) >= least and not any(m.bias.any() for m in layers if m.bias is not None)
    for weight in large:
        assert weight.std().item() == pytest.approx(math.sqrt(gain / weight[0].numel()), rel=0.019)


@torch.no_grad()
@pytest.mark.parametrize("normalised", [name for name in NETWORKS if NETWORKS[name][4]])
def test_evaluation_uses_running_statistics(normalised: str) -> None:
    network, batch = made(normalised), images(4, side(normalised))
    assert not torch.allclose(network.train()(batch)[:2], network(batch[:2]), atol=1e-2)  # rows depend on the batch
    torch.testing.assert_close(network.eval()(batch)[:2], network(batch[:2]), rtol=1e-3, atol=1e-3)


@torch.no_grad()
@cases("groups", "config section blocks wide")
@pytest.mark.parametrize(("channels", "side"), [(1, 9), (3, 16), (5, 14)])
def test_groups_halve_the_image_and_double_the_width(
    config: str, section: dict[str, Any], blocks: list[int], wide: int, channels: int, side: int
) -> None:
    """The first group sees the image's whole size: no stride and no pool before it."""
    network, seen = build(config_of(config, section), (channels, side, side), 10, rng=Seed(0)), []
    for module in network.modules():
        if type(module).__name__ == "Block":
            module.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))
    batch = images(2, side, channels)
    assert network(batch).shape == (2, 10)
    sides = [math.ceil(side / 2**group) for group in range(len(blocks))]
    assert seen == [(2, wide * 2**g, sides[g], sides[g]) for g, count in enumerate(blocks) for _ in range(count)]
    assert network.trunk(batch).shape == (2, network.width) == (2, wide * 2 ** (len(blocks) - 1))


@torch.no_grad()
@cases("deep", "config section")
def test_features_keep_their_scale_with_depth(config: str, section: dict[str, Any]) -> None:
    """The last norm makes each channel standard; were it normal, the mean of its relu is 1/√(2π) = 0.399."""
    network = build(config_of(config, section), (3, 16, 16), 10, rng=Seed(0)).train()
    features = network.trunk(images(8, 16))
    assert features.isfinite().all() and features.min() >= 0
    assert features.mean().item() == pytest.approx(1 / math.sqrt(2 * math.pi), rel=0.1)
    assert 0.01 < features.std().item() < 0.3


@cases("rules", "config section message")
def test_a_bad_setting_of_a_network_is_refused_with_its_rule(config: str, section: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(getattr(networks, config), section, "n")
    assert str(caught.value) == f"n.{message}"


@cases("builds", "config section shape message")
def test_rows_that_a_network_does_not_take_are_refused(config: str, section: dict, shape: list, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(config_of(config, section), tuple(shape), 10, rng=Seed(0))
    assert str(caught.value) == message
