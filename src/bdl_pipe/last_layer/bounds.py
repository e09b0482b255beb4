"""Upper bounds of E log Σ_k exp z_k for Gaussian logits z ~ N(μ, V), in closed form.

With −E log Σ exp z from below, w̄_yᵀφ − bound is a lower bound of the expected log likelihood of a label. Each bound is
at free parameters, which are optimised for each row without gradients: at the optimum their gradient is 0, and at any
other value the bound still holds.

    jensen     log Σ_k exp(μ_k + ½V_kk)
    tilted     ½aᵀVa + log Σ_k exp(μ_k + ½V_kk − (Va)_k)                                for any a
    bouchard   α + Σ_k [½(μ_k − α − ξ_k) + λ(ξ_k)((μ_k − α)² + V_kk − ξ_k²) + log(1 + e^{ξ_k})]
               with λ(ξ) = tanh(ξ/2)/4ξ                                                for any α and ξ > 0

Sources: Blei and Lafferty 2007, "A correlated topic model of science" (whose bound with a free parameter is "jensen" at
its optimum); Knowles and Minka 2011, "Non-conjugate variational message passing for multinomial and binary regression",
section 5 (tilted); Bouchard 2007, "Efficient bounds for the softmax function". Harrison, Willes and Snoek 2023 use the
first and cite tighter ones (section 3.2). Deviations: Knowles and Minka have a diagonal V, which we extend to a dense
one, by E log Σ exp z = aᵀμ + E log Σ exp(z_k − aᵀz) and Jensen's inequality. Their fixed point for a may oscillate; our
steps a ← a − (a − p)/(1 + ½v), with p the softmax of the exponent, never raise the bound, since the Hessian
V + V(diag p − ppᵀ)V is at most V + ½V². They start from a = 0, so that "tilted" is never above "jensen".
"""

from collections.abc import Callable
from typing import Final, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Bound = Literal["jensen", "tilted", "bouchard"]
_STEPS: Final = 20  # of the free parameters; more changed no bound of the tests by 1e-3 nats
_LEAST: Final = 1e-4  # of ξ, which is divided by


def jensen(mean: Float[Tensor, "batch class"], variance: Float[Tensor, "batch class"]) -> Float[Tensor, " batch"]:
    """Return the bound by Jensen's inequality, for independent logits or the diagonal of V."""
    return torch.logsumexp(mean + 0.5 * variance, -1)


def tilted(mean: Float[Tensor, "batch class"], variance: Float[Tensor, "batch class"]) -> Float[Tensor, " batch"]:
    """Return the bound of Knowles and Minka for independent logits."""
    tilt, centre, spread = torch.zeros_like(mean), mean.detach(), variance.detach()
    for _ in range(_STEPS):
        tilt = tilt - (tilt - F.softmax(centre + (0.5 - tilt) * spread, -1)) / (1 + 0.5 * spread)
    return 0.5 * (tilt.square() * variance).sum(-1) + torch.logsumexp(mean + (0.5 - tilt) * variance, -1)


def tilted_dense(
    mean: Float[Tensor, "batch class"], covariance: Float[Tensor, "batch class class"]
) -> Float[Tensor, " batch"]:
    """Return the bound of Knowles and Minka, extended to dependent logits."""
    tilt, centre, spread = torch.zeros_like(mean), mean.detach(), covariance.detach()
    half = 0.5 * spread.diagonal(dim1=-2, dim2=-1)
    largest = spread.abs().sum(-1).amax(-1, keepdim=True)  # at least the largest eigenvalue
    for _ in range(_STEPS):
        pushed = (spread @ tilt[..., None])[..., 0]
        tilt = tilt - (tilt - F.softmax(centre + half - pushed, -1)) / (1 + 0.5 * largest)
    pushed = (covariance @ tilt[..., None])[..., 0]
    exponent = mean + 0.5 * covariance.diagonal(dim1=-2, dim2=-1) - pushed
    return 0.5 * (tilt * pushed).sum(-1) + torch.logsumexp(exponent, -1)


def bouchard(mean: Float[Tensor, "batch class"], variance: Float[Tensor, "batch class"]) -> Float[Tensor, " batch"]:
    """Return the bound of Bouchard; below "jensen" for large variances alone."""
    centre, spread = mean.detach(), variance.detach()
    shift = torch.logsumexp(centre, -1, keepdim=True)  # α
    excess = 0.5 * (0.5 * mean.shape[-1] - 1)
    for _ in range(_STEPS):
        weight = _curvature(_width(centre - shift, spread))
        shift = (excess + (weight * centre).sum(-1, keepdim=True)) / weight.sum(-1, keepdim=True)
    width = _width(centre - shift, spread)
    square = (mean - shift).square() + variance - width.square()
    each = 0.5 * (mean - shift - width) + _curvature(width) * square + F.softplus(width)
    return shift[..., 0] + each.sum(-1)


def _width(distance: Tensor, variance: Tensor) -> Tensor:
    """Return the best ξ."""
    return (distance.square() + variance).sqrt().clamp_min(_LEAST)


def _curvature(width: Tensor) -> Tensor:
    """Return λ(ξ)."""
    return torch.tanh(0.5 * width) / (4 * width)


BOUNDS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "jensen": jensen,
    "tilted": tilted,
    "bouchard": bouchard,
}
