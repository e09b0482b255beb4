"""The VGG-11 of the dataset-distillation literature, for small images (Zhao, Mopuri & Bilen 2021, published code).

The convolutions of configuration A of Simonyan & Zisserman 2015 (table 1): 64 | 128 | 256, 256 | 512, 512 | 512, 512
channels of 3×3, a ReLU after each and a 2×2 max-pool after each group; then the head, without hidden linear layers.
With ``norm: group`` there is a group norm of 8 groups between each convolution and its ReLU. FRePo's network (Zhou et
al. 2022) has 128 channels in every layer: ``width: 128``. Images of fewer than 32 pixels a side are padded with zeros
to 32, as in the published code: its first convolution pads images of one channel by 3. Every convolution has a bias.
Initial weights: N(0, 1/fan_in), biases 0; the published code uses torch's defaults, and Lee et al. 2025 use LeCun's.
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn

from ..errors import require
from .alexnet import padding_of_first
from .base import lecun_normal, skip_init
from .pooling import MaxPool

_GROUPS: Final = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # channels
_NORM_GROUPS: Final = 8  # the same number as in our ConvNet


@dataclass(frozen=True)
class Vgg11Config:
    """A VGG-11 trunk for images of up to 63 pixels a side; its last convolution's channels are the features.

    Attributes:
        norm: ``group`` (8 groups) or ``none``.
        width: the number of channels of every convolution. null means configuration A's numbers.
    """

    name: Literal["vgg11"]
    norm: Literal["group", "none"]
    width: int | None = None

    def __post_init__(self) -> None:
        require(self.width is None or self.width > 0, "width", "must be > 0 or null", self.width)
        fits = self.norm == "none" or self.width is None or self.width % _NORM_GROUPS == 0
        require(fits, "width", f"must be a multiple of {_NORM_GROUPS} for group norm", self.width)


def vgg11_trunk(config: Vgg11Config, input_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
    """Build the trunk, and return it with its width; a pool drops an odd last row or column.

    Raises:
        ConfigError: the rows are not images.
    """
    padding, (height, width) = padding_of_first(3, input_shape, config.name)
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for group in _GROUPS:
        for published in group:
            after = config.width or published
            layers += [
                lecun_normal(skip_init(nn.Conv2d, channels, after, 3, padding=1 if layers else padding), generator)
            ]
            layers += [nn.GroupNorm(_NORM_GROUPS, after)] if config.norm == "group" else []
            layers += [nn.ReLU()]
            channels = after
        layers[-1:] = [MaxPool(), nn.ReLU()]  # ReLU after the max pool gives the same bits with a quarter of the work
    shrinks = 2 ** len(_GROUPS)
    return nn.Sequential(*layers, nn.Flatten()), channels * (height // shrinks) * (width // shrinks)
