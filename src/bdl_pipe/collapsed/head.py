"""The last layer of a trajectory's snapshots, and the box that its weights span.

q is uniform on [min, max] of each weight over the snapshots (Zeng and Van den Broeck 2023, section 4.2). For one
snapshot and class k, the logit with the weights in C collapsed and the others the snapshot's is

    l_k + Σ_{i ∈ C} (W_i − w_i)φ_i = l_k + Σ_{i ∈ C} (m_i − w_i)φ_i + Σ_{i ∈ C} h_iU_i,    U_i uniform on [−1, 1],

m_i the middle of the range of W_i, h_i half the range times |φ_i|. The bias is the weight of an input that is one.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

SCORES: Final = 1 << 18  # half-widths at a time, out of which the largest are chosen
GROUP: Final = 32  # inputs whose largest is found first, since where it lies takes five times as long as what it is


class Collapsed(NamedTuple):
    """What the chosen weights add to each logit.

    Attributes:
        shift: Σ (m_i − w_i)φ_i, from the snapshot's weights to the middle of the box.
        half_widths: h_i, the largest first.
    """

    shift: Float[Tensor, "*batch class"]
    half_widths: Float[Tensor, "*batch class d"]


@dataclass(frozen=True)
class Head:
    """Weights, biases last, of all snapshots."""

    weights: Float[Tensor, "snapshot class input"]

    @classmethod
    def of(cls, weight: Float[Tensor, "snapshot class width"], bias: Float[Tensor, "snapshot class"]) -> "Head":
        return cls(torch.cat([weight, bias[..., None]], -1))

    def collapse(self, snapshot: int, features: Float[Tensor, "batch width"], count: int) -> Collapsed:
        """The ``count`` weights of each class with the largest range·|φ|, for each input by itself.

        Memory: that of the result, and SCORES numbers.
        """
        own, low, high = self.weights[snapshot], self.weights.amin(0), self.weights.amax(0)
        spare = -own.shape[-1] % GROUP
        half = F.pad((high - low) / 2, (0, spare))  # [class, input]
        offset = F.pad(((low - own) + (high - own)) / 2, (0, spare))  # 0 where nothing moved
        padded = F.pad(F.pad(features, (0, 1), value=1.0), (0, spare))
        parts = [_chosen(part, half, offset, count) for part in padded.split(max(1, SCORES // half.numel()))]
        return Collapsed(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _chosen(features: Tensor, half: Tensor, offset: Tensor, count: int) -> Collapsed:
    """Of features [row, input], half the ranges [class, input] and m − w [class, input]."""
    widths = half * features.abs()[:, None]  # [row, class, input]
    largest, index = _largest(widths, count)
    at = features[:, None].expand_as(widths).gather(-1, index)  # [row, class, d]
    return Collapsed((offset.expand_as(widths).gather(-1, index) * at).sum(-1), largest)


def _largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest [..., d] of [..., input], and where: in the ``count`` groups of the largest maxima."""
    grouped = values.unflatten(-1, (-1, GROUP))
    peaks = grouped.amax(-1)  # [..., group]
    groups = _top(peaks, min(count, peaks.shape[-1]))[1]
    candidates = grouped.gather(-2, groups[..., None].expand(*groups.shape, GROUP)).flatten(-2)
    largest, place = _top(candidates, count)
    return largest, groups.gather(-1, place // GROUP) * GROUP + place % GROUP


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``topk`` over the last dimension, which takes longer than a maximum."""
    largest, index = values.max(-1, keepdim=True) if count == 1 else values.topk(count, -1)
    return largest, index
