"""Compare methods: intervals for the difference between two methods, and mean ranks of several methods.

Scores of two methods are compared in pairs: on the same test rows, or on the same splits. Test rows are independent
given the training rows, so that an interval over test rows holds for these training rows only. Splits share rows, so
that the standard error of J differences is Nadeau & Bengio's (2003), √((1/J + n_test/n_train) s²), with Student's t on
J − 1 degrees of freedom. Intervals of several comparisons hold together: each is at
1 − (1 − level)/(number of comparisons) (Bonferroni).

Over several data sets, methods are compared by their mean ranks: Friedman's test, then Nemenyi's critical difference
(Demšar 2006).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats


@dataclass(frozen=True)
class Difference:
    """The mean of one method's scores minus another's.

    Attributes:
        mean, half: the mean and the half-width of its interval, which is infinite if the error is unknown.
        error: the standard error of the mean; infinite if it is unknown.
    """

    mean: float
    half: float
    error: float = math.inf

    @property
    def apart(self) -> bool:
        """Return whether the interval excludes 0."""
        return abs(self.mean) > self.half


def over_rows(differences: Float[np.ndarray, " row"], *, comparisons: int = 1, level: float = 0.95) -> Difference:
    """Return the mean of differences over independent rows, with its normal interval."""
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return Difference(float(differences.mean()), _quantile(comparisons, level, math.inf) * error, error)


def over_splits(
    differences: Float[np.ndarray, " split"],
    test_over_train: float = 1 / 9,
    *,
    comparisons: int = 1,
    level: float = 0.95,
) -> Difference:
    """Return the mean of differences over splits, with its interval (Nadeau & Bengio 2003, eq. 9).

    Args:
        test_over_train: the number of test rows divided by the number of training rows; the standard splits test on a
            tenth of the rows.
        comparisons: the number of intervals that hold together.
    """
    count = len(differences)
    error = math.sqrt((1 / count + test_over_train) * float(np.var(differences, ddof=1)))
    return Difference(float(np.mean(differences)), _quantile(comparisons, level, count - 1) * error, error)


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over data sets.

    Attributes:
        means: method -> mean rank, the best first.
        datasets: the number of data sets.
        p_value: the p-value of Friedman's test; NaN for two methods.
        critical: the critical difference; a smaller difference of two mean ranks is not significant.
    """

    means: dict[str, float]
    datasets: int
    p_value: float
    critical: float

    @property
    def first(self) -> str:
        """Return the method that ranks first."""
        return next(iter(self.means))

    @property
    def tied(self) -> list[str]:
        """List the other methods with mean ranks that do not differ significantly from the first method's."""
        near = self.means[self.first] + self.critical
        return [method for method, mean in self.means.items() if method != self.first and mean <= near]


def mean_ranks(methods: Sequence[str], scores: Float[np.ndarray, "dataset method"], level: float = 0.95) -> Ranks:
    """Rank two or more methods by scores, the lowest first; tied methods share the mean of their ranks."""
    count, many = scores.shape
    means = stats.rankdata(scores, axis=1).mean(axis=0)
    p_value = float(stats.friedmanchisquare(*scores.T).pvalue) if many > 2 else math.nan
    q = float(stats.studentized_range.ppf(level, many, math.inf)) / math.sqrt(2)
    critical = q * math.sqrt(many * (many + 1) / (6 * count))
    ordered = sorted(zip(methods, means.tolist(), strict=True), key=lambda pair: pair[1])
    return Ranks(dict(ordered), count, p_value, critical)


def _quantile(comparisons: int, level: float, freedom: float) -> float:
    return float(stats.t.ppf(1 - (1 - level) / 2 / max(1, comparisons), freedom))
