"""Compare methods: intervals for the difference between two methods, and mean ranks of several methods.

Scores of two methods are compared in pairs: on the same test rows, or on the same splits. Test rows are independent
given the fits, so that an interval over test rows also needs the spread of the fits: other seeds, and other processors
with the same seed, make other fits. It holds for these training rows only. Splits share rows, so that the standard
error of J differences is Nadeau & Bengio's (2003), √((1/J + n_test/n_train) s²), with Student's t on J − 1 degrees of
freedom. Intervals of several comparisons hold together: each is at 1 − 0.05/(number of comparisons) (Bonferroni).

Over several data sets, methods are compared by their mean ranks: Friedman's test, then Nemenyi's critical difference
(Demšar 2006).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float

from ..errors import DataError

_LEVEL: Final = 0.95  # all intervals and tests have this level


@dataclass(frozen=True)
class Difference:
    """The mean of one method's scores minus another's.

    Attributes:
        mean, half: the mean and the half-width of its interval, which is infinite if the error, or the part of it that
            comes from the spread of fits, is unknown.
        error: the standard error of the mean; infinite if it is unknown. If the spread of fits is unknown, it is the
            error over test rows alone.
    """

    mean: float
    half: float
    error: float = math.inf

    @property
    def apart(self) -> bool:
        """Return whether the interval excludes 0."""
        return abs(self.mean) > self.half


def over_rows(
    differences: Float[np.ndarray, " row"], seeds: Iterable[Sequence[float]] = (), *, comparisons: int = 1
) -> Difference:
    """Return the mean of differences over independent rows, with its interval over rows and seeds.

    Args:
        differences: means over seeds.
        seeds: as in :func:`over_seeds`.
        comparisons: the number of intervals that hold together.
    """
    rows = _with_interval(differences, 1 / len(differences), comparisons, math.inf)
    return over_seeds(rows, seeds, comparisons=comparisons)


def over_seeds(rows: Difference, seeds: Iterable[Sequence[float]], *, comparisons: int = 1) -> Difference:
    """Add the spread of fits to the error of a mean over test rows.

    Squared errors add up. The interval is Student's t with Satterthwaite's (1946) degrees of freedom, where the error
    over rows counts as known.

    Args:
        rows: the mean over rows and seeds, with its error over rows; its half-width is not used.
        seeds: for each method with fits that depend on their seeds, the mean of each seed. The result has no finite
            half-width if a method has one seed.
        comparisons: the number of intervals that hold together.
    """
    means = [np.asarray(of_method) for of_method in seeds]
    if any(len(of) < 2 for of in means) or not math.isfinite(rows.error):
        return Difference(rows.mean, math.inf, rows.error)
    added = [float(of.var(ddof=1)) / len(of) for of in means]
    square = rows.error**2 + sum(added)
    spread = sum(each**2 / (len(of) - 1) for each, of in zip(added, means, strict=True))
    error, freedom = math.sqrt(square), square**2 / spread if spread else math.inf
    return Difference(rows.mean, quantile(comparisons, freedom) * error, error)


def over_splits(
    differences: Float[np.ndarray, " split"], test_over_train: float, *, comparisons: int = 1
) -> Difference:
    """Return the mean of differences over splits, with its interval (Nadeau & Bengio 2003, eq. 9).

    Args:
        test_over_train: the number of test rows divided by the number of training rows; 0 for splits that share no
            rows.
        comparisons: the number of intervals that hold together.
    """
    count = len(differences)
    return _with_interval(differences, 1 / count + test_over_train, comparisons, count - 1)


def _with_interval(differences: np.ndarray, factor: float, comparisons: int, freedom: float) -> Difference:
    """Return the mean, whose squared standard error is ``factor`` times the variance of the differences.

    The error is unknown for a single difference, and if a difference is NaN or infinite.
    """
    mean = float(np.mean(differences))
    if len(differences) < 2 or not np.isfinite(differences).all():
        return Difference(mean, math.inf)
    error = math.sqrt(factor * float(np.var(differences, ddof=1)))
    return Difference(mean, quantile(comparisons, freedom) * error, error)


def quantile(comparisons: int, freedom: float) -> float:
    """Return the half-width, in standard errors, of each of ``comparisons`` intervals that hold together at 95 %.

    Args:
        freedom: the degrees of freedom of Student's t; infinite: a normal interval.
    """
    from scipy import stats  # here: it takes half a second in each command

    return float(stats.t.ppf(1 - (1 - _LEVEL) / 2 / max(1, comparisons), freedom))


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


def mean_ranks(methods: Sequence[str], scores: Float[np.ndarray, "dataset method"]) -> Ranks:
    """Rank two or more methods by scores, the lowest first; tied methods share the mean of their ranks.

    Raises:
        DataError: a score is NaN.
    """
    for of_set, row in enumerate(scores):
        for method, score in zip(methods, row, strict=True):
            if math.isnan(score):
                raise DataError(f"the score of {method} on data set {of_set} must be a number to be ranked, got NaN")
    count, many = scores.shape
    from scipy import stats

    means = stats.rankdata(scores, axis=1).mean(axis=0)
    p_value = float(stats.friedmanchisquare(*scores.T).pvalue) if many > 2 else math.nan
    q = float(stats.studentized_range.ppf(_LEVEL, many, math.inf)) / math.sqrt(2)
    critical = q * math.sqrt(many * (many + 1) / (6 * count))
    ordered = sorted(zip(methods, means.tolist(), strict=True), key=lambda pair: pair[1])
    return Ranks(dict(ordered), count, p_value, critical)
