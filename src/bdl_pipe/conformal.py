"""Conformal prediction: intervals and sets that contain a new target with a chosen probability, for any posterior.

Split: with scores r_1 … r_n of calibration rows and q their ⌈(n + 1)·level⌉-th smallest, the set {y: r(x, y) ≤ q} holds
a new target with a probability between ``level`` and, if no scores are equal, ``level`` + 1/(n + 1) (Vovk, Gammerman
& Shafer 2005; Lei et al. 2018). The probability is an average over calibration and new rows.

Cross: the rows are divided into parts, and the score r_i of row i comes from a fit k(i) on the other parts. The
interval of output j at a new input x is

    [ the ⌊(n + 1)(1 − level)⌋-th smallest of μ_k(i)(x) − r_i sd_k(i)(x),
      the ⌈(n + 1) level⌉-th smallest of μ_k(i)(x) + r_i sd_k(i)(x) ]

(Barber, Candès, Ramdas & Tibshirani 2021, "Predictive inference with the jackknife+", equation 11 in its K-fold form;
their scores are |y − μ|), and the set of classes is {y: #{i: r_i < 1 − p_k(i)(y | x)} < (n + 1) level} (Romano, Sesia
& Candès 2020, section 2.3, with the scores of Sadinle, Lei & Wasserman 2019). A new target is inside with a probability
of at least 1 − 2(1 − level) − √(2/n), and in practice close to the level. With one fit both are the split's answer.

Groups: each group of rows is calibrated by the scores of its own rows, so that the probability holds within each group
(Mondrian conformal prediction: Vovk, Gammerman & Shafer 2005, section 4.5). If the groups are the classes, class y is
in the set by the scores of the rows of class y (label-conditional: Vovk 2012; Sadinle, Lei & Wasserman 2019). A group
with too few rows for the level has infinite intervals, or its class in every set.

Here the score of a row is 1 − p(y | x) for classes, and the largest |z_j − μ_j(x)|/sd_j(x) over the outputs of
regression.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .errors import DataError, require
from .predictive import Categorical, Continuous, Predictive

OF_CLASSES: Final = -1  # instead of the place of a column: the groups are the classes
_ROUNDING: Final = 1e-9  # 100·0.55 is a little more than 55 in float64


@runtime_checkable
class Scored(Protocol):
    """A fit's scores of rows that the fit has not seen, such as :class:`bdl_pipe.recalibration.Recalibration`.

    Attributes:
        scores: ascending [n].
        groups: the group of each of these rows, a number [n]; None if all rows are one group.
        grouped_by: the place of the column whose values are the groups, or ``OF_CLASSES``; None without groups.
    """

    @property
    def scores(self) -> Float[Tensor, " n"]: ...
    @property
    def groups(self) -> Float[Tensor, " n"] | None: ...
    @property
    def grouped_by(self) -> int | None: ...


def rank(count: int, level: float) -> int:
    """Return ⌈(count + 1)·level⌉, the place of the threshold among ``count`` ascending scores, from 1.

    Raises:
        ConfigError: the level is not in (0, 1).
    """
    require(0 < level < 1, "level", "must be in (0, 1)", level)
    return math.ceil((count + 1) * level - _ROUNDING)


def fewest_rows(level: float) -> int:
    """Return the fewest calibration rows for a level: n with ⌈(n + 1)·level⌉ ≤ n."""
    return math.ceil(level / (1 - level) - _ROUNDING)


def threshold(scores: Float[np.ndarray, " n"], level: float) -> float:
    """Return the ⌈(n + 1)·level⌉-th smallest score; ∞ if there are fewer scores, so that a set holds everything.

    Raises:
        ConfigError: the level is not in (0, 1).
        DataError: a score is not a number.
    """
    place = rank(len(scores), level)
    if np.isnan(scores).any():
        raise DataError("conformal scores must be numbers, got NaN")
    return float(np.partition(scores, place - 1)[place - 1]) if place <= len(scores) else math.inf


def row_scores(predictive: Predictive, targets: Tensor) -> Float[Tensor, " row"]:
    """Return the score of each row's target, in the units of the predictive, float64 on the CPU."""
    if isinstance(predictive, Categorical):
        return (1 - predictive.mean.double().gather(1, targets.long()[:, None].to(predictive.mean.device))[:, 0]).cpu()
    return standardised(predictive, targets).amax(1)


def standardised(predictive: Predictive, targets: Tensor) -> Float[Tensor, "row output"]:
    """Return |z − μ|/sd, float64 on the CPU."""
    sd = predictive.variance.double().sqrt()
    return ((targets.to(sd.device) - predictive.mean).abs() / sd).cpu()


