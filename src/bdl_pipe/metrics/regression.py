"""Scores of Gaussian mixtures beyond RMSE and likelihood: intervals and CRPS.

CRPS of an equally weighted mixture (Grimit et al. 2006, eq. 5), lower is better, in the target's units:

    CRPS = (1/S) Σ_s A(y − μ_s, σ_s²) − 1/(2S²) Σ_s Σ_t A(μ_s − μ_t, σ_s² + σ_t²),
    A(m, v) = 2 √v φ(m/√v) + m (2Φ(m/√v) − 1).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..predictive import Gaussian
from .mean import Mean


def quantile(predictive: Gaussian, level: float) -> Float[Tensor, "batch output"]:
    """The mixture's quantile, in float64.

    It lies between the smallest and the largest of the draws' own quantiles; bisection from there.
    """
    mean, std = predictive.draw_mean.double(), predictive.draw_variance.double().sqrt()
    each = mean + std * torch.special.ndtri(torch.tensor(level, dtype=torch.float64))
    low, high = each.amin(0), each.amax(0)
    for _ in range(60):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - mean) / std).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def covered(predictive: Gaussian, targets: Float[Tensor, "batch output"], level: float = 0.9) -> Mean:
    """Whether the central interval of probability ``level`` holds the target, per output."""
    low, high = quantile(predictive, (1 - level) / 2), quantile(predictive, (1 + level) / 2)
    return Mean.of((low <= targets) & (targets <= high))


def width(predictive: Gaussian, level: float = 0.9) -> Mean:
    """The width of the central interval, in the target's units."""
    return Mean.of(quantile(predictive, (1 + level) / 2) - quantile(predictive, (1 - level) / 2))


def crps(predictive: Gaussian, targets: Float[Tensor, "batch output"]) -> Mean:
    """The continuous ranked probability score, per output."""
    mean, variance = predictive.draw_mean.double(), predictive.draw_variance.double()
    first = _absolute(targets.double() - mean, variance).mean(0)
    # one draw against all at a time: memory stays that of the predictive
    pairs = [_absolute(m - mean, v + variance).mean(0) for m, v in zip(mean, variance, strict=True)]
    return Mean.of(first - torch.stack(pairs).mean(0) / 2)


def _absolute(mean: Tensor, variance: Tensor) -> Tensor:
    """E|Z| for Z ~ N(mean, variance)."""
    std = variance.sqrt()
    z = mean / std
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * (2 * torch.special.ndtr(z) - 1)
