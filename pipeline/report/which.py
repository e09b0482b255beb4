"""Which one? What the table allows to say of its methods, by NLL on test rows.

The best of a data set is compared with each other run in pairs. Over several splits the difference's standard error is
that of Nadeau & Bengio 2003, √((1/J + n_test/n_train) s²), since splits share rows, with Student's t on J − 1 degrees
of freedom; of one split its error is over test rows alone, which says nothing of other training rows. Intervals hold
together: each is at 1 − 5 %/(number of comparisons) (Bonferroni).

Over data sets methods are compared by their mean ranks (Friedman's test, then Nemenyi's critical difference; Demšar
2006), of the methods that all of these sets have.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet
from scipy import stats

from ..core.scores import Quantity
from .tables import RunInfo, Table

LEVEL: Final = 0.95
METRIC: Final = Quantity("nll")
COST: Final = Quantity("seconds_per_1000", "cost")
BASELINE: Final = "deterministic"
TEST_OVER_TRAIN: Final = 1 / 9  # of the standard splits
_FEWEST: Final = 2  # data sets or methods that ranks are of


@dataclass(frozen=True)
class Difference:
    """A run's NLL less another's.

    Attributes:
        mean, half: with the half-width of the interval, infinite where there is no error.
    """

    mean: float
    half: float

    @property
    def apart(self) -> bool:
        """Say whether the interval leaves out 0."""
        return abs(self.mean) > self.half


@dataclass(frozen=True)
class Row:
    """A run among those of its data set.

    Attributes:
        to_best, to_baseline: None for the run itself, or where there is no baseline of its network.
        efficient: no other run has a lower NLL and predicts as fast.
    """

    run: RunInfo
    nll: float
    to_best: Difference | None
    to_baseline: Difference | None
    efficient: bool


@dataclass(frozen=True)
class Verdict:
    """What can be said of a data set: its runs from the best on, and sentences."""

    rows: list[Row]
    said: list[str]


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over data sets, the best first, and the difference that two must have to be told apart."""

    means: dict[str, float]
    datasets: int
    p_value: float
    critical: float

    @property
    def groups(self) -> list[list[str]]:
        """Return the largest groups of methods in which no two can be told apart, those of one method left out."""
        names, found, reached = list(self.means), list[list[str]](), -1
        for start, name in enumerate(names):
            last = max(i for i, other in enumerate(names) if self.means[other] - self.means[name] <= self.critical)
            if last > max(start, reached):
                found.append(names[start : last + 1])
                reached = last
        return found


def verdict(table: Table, dataset: str) -> Verdict | None:
    """Compare the runs on a data set; None where fewer than two have a finite NLL."""
    found = {run.key: table.estimate(run.key, METRIC) for run in table.of(dataset)}
    runs = [run for run in table.of(dataset) if (e := found[run.key]) and math.isfinite(e.mean)]
    if len(runs) < _FEWEST:
        return None
    nll = {run.key: e.mean for run in runs if (e := found[run.key])}
    runs.sort(key=lambda run: nll[run.key])
    best, comparisons = runs[0], len(runs) - 1
    rows = []
    for run in runs:
        base = next((r for r in runs if r.method == BASELINE and r.network == run.network), None)
        to_best = None if run is best else difference(table, run, best, comparisons)
        to_base = None if base is None or run is base else difference(table, run, base, comparisons)
        rows.append(Row(run, nll[run.key], to_best, to_base, _efficient(table, run, runs, nll)))
    return Verdict(rows, _said(table, rows))


def difference(table: Table, run: RunInfo, other: RunInfo, comparisons: int) -> Difference | None:
    """Return the difference of two runs' NLL; None where their splits are not the same."""
    mine, theirs = (table.groups(r.key, METRIC) for r in (run, other))
    splits = {_splits(table, r) for r in (run, other)}
    if len(splits) > 1:
        return None
    if splits != {1}:
        return resampled(np.subtract(mine, theirs), TEST_OVER_TRAIN, comparisons)
    own, others = (_rows(r.evaluate / "predictions.parquet") for r in (run, other))
    if own is None or others is None or len(own) != len(others):
        return Difference(float(np.mean(mine) - np.mean(theirs)), math.inf)
    each = others - own  # log-likelihoods, so that the difference of NLL is the other's less the run's
    half = _quantile(comparisons, math.inf) * float(each.std(ddof=1)) / math.sqrt(len(each))
    return Difference(float(each.mean()), half)


