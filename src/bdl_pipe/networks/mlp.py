"""A multilayer perceptron trunk: (linear → ReLU) for each hidden width."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ..errors import require
from .base import he_normal


@dataclass(frozen=True)
class MlpConfig:
    """``hidden``: the width of each hidden layer."""

    name: Literal["mlp"]
    hidden: tuple[int, ...]

    def __post_init__(self) -> None:
        require(bool(self.hidden) and min(self.hidden) > 0, "hidden", "must list widths > 0", list(self.hidden))


def mlp_trunk(config: MlpConfig, input_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
    """The trunk and its width; images are flattened. He-normal weights, zero biases."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(input_shape)
    for hidden in config.hidden:
        layers += [he_normal(nn.Linear(width, hidden), generator), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers), width
