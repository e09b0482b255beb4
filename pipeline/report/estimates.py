"""The mean of a score and its standard error, once for the report, the papers' tables and the studies.

Independent are the data splits of a run that has several, and its seeds where there is one split: seeds of one split
share what they are fitted to and tested on, so they are averaged first. The error is s / sqrt(n) over those n averages,
s with n - 1 in the denominator.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.scores import Quantity, RunScores


@dataclass(frozen=True)
class Estimate:
    """A mean over ``n`` values and its standard error: None for one value, NaN where a value is not finite."""

    mean: float
    error: float | None
    n: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Estimate the mean of independent values; None without values."""
    n = len(values)
    if n == 0:
        return None
    centre = average(values)
    if n == 1:
        return Estimate(centre, None, n)
    try:
        squares = math.fsum((v - centre) ** 2 for v in values)
    except OverflowError:
        squares = math.inf
    return Estimate(centre, math.sqrt(squares / (n - 1) / n), n)


def of_run(scores: RunScores, wanted: Quantity, scale: float = 1.0) -> Estimate | None:
    """Estimate a quantity of a run, ``scale`` times what is stored; None where there is no such score."""
    return estimate([average([scale * value for value in group]) for group in scores.groups(wanted)])


def average(values: Sequence[float]) -> float:
    """Return the mean; it is infinite or NaN where the values make it so."""
    if all(map(math.isfinite, values)):
        try:
            return math.fsum(values) / len(values)
        except OverflowError:
            pass
    return float(sum(values)) / len(values)
