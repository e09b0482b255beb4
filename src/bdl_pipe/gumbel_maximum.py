"""E[softmax(z)] of independent logits z by one integral along the largest of perturbed logits.

softmax_k(z) is the probability that z_k + g_k is the largest of the z_l + g_l, with independent standard Gumbel g. The
logits are independent, so that with F_l, f_l the distribution function and density of z_l + g_l

    E[softmax_k(z)] = ∫ f_k(t) Π_{l≠k} F_l(t) dt = ∫ (f_k/F_k)(t) Π_l F_l(t) dt.

Each z_l is given as a mixture of points, such as the nodes of a Gauss rule of its distribution: Gaussian logits are in
:mod:`bdl_pipe.last_layer.discriminative`, uniform logits in :mod:`bdl_pipe.collapsed.integrals.uniform_logits`.
Source: our derivation from the Gumbel-max identity.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

Points = Iterable[tuple[Float[Tensor, "batch class 1"], float]]


def log_terms(
    log_below: Float[Tensor, "batch class grid"], log_density: Float[Tensor, "batch class grid"]
) -> Float[Tensor, "batch class grid"]:
    """Return the log of the integrand of each class on a grid of t, from log F and log f of each logit.

    log F must be finite. It is finite where the logit has a point at most 4 above t: F is then at least that point's
    share times e^{−e⁴} > 1e-24.
    """
    return log_density - log_below + log_below.sum(-2, keepdim=True)


def mixture(
    distance: Float[Tensor, "batch class grid"], points: Points, highest: Float[Tensor, "batch class 1"]
) -> tuple[Float[Tensor, "batch class grid"], Float[Tensor, "batch class grid"]]:
    """Return log F and log f of z + g.

    For speed, the function sums probabilities, not logarithms. f underflows far above an unlikely logit, so it sums
    f·eˢ, with s ≥ 0 the smallest gap.

    Args:
        distance: t minus a centre of each logit, in ascending order.
        points: for each point, its distance from the centre of each logit, and its share, the same for all logits.
        highest: the largest of these distances, for each logit.
    """
    shift = (distance[..., :1] - highest).clamp_min(0)  # s [..., 1]
    minus_shrink, farthest = -torch.exp(-shift), shift - distance
    below, density = torch.zeros_like(distance), torch.zeros_like(distance)
    for offset, share in points:
        scaled = (farthest + offset).clamp_max_(80).exp_()  # eˢ⁻ᵍᵃᵖ; e⁸⁰ is finite in float32
        under = (scaled * minus_shrink).exp_()  # F of a Gumbel
        below.add_(under, alpha=share)
        density.add_(scaled * under, alpha=share)
    return below.log(), density.log() - shift
