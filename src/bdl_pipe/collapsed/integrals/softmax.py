"""The softmax averaged over one weight of the last layer, exactly.

If only the logit of class k is random, a + hU with U uniform on [−1, 1], its probability is the average of a sigmoid,

    E[σ(a + hU)] = [softplus(a + h) − softplus(a − h)]/(2h),   a = logit_k − LSE_{j≠k} logit_j

and 1 − p_k is divided among the other classes in their old proportions. (Zeng and Van den Broeck 2023, as in their
code. Deviations: no division by a range of zero, and all classes come from one weight, so that they add up to one.)
"""

import math
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import DataError
from .layout import broadcast

NARROW: Final = 0.5  # for smaller h, a Gauss rule of 10 points and its derivatives have errors of (h/2π)^20
BLOCK: Final = 1 << 15  # points that are computed together
WIDE: Final = 15.0  # for larger h, e²ʰ could overflow and the softplus terms do not cancel


def softmax_one(
    logits: Float[Tensor, "*#batch class"],
    index: int | Int[Tensor, "*#batch"],
    low: float | Float[Tensor, "*#batch"],
    high: float | Float[Tensor, "*#batch"],
    feature: Float[Tensor, "*#batch"],
) -> Float[Tensor, "*batch class"]:
    """Return E[softmax(logits + e_index·w·feature)] over w uniform on [low, high]: probabilities of all classes.

    Args:
        logits: the logits at w = 0; or at the weight's value, with ``low`` and ``high`` relative to this value.
        index: the class of the weight.
        feature: the input of the weight.

    Raises:
        DataError: a value is not finite, ``low`` > ``high``, ``index`` is not a class, or there are fewer than 2
            classes.
    """
    ends = [torch.as_tensor(end, dtype=feature.dtype, device=feature.device) for end in (low, high)]
    index = torch.as_tensor(index, device=logits.device).long()
    for name, value in {"logits": logits, "feature": feature, "low": ends[0], "high": ends[1]}.items():
        if not bool(value.isfinite().all()):
            raise DataError(f"{name} must be finite, got {value[~value.isfinite()][0].item()}")
    classes = logits.shape[-1]
    if classes < 2:
        raise DataError(f"logits must be of at least 2 classes, got {classes}")
    wrong = index[(index < 0) | (index >= classes)]
    if wrong.numel():
        raise DataError(f"index must be in 0 … {classes - 1}, got {int(wrong.flatten()[0])}")
    if not bool((ends[0] <= ends[1]).all()):
        raise DataError(f"low must be ≤ high, got high − low = {float((ends[1] - ends[0]).min())}")
    batch = broadcast(logits.shape[:-1], index.shape, feature.shape, *(end.shape for end in ends))
    logits, chosen = logits.expand(*batch, -1), index.expand(batch)[..., None]  # [..., class], [..., 1]
    is_chosen = F.one_hot(chosen[..., 0], logits.shape[-1]).bool()
    rest = logits.masked_fill(is_chosen, -torch.inf)
    middle, half = feature * (ends[0] + ends[1]) / 2, (feature * (ends[1] - ends[0]) / 2).abs()
    others = rest.logsumexp(-1, keepdim=True)
    above = logits.gather(-1, chosen) + middle.expand(batch)[..., None] - others  # a [..., 1]
    below = torch.where(above > 0, -above, above)  # −|a|, with a derivative at 0
    tail = mean_sigmoid(below, half.expand(batch)[..., None])  # the smaller probability, with full relative accuracy
    more, less = torch.where(above > 0, 1 - tail, tail), torch.where(above > 0, tail, 1 - tail)
    return torch.where(is_chosen, more, less * (rest - others).exp())


def mean_sigmoid(centre: Float[Tensor, "*#batch"], half: Float[Tensor, "*#batch"]) -> Float[Tensor, "*batch"]:
    """Return E[σ(a + hU)], h ≥ 0, accurate in both tails, by three formulas, each where it does not cancel."""
    centres, halves = torch.broadcast_tensors(centre, half)
    means, rule = [], [part.tolist() for part in np.polynomial.legendre.leggauss(10)]
    for a, h in zip(centres.flatten().split(BLOCK), halves.flatten().split(BLOCK), strict=True):
        small, between, large = h.clamp_max(NARROW), h.clamp(NARROW, WIDE), h.clamp_min(WIDE)
        narrow = torch.zeros_like(a)
        for node, weight in zip(*rule, strict=True):
            narrow = narrow + weight / 2 * (a + node * small).sigmoid()
        medium = torch.log1p(torch.expm1(2 * between) * (a - between).sigmoid()) / (2 * between)
        # softplus x = −log σ(−x); torch's softplus returns x above 20
        far = (F.logsigmoid(large - a) - F.logsigmoid(-a - large)) / (2 * large)
        means.append(torch.where(h <= NARROW, narrow, torch.where(h <= WIDE, medium, far)))
    return torch.cat(means).reshape(centres.shape)


def within(
    average: Float[Tensor, "*batch"], centre: Float[Tensor, "*batch"], half_widths: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch"]:
    """Return the log of an approximate E[σ(c + Σ_i h_iU_i)] clamped to bounds; averages ≤ 0 become the lower bound.

    The bounds are tight in the tails. With r = Σ h_i and M(c) = E[exp(c + ΣhU)] = e^c Π sinh(h_i)/h_i,

        E[σ] ≥ σ(c)/2              half of the box is above c
        E[σ] ≥ σ(c)                c + r ≤ 0, where σ is convex
        E[σ] ≥ M(c)(1 − e^{c+r})   σ(z) ≥ e^z(1 − e^z)
        E[σ] ≤ M(c)                σ(z) ≤ e^z

    and 1 − E[σ] equals E[σ] at −c. For c + r ≪ 0 the last two differ only by the factor 1 − e^{c+r}.
    """
    safe = torch.where(half_widths > 0, half_widths, 1)  # log (sinh h)/h is 0 at 0, with an error of the rounding of h
    log_sinhc = torch.where(half_widths > 0, safe + torch.log(-torch.expm1(-2 * safe) / (2 * safe)), 0)
    rise = log_sinhc.sum(-1)
    reach = half_widths.sum(-1)
    least = _least(centre, reach, rise)
    most = torch.minimum(torch.log1p(-_least(-centre, reach, rise).exp()), centre + rise)
    logs = torch.where(average > 0, average, 0).log()
    return torch.minimum(torch.maximum(logs, least), most)


def _least(centre: Tensor, reach: Tensor, rise: Tensor) -> Tensor:
    """Return the largest of the lower bounds on log E[σ]; ``rise`` is log M(0)."""
    above = centre + reach
    convex = F.logsigmoid(centre) - torch.where(above <= 0, 0.0, math.log(2))
    tail = centre + rise + torch.log1p(-above.clamp_max(0).exp())  # −∞ for above ≥ 0
    return torch.maximum(convex, tail)
