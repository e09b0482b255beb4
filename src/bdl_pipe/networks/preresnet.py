"""PreResNet of depth 9n + 2: residual networks of pre-activation bottlenecks for small images (He et al. 2016b).

"Identity Mappings in Deep Residual Networks", their ResNet-164 and ResNet-1001 for CIFAR: a 3×3 convolution of 16
channels, three groups of n blocks, a batch norm, a ReLU and the mean. A block of inner width w is BN → ReLU → 1×1 conv
to w → BN → ReLU → 3×3 conv → BN → ReLU → 1×1 conv to 4w, plus a shortcut; nothing follows the sum. Group g has w =
16·2^g, g = 0, 1, 2; the 3×3 convolution of the first block of groups 1 and 2 halves the image. If a block changes the
shape, its shortcut is a 1×1 convolution of the pre-activated input, which both paths share, as in the authors' code;
the code of Maddox et al. 2019 projects the raw input, with as many weights. Convolutions have no bias. Initial weights:
N(0, 2/fan_in) (He et al. 2015); the published codes divide by fan_out. The head has variance 1/fan_in, like all heads
here.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import require
from .resnet import conv

_STEM: Final = 16  # channels of the first convolution and inner width of the first group
_EXPANSION: Final = 4  # a block's output channels over its inner width


@dataclass(frozen=True)
class PreResNetConfig:
    """A PreResNet trunk of 256 features.

    Attributes:
        depth: the number of layers with weights on the main path, including the head: 9n + 2 with n >= 1.
    """

    name: Literal["preresnet"]
    depth: int

    def __post_init__(self) -> None:
        require(self.depth >= 11 and self.depth % 9 == 2, "depth", "must be 9n + 2, n >= 1", self.depth)


@final
class Block(nn.Module):
    """Three pre-activated convolutions, the middle one with ``stride``, and a shortcut around them."""

    def __init__(self, before: int, inner: int, stride: int, generator: torch.Generator) -> None:
        super().__init__()
        after = _EXPANSION * inner
        self.norm1, self.conv1 = nn.BatchNorm2d(before), conv(before, inner, 1, 1, generator)
        self.norm2, self.conv2 = nn.BatchNorm2d(inner), conv(inner, inner, 3, stride, generator)
        self.norm3, self.conv3 = nn.BatchNorm2d(inner), conv(inner, after, 1, 1, generator)
        keeps = before == after and stride == 1
        self.shortcut = None if keeps else conv(before, after, 1, stride, generator)

    def forward(self, inputs: Float[Tensor, "batch before h w"]) -> Float[Tensor, "batch after h_out w_out"]:
        active = F.relu(self.norm1(inputs))
        around = inputs if self.shortcut is None else self.shortcut(active)
        hidden = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return around + self.conv3(F.relu(self.norm3(hidden)))


def preresnet_trunk(
    config: PreResNetConfig, input_shape: tuple[int, ...], generator: torch.Generator
) -> tuple[nn.Module, int]:
    """Return the trunk and its width, for images of any size and channels; half of an odd side is rounded up."""

    def block(before: int, group: int, stride: int) -> Block:
        return Block(before, _STEM * 2**group, stride, generator)

    def width(group: int) -> int:
        return _EXPANSION * _STEM * 2**group

    return preactivated_trunk(input_shape[0], _STEM, (config.depth - 2) // 9, block, width, generator)


def preactivated_trunk(
    channels: int,
    stem: int,
    blocks: int,
    block: Callable[[int, int, int], nn.Module],
    width: Callable[[int], int],
    generator: torch.Generator,
) -> tuple[nn.Module, int]:
    """Build a residual trunk for small images: 3×3 convolution, three groups of blocks, batch norm, ReLU, mean.

    The first block of groups 1 and 2 halves the image; an odd side is rounded up.

    Args:
        channels: the number of channels of the image.
        stem: the number of channels of the first convolution.
        blocks: the number of blocks of each group.
        block: (channels before, group, stride) -> a block.
        width: group -> the number of channels after its blocks.

    Returns:
        The trunk and its width.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=conv(channels, stem, 3, 1, generator))
    before = stem
    for group in range(3):
        for index in range(blocks):
            layers[f"group{group}_block{index}"] = block(before, group, 2 if group > 0 and index == 0 else 1)
            before = width(group)
    layers |= {"norm": nn.BatchNorm2d(before), "relu": nn.ReLU()}
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return nn.Sequential(layers), before
