"""ResNet: parameters by hand, sizes by arithmetic, and the block against a plain transcription of its formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe.networks import Network, ResNetConfig, build
from bdl_pipe.networks.resnet import Block
from bdl_pipe.seeds import Seed

from .cases import images, parameters, plain


def resnet(depth: int, shape: tuple[int, ...] = (3, 32, 32), outputs: int = 10, seed: int = 0) -> Network:
    return build(ResNetConfig("resnet", depth), shape, outputs, rng=Seed(seed))


@pytest.mark.parametrize(
    ("depth", "channels", "classes", "known"),
    [
        (18, 3, 10, 11_173_962),
        (50, 3, 10, 23_520_842),  # Ritter et al. 2021, table 9
        (18, 1, 10, 11_173_962 - 2 * 9 * 64),
        (50, 3, 100, 23_520_842 + 90 * 2049),
        (18, 4, 7, None),
    ],
)
def test_the_number_of_parameters_equals_the_count_by_hand(
    depth: int, channels: int, classes: int, known: int | None
) -> None:
    count, blocks = parameters(resnet(depth, (channels, 32, 32), classes)), plain(depth, classes, channels)
    assert count == blocks.weights + blocks.kept + classes
    assert known is None or count == known


def norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    return (x - mean) / (variance + eps).sqrt()


@pytest.mark.parametrize(
    ("before", "layers"),
    [
        (4, [(4, 3, 1), (4, 3, 1)]),
        (4, [(8, 3, 2), (8, 3, 1)]),
        (16, [(4, 1, 1), (4, 3, 1), (16, 1, 1)]),
        (4, [(4, 1, 1), (4, 3, 1), (16, 1, 1)]),
        (8, [(4, 1, 1), (4, 3, 2), (16, 1, 1)]),
    ],
)
def test_a_block_equals_its_formula(before: int, layers: list[tuple[int, int, int]]) -> None:
    """relu(s + bn(W * relu(bn(... W * x)))), s = x or bn(P x); the last ReLU is of the sum, not of the residual."""
    block = Block(before, layers, Seed(0).generator()).double().train()
    x = images(3, 8, before).double() * 2 + 1
    weights = [m.weight for m in block.residual if isinstance(m, nn.Conv2d)]
    residual, stride = x, 1
    for index, (weight, (_, side, step)) in enumerate(zip(weights, layers, strict=True)):
        active = residual.clamp(min=0) if index else residual
        residual, stride = norm(F.conv2d(active, weight, None, step, side // 2)), stride * step
    if before == layers[-1][0] and stride == 1:
        around = x
    else:
        mix = block.shortcut[0].weight[:, :, 0, 0]
        around = norm(torch.einsum("oc,bchw->bohw", mix, x[..., ::stride, ::stride]))
    torch.testing.assert_close(block(x), (around + residual).clamp(min=0))
    assert not torch.allclose(block(x), around + residual.clamp(min=0), atol=0.1)


def test_the_stride_of_a_bottleneck_is_in_its_3x3_convolution() -> None:
    strided = [m for m in resnet(50).trunk.modules() if isinstance(m, nn.Conv2d) and m.stride != (1, 1)]
    assert sorted(m.kernel_size for m in strided) == [(1, 1)] * 3 + [(3, 3)] * 3
    for m in strided:
        assert m.kernel_size == (3, 3) or m.out_channels == 2 * m.in_channels  # else it is a shortcut
