"""A multilayer perceptron trunk: (linear → activation → dropout) for each hidden width, on rows or encoded rows."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
from torch import nn
from torch.nn.utils import skip_init

from ..config import LATER
from ..errors import require
from .base import he_normal
from .periodic import Periodic

_ACTIVATIONS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.01),
    "tanh": nn.Tanh,
    "mish": nn.Mish,
    "silu": nn.SiLU,
}


@dataclass(frozen=True)
class MlpConfig:
    """A multilayer perceptron trunk.

    Attributes:
        hidden: the width of each hidden layer.
        activation: ``relu``, ``leaky_relu`` of slope 0.01 below zero (torch's default), ``tanh``, or one of two smooth
            ones: ``silu``, x/(1 + exp(−x)) (Hendrycks & Gimpel 2016; Elfwing, Uchibe & Doya 2018), or ``mish``,
            x·tanh(log(1 + exp x)) (Misra 2020), which takes torch five times as long on a CPU.
        dropout: the dropout probability of each hidden unit, after its activation.
        frequencies: the frequencies of the periodic encoding of a table's numbers (:mod:`.periodic`), in cycles per
            unit. Empty means no encoding.
        encoded: the indices of the inputs that are encoded. Empty means all.
    """

    name: Literal["mlp"]
    hidden: tuple[int, ...]
    activation: Literal["relu", "leaky_relu", "tanh", "mish", "silu"] = "relu"
    dropout: float = 0.0
    frequencies: tuple[float, ...] = field(default=(), metadata=LATER)
    encoded: tuple[int, ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        require(bool(self.hidden) and min(self.hidden) > 0, "hidden", "must list widths > 0", list(self.hidden))
        require(0 <= self.dropout < 1, "dropout", "must be in [0, 1)", self.dropout)
        positive = all(frequency > 0 for frequency in self.frequencies)
        require(positive, "frequencies", "must be > 0", list(self.frequencies))
        rule = "must be indices of inputs, each once, and needs frequencies"
        ordered = len(set(self.encoded)) == len(self.encoded) and all(index >= 0 for index in self.encoded)
        require(ordered and (not self.encoded or bool(self.frequencies)), "encoded", rule, list(self.encoded))


def mlp_trunk(config: MlpConfig, input_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
    """Build the trunk, and return it with its width; images are flattened.

    Initial weights are N(0, 2/fan_in) and biases 0 for every activation. He's variance for a slope a is 2/(1 + a²),
    which for 0.01 is one part in 10,000 less; for tanh the variance is twice LeCun's.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(input_shape)
    if config.frequencies:
        rule = f"must be indices of the {width} inputs"
        require(max(config.encoded, default=0) < width, "encoded", rule, list(config.encoded))
        layers.append(Periodic(config.frequencies, config.encoded))
        width += 2 * len(config.frequencies) * (len(config.encoded) or width)
    for hidden in config.hidden:
        layers += [he_normal(skip_init(nn.Linear, width, hidden), generator)]
        layers.append(_ACTIVATIONS[config.activation]())
        layers += [nn.Dropout(config.dropout)] if config.dropout > 0 else []
        width = hidden
    return nn.Sequential(*layers), width
