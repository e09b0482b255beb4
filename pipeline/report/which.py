"""Which one? What the stored scores allow to conclude about the methods, by NLL on test rows.

The best run of a data set is compared with each other run in pairs, over splits or, on one split, over test rows; see
:mod:`bdl_pipe.metrics.comparison`. Over data sets, the methods that all sets have are compared by their mean ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bdl_pipe.metrics import comparison
from bdl_pipe.metrics.comparison import Difference, Ranks
from bdl_pipe.scores import Quantity, log_likelihoods

from .tables import RunInfo, Table, labels

METRIC: Final = Quantity("nll")
COST: Final = Quantity("seconds_per_1000", "cost")
BASELINE: Final = "deterministic"


@dataclass(frozen=True)
class Standing:
    """A run beside the other runs on its data set.

    Attributes:
        to_best, to_baseline: differences of NLL; None for the run itself, or if no run of the baseline has this run's
            network.
        efficient: no other run has a lower NLL and predicts as fast.
    """

    run: RunInfo
    nll: float
    to_best: Difference | None
    to_baseline: Difference | None
    efficient: bool


def standings(table: Table) -> list[Standing]:
    """Compare the runs on a data set, from the best one to the worst; nothing if fewer than two have a finite NLL."""
    nll = {key: estimate.mean for key, estimate in table.finite(METRIC).items()}
    runs = sorted((run for run in table.runs if run.key in nll), key=lambda run: nll[run.key])
    if len(runs) < 2:
        return []
    best, comparisons = runs[0], len(runs) - 1
    cost = {run.key: e.mean if (e := table.estimate(run.key, COST)) else math.inf for run in runs}
    found = []
    for run in runs:
        base = next((r for r in runs if r.method == BASELINE and r.network == run.network), None)
        to_best = None if run is best else difference(table, run, best, comparisons)
        to_base = None if base is None or run is base else difference(table, run, base, comparisons)
        others = (r for r in runs if r is not run)
        beaten = any(nll[r.key] <= nll[run.key] and cost[r.key] <= cost[run.key] for r in others)
        found.append(Standing(run, nll[run.key], to_best, to_base, not beaten))
    return found


def difference(table: Table, run: RunInfo, other: RunInfo, comparisons: int) -> Difference | None:
    """Return the difference of two runs' NLL; None if they have different numbers of splits."""
    scores, theirs = (table.scores[r.key] for r in (run, other))
    if scores.splits != theirs.splits:
        return None
    nll, their_nll = scores.values(METRIC), theirs.values(METRIC)
    if scores.splits > 1:
        return comparison.over_splits(np.subtract(nll, their_nll), comparisons=comparisons)
    by_row, theirs_by_row = (log_likelihoods(r.evaluate / "predictions.parquet") for r in (run, other))
    if by_row is None or theirs_by_row is None or len(by_row) != len(theirs_by_row):
        return Difference(float(np.mean(nll) - np.mean(their_nll)), math.inf)
    return comparison.over_rows(theirs_by_row - by_row, comparisons=comparisons)  # NLL is minus log-likelihood.


def ranks(table: Table) -> Ranks | None:
    """Rank the methods that every data set has; None for fewer than two data sets or two such methods.

    A method that has several runs on a data set is ranked by its best run.
    """
    by_set: list[dict[str, float]] = []
    for part in table.by_dataset().values():
        nll, best = part.finite(METRIC), dict[str, float]()
        for run in part.runs:
            if run.key in nll:
                best[run.method] = min(nll[run.key].mean, best.get(run.method, math.inf))
        by_set.append(best)
    methods = sorted(set.intersection(*map(set, by_set))) if by_set else []
    if len(by_set) < 2 or len(methods) < 2:
        return None
    return comparison.mean_ranks(methods, np.array([[best[method] for method in methods] for best in by_set]))


def sentences(table: Table, standings: Sequence[Standing]) -> list[str]:
    """Conclude from the standings of a data set's runs."""
    if not standings:
        return []
    others, names = standings[1:], labels([standing.run for standing in standings])
    splits = table.scores[standings[0].run.key].splits
    over = f"over {splits} splits" if splits > 1 else "over the test rows of one split"
    tied = [names[s.run.key] for s in others if s.to_best is None or not s.to_best.apart]
    said = [f"{names[standings[0].run.key]} has the lowest NLL."]
    if not tied:
        said.append(f"It is better than all others: {over} every 95 % interval of a difference to it leaves out 0.")
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
