"""Scores of regression beyond likelihood: squared errors, intervals and the continuous ranked probability score.

RMSE is the root of the mean of :func:`squared_error`, taken after all batches are added up.

CRPS = ∫ (F(z) − 1{z ≥ y})² dz (Gneiting and Raftery 2007, eq. 20), lower is better, in the target's units. For an
equally weighted mixture of Gaussians it has a closed form (Grimit et al. 2006, eq. 5),

    CRPS = (1/S) Σ_s A(y − μ_s, σ_s²) − 1/(2S²) Σ_s Σ_t A(μ_s − μ_t, σ_s² + σ_t²),
    A(m, v) = 2 √v φ(m/√v) + m (2Φ(m/√v) − 1);

for any other predictive the integral is numerical: on both sides of y, or between quantiles of a mixture's parts.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..derived_predictive import Exponential, Mixture
from ..predictive import Continuous, Gaussian
from ..student_t import StudentT
from .metric import Mean, Metric

LEVEL: Final = 0.9  # of the scored intervals
_NODES: Final = 32  # Gauss-Legendre nodes on each side of a target
_PANEL_NODES: Final = 16  # nodes on each panel of a mixture
_JUMP_NODES: Final = 8  # the same between values at which the density jumps, of which there are many
_INSIDE: Final = (1e-3, 1 - 1e-3)  # levels of the quantiles at which panels end
_INSIDE_TAILS: Final = (1e-5, 1e-3, 0.05, 0.95, 1 - 1e-3, 1 - 1e-5)  # the same of Student ts
_OUTSIDE: Final = 1e-9  # probability on each side that the integral leaves out


def squared_error(predictive: Continuous, targets: Float[Tensor, "batch output"]) -> Mean:
    """Return (y − E[y|x])², one value for each output of each example."""
    return Mean.of((targets - predictive.mean) ** 2)


def out_of_reach(predictive: Continuous, targets: Float[Tensor, "batch output"]) -> Mean | None:
    """Return the share of targets at which the density is zero; None if the density is zero nowhere."""
    first, last = predictive.reach
    if not bool((first.isfinite() & last.isfinite()).all()):
        return None
    return Mean.of((targets < first) | (targets > last))


@lru_cache(maxsize=1)  # for the coverage, the width and the stored ends of one batch
def interval(predictive: Continuous, level: float) -> tuple[Tensor, Tensor]:
    """Return the ends [batch, output] of the central interval of probability ``level``, of each output separately."""
    return predictive.quantile((1 - level) / 2), predictive.quantile((1 + level) / 2)


def covered(low: Tensor, high: Tensor, targets: Float[Tensor, "batch output"]) -> Mean:
    """Return the share of targets that their interval holds, over rows and outputs."""
    return Mean.of((low <= targets) & (targets <= high))


def width(low: Tensor, high: Tensor) -> Mean:
    """Return the mean width of intervals, over rows and outputs."""
    return Mean.of(high - low)


def noise_variance(predictive: Continuous) -> Float[Tensor, "batch output"]:
    """Return E[Var[y | x, draw]], the mean over draws of the variance of y given the draw.

    It is the variance of the noise, unless the predictive integrates over functions in closed form.
    """
    if isinstance(predictive, Gaussian):
        return predictive.draw_variance.mean(0)  # the difference below would add rounding errors
    return predictive.variance - predictive.epistemic_variance


def crps(predictive: Continuous, targets: Float[Tensor, "batch output"]) -> Mean:
    """Return the continuous ranked probability score, per output."""
    if not isinstance(predictive, Gaussian):
        return Mean.of(integrated(predictive, targets.double(), torch.square, torch.square))
    mean, variance = predictive.draw_mean.double(), predictive.draw_variance.double()
    first = _absolute(targets.double() - mean, variance).mean(0)
    # each step compares one draw with all, so that it needs no more memory than the predictive
    pairs = [_absolute(m - mean, v + variance).mean(0) for m, v in zip(mean, variance, strict=True)]
    return Mean.of(first - torch.stack(pairs).mean(0) / 2)


def integrated(
    predictive: Continuous, targets: Tensor, below: Callable[[Tensor], Tensor], above: Callable[[Tensor], Tensor]
) -> Float[Tensor, "*weight batch output"]:
    """Return ∫_{−∞}^y below(F(z)) dz + ∫_y^∞ above(1 − F(z)) dz of float64 targets y; both may add a first dimension.

    The parts of a mixture may differ in width by far: its panels end at quantiles of the narrowest and widest part. Of
    exponentials the integral is over log z, where they have the widths of their bases. A Student t has more panels, as
    its range is hundreds of times its scale. Panels also end where a density jumps.
    """
    first, last = predictive.bracket(_OUTSIDE)[0], predictive.bracket(1 - _OUTSIDE)[1]
    low, high = torch.minimum(first, targets), torch.maximum(last, targets)
    points, nodes = torch.stack([low, targets, high]), _NODES
    parts = predictive.parts if isinstance(predictive, Mixture) else (predictive,)
    logs = isinstance(parts[0], Exponential)
    tails = isinstance(parts[0], StudentT)
    jumps = predictive.jumps
    if isinstance(predictive, Mixture) or tails or jumps is not None:
        ends = [
            torch.stack([part.bracket(p)[p > 0.5] for part in parts]) for p in (_INSIDE_TAILS if tails else _INSIDE)
        ]
        inner = [extreme for end in ends for extreme in (end.amin(0), end.amax(0))]
        points, nodes = torch.stack([low, *inner, targets, high]), _PANEL_NODES
        if jumps is not None:
            points, nodes = torch.cat([points, jumps]), _JUMP_NODES
        points = points.sort(0).values
    total = torch.zeros_like(targets)
    if logs:  # beyond first and last F is 0 or 1
        sure = torch.ones_like(targets)
        total = (first - targets).clamp_min(0) * above(sure) + (targets - last).clamp_min(0) * below(sure)
        points = points.clamp(first, last).log()
    panels = list(pairwise(points))
    for node, weight in zip(*np.polynomial.legendre.leggauss(nodes), strict=True):
        inside = torch.zeros_like(targets)
        for start, stop in panels:
            u = start + (1 + float(node)) / 2 * (stop - start)
            z = u.exp() if logs else u
            p = predictive.cdf(z)
            value = torch.where(z < targets, below(p), above(1 - p))
            inside = inside + (stop - start) * (value * z if logs else value)
        total = total + float(weight) / 2 * inside
    return total


def _absolute(mean: Tensor, variance: Tensor) -> Tensor:
    """Return E|Z| for Z ~ N(mean, variance)."""
    std = variance.sqrt()
    z = mean / std
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * (2 * torch.special.ndtr(z) - 1)


_VALUES: Any = {"task": "regression"}
_ALWAYS: Any = {**_VALUES, "always": True}
_ROOT: Any = {**_ALWAYS, "value": attrgetter("root"), "headline": True}
ERRORS = (Metric("rmse", "RMSE", "root mean squared error, original units", -1, of=squared_error, **_ROOT),)
COVERAGE_90 = Metric(
    "coverage_90",
    "Coverage %",
    "share of targets inside the central 90 % interval",
    0,
    percent=True,
    of=lambda predictive, targets: covered(*interval(predictive, LEVEL), targets),
    question="intervals",
    **_ALWAYS,
)
CRPS = Metric("crps", "CRPS", "continuous ranked probability score, original units", -1, of=crps, **_ALWAYS)
METRICS = (
    COVERAGE_90,
    Metric(
        "width_90",
        "Width",
        "mean width of the central 90 % interval, original units",
        -1,
        of=lambda predictive, targets: width(*interval(predictive, LEVEL)),
        **_ALWAYS,
    ),
    CRPS,
    Metric(
        "out_of_reach",
        "Out of reach %",
        "share of targets with a predictive density of zero",
        -1,
        percent=True,
        of=out_of_reach,
        **_VALUES,
    ),
)
OTHER_UNITS = (  # evaluation computes them from the predictive of transformed targets
    Metric("log_likelihood_normalised", "Log-likelihood", "mean log predictive density of standardised targets", +1),
    Metric(
        "reference_kl",
        "KL to posterior",
        "KL divergence from a stored reference of the posterior's predictive to this predictive; mean over rows",
        -1,
        headline=True,
    ),
    Metric(
        "reference_tv",
        "TV to posterior",
        "total variation between a stored reference of the posterior's predictive and this predictive; mean over rows",
        -1,
    ),
    Metric(
        "reference_sd_ratio",
        "Sd of f / posterior's",
        "standard deviation of f divided by its value in a stored reference of the posterior; median over rows",
        0,
        headline=True,
    ),
    Metric(
        "noise_ratio",
        "Noise",
        "whether the method predicts one noise variance for all inputs, or one for each input",
        0,
        headline=True,
        unit="noise",
    ),
)
