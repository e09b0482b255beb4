"""A multilayer perceptron trunk: (linear → activation → dropout) for each hidden width, on rows or encoded rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..config import LATER
from ..errors import require
from .base import he_normal, skip_init

_ACTIVATIONS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.01),
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "mish": nn.Mish,
    "silu": nn.SiLU,
}


@dataclass(frozen=True)
class MlpConfig:
    """A multilayer perceptron trunk.

    Attributes:
        hidden: the width of each hidden layer.
        activation: ``relu``, ``leaky_relu`` of slope 0.01 below zero (torch's default), ``tanh``, or a smooth
            one: ``elu``, exp(x) − 1 below zero (Clevert, Unterthiner & Hochreiter 2016), ``silu``, x/(1 + exp(−x))
            (Hendrycks & Gimpel 2016; Elfwing, Uchibe & Doya 2018), or ``mish``, x·tanh(log(1 + exp x)) (Misra 2020),
            which takes torch five times as long on a CPU.
        dropout: the dropout probability of each hidden unit, after its activation.
        frequencies: the frequencies of the periodic encoding of a table's numbers (:class:`Periodic`), in cycles per
            unit. Empty means no encoding.
        encoded: the indices of the inputs that are encoded. Empty means all.
        bins: the most bins of the piecewise linear encoding of a table's numbers (:class:`PiecewiseLinear`). 0 means no
            such encoding.
        edges: the edges of the bins of each encoded input, which a fit computes from its training rows. Leave it empty.
    """

    name: Literal["mlp"]
    hidden: tuple[int, ...]
    activation: Literal["relu", "leaky_relu", "tanh", "elu", "mish", "silu"] = "relu"
    dropout: float = 0.0
    frequencies: tuple[float, ...] = field(default=(), metadata=LATER)
    encoded: tuple[int, ...] = field(default=(), metadata=LATER)
    bins: int = field(default=0, metadata=LATER)
    edges: tuple[tuple[float, ...], ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        require(bool(self.hidden) and min(self.hidden) > 0, "hidden", "must list widths > 0", list(self.hidden))
        require(0 <= self.dropout < 1, "dropout", "must be in [0, 1)", self.dropout)
        positive = all(frequency > 0 for frequency in self.frequencies)
        require(positive, "frequencies", "must be > 0", list(self.frequencies))
        require(self.bins == 0 or self.bins > 1, "bins", "must be 0 or > 1", self.bins)
        require(not (self.bins and self.frequencies), "bins", "must be 0 with frequencies", self.bins)
        rule = "must be indices of inputs, each once, and needs frequencies or bins"
        ordered = len(set(self.encoded)) == len(self.encoded) and all(index >= 0 for index in self.encoded)
        used = bool(self.frequencies) or self.bins > 0
        require(ordered and (not self.encoded or used), "encoded", rule, list(self.encoded))

    @property
    def needs_rows(self) -> bool:
        """Return True if the edges of bins are still to be computed from training rows."""
        return self.bins > 0 and not self.edges

    def with_rows(self, rows: Float[Tensor, "row feature"]) -> "MlpConfig":
        """Return the config with the edges of bins: quantiles of the training rows, each value once.

        An input with at most two values has no bins: one would be a multiple of the input, but for a constant.
        """
        rows = rows.flatten(1).double()
        levels = torch.linspace(0, 1, self.bins + 1, dtype=torch.float64)
        edges = list[tuple[float, ...]]()
        for index in self.encoded or range(rows.shape[1]):
            require(index < rows.shape[1], "encoded", f"must be indices of the {rows.shape[1]} inputs", index)
            found = rows[:, index].quantile(levels).unique().tolist()
            edges.append(tuple(found) if len(found) > 2 else ())
        return replace(self, edges=tuple(edges))


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
    if config.bins:
        rule = "must come from a fit, which computes them from its training rows, before a network with bins is built"
        require(bool(config.edges), "edges", rule, list(config.edges))
        bins = PiecewiseLinear(config.edges, config.encoded or range(width))
        layers.append(bins)
        width += bins.added
    for hidden in config.hidden:
        layers += [he_normal(skip_init(nn.Linear, width, hidden), generator)]
        layers.append(_ACTIVATIONS[config.activation]())
        layers += [nn.Dropout(config.dropout)] if config.dropout > 0 else []
        width = hidden
    return nn.Sequential(*layers), width


@final
class Periodic(nn.Module):
    """A periodic encoding of rows with fixed frequencies: x, and sin(2πcx) and cos(2πcx) − 1 for each frequency c.

    Gorishniy, Rubachev & Babenko 2022, "On Embeddings for Numerical Features in Tabular Deep Learning", equation 2,
    with x itself added (Holzmüller, Grinsztajn & Steinwart 2024, "Better by Default", section 3). Deviation:
    frequencies are fixed and the same for all numbers, where the papers learn them, and the network's first layer
    replaces a linear map of each number. The encoding has no parameters, so every family can use it, like an
    activation. On one split of diamonds six fixed frequencies had a test NLL of 6.698, and sixteen learned frequencies
    6.697 (one perceptron of three layers, one seed). If a number has only two values, its sines and cosines are
    multiples of it, but for a constant. They then add no information and can be left out.

    If all are encoded, the features are those of the first number, then those of the second, …: x, sines in the order
    of the frequencies, and cosines minus 1. Else all inputs come first, then the sines and cosines of each encoded one.
    """

    def __init__(self, frequencies: Sequence[float], encoded: Sequence[int] = ()) -> None:
        """Create the encoding.

        Args:
            frequencies: in cycles per unit of an input.
            encoded: the indices of the inputs that are encoded. Empty means all.
        """
        super().__init__()
        self._angular: Tensor
        self._encoded: Tensor | None
        self.register_buffer("_angular", 2 * math.pi * torch.tensor(frequencies), persistent=False)
        self.register_buffer("_encoded", torch.tensor(encoded) if encoded else None, persistent=False)

    def forward(self, inputs: Float[Tensor, "*draw row feature"]) -> Float[Tensor, "*draw row encoded"]:
        if self._encoded is None:
            angles = inputs[..., None] * self._angular
            return torch.cat([inputs[..., None], angles.sin(), angles.cos() - 1], dim=-1).flatten(-2)
        angles = inputs.index_select(-1, self._encoded)[..., None] * self._angular
        return torch.cat([inputs, torch.cat([angles.sin(), angles.cos() - 1], dim=-1).flatten(-2)], dim=-1)


@final
class PiecewiseLinear(nn.Module):
    """The piecewise linear encoding of rows: the inputs, and for each bin of a number the part of it below the number.

    Gorishniy, Rubachev & Babenko 2022, "On Embeddings for Numerical Features in Tabular Deep Learning", equation 1,
    with edges at quantiles of the training rows (section 3.2.1): the feature of the bin from a to b is 0 below a, 1
    above b and (x − a)/(b − a) between. Deviations: the inputs themselves are features, too, so the first and the last
    bin do not extrapolate, and an outlier does not become large in a narrow bin.

    Attributes:
        added: the number of features beside the inputs.
    """

    def __init__(self, edges: Sequence[Sequence[float]], encoded: Sequence[int]) -> None:
        """Create the encoding of the inputs ``encoded``, with increasing ``edges`` for each; none for no bins."""
        super().__init__()
        starts = [start for of_one in edges for start in of_one[:-1]]
        widths = [end - start for of_one in edges for start, end in pairwise(of_one)]
        places = [index for index, of_one in zip(encoded, edges, strict=True) for _ in of_one[1:]]
        self.added = len(places)
        self._starts: Tensor
        self._widths: Tensor
        self._places: Tensor
        self.register_buffer("_starts", torch.tensor(starts), persistent=False)
        self.register_buffer("_widths", torch.tensor(widths), persistent=False)
        self.register_buffer("_places", torch.tensor(places, dtype=torch.int64), persistent=False)

    def forward(self, inputs: Float[Tensor, "*draw row feature"]) -> Float[Tensor, "*draw row encoded"]:
        parts = (inputs.index_select(-1, self._places) - self._starts) / self._widths
        return torch.cat([inputs, parts.clamp(0, 1)], dim=-1)
