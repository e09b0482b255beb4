"""ResNet-18 and ResNet-50 of He et al. 2016 (table 1) for small images: 3×3 stem, four groups of blocks, mean.

The stem is the CIFAR literature's: a 3×3 convolution of stride 1 instead of a 7×7 convolution of stride 2, and no
max-pool. Group g has blocks of inner width 64·2^g, g = 0, …, 3; the first block of groups 1 to 3 halves the image. A
block is post-activation: its last ReLU is after the sum. If a block changes the shape, its shortcut is a 1×1
convolution and a batch norm of its input (their option B), else the input. In a bottleneck the 3×3 convolution has the
stride, as in torchvision ("v1.5"); in the paper the first 1×1 convolution has it. Convolutions have no bias. Initial
weights: N(0, 2/fan_in) (He et al. 2015; torchvision divides by fan_out); batch norms begin at scale 1 and shift 0,
including the last of a block. The head has variance 1/fan_in, like all heads here.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import require
from .base import he_normal, skip_init

_STEM: Final = 64  # channels of the first convolution and inner width of the first group
_BLOCKS: Final = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}  # blocks of each group, by depth
_BOTTLENECK: Final = 4  # a bottleneck's output channels over its inner width


@dataclass(frozen=True)
class ResNetConfig:
    """A ResNet trunk of 512 (ResNet-18) or 2,048 (ResNet-50) features.

    Attributes:
        depth: the number of layers with weights on the main path, including the head: 18 (basic blocks of two 3×3
            convolutions) or 50 (bottlenecks 1×1, 3×3, 1×1).
    """

    name: Literal["resnet"]
    depth: int

    def __post_init__(self) -> None:
        require(self.depth in _BLOCKS, "depth", f"must be one of {', '.join(map(str, _BLOCKS))}", self.depth)


@final
class Block(nn.Module):
    """relu(shortcut(x) + residual(x)); the residual is a chain of (convolution → batch norm) with ReLUs between.

    Args:
        before: the number of channels of the input.
        layers: output channels, kernel side and stride of each convolution of the residual.
    """

    def __init__(self, before: int, layers: list[tuple[int, int, int]], generator: torch.Generator) -> None:
        super().__init__()
        residual: list[nn.Module] = []
        channels, stride = before, 1
        for after, side, step in layers:
            residual += [nn.ReLU()] if residual else []
            residual += _conv_norm(channels, after, side, step, generator)
            channels, stride = after, stride * step
        self.residual = nn.Sequential(*residual)
        keeps = before == channels and stride == 1
        self.shortcut = nn.Identity() if keeps else nn.Sequential(*_conv_norm(before, channels, 1, stride, generator))

    def forward(self, inputs: Float[Tensor, "batch before h w"]) -> Float[Tensor, "batch after h_out w_out"]:
        return F.relu(self.shortcut(inputs) + self.residual(inputs))


def resnet_trunk(
    config: ResNetConfig, input_shape: tuple[int, ...], generator: torch.Generator
) -> tuple[nn.Module, int]:
    """Build the trunk for images of any size (half of an odd side is rounded up), and return it with its width."""
    stem = _conv_norm(input_shape[0], _STEM, 3, 1, generator)
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(*stem, nn.ReLU()))
    channels = _STEM
    for group, blocks in enumerate(_BLOCKS[config.depth]):
        for index in range(blocks):
            inner, stride = _STEM * 2**group, 2 if group > 0 and index == 0 else 1
            residual = [(inner, 3, stride), (inner, 3, 1)]  # output channels, side and stride of each convolution
            if config.depth == 50:
                residual = [(inner, 1, 1), (inner, 3, stride), (_BOTTLENECK * inner, 1, 1)]
            layers[f"group{group}_block{index}"] = Block(channels, residual, generator)
            channels = residual[-1][0]
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return nn.Sequential(layers), channels


def conv(before: int, after: int, side: int, stride: int, generator: torch.Generator) -> nn.Conv2d:
    """Return a convolution of residual networks: without bias, padded so that stride 1 keeps the image's size."""
    layer = skip_init(nn.Conv2d, before, after, side, stride, padding=side // 2, bias=False)
    return he_normal(layer, generator)


def _conv_norm(before: int, after: int, side: int, stride: int, generator: torch.Generator) -> list[nn.Module]:
    return [conv(before, after, side, stride, generator), nn.BatchNorm2d(after)]