def intervals(
    predictives: Sequence[Predictive],
    fits: Sequence[Scored],
    own_units: Sequence[Callable[[Tensor], Tensor]],
    level: float,
    rows: np.ndarray | None = None,
) -> Float[Tensor, "2 batch output"]:
    """Return the ends of the intervals, in the targets' own units, float64.

    Args:
        predictives: each fit's predictive of the same inputs, before recalibration, in transformed units.
        own_units: converts each fit's transformed targets to the targets' own units.
        rows: the raw inputs [batch, column], needed if the groups are the values of a column.

    Raises:
        ConfigError: the level is not in (0, 1), or there are too few rows for it in all.
    """
    moments = list[tuple[Tensor, Tensor]]()
    for predictive in predictives:
        assert isinstance(predictive, Continuous)
        moments.append((predictive.mean.double(), predictive.variance.double().sqrt()))

    def ends(scores: Sequence[Tensor]) -> Tensor:
        count, place = _place(scores, level)
        if len(scores) == 1:  # one fit's ends have the order of its scores
            count, place, scores = 1, 1, [scores[0][place - 1 : place]]
        low, high = list[Tensor](), list[Tensor]()
        for (centre, sd), of_fit, units in zip(moments, scores, own_units, strict=True):
            reach = of_fit.double().to(sd.device)[:, None, None] * sd
            low.append(units(centre - reach))
            high.append(units(centre + reach))
        lower = torch.cat(low).kthvalue(count + 1 - place, dim=0).values
        return torch.stack([lower, torch.cat(high).kthvalue(place, dim=0).values])

    infinite = torch.full_like(moments[0][0], math.inf)
    return _by_group(ends, fits, level, rows, torch.stack([-infinite, infinite]))


def class_sets(
    predictives: Sequence[Predictive], fits: Sequence[Scored], level: float, rows: np.ndarray | None = None
) -> Bool[Tensor, "batch class"]:
    """Return each input's set of classes; the arguments and errors of :func:`intervals`."""
    candidates = [1 - predictive.mean.double() for predictive in predictives]

    def sets(scores: Sequence[Tensor]) -> Tensor:
        _, place = _place(scores, level)
        smaller = torch.zeros_like(candidates[0], dtype=torch.int64)
        for candidate, of_fit in zip(candidates, scores, strict=True):
            smaller = smaller + torch.searchsorted(of_fit.double().contiguous().to(candidate.device), candidate)
        return smaller < place

    return _by_group(sets, fits, level, rows, torch.ones_like(candidates[0], dtype=torch.bool))


def likely_classes(predictive: Predictive, level: float) -> Bool[Tensor, "batch class"]:
    """Return the fewest classes of each input with a total probability of at least ``level``, without calibration."""
    require(0 < level < 1, "level", "must be in (0, 1)", level)
    ordered = predictive.mean.double().cpu().sort(dim=-1, descending=True, stable=True)
    before = ordered.values.cumsum(-1) - ordered.values
    return torch.zeros_like(before, dtype=torch.bool).scatter(-1, ordered.indices, before < level)


def groups_of(grouped_by: int, rows: np.ndarray | None, classes: int) -> np.ndarray:
    """Return the group of each raw row [n, 1], or of each class [1, class].

    Raises:
        DataError: the groups are the values of a column, and there are no raw rows.
    """
    if grouped_by == OF_CLASSES:
        return np.arange(classes, dtype=np.float64)[None]
    if rows is None:
        raise DataError("intervals and sets by groups need the raw rows, whose groups are the values of a column")
    return rows[:, [grouped_by]]


def rows_of_group(fit: Scored, group: float) -> Float[Tensor, " n"]:
    """Return the scores of the calibration rows of a group; NaN is the group of gaps."""
    assert fit.groups is not None
    return fit.scores[fit.groups.isnan() if math.isnan(group) else fit.groups == group]


def _by_group(
    answer: Callable[[Sequence[Tensor]], Tensor],
    fits: Sequence[Scored],
    level: float,
    rows: np.ndarray | None,
    everything: Tensor,
) -> Tensor:
    """Return the answer by all scores or, for each group, by the scores of its own rows.

    Args:
        answer: the scores of each fit -> intervals or sets of all inputs, by these scores.
        everything: the answer for a group with too few rows.
    """
    grouped_by = fits[0].grouped_by
    if grouped_by is None:
        return answer([fit.scores for fit in fits])
    groups, answers = groups_of(grouped_by, rows, everything.shape[-1]), everything
    for group in np.unique(groups).tolist():
        scores = [rows_of_group(fit, group) for fit in fits]
        if sum(map(len, scores)) >= fewest_rows(level):
            inside = torch.tensor(np.isnan(groups) if math.isnan(group) else groups == group, device=answers.device)
            answers = torch.where(inside, answer(scores), answers)
    return answers


def _place(scores: Sequence[Tensor], level: float) -> tuple[int, int]:
    count = sum(map(len, scores))
    place, what = rank(count, level), "rows" if len(scores) > 1 else "calibration rows"
    require(place <= count, "level", f"must be at most {count / (count + 1):.4g} with {count} {what}", level)
    return count, place
