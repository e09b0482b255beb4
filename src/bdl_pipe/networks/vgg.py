"""VGG-16 for small images: configuration D of Simonyan & Zisserman 2015 (table 1), two hidden layers of 512, a head.

Five groups of 3×3 convolutions, of 64, 64 | 128, 128 | 256, 256, 256 | 512, 512, 512 | 512, 512, 512 channels, a ReLU
after each and a 2×2 max-pool after each group. What is left of the image (one pixel of 32×32) is flattened and goes
through (dropout → linear → ReLU) twice. As in the CIFAR experiments of Maddox et al. 2019 (SWAG), whose hidden layers
have 512 units, not 4,096; their dropout is .5 and, in "VGG-16", nothing is normalised. With ``norm: batch`` a batch
norm stands between each convolution and its ReLU. Every convolution has a bias. Initial weights: N(0, 2/fan_in), of the
hidden layers too, and biases 0; the published code divides by fan_out and leaves linear layers to torch.
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn

from ..errors import require
from .base import he_normal
from .pooling import MaxPool

_GROUPS: Final = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # channels
_HIDDEN: Final = (512, 512)
_SHRINKS: Final = 2 ** len(_GROUPS)  # an image's side over what is left of it


@dataclass(frozen=True)
class VggConfig:
    """A VGG-16 trunk of 512 features.

    Attributes:
        norm: ``none``, or ``batch`` (running statistics at evaluation).
        dropout: probability of each input of a hidden linear layer, in training.
    """

    name: Literal["vgg"]
    norm: Literal["none", "batch"]
    dropout: float

    def __post_init__(self) -> None:
        require(0 <= self.dropout < 1, "dropout", "must be in [0, 1)", self.dropout)


def vgg_trunk(config: VggConfig, input_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
    """Build the trunk for images of 32 pixels or more a side, and return it with its width; a pool drops an odd line.

    Raises:
        ConfigError: the images are smaller, or the rows are no images.
    """
    rule = f"must not be vgg for rows of shape {list(input_shape)}: it takes images of {_SHRINKS}×{_SHRINKS} or more"
    require(len(input_shape) == 3 and min(input_shape[1:]) >= _SHRINKS, "network.name", rule)
    channels, height, width = input_shape
    layers: list[nn.Module] = []
    for group in _GROUPS:
        for after in group:
            layers += [he_normal(nn.Conv2d(channels, after, 3, padding=1), generator)]
            layers += [nn.BatchNorm2d(after)] if config.norm == "batch" else []
            layers += [nn.ReLU()]
            channels = after
        layers += [MaxPool()]
    layers += [nn.Flatten()]
    features = channels * (height // _SHRINKS) * (width // _SHRINKS)
    for hidden in _HIDDEN:
        layers += [nn.Dropout(config.dropout)] if config.dropout > 0 else []
        layers += [he_normal(nn.Linear(features, hidden), generator), nn.ReLU()]
        features = hidden
    return nn.Sequential(*layers), features
