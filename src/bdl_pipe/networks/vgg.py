"""VGG-16 for small images: configuration D of Simonyan & Zisserman 2015 (table 1), two hidden layers of 512, a head.

Five groups of 3×3 convolutions, of 64, 64 | 128, 128 | 256, 256, 256 | 512, 512, 512 | 512, 512, 512 channels, a ReLU
after each and a 2×2 max-pool after each group. The rest of the image (one pixel of 32×32) is flattened and goes through
(dropout → linear → ReLU) twice. This follows the CIFAR experiments of Maddox et al. 2019 (SWAG): their hidden layers
have 512 units, not 4,096; their dropout is .5 and "VGG-16" has no normalisation. With ``norm: batch`` there is a batch
norm between each convolution and its ReLU. Every convolution has a bias. Initial weights are N(0, 2/fan_in), also in
hidden layers, and biases 0; the published code divides by fan_out and uses torch's defaults for linear layers.
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn

from ..errors import require
from .base import he_normal, skip_init
from .pooling import MaxPool

_GROUPS: Final = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # channels
_HIDDEN: Final = (512, 512)
_SHRINKS: Final = 2 ** len(_GROUPS)  # the factor by which pools shrink an image's side


@dataclass(frozen=True)
class VggConfig:
    """A VGG-16 trunk of 512 features.

    Attributes:
        norm: ``none``, or ``batch`` (running statistics at evaluation).
        dropout: the dropout probability of each input of a hidden linear layer.
    """

    name: Literal["vgg"]
    norm: Literal["none", "batch"]
    dropout: float

    def __post_init__(self) -> None:
        require(0 <= self.dropout < 1, "dropout", "must be in [0, 1)", self.dropout)


def vgg_trunk(config: VggConfig, input_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
    """Build the trunk for images of at least 32 pixels a side, and return it with its width.

    A pool drops an odd last row or column.

    Raises:
        ConfigError: the images are smaller, or the rows are not images.
    """
    rule = f"must not be vgg for rows of shape {list(input_shape)}: it takes images of {_SHRINKS}×{_SHRINKS} or more"
    require(len(input_shape) == 3 and min(input_shape[1:]) >= _SHRINKS, "network.name", rule)
    channels, height, width = input_shape
    layers: list[nn.Module] = []
    for group in _GROUPS:
        for after in group:
            layers += [he_normal(skip_init(nn.Conv2d, channels, after, 3, padding=1), generator)]
            layers += [nn.BatchNorm2d(after)] if config.norm == "batch" else []
            layers += [nn.ReLU()]
            channels = after
        layers += [MaxPool()]
    layers += [nn.Flatten()]
    features = channels * (height // _SHRINKS) * (width // _SHRINKS)
    for hidden in _HIDDEN:
        layers += [nn.Dropout(config.dropout)] if config.dropout > 0 else []
        layers += [he_normal(skip_init(nn.Linear, features, hidden), generator), nn.ReLU()]
        features = hidden
    return nn.Sequential(*layers), features
