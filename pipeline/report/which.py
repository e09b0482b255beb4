"""Which one? What the stored scores allow to conclude about the methods, by NLL on test rows.

The best run of a data set is compared with each other run in pairs. Over several splits the difference's standard
error is Nadeau & Bengio's (2003), √((1/J + n_test/n_train) s²), since splits share rows, with Student's t on J − 1
degrees of freedom. On one split the error is over test rows alone, which says nothing about other training rows. All
intervals of a data set hold together: each is at 1 − 5 %/(number of comparisons) (Bonferroni).

Over data sets, the methods that all sets have are compared by their mean ranks (Friedman's test, then Nemenyi's
critical difference; Demšar 2006).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet
from scipy import stats

from bdl_pipe.scores import Quantity

from .tables import RunInfo, Table, is_finite, labels

LEVEL: Final = 0.95
METRIC: Final = Quantity("nll")
COST: Final = Quantity("seconds_per_1000", "cost")
BASELINE: Final = "deterministic"
TEST_OVER_TRAIN: Final = 1 / 9  # The standard splits test on a tenth of the rows.
_FEWEST: Final = 2  # One data set or one method has no ranks.


@dataclass(frozen=True)
class Difference:
    """One run's NLL minus another's.

    Attributes:
        mean, half: the mean and the half-width of its interval, which is infinite if the error is unknown.
    """

    mean: float
    half: float

    @property
    def apart(self) -> bool:
        """Say whether the interval excludes 0."""
        return abs(self.mean) > self.half


@dataclass(frozen=True)
class Standing:
    """A run beside the other runs on its data set.

    Attributes:
        to_best, to_baseline: None for the run itself, or if no run of the baseline has this run's network.
        efficient: no other run has a lower NLL and predicts as fast.
    """

    run: RunInfo
    nll: float
    to_best: Difference | None
    to_baseline: Difference | None
    efficient: bool


@dataclass(frozen=True)
class Verdict:
    """The conclusions about a data set: its runs from the best one to the worst, and sentences."""

    standings: list[Standing]
    sentences: list[str]


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over data sets, the best first, and the smallest difference by which two methods are told apart."""

    means: dict[str, float]
    datasets: int
    p_value: float
    critical: float


def verdict(table: Table, dataset: str) -> Verdict | None:
    """Compare the runs on a data set; None if fewer than two have a finite NLL."""
    estimates = {run.key: table.estimate(run.key, METRIC) for run in table.of(dataset)}
    nll = {key: e.mean for key, e in estimates.items() if e and is_finite(e)}
    runs = sorted((run for run in table.of(dataset) if run.key in nll), key=lambda run: nll[run.key])
    if len(runs) < _FEWEST:
        return None
    best, comparisons = runs[0], len(runs) - 1
    cost = {run.key: e.mean if (e := table.estimate(run.key, COST)) else math.inf for run in runs}
    standings = []
    for run in runs:
        base = next((r for r in runs if r.method == BASELINE and r.network == run.network), None)
        to_best = None if run is best else difference(table, run, best, comparisons)
        to_base = None if base is None or run is base else difference(table, run, base, comparisons)
        others = (r for r in runs if r is not run)
        beaten = any(nll[r.key] <= nll[run.key] and cost[r.key] <= cost[run.key] for r in others)
        standings.append(Standing(run, nll[run.key], to_best, to_base, not beaten))
    return Verdict(standings, _sentences(standings, table.scores[best.key].splits))


def difference(table: Table, run: RunInfo, other: RunInfo, comparisons: int) -> Difference | None:
    """Return the difference of two runs' NLL; None if they have different numbers of splits."""
    mine, theirs = (table.groups(r.key, METRIC) for r in (run, other))
    splits = {table.scores[r.key].splits for r in (run, other)}
    if len(splits) > 1:
        return None
    if splits != {1}:
        return resampled(np.subtract(mine, theirs), TEST_OVER_TRAIN, comparisons)
    own, others = (_log_likelihoods(r.evaluate / "predictions.parquet") for r in (run, other))
    if own is None or others is None or len(own) != len(others):
        return Difference(float(np.mean(mine) - np.mean(theirs)), math.inf)
    by_row = others - own  # The NLL is minus the log-likelihood, hence the order.
    half = _quantile(comparisons, math.inf) * float(by_row.std(ddof=1)) / math.sqrt(len(by_row))
    return Difference(float(by_row.mean()), half)


