"""The wide residual network WRN-d-k of Zagoruyko & Komodakis 2016 (table 1): 3×3 conv, three groups of blocks, mean.

A block is pre-activation and basic: BN → ReLU → 3×3 conv → BN → ReLU → (dropout) → 3×3 conv, plus a shortcut. Group g
has (d − 4)/6 blocks of 16k·2^g channels, g = 0, 1, 2; the first block of groups 1 and 2 halves the image. If a block
changes the shape, its shortcut is a 1×1 conv of the pre-activated input, as in the authors' code. Convolutions have no
bias. Initial weights: N(0, 2/fan_in) (He et al. 2015); the authors' code divides by fan_out. The head has variance
1/fan_in, like all heads here. Weight decay applies to every parameter, as in the authors' code.
"""

from dataclasses import dataclass
from typing import Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import require
from .preresnet import preactivated_trunk
from .resnet import conv

_STEM = 16  # channels of the first convolution, for every k


@dataclass(frozen=True)
class WideResNetConfig:
    """A WRN-``depth``-``widen`` trunk with 64·``widen`` features.

    Attributes:
        depth: d, the number of layers with weights on the main path, including the head: 6n + 4 with n >= 1.
        widen: k, the factor of the blocks' channels.
        dropout: the dropout probability between the two convolutions of a block.
    """

    name: Literal["wide_resnet"]
    depth: int
    widen: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(self.depth >= 10 and self.depth % 6 == 4, "depth", "must be 6n + 4, n >= 1", self.depth)
        require(self.widen > 0, "widen", "must be > 0", self.widen)
        require(0 <= self.dropout < 1, "dropout", "must be in [0, 1)", self.dropout)


@final
class Block(nn.Module):
    """Two pre-activated 3×3 convolutions, the first with ``stride``, and a shortcut around both."""

    def __init__(self, before: int, after: int, stride: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1 = conv(before, after, 3, stride, generator)
        self.conv2 = conv(after, after, 3, 1, generator)
        self.dropout: nn.Module = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        keeps = before == after and stride == 1
        self.shortcut = None if keeps else conv(before, after, 1, stride, generator)

    def forward(self, inputs: Float[Tensor, "batch before h w"]) -> Float[Tensor, "batch after h_out w_out"]:
        active = F.relu(self.norm1(inputs))
        around = inputs if self.shortcut is None else self.shortcut(active)
        hidden = self.dropout(F.relu(self.norm2(self.conv1(active))))
        return around + self.conv2(hidden)


def wideresnet_trunk(
    config: WideResNetConfig, input_shape: tuple[int, ...], generator: torch.Generator
) -> tuple[nn.Module, int]:
    """Return the trunk and its width, for images of any size; half of an odd side is rounded up."""

    def width(group: int) -> int:
        return _STEM * config.widen * 2**group

    def block(before: int, group: int, stride: int) -> Block:
        return Block(before, width(group), stride, config.dropout, generator)

    return preactivated_trunk(input_shape[0], _STEM, (config.depth - 4) // 6, block, width, generator)
