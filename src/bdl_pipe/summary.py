"""A predictive as named columns, one row an input: what is written to files and served.

Classes: ``p_<class>``, ``predicted``, ``entropy`` H[y|x] and ``mutual_information`` I[y;θ|x], in nats.
Regression, in original units: ``mean``, ``variance``, ``sd``, ``epistemic_variance`` (the variance of
the draws' means) and the central 90 % interval ``lower``, ``upper``, the quantiles of the *mixture*
of Gaussians, not of one Gaussian of its moments; with several outputs each name ends in ``_<target>``.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .predictive import Categorical, Gaussian, Predictive

COVERAGE: Final = 0.9
_HALVINGS: Final = 60


def columns(predictive: Predictive, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of [batch] values; ``names``: the classes, or the target columns."""
    if isinstance(predictive, Categorical):
        return _class_columns(predictive, names)
    assert isinstance(predictive, Gaussian)
    return _target_columns(predictive, names)


def mixture_quantile(predictive: Gaussian, level: float) -> Float[Tensor, "batch output"]:
    """y with P(Y ≤ y | x) = ``level`` under (1/S) Σ_s N(μ_s, σ²_s), by bisection in float64."""
    mean, sd = predictive.draw_mean.double(), predictive.draw_variance.double().sqrt()
    at = torch.special.ndtri(torch.tensor(level, dtype=torch.float64))
    each = mean + sd * at  # [draw, batch, output]; the mixture's quantile lies between the draws'
    low, high = each.amin(0), each.amax(0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - mean) / sd).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _class_columns(predictive: Categorical, classes: Sequence[str]) -> dict[str, np.ndarray]:
    probabilities = _array(predictive.mean)
    table = {f"p_{name}": probabilities[:, k] for k, name in enumerate(classes)}
    table["predicted"] = np.array(classes, dtype=object)[probabilities.argmax(1)]
    table["entropy"] = _array(predictive.entropy())
    table["mutual_information"] = _array(predictive.mutual_information())
    return table


def _target_columns(predictive: Gaussian, targets: Sequence[str]) -> dict[str, np.ndarray]:
    tail = (1 - COVERAGE) / 2
    variance = _array(predictive.variance)
    values = {
        "mean": _array(predictive.mean),
        "variance": variance,
        "sd": np.sqrt(variance),
        "epistemic_variance": _array(predictive.epistemic_variance),
        "lower": _array(mixture_quantile(predictive, tail)),
        "upper": _array(mixture_quantile(predictive, 1 - tail)),
    }
    many = len(targets) > 1
    return {f"{k}_{t}" if many else k: v[:, i] for i, t in enumerate(targets) for k, v in values.items()}


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()
