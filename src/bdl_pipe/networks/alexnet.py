"""The AlexNet of the dataset-distillation literature, for small images (Zhao, Mopuri & Bilen 2021, published code).

5×5 convolution of 128 channels → pool, 5×5 of 192 → pool, 3×3 of 256, of 192 and of 192 → pool, a ReLU after each
convolution and nothing normalised; the head is on what is left of the image. It has the order of layers of Krizhevsky,
Sutskever & Hinton 2012, without their hidden linear layers, dropout and local normalisation. Pools are 2×2 and of the
largest. Zeros around an image of fewer than 32 pixels a side bring it to that size, as in the published code, whose
5×5 convolution pads images of one channel by 4. Initial weights: N(0, 1/fan_in), biases 0; the published code leaves
them to torch, Lee et al. 2025 have LeCun's.
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn

from .base import lecun_normal, padding_of_first
from .pooling import MaxPool

_LAYERS: Final = (
    (128, 5, True),
    (192, 5, True),
    (256, 3, False),
    (192, 3, False),
    (192, 3, True),
)  # channels, side, pool


@dataclass(frozen=True)
class AlexNetConfig:
    """An AlexNet trunk of 3,072 features, for images of up to 39 pixels a side."""

    name: Literal["alexnet"]


def alexnet_trunk(
    config: AlexNetConfig, input_shape: tuple[int, ...], generator: torch.Generator
) -> tuple[nn.Module, int]:
    """Build the trunk, and return it with its width; a pool drops an odd line.

    Raises:
        ConfigError: the rows are no images.
    """
    padding, (height, width) = padding_of_first(_LAYERS[0][1], input_shape, config.name)
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for after, side, pooled in _LAYERS:
        around = side // 2 if layers else padding
        layers += [lecun_normal(nn.Conv2d(channels, after, side, padding=around), generator)]
        # the largest of four after the ReLU is the ReLU of the largest, which is a quarter of the work, bit for bit
        layers += [MaxPool(), nn.ReLU()] if pooled else [nn.ReLU()]
        channels = after
    return nn.Sequential(*layers, nn.Flatten()), channels * (height // 8) * (width // 8)
