"""Bounds of E[σ(c + Σ_i h_iU_i)], U_i uniform on [−1, 1], tight in the tails.

With r = Σ h_i and M(c) = E[exp(c + ΣhU)] = e^c Π sinh(h_i)/h_i,

    E[σ] ≥ σ(c)/2              half of the box is above c
    E[σ] ≥ σ(c)                c + r ≤ 0, where σ is convex
    E[σ] ≥ M(c)(1 − e^{c+r})   σ(z) ≥ e^z(1 − e^z)
    E[σ] ≤ M(c)                σ(z) ≤ e^z

and 1 − E[σ] equals E[σ] at −c. For c + r ≪ 0 the last two differ only by the factor 1 − e^{c+r}.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def within(
    average: Float[Tensor, "*batch"], centre: Float[Tensor, "*batch"], half_widths: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch"]:
    """Return the log of an approximate E[σ] clamped to the bounds; averages ≤ 0 become the lower bound."""
    rise = _log_sinhc(half_widths).sum(-1)
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


def _log_sinhc(half: Tensor) -> Tensor:
    """Return log (sinh h)/h, 0 at 0, with an error of the rounding of h."""
    safe = torch.where(half > 0, half, 1)
    return torch.where(half > 0, safe + torch.log(-torch.expm1(-2 * safe) / (2 * safe)), 0)
