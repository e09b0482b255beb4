"""Intervals and sets that contain a new target with a chosen probability, whatever the posterior is.

``split`` uses the scores of rows that the fit did not see (:mod:`bdl_pipe.recalibration`). ``cross`` divides the rows
into K parts; the score r_i of row i comes from a fit k(i) on the other parts, and the fit that predicts uses all rows.
The interval of output j at a new input x is

    [ the ⌊(n + 1)(1 − level)⌋-th smallest of μ_k(i)(x) − r_i sd_k(i)(x),
      the ⌈(n + 1) level⌉-th smallest of μ_k(i)(x) + r_i sd_k(i)(x) ]

(Barber, Candès, Ramdas & Tibshirani 2021, "Predictive inference with the jackknife+", equation 11 in its K-fold form;
their scores are |y − μ|; ours are the largest |y_j − μ_j|/sd_j of the outputs), and the set of classes is
{y: #{i: r_i < 1 − p_k(i)(y | x)} < (n + 1) level} (Romano, Sesia & Candès 2020, section 2.3, with the scores of
Sadinle, Lei & Wasserman 2019). A new target is inside with a probability of at least 1 − 2(1 − level) − √(2/n), and in
practice close to the level.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..data.transform import Transform
from ..errors import require
from ..predictive import Categorical, Continuous, Predictive
from ..recalibration import Recalibration


def _scores(recalibrations: Sequence[Recalibration], level: float) -> tuple[int, int]:
    """Return the number of scores, and the rank of the threshold among them, counted from 1.

    Raises:
        ConfigError: the level is not in (0, 1), or there are too few rows for it.
    """
    require(0 < level < 1, "level", "must be in (0, 1)", level)
    count = sum(len(each.scores) for each in recalibrations)
    place = math.ceil((count + 1) * level - 1e-9)
    require(place <= count, "level", f"must be at most {count / (count + 1):.4g} with {count} rows", level)
    return count, place


def intervals(
    predictives: Sequence[Predictive],
    recalibrations: Sequence[Recalibration],
    transforms: Sequence[Transform],
    level: float,
) -> tuple[Tensor, Tensor]:
    """Return the ends [batch, output] of the intervals, in the targets' own units, float64.

    Args:
        predictives: each part's predictive of the same inputs, in transformed units.
        recalibrations: the scores of each part's rows.
        transforms: each part's transform, which converts the part's intervals to the targets' own units.
    """
    count, place = _scores(recalibrations, level)
    low, high = list[Tensor](), list[Tensor]()
    for predictive, recalibration, transform in zip(predictives, recalibrations, transforms, strict=True):
        assert isinstance(predictive, Continuous)
        reach = recalibration.scores.double()[:, None, None] * predictive.variance.double().sqrt().cpu()
        centre = predictive.mean.double().cpu()
        low.append(transform.own_units(centre - reach))
        high.append(transform.own_units(centre + reach))
    lower = torch.cat(low).kthvalue(count + 1 - place, dim=0).values
    return lower, torch.cat(high).kthvalue(place, dim=0).values


def class_sets(predictives: Sequence[Predictive], recalibrations: Sequence[Recalibration], level: float) -> Tensor:
    """Return each input's set of classes, bool [batch, class]."""
    _, place = _scores(recalibrations, level)
    smaller = torch.zeros((), dtype=torch.int64)
    for predictive, recalibration in zip(predictives, recalibrations, strict=True):
        assert isinstance(predictive, Categorical)
        score = 1 - predictive.mean.double().cpu()
        smaller = smaller + torch.searchsorted(recalibration.scores.double().contiguous(), score)
    return smaller < place


def likely_classes(predictive: Categorical, level: float) -> Tensor:
    """Return the fewest classes of each input with a total probability of at least ``level``, bool [batch, class]."""
    require(0 < level < 1, "level", "must be in (0, 1)", level)
    ordered = predictive.mean.double().cpu().sort(dim=-1, descending=True, stable=True)
    before = ordered.values.cumsum(-1) - ordered.values
    return torch.zeros_like(before, dtype=torch.bool).scatter(-1, ordered.indices, before < level)
