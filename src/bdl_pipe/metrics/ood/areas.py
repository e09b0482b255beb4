"""Areas under ROC curves with their errors over rows, and the difference between two scores of the same rows.

A = P(in > out) + ½ P(in = out). Each row has a place: the share of the other side's rows that the score orders
correctly with it; a tie counts half. A is the mean place of the rows *in*, and also the mean place of the rows *out*.
Over rows its variance is var(places of in)/n_in + var(places of out)/n_out; the covariance of two scores of the same
rows has the same form (DeLong, DeLong & Clarke-Pearson 1988). Several sets of *out* rows share the rows *in*: for the
mean of their areas, a row *in* has the mean of its places. The error does not cover another fit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Area:
    """The mean of the areas of one score against several sets.

    Attributes:
        inside: the mean over sets of the place of each row of *in* [row].
        outside: the place of each row of each set.
    """

    inside: np.ndarray
    outside: tuple[np.ndarray, ...]

    @property
    def mean(self) -> float:
        """Return the mean of the areas."""
        return float(self.inside.mean())

    @property
    def error(self) -> float:
        """Return the standard error over rows."""
        return _error(self.inside, self.outside)

    def error_to(self, other: "Area") -> float:
        """Return the standard error of the difference from another score's mean of areas on the same rows."""
        return _error(self.inside - other.inside, [a - b for a, b in zip(self.outside, other.outside, strict=True)])


def area(inside: np.ndarray, outside: Sequence[np.ndarray]) -> Area:
    """Return the mean area of a score, high for rows *in*, against one or more sets of rows *out*."""
    from scipy.stats import rankdata  # here: it takes half a second in each command

    count, below, above = len(inside), list[np.ndarray](), list[np.ndarray]()
    for part in outside:  # places follow from ranks in which ties share their mean rank
        ranks = rankdata(np.concatenate([inside, part]))
        below.append((ranks[:count] - rankdata(inside)) / len(part))
        above.append(1 - (ranks[count:] - rankdata(part)) / count)
    return Area(np.mean(below, axis=0), tuple(above))


def _error(inside: np.ndarray, outside: Sequence[np.ndarray]) -> float:
    within = np.var(inside, ddof=1) / len(inside)
    without = sum(np.var(part, ddof=1) / len(part) for part in outside) / len(outside) ** 2
    return math.sqrt(float(within + without))