def resampled(differences: np.ndarray, test_over_train: float, comparisons: int = 1) -> Difference:
    """Return the mean of differences over J splits, with its interval (Nadeau & Bengio 2003, eq. 9)."""
    count = len(differences)
    variance = (1 / count + test_over_train) * float(np.var(differences, ddof=1))
    return Difference(float(np.mean(differences)), _quantile(comparisons, count - 1) * math.sqrt(variance))


def ranks(table: Table) -> Ranks | None:
    """Rank the methods that every data set has; None for fewer than two data sets or two such methods.

    A method that has several runs on a data set is ranked by its best run.
    """
    by_set: list[dict[str, float]] = []
    for dataset in table.datasets():
        best = dict[str, float]()
        for run in table.of(dataset):
            known = table.estimate(run.key, METRIC)
            if known and is_finite(known):
                best[run.method] = min(known.mean, best.get(run.method, math.inf))
        by_set.append(best)
    methods = sorted(set.intersection(*map(set, by_set))) if by_set else []
    if len(by_set) < _FEWEST or len(methods) < _FEWEST:
        return None
    return ranked(methods, np.array([[best[method] for method in methods] for best in by_set]))


def ranked(methods: Sequence[str], scores: np.ndarray) -> Ranks:
    """Rank methods by scores [data set, method], lower is better."""
    count, many = scores.shape
    means = stats.rankdata(scores, axis=1).mean(axis=0)
    p_value = float(stats.friedmanchisquare(*scores.T).pvalue) if many > _FEWEST else math.nan
    q = float(stats.studentized_range.ppf(LEVEL, many, math.inf)) / math.sqrt(2)
    critical = q * math.sqrt(many * (many + 1) / (6 * count))
    ordered = sorted(zip(methods, means.tolist(), strict=True), key=lambda pair: pair[1])
    return Ranks(dict(ordered), count, p_value, critical)


def _quantile(comparisons: int, freedom: float) -> float:
    return float(stats.t.ppf(1 - (1 - LEVEL) / 2 / max(1, comparisons), freedom))


def _log_likelihoods(path: Path) -> np.ndarray | None:
    """Return log p(y | x) for each test row of a run on one split, the mean over its seeds."""
    if not path.is_file():
        return None
    columns = pyarrow.parquet.read_table(path, columns=["seed", "row", "log_prob"]).to_pandas()
    means: np.ndarray = columns.groupby("row")["log_prob"].mean().to_numpy(np.float64)
    return means


def _sentences(standings: Sequence[Standing], splits: int) -> list[str]:
    others, names = standings[1:], labels([standing.run for standing in standings])
    over = f"over {splits} splits" if splits > 1 else "over the test rows of one split"
    tied = [names[s.run.key] for s in others if s.to_best is None or not s.to_best.apart]
    said = [f"{names[standings[0].run.key]} has the lowest NLL."]
    if not tied:
        level = f"{100 * LEVEL:.0f} %"
        said.append(f"It is better than all others: {over} every {level} interval of a difference to it leaves out 0.")
    else:
        worse = f"{len(others) - len(tied)} of {len(others)} are worse"
        said.append(f"{over.capitalize()} it cannot be told apart from {', '.join(tied)}; {worse}.")
    if splits == 1:
        said.append("Another draw of training rows could order them otherwise: one split does not show it.")
    networks = {standing.run.network for standing in standings if standing.run.network}
    if len(networks) > 1:
        said.append(f"There are {len(networks)} networks: runs of different ones differ by more than their method.")
    to_base = [standing.to_baseline for standing in standings if standing.to_baseline is not None]
    if to_base:
        better = sum(difference.apart and difference.mean < 0 for difference in to_base)
        said.append(f"{better} of {len(to_base)} are better than the deterministic network of their own architecture.")
    front = ", ".join(names[standing.run.key] for standing in standings if standing.efficient)
    return [*said, f"Nothing is both better and faster to predict than {front}."]
