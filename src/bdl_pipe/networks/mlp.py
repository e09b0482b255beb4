"""A multilayer perceptron trunk: (linear → activation → dropout) for each hidden width."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ..errors import require
from .base import he_normal


@dataclass(frozen=True)
class MlpConfig:
    """A multilayer perceptron trunk.

    Attributes:
        hidden: the width of each hidden layer.
        activation: ``relu``, ``leaky_relu`` of slope 0.01 below zero (torch's default), or ``tanh``.
        dropout: probability of each hidden unit, after its activation, in training.
    """

    name: Literal["mlp"]
    hidden: tuple[int, ...]
    activation: Literal["relu", "leaky_relu", "tanh"] = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(bool(self.hidden) and min(self.hidden) > 0, "hidden", "must list widths > 0", list(self.hidden))
        require(0 <= self.dropout < 1, "dropout", "must be in [0, 1)", self.dropout)


def mlp_trunk(config: MlpConfig, input_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
    """Return the trunk and its width; images are flattened.

    Weights N(0, 2/fan_in), biases 0, whatever the activation: He's variance for a slope a is
    2/(1 + a²), for 0.01 one part in 10,000 less, and for tanh it is twice LeCun's.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(input_shape)
    for hidden in config.hidden:
        layers += [he_normal(nn.Linear(width, hidden), generator)]
        layers.append(_activation(config))
        layers += [nn.Dropout(config.dropout)] if config.dropout > 0 else []
        width = hidden
    return nn.Sequential(*layers), width


def _activation(config: MlpConfig) -> nn.Module:
    if config.activation == "tanh":
        return nn.Tanh()
    return nn.ReLU() if config.activation == "relu" else nn.LeakyReLU(0.01)
