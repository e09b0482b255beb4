"""Residual networks: parameters by hand, and blocks and a network against plain transcriptions of their formulas."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe import networks
from bdl_pipe.artifacts import State, stack
from bdl_pipe.config import read, to_mapping
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.networks import Network, NetworkConfig, PreResNetConfig, ResNetConfig, WideResNetConfig, build
from bdl_pipe.networks.resnet import Block
from bdl_pipe.networks.wideresnet import Block as WideBlock
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.snapshots import BatchNormConfig, Snapshots
from tests.case_files import cases_of

from .cases import images, parameters, plain

cases = cases_of(__file__)

Statistics = dict[str, tuple[Tensor, Tensor]]  # for each batch norm: mean and unbiased variance of its inputs


def of_preresnet(depth: int, channels: int, classes: int) -> int:
    """The closed form: n blocks of inner width w, the first after u channels, three times.

    First block: 2u + uw + 2w + 9w² + 2w + 4w² and its projection 4uw; later ones have u = 4w and no projection,
    17w² + 12w each. After the last: a norm of u channels and the head.
    """
    n, u, total = (depth - 2) // 9, 16, channels * 9 * 16
    for w in (16, 32, 64):
        total += 2 * u + 5 * u * w + 13 * w**2 + 4 * w + (n - 1) * (17 * w**2 + 12 * w)
        u = 4 * w
    return total + 2 * u + u * classes + classes


def of_wide_resnet(depth: int, widen: int, channels: int, classes: int) -> int:
    """The closed form: n blocks of width w after width u, three times.

    Convolutions 9uw + (2n − 1)·9w², a projection uw where width or size changes, batch norms 2u for
    the first of them and 2w for each of the other 2n − 1.
    """
    n, before, total = (depth - 4) // 6, 16, channels * 9 * 16
    for group, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
        projection = before * width if before != width or group > 0 else 0
        total += 9 * before * width + (2 * n - 1) * 9 * width**2 + projection + 2 * before + 2 * width * (2 * n - 1)
        before = width
    return total + 2 * before + before * classes + classes


def by_hand(config: NetworkConfig, channels: int, classes: int) -> int:
    if isinstance(config, PreResNetConfig):
        return of_preresnet(config.depth, channels, classes)
    if isinstance(config, WideResNetConfig):
        return of_wide_resnet(config.depth, config.widen, channels, classes)
    blocks = plain(config.depth, classes, channels)
    return blocks.weights + blocks.kept + classes


@cases("counts", "kind section channels classes published")
def test_the_number_of_parameters_equals_the_count_by_hand(
    kind: str, section: dict[str, Any], channels: int, classes: int, published: int | None
) -> None:
    config = read(getattr(networks, kind), section, "n")
    count = parameters(build(config, (channels, 32, 32), classes, rng=Seed(0)))
    assert count == by_hand(config, channels, classes)
    assert published in (None, count)


def norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    return (x - mean) / (variance + eps).sqrt()


def mixed(x: Tensor, convolution: nn.Module, stride: int) -> Tensor:
    """A 1×1 convolution of every ``stride``-th pixel."""
    return torch.einsum("oc,bchw->bohw", convolution.weight[:, :, 0, 0], x[..., ::stride, ::stride])


@cases("blocks", "before layers")
def test_a_block_of_resnet_equals_its_formula(before: int, layers: list[list[int]]) -> None:
    """relu(s + bn(W * relu(bn(... W * x)))), s = x or bn(P x); the last ReLU is of the sum, not of the residual."""
    block = Block(before, list(map(tuple, layers)), Seed(0).generator()).double().train()
    x = images(3, 8, before).double() * 2 + 1
    weights = [m.weight for m in block.residual if isinstance(m, nn.Conv2d)]
    residual, stride = x, 1
    for index, (weight, (_, side, step)) in enumerate(zip(weights, layers, strict=True)):
        active = residual.clamp(min=0) if index else residual
        residual, stride = norm(F.conv2d(active, weight, None, step, side // 2)), stride * step
    around = x if before == layers[-1][0] and stride == 1 else norm(mixed(x, block.shortcut[0], stride))
    torch.testing.assert_close(block(x), (around + residual).clamp(min=0))
    assert not torch.allclose(block(x), around + residual.clamp(min=0), atol=0.1)


def test_the_stride_of_a_bottleneck_is_in_its_3x3_convolution() -> None:
    network = build(ResNetConfig("resnet", 50), (3, 32, 32), 10, rng=Seed(0))
    strided = [m for m in network.trunk.modules() if isinstance(m, nn.Conv2d) and m.stride != (1, 1)]
    assert sorted(m.kernel_size for m in strided) == [(1, 1)] * 3 + [(3, 3)] * 3
    for m in strided:
        assert m.kernel_size == (3, 3) or m.out_channels == 2 * m.in_channels  # else it is a shortcut


@pytest.mark.parametrize(("before", "after", "stride"), [(4, 4, 1), (4, 8, 1), (4, 8, 2), (4, 4, 2)])
def test_a_block_of_a_wide_resnet_equals_its_formula(before: int, after: int, stride: int) -> None:
    """x or P(a), plus W₂ * relu(bn(W₁ * a)), with a = relu(bn(x)); the projection is of a, not of x."""
    block = WideBlock(before, after, stride, 0.0, Seed(0).generator()).double().train()
    x = images(3, 8, before).double() * 2 + 1
    a = norm(x).clamp(min=0)
    inner = norm(F.conv2d(a, block.conv1.weight, None, stride, 1)).clamp(min=0)
    residual = F.conv2d(inner, block.conv2.weight, None, 1, 1)
    if before == after and stride == 1:
        assert block.shortcut is None
        torch.testing.assert_close(block(x), x + residual)
    else:
        torch.testing.assert_close(block(x), mixed(a, block.shortcut, stride) + residual)
        assert not torch.allclose(block(x), mixed(x, block.shortcut, stride) + residual, atol=0.1)


def transcribed(w: dict[str, Tensor], x: Tensor, blocks: int, train: bool) -> tuple[Tensor, Statistics]:
    """Figure 4(e) of He et al. 2016 from its weights ``w``: outputs, and statistics of each batch norm's inputs."""
    seen: Statistics = {}

    def normal_relu(x: Tensor, name: str) -> Tensor:
        seen[name] = mean, _ = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=1)
        variance = x.var((0, 2, 3), correction=0)
        if not train:
            mean, variance = w[f"{name}.running_mean"], w[f"{name}.running_var"]
        scale = w[f"{name}.weight"] / (variance + 1e-5).sqrt()
        return ((x - mean[:, None, None]) * scale[:, None, None] + w[f"{name}.bias"][:, None, None]).clamp(min=0)

    def mix(x: Tensor, name: str) -> Tensor:
        return torch.einsum("oc,bchw->bohw", w[f"{name}.weight"][:, :, 0, 0], x)

    x = F.conv2d(x, w["trunk.stem.weight"], padding=1)
    for group, index in itertools.product(range(3), range(blocks)):
        block, stride = f"trunk.group{group}_block{index}", 2 if group and not index else 1
        active = normal_relu(x, f"{block}.norm1")
        inner = normal_relu(mix(active, f"{block}.conv1"), f"{block}.norm2")
        inner = normal_relu(F.conv2d(inner, w[f"{block}.conv2.weight"], None, stride, 1), f"{block}.norm3")
        around = x if index else mix(active[..., ::stride, ::stride], f"{block}.shortcut")
        x = around + mix(inner, f"{block}.conv3")
    features = normal_relu(x, "trunk.norm").mean((2, 3))
    return features @ w["head.weight"].T + w["head.bias"], seen