def resampled(differences: np.ndarray, test_over_train: float, comparisons: int = 1) -> Difference:
    """Return the mean of differences over J splits, with its interval (Nadeau & Bengio 2003, eq. 9)."""
    count = len(differences)
    variance = (1 / count + test_over_train) * float(np.var(differences, ddof=1))
    return Difference(float(np.mean(differences)), _quantile(comparisons, count - 1) * math.sqrt(variance))


def _quantile(comparisons: int, freedom: float) -> float:
    return float(stats.t.ppf(1 - (1 - LEVEL) / 2 / max(1, comparisons), freedom))


def _splits(table: Table, run: RunInfo) -> int:
    return len(set(table.stored[run.key].column("split").to_pylist()))


def _rows(path: Path) -> np.ndarray | None:
    """Return log p(y | x) of each test row of a run on one split, the mean over its seeds."""
    if not path.is_file():
        return None
    columns = pyarrow.parquet.read_table(path, columns=["seed", "row", "log_prob"]).to_pandas()
    means: np.ndarray = columns.groupby("row")["log_prob"].mean().to_numpy(np.float64)
    return means


def _efficient(table: Table, run: RunInfo, runs: Sequence[RunInfo], nll: dict[str, float]) -> bool:
    """Say whether a run is on the Pareto front of NLL and seconds of a prediction."""
    cost = {r.key: e.mean if (e := table.estimate(r.key, COST)) else math.inf for r in runs}
    others = (r for r in runs if r is not run)
    return not any(nll[r.key] <= nll[run.key] and cost[r.key] <= cost[run.key] for r in others)


def _said(table: Table, rows: Sequence[Row]) -> list[str]:
    best, others = rows[0].run, rows[1:]
    level, count = f"{100 * LEVEL:.0f} %", _splits(table, best)
    tied = [row.run for row in others if row.to_best is None or not row.to_best.apart]
    names = _names([best, *(row.run for row in others)])
    over = f"over {count} splits" if count > 1 else "over the test rows of one split"
    said = [f"{names[best.key]} has the lowest NLL."]
    if not tied:
        said.append(f"It is better than all others: {over} every {level} interval of a difference to it leaves out 0.")
    else:
        told = len(others) - len(tied)
        listed = ", ".join(names[run.key] for run in tied)
        said.append(f"{over.capitalize()} it cannot be told apart from {listed}; {told} of {len(others)} are worse.")
    if count == 1:
        said.append("Another draw of training rows could order them otherwise: one split does not show it.")
    networks = {run.network for run in (best, *(row.run for row in others)) if run.network}
    if len(networks) > 1:
        said.append(f"There are {len(networks)} networks: runs of different ones differ by more than their method.")
    base = [row for row in rows if row.to_baseline is not None]
    if base:
        better = sum(row.to_baseline.apart and row.to_baseline.mean < 0 for row in base if row.to_baseline)
        said.append(f"{better} of {len(base)} are better than the deterministic network of their own architecture.")
    front = [names[row.run.key] for row in rows if row.efficient]
    said.append(f"Nothing is both better and faster to predict than {', '.join(front)}.")
    return said


def _names(runs: Sequence[RunInfo]) -> dict[str, str]:
    several = {run.method for run in runs if sum(r.method == run.method for r in runs) > 1}
    return {run.key: run.method + (f" {run.setting}" if run.method in several else "") for run in runs}


def ranks(table: Table) -> Ranks | None:
    """Rank the methods that every data set has, where there are two of each at least."""
    by_set: dict[str, dict[str, float]] = {}
    for dataset in table.datasets():
        best = dict[str, float]()
        for run in table.of(dataset):
            known = table.estimate(run.key, METRIC)
            if known and math.isfinite(known.mean):
                best[run.method] = min(known.mean, best.get(run.method, math.inf))
        by_set[dataset] = best
    shared = set.intersection(*map(set, by_set.values())) if by_set else set()
    if len(by_set) < _FEWEST or len(shared) < _FEWEST:
        return None
    methods = sorted(shared)
    scores = np.array([[found[m] for m in methods] for found in by_set.values()])
    return ranked(methods, scores)


def ranked(methods: Sequence[str], scores: np.ndarray) -> Ranks:
    """Rank methods by scores [data set, method], lower is better."""
    count, many = scores.shape
    means = stats.rankdata(scores, axis=1).mean(axis=0)
    p_value = float(stats.friedmanchisquare(*scores.T).pvalue) if many > _FEWEST else math.nan
    q = float(stats.studentized_range.ppf(LEVEL, many, math.inf)) / math.sqrt(2)
    critical = q * math.sqrt(many * (many + 1) / (6 * count))
    ordered = sorted(zip(methods, means.tolist(), strict=True), key=lambda pair: pair[1])
    return Ranks(dict(ordered), count, p_value, critical)
