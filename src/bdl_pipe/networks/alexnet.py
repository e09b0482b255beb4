"""The AlexNet of the dataset-distillation literature, for small images (Zhao, Mopuri & Bilen 2021, published code).

5×5 convolution of 128 channels → pool, 5×5 of 192 → pool, 3×3 of 256, of 192 and of 192 → pool, a ReLU after each
convolution and no normalisation; the head follows the last pool. The order of layers is Krizhevsky, Sutskever &
Hinton's of 2012, without their hidden linear layers, dropout and local normalisation. Pools are 2×2 max pools. Images
of fewer than 32 pixels a side are padded with zeros to 32, as in the published code: its 5×5 convolution pads images of
one channel by 4. Initial weights: N(0, 1/fan_in), biases 0; the published code uses torch's defaults, and Lee et al.
2025 use LeCun's.
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn

from ..errors import require
from .base import lecun_normal, skip_init
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
    """Build the trunk, and return it with its width; a pool drops an odd last row or column.

    Raises:
        ConfigError: the rows are not images.
    """
    padding, (height, width) = padding_of_first(_LAYERS[0][1], input_shape, config.name)
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for after, side, pooled in _LAYERS:
        around = side // 2 if layers else padding
        layers += [lecun_normal(skip_init(nn.Conv2d, channels, after, side, padding=around), generator)]
        # ReLU after the max pool gives the same bits with a quarter of the work
        layers += [MaxPool(), nn.ReLU()] if pooled else [nn.ReLU()]
        channels = after
    return nn.Sequential(*layers, nn.Flatten()), channels * (height // 8) * (width // 8)


def padding_of_first(side: int, input_shape: tuple[int, ...], name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the padding of a first convolution that enlarges small images to 32 pixels a side.

    Other images keep their size.

    Args:
        side: the side of the convolution's kernel, odd.
        name: the network's name, for the error.

    Returns:
        The padding of height and width, and the image's height and width after the convolution.

    Raises:
        ConfigError: the rows are not images.
    """
    shape = list(input_shape)
    require(len(shape) == 3, "network.name", f"must not be {name} for rows of shape {shape}: it takes images")
    more = [-(min(pixels - 32, 0) // 2) for pixels in shape[1:]]  # zeros on either side
    height, width = (pixels + 2 * zeros for pixels, zeros in zip(shape[1:], more, strict=True))
    return (side // 2 + more[0], side // 2 + more[1]), (height, width)
