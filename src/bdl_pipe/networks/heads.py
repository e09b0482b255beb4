"""The head of a user's network: its last layer, which is linear. Take it off, and check that nothing follows it.

A layer is the last one if the network returns the layer's outputs, whatever its weights are. The present weights alone
do not show a ReLU after the layer if all outputs are positive. So other weights are drawn, with either sign.
"""

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SIZE: Final = 100.0  # deviation of drawn weights: a ReLU, tanh or clamp after the layer then changes its outputs
_CLOSE: Final = 1e-4  # the largest change by the order of float32 sums, relative to the largest output


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers that a model has as attributes, by their dotted names."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name}


def cut(model: nn.Module, name: str) -> nn.Linear:
    """Remove a linear layer of a model, in place, and return it; an identity stays in its place."""
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    model.set_submodule(name, nn.Identity())
    return layer


def is_last(
    model: nn.Module, name: str, head: nn.Linear, features: Tensor, outputs: Tensor, call: Callable[[], Tensor]
) -> bool:
    """Return whether a model that was cut returns the outputs of ``head``, also for other weights of the head.

    Args:
        name: the place of the head.
        features: the outputs of the model without its head, for a few rows [row, feature].
        outputs: the outputs of the whole model for these rows [row, output].
        call: returns the model's present outputs for these rows.
    """
    # without hooks, and without the forward pass of a subclass
    if not close(F.linear(features, head.weight, head.bias), outputs):
        return False
    generator = torch.Generator().manual_seed(0)
    other = nn.utils.skip_init(nn.Linear, head.in_features, head.out_features, bias=head.bias is not None)
    for weight in other.parameters():
        weight.data.copy_(_SIZE * torch.randn(weight.shape, generator=generator))
    for _ in range(2):
        model.set_submodule(name, other)
        try:
            drawn = call()
        finally:
            model.set_submodule(name, nn.Identity())
        rows = len(features)
        if drawn.numel() != rows * head.out_features or not close(drawn.reshape(rows, -1), other(features)):
            return False
        for weight in other.parameters():
            weight.data.neg_()
    return True


def close(values: Tensor, expected: Tensor) -> bool:
    """Return whether two batches of outputs are equal up to the rounding of float32 sums."""
    same = values.shape == expected.shape
    return same and bool((values - expected).abs().max() <= _CLOSE * (1e-12 + expected.abs().max()))
