"""ScoringBench's scores of regression (Landsgesell et al. 2026), of a predictive itself in place of a histogram of it.

The continuous ranked Tsallis score of order α > 1 integrates a proper score of the event Y ≤ z over z,

    ∫_{−∞}^y g(F(z)) dz + ∫_y^∞ g(1 − F(z)) dz,
    g(p) = (p^α + (1 − p)^α)/α − (1 − p)^(α − 1)/(α − 1) − 1/α + 1/(α − 1).

At α = 2, g(p) = p²: the CRPS. For α → 1, g(p) = −log(1 − p): the CRLS, the continuous ranked logarithmic score. The
weighted CRPS is their sum over 99 quantiles, 2/100 Σ_k ρ_k v(k/100), with the weights of Gneiting & Ranjan 2011, table
1; the interval score is that of Gneiting & Raftery 2007, eq. 43.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from bdl_pipe.metrics.quantile_scores import interval_score
from bdl_pipe.metrics.regression import crps, integrated, interval
from bdl_pipe.predictive import Continuous

ORDERS: Final = (1.01, 1.2, 1.5, 2.0)
LEVELS: Final = (20, 40, 60, 80, 90, 95)  # central intervals, percent
WEIGHTS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "wcrps_left": lambda level: (1 - level).square(),
    "wcrps_right": lambda level: level.square(),
    "wcrps_center": lambda level: level * (1 - level),
}
LOWER: Final = (  # the scores of which less is better
    *("nll", "crps", "crls", *(f"crts_alpha_{order}" for order in ORDERS), *WEIGHTS),
    *(*(f"interval_score_{level}" for level in LEVELS), "mae", "rmse"),
)
_LEAST: Final = 2.0**-53  # a smaller probability counts as this one in logarithms


def crts(predictive: Continuous, targets: Tensor, order: float) -> Tensor:
    """Return the continuous ranked Tsallis score of each target [batch, output]; lower is better."""

    def loss(p: Tensor) -> Tensor:
        rest = (1 - p).clamp_min(0)
        ends = 1 / (order - 1) - 1 / order
        return (p.clamp_min(0) ** order + rest**order) / order - rest ** (order - 1) / (order - 1) + ends

    return integrated(predictive, targets.double(), loss, loss)


def crls(predictive: Continuous, targets: Tensor) -> Tensor:
    """Return the continuous ranked logarithmic score of each target [batch, output]; lower is better."""

    def loss(p: Tensor) -> Tensor:
        return -(1 - p).clamp_min(_LEAST).log()

    return integrated(predictive, targets.double(), loss, loss)


def weighted(predictive: Continuous, targets: Tensor) -> dict[str, Tensor]:
    """Return the weighted CRPS of each target, as the sum over 99 quantiles."""
    total = {name: torch.zeros_like(targets.double()) for name in WEIGHTS}
    for number in range(1, 100):
        level = torch.tensor(number / 100, dtype=torch.float64)
        quantile = predictive.quantile(float(level))
        pinball = ((targets <= quantile).double() - level) * (quantile - targets)
        for name, weight in WEIGHTS.items():
            total[name] += 2 / 100 * weight(level) * pinball
    return total


def scored(predictive: Continuous, targets: Tensor) -> dict[str, float]:
    """Return the mean of every score over rows of one target [batch, 1]."""
    targets = targets.double()
    found = {"nll": -predictive.log_prob(targets), "crls": crls(predictive, targets)}
    found |= {f"crts_alpha_{order}": crts(predictive, targets, order) for order in ORDERS}
    found |= weighted(predictive, targets)
    for level in LEVELS:
        low, high = interval(predictive, level / 100)
        found[f"interval_score_{level}"] = interval_score(predictive, targets, level / 100)
        found[f"coverage_{level}"] = ((low <= targets) & (targets <= high)).double()
    errors = targets - predictive.mean
    found["mae"] = (targets - predictive.quantile(0.5)).abs()
    means = {name: float(values.double().mean()) for name, values in found.items()}
    means["rmse"] = float(errors.square().mean().sqrt())
    means["r2"] = 1 - float(errors.square().sum() / (targets - targets.mean(0)).square().sum())
    return {"crps": crps(predictive, targets).value, **means}
