"""WRN: parameters by hand, sizes by arithmetic, and the block against a plain transcription of its formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bdl_pipe.networks import WideResNetConfig, build
from bdl_pipe.networks.wideresnet import Block
from bdl_pipe.seeds import Seed

from .cases import images, parameters


def wrn(depth: int, widen: int, shape: tuple[int, ...] = (3, 32, 32), outputs: int = 10, seed: int = 0) -> nn.Module:
    return build(WideResNetConfig("wide_resnet", depth, widen), shape, outputs, rng=Seed(seed))


def by_hand(depth: int, widen: int, channels: int, classes: int) -> int:
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


@pytest.mark.parametrize(
    ("depth", "widen", "channels", "known"),
    [(28, 10, 3, 36_479_194), (16, 4, 3, 2_748_890), (16, 4, 1, 2_748_890 - 2 * 9 * 16), (10, 1, 3, None)],
)
def test_the_number_of_parameters_equals_the_closed_form(
    depth: int, widen: int, channels: int, known: int | None
) -> None:
    count = parameters(wrn(depth, widen, (channels, 32, 32)))
    assert count == by_hand(depth, widen, channels, 10)
    assert known is None or count == known  # WRN-28-10: 36.5 million in the paper


def norm_relu(x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    return ((x - mean) / (variance + eps).sqrt()).clamp(min=0)


@pytest.mark.parametrize(("before", "after", "stride"), [(4, 4, 1), (4, 8, 1), (4, 8, 2), (4, 4, 2)])
def test_a_block_equals_its_formula(before: int, after: int, stride: int) -> None:
    """x or P(a), plus W₂ * relu(bn(W₁ * a)), with a = relu(bn(x)); the projection is of a, not of x."""
    block = Block(before, after, stride, 0.0, Seed(0).generator()).double().train()
    x = images(3, 8, before).double() * 2 + 1
    a = norm_relu(x)
    weights = [block.conv1.weight, block.conv2.weight]
    residual = F.conv2d(norm_relu(F.conv2d(a, weights[0], None, stride, 1)), weights[1], None, 1, 1)
    if before == after and stride == 1:
        assert block.shortcut is None
        torch.testing.assert_close(block(x), x + residual)
    else:
        assert block.shortcut is not None
        mix = block.shortcut.weight[:, :, 0, 0]
        torch.testing.assert_close(block(x), torch.einsum("oc,bchw->bohw", mix, a[..., ::stride, ::stride]) + residual)
        assert not torch.allclose(
            block(x), torch.einsum("oc,bchw->bohw", mix, x[..., ::stride, ::stride]) + residual, atol=0.1
        )
