"""The ConvNet of the dataset-distillation literature: blocks of 3×3 conv → norm → ReLU → 2×2 pool.

Gidaris & Komodakis 2018; Zhou et al. 2022 (FRePo) use filters 128, 256, 512 (our ``width`` = 128).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import require, require_positive
from .base import lecun_normal, skip_init
from .pooling import AveragePool, MaxPool


@dataclass(frozen=True)
class ConvNetConfig:
    """A ConvNet trunk.

    Attributes:
        width: the number of filters of the first block; each later block has twice as many.
        blocks: the number of blocks, each of which halves the image.
        norm: ``batch`` (running statistics at evaluation), ``batch_stats`` (always the statistics of the current
            batch), ``instance``, ``group`` (8 groups) or ``none``.
        pool: ``average`` or ``max``.
        dropout: the dropout probability of each unit after each block's pool.
    """

    name: Literal["convnet"]
    width: int
    blocks: int = 3
    norm: Literal["batch", "batch_stats", "instance", "group", "none"] = "batch"
    pool: Literal["average", "max"] = "average"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_positive(self, "width", "blocks")
        require(0 <= self.dropout < 1, "dropout", "must be in [0, 1)", self.dropout)
        require(
            self.norm != "group" or self.width % 8 == 0, "width", "must be a multiple of 8 for group norm", self.width
        )


@final
class BatchStatistics(nn.Module):
    """Batch normalisation by the statistics of the current batch, in training and evaluation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.batch_norm(inputs, None, None, self.weight, self.bias, training=True)


def convnet_trunk(
    config: ConvNetConfig, input_shape: tuple[int, ...], generator: torch.Generator
) -> tuple[nn.Module, int]:
    """Build the trunk, and return it with its width, for images of any size of at least 2**blocks pixels."""
    channels, height, width = input_shape
    norms: dict[str, Callable[[int], nn.Module]] = {
        "batch": nn.BatchNorm2d,
        "batch_stats": BatchStatistics,
        "instance": lambda filters: nn.GroupNorm(filters, filters),
        "group": lambda filters: nn.GroupNorm(8, filters),
        "none": lambda filters: nn.Identity(),
    }
    layers: list[nn.Module] = []
    for block in range(config.blocks):
        filters = config.width * 2**block
        layers += [
            lecun_normal(skip_init(nn.Conv2d, channels, filters, 3, padding=1), generator),
            norms[config.norm](filters),
        ]
        # ReLU after the max pool gives the same bits with a quarter of the work
        relu = nn.ReLU(inplace=config.norm != "none")  # a norm's gradient does not need its output
        layers += [relu, AveragePool()] if config.pool == "average" else [MaxPool(), relu]
        layers += [nn.Dropout(config.dropout)] if config.dropout > 0 else []
        channels, height, width = filters, height // 2, width // 2
    require(min(height, width) > 0, "blocks", f"must leave a pixel of an image of {input_shape}", config.blocks)
    return nn.Sequential(*layers, nn.Flatten()), channels * height * width
