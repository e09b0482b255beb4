"""Whether a linear layer is a network's last: whatever its weights are, the network returns its outputs."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

_SIZE: Final = 100.0  # deviation of drawn weights: a ReLU, tanh or clamp after the layer then changes its outputs
_CLOSE: Final = 1e-4  # the largest change by the order of float32 sums, relative to the largest output


def is_last(head: nn.Linear, features: Tensor, outputs_with: Callable[[nn.Linear], Tensor]) -> bool:
    """Return whether a network returns the outputs of its layer ``head``, also for other weights than the present ones.

    The present weights alone do not show a ReLU after the layer if all outputs are positive. Other weights are drawn,
    with either sign.

    Args:
        features: the inputs of the layer for a few rows [row, feature].
        outputs_with: the network's outputs for these rows, with another layer in place of the head.
    """
    generator = torch.Generator().manual_seed(0)
    other = nn.utils.skip_init(nn.Linear, head.in_features, head.out_features, bias=head.bias is not None)
    for weight in other.parameters():
        weight.data.copy_(_SIZE * torch.randn(weight.shape, generator=generator))
    for _ in range(2):
        found = outputs_with(other)
        if found.numel() != len(features) * head.out_features:
            return False
        if not close(found.reshape(len(features), -1), other(features)):
            return False
        for weight in other.parameters():
            weight.data.neg_()
    return True


def close(found: Tensor, meant: Tensor) -> bool:
    """Return whether two batches of outputs are equal up to the rounding of float32 sums."""
    same = found.shape == meant.shape
    return same and bool((found - meant).abs().max() <= _CLOSE * (1e-12 + meant.abs().max()))
