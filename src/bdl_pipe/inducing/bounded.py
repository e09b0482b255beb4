"""Positive numbers with a hard upper limit, from numbers that an optimiser may move freely.

cap·sigmoid(r), or exp(r) without a cap: never above the cap, and with a gradient all the way up to it, which a
clipped exponential does not have.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def capped(free: Tensor, cap: float | None) -> Tensor:
    """The positive number."""
    return free.exp() if cap is None else cap * torch.sigmoid(free)


def log_capped(free: Tensor, cap: float | None) -> Tensor:
    """Its logarithm, without cancellation."""
    return free if cap is None else math.log(cap) + logsigmoid(free)


def free(value: float, cap: float | None) -> float:
    """The free number of a positive one below the cap."""
    assert value > 0 and (cap is None or value < cap)
    return math.log(value) if cap is None else math.log(value / (cap - value))