def moved(network: Network, seed: int) -> dict[str, Tensor]:
    """Return the network's state with scales, shifts and running statistics that are not 1 and 0."""
    state = {k: v.clone() for k, v in network.state_dict().items()}
    generator = Seed(seed).generator()
    for name, value in state.items():
        if value.ndim == 1 and value.is_floating_point():
            positive = name.endswith(("running_var", "norm1.weight", "norm2.weight", "norm3.weight"))
            noise = torch.rand(value.shape, generator=generator, dtype=value.dtype)
            state[name] = 0.5 + noise if positive else noise - 0.5
    return state


@torch.no_grad()
@pytest.mark.parametrize("depth", [11, 20])
@pytest.mark.parametrize("train", [True, False])
def test_a_preresnet_equals_its_formula(depth: int, train: bool) -> None:
    network = build(PreResNetConfig("preresnet", depth), (3, 32, 32), 10, rng=Seed(0)).double().train(train)
    state, batch = moved(network, 3), images(5, 9).double()
    network.load_state_dict(state)
    expected, _ = transcribed(state, batch, depth // 9, train)
    torch.testing.assert_close(network(batch), expected, rtol=1e-9, atol=1e-9)


def test_refreshed_statistics_equal_the_formula(tiny_images: FitData) -> None:
    """At the mean of two snapshots, from one batch of all rows."""
    spec = NetworkSpec(PreResNetConfig("preresnet", 11), (1, 8, 8), 3, "categorical")
    past = [spec.build(Seed(s)).state_dict() for s in (0, 1)]
    trajectory = State(stack(past), {"spec": to_mapping(spec)})
    snapshots = Snapshots(trajectory, tiny_images, BatchNormConfig(None, 1000), Seed(0))
    averaged = snapshots.state_at(snapshots.flat().mean(0))
    rows, _ = tiny_images.tensors("train")
    _, seen = transcribed({k: v.double() for k, v in averaged.items()}, rows.double(), 1, True)
    assert len(seen) == 10
    for name, (mean, variance) in seen.items():
        torch.testing.assert_close(averaged[f"{name}.running_mean"], mean.float(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(averaged[f"{name}.running_var"], variance.float(), rtol=1e-3, atol=1e-4)
    assert torch.equal(past[1]["trunk.norm.running_mean"], torch.zeros(256))
    assert seen["trunk.norm"][0].abs().max() > 0.1, "the control: stale statistics would have failed"
