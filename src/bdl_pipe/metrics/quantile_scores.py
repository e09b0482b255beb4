"""Proper scores of quantiles: the interval score, and the CRPS weighted by quantile.

With ρ_α(q, y) = (1{y ≤ q} − α)(q − y), the quantile-weighted CRPS is 2 ∫₀¹ ρ_α(F⁻¹(α), y) v(α) dα (Gneiting and Ranjan
2011, eq. 17), with their weights: v(α) = (1 − α)² for the left tail, α² for the right tail, α(1 − α) for the centre.
Since F⁻¹(α) − y = ∫ dz from y to F⁻¹(α), this CRPS is an integral of the distribution function, like the CRPS itself,

    2 ∫_{−∞}^y A(F(z)) dz + 2 ∫_y^∞ B(F(z)) dz,   A(p) = ∫₀^p α v(α) dα,   B(p) = ∫_p^1 (1 − α) v(α) dα,

so that no quantile has to be computed. The scores of both tails and twice the score of the centre add up to the CRPS.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..predictive import Continuous
from .regression import integrated, interval

Weight = Literal["left", "right", "centre"]


def _left(p: Tensor) -> Tensor:
    return p**2 / 2 - 2 * p**3 / 3 + p**4 / 4


def _right(p: Tensor) -> Tensor:
    return p**4 / 4


def _centre(p: Tensor) -> Tensor:
    return p**3 / 3 - p**4 / 4


# weight -> A and p ↦ B(1 − p), which is A of the mirrored weight v(1 − α)
_PARTS: Final[dict[Weight, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]]] = {
    "left": (_left, _right),
    "right": (_right, _left),
    "centre": (_centre, _centre),
}


def interval_score(
    predictive: Continuous, targets: Float[Tensor, "batch output"], level: float
) -> Float[Tensor, "batch output"]:
    """Return the score of the central interval of probability ``level``: lower is better, in the target's units.

    The score is the width, plus 2/(1 − level) times the distance of a target outside the interval to its nearer end
    (Gneiting and Raftery 2007, eq. 43).
    """
    low, high = interval(predictive, level)
    outside = (low - targets).clamp_min(0) + (targets - high).clamp_min(0)
    return high - low + 2 / (1 - level) * outside


def quantile_weighted_crps(
    predictive: Continuous, targets: Float[Tensor, "batch output"]
) -> dict[Weight, Float[Tensor, "batch output"]]:
    """Return the CRPS by each weight of quantiles, of each output separately: lower is better, in the target's units.

    One pass over the distribution function serves all weights.
    """

    def parts(p: Tensor, side: int) -> Tensor:
        return torch.stack([part[side](p) for part in _PARTS.values()])

    scores = integrated(predictive, targets.double(), partial(parts, side=0), partial(parts, side=1))
    return dict(zip(_PARTS, 2 * scores, strict=True))
