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

``by_group`` calibrates each group of rows by the scores of its own rows, so that the probability holds within each
group (Mondrian conformal prediction: Vovk, Gammerman & Shafer 2005, section 4.5). If the groups are the classes, class
y is in the set by the scores of the rows of class y (label-conditional: Vovk 2012; Sadinle, Lei & Wasserman 2019). A
group with too few rows for the level has infinite intervals, or its class in every set.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
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


def fewest_rows(level: float) -> int:
    """Return the fewest calibration rows for a level: n with ⌈(n + 1)·level⌉ ≤ n."""
    return math.ceil(level / (1 - level) - 1e-9)


def rows_of_group(recalibrations: Sequence[Recalibration], group: float) -> int:
    """Return the number of calibration rows of a group."""
    return sum(len(each.of_group(group).scores) for each in recalibrations)


def by_group(
    answer: Callable[[Sequence[Recalibration]], Tensor],
    recalibrations: Sequence[Recalibration],
    groups: np.ndarray,
    everything: Tensor,
    level: float,
) -> Tensor:
    """Return each group's answer by the scores of its own rows, of the answer's shape.

    Args:
        answer: recalibrations -> intervals or sets of all inputs, by their scores.
        groups: the group of each entry of the answer, with which it is broadcast.
        everything: the answer for a group with too few rows.
    """
    found = everything
    for group in np.unique(groups).tolist():
        if rows_of_group(recalibrations, group) >= fewest_rows(level):
            own = torch.tensor(np.isnan(groups) if math.isnan(group) else groups == group)
            found = torch.where(own, answer([each.of_group(group) for each in recalibrations]), found)
    return found


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
