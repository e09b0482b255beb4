"""The mean of a score and its standard error, once for the report, the papers' tables and the studies.

Independent are the data splits of a run that has several, and its members where there is one split: members of one
split share what they are fitted to and tested on, so they are averaged first. The error is s / sqrt(n) over those n
averages, s with n - 1 in the denominator.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

SEEDS_OF_A_SPLIT: Final = 1000  # of the comparison's seeds, for a run of several splits and several members


@dataclass(frozen=True)
class Mean:
    """A mean over ``n`` values and its standard error: None for one value, NaN where a value is not finite."""

    value: float
    error: float | None
    n: int


def fold(splits: int, members: int) -> int:
    """How many consecutive seeds of a run's scores are one split; 1 where a seed stands for a split or a member."""
    return SEEDS_OF_A_SPLIT if splits > 1 and members > 1 else 1


def mean(scores: Iterable[tuple[int, float]], fold: int = 1) -> Mean | None:
    """Over groups of ``fold`` consecutive seeds, each the mean of its scores; None without scores.

    Args:
        scores: (seed, value), several of one seed where a score stands for each corruption.
    """
    groups: dict[int, list[float]] = {}
    for seed, value in scores:
        groups.setdefault(seed // fold, []).append(value)
    return summarise([_average(groups[key]) for key in sorted(groups)])


def summarise(values: Sequence[float]) -> Mean | None:
    """The mean of independent values; None without values."""
    n = len(values)
    if n == 0:
        return None
    centre = _average(values)
    if n == 1:
        return Mean(centre, None, n)
    try:
        squares = math.fsum((v - centre) ** 2 for v in values)
    except OverflowError:
        squares = math.inf
    return Mean(centre, math.sqrt(squares / (n - 1) / n), n)


def _average(values: Sequence[float]) -> float:
    if all(map(math.isfinite, values)):
        try:
            return math.fsum(values) / len(values)
        except OverflowError:
            pass
    return float(sum(values)) / len(values)  # infinite or NaN, as the values have it
