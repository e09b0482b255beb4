"""Rank fitted methods by their stored NLL on test rows, and say which differences are more than chance.

    folders = {name: Path(f"work/evaluate/houses-{name}") for name in ("gp", "vbll")}
    stored = {name: RunScores(scores.read(folder / "scores.parquet")) for name, folder in folders.items()}
    candidates = [Candidate(name, name, stored[name], folder) for name, folder in folders.items()]
    print(" ".join(sentences(standings(candidates))))

The best candidate is compared with each other candidate in pairs: over splits or, if there is one split, over test rows
(:mod:`bdl_pipe.metrics.comparison`). Over data sets, mean ranks compare the methods that all data sets have.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet as pq

from ..scores import Quantity, RunScores
from . import comparison
from .comparison import Difference, Ranks
from .metric import StoredMetric
from .stored import read
from .table import metric_of

BASELINE: Final = "deterministic"
METRIC: Final = Quantity("nll")
COST: Final = Quantity("seconds_per_1000", "cost")
SEEDS: Final = 3  # On one split a difference from a run of fewer seeds is not established.
_BY_ROW: Final = ("nll", "rmse", "accuracy")
TEST_OVER_TRAIN: Final = 1 / 9  # test rows over training rows in the standard splits


@dataclass(frozen=True)
class Candidate:
    """A fitted method with its stored evaluation.

    Attributes:
        key: a text that no other candidate has.
        name: the candidate's name in sentences.
        scores: the candidate's scores on the data set that all candidates have in common.
        folder: the folder of ``predictions.parquet``, if the candidate's predictions are stored.
        network: the architecture that predicts. It is empty if the architecture has no name.
        method: the method that was fitted.
        ended: the recorded reason why each fit ended, see :func:`bdl_report.choice.ended`; ``chains`` if its
            Markov chains are too short.
        optimal: whether the fits end at an optimum, whatever their seed (``Method.optimal``).
    """

    key: str
    name: str
    scores: RunScores
    folder: Path
    network: str = ""
    method: str = ""
    ended: Sequence[str] = ()
    optimal: bool = False

    @property
    def few_seeds(self) -> bool:
        """Return whether the spread of the run's fits is unknown: one split, few seeds, and a fit that depends on them.

        Several splits are repeats: each has a fit with other random numbers and other training rows, so that the
        interval over splits includes the spread of fits. The test rows of one fit tell nothing of another fit.
        """
        return self.scores.splits == 1 and self.scores.count < SEEDS and not self.optimal

    @property
    def nll(self) -> float:
        """Return the mean NLL. It is NaN if there is none."""
        nll = self.scores.estimate(METRIC)
        return nll.mean if nll else math.nan

    @property
    def cost(self) -> float:
        """Return the seconds to predict 1,000 rows. They are infinite if they are not recorded."""
        seconds = self.scores.estimate(COST)
        return seconds.mean if seconds else math.inf


@dataclass(frozen=True)
class Standing:
    """A candidate beside the others.

    Attributes:
        to_best: the candidate's NLL minus the best candidate's; None for the best candidate.
        to_baseline: the candidate's NLL minus its baseline's; None for a baseline, and if no baseline has the
            candidate's network.
        efficient: whether no other candidate has a lower NLL and predicts at least as fast.
    """

    candidate: Candidate
    nll: float
    to_best: Difference | None
    to_baseline: Difference | None
    efficient: bool


def standings(candidates: Sequence[Candidate], test_over_train: float = TEST_OVER_TRAIN) -> list[Standing]:
    """Compare candidates. The best one is first; the list is empty if fewer than two have a finite NLL.

    Args:
        test_over_train: the number of a split's test rows divided by the number of its training rows.
    """
    gap = partial(difference, test_over_train=test_over_train)
    nll = {one.key: one.nll for one in candidates}
    ordered = sorted((one for one in candidates if math.isfinite(nll[one.key])), key=lambda one: nll[one.key])
    if len(ordered) < 2:
        return []
    best, comparisons, cost = ordered[0], len(ordered) - 1, {one.key: one.cost for one in ordered}
    compared = []
    for one in ordered:
        baseline = next((other for other in ordered if other.method == BASELINE and other.network == one.network), None)
        to_best = None if one is best else gap(one, best, comparisons)
        to_baseline = None if baseline is None or baseline is one else gap(one, baseline, comparisons)
        others = (other.key for other in ordered if other is not one)
        beaten = any(nll[key] <= nll[one.key] and cost[key] <= cost[one.key] for key in others)
        compared.append(Standing(one, nll[one.key], to_best, to_baseline, not beaten))
    return compared


def difference(
    one: Candidate,
    other: Candidate,
    comparisons: int = 1,
    metric: str = "nll",
    test_over_train: float = TEST_OVER_TRAIN,
) -> Difference | None:
    """Return the loss of one candidate minus another's, or None if they have different numbers of splits.

    Args:
        comparisons: the number of intervals that hold together.
        metric: its loss is its negative where higher values are better. On one split a difference of RMSEs is a
            difference of mean squared errors over the sum of the two RMSEs; the error of that sum is left out. Metrics
            that :func:`losses` does not read get no error on one split.
        test_over_train: as in :func:`standings`.

    Returns:
        On one split, an interval over test rows and seeds; no two runs are apart if one of them is ``few_seeds``.
    """
    if one.scores.splits != other.scores.splits:
        return None
    sign = -metric_of(metric).better
    values, others = (each.scores.values(Quantity(metric), sign) for each in (one, other))
    if one.scores.splits > 1 and len(values) == len(others):
        return comparison.over_splits(np.subtract(values, others), test_over_train, comparisons=comparisons)
    rows, others_rows = (losses(each.folder / "predictions.parquet", metric) for each in (one, other))
    if one.scores.splits > 1 or rows is None or others_rows is None or len(rows) != len(others_rows):
        return Difference(float(np.mean(values) - np.mean(others)), math.inf)
    scale = float(np.sqrt(rows.mean()) + np.sqrt(others_rows.mean())) or 1.0 if metric == "rmse" else 1.0
    seeds = [of_seeds for each, of_seeds in ((one, values), (other, others)) if not each.optimal]
    gap = comparison.over_rows((rows - others_rows) / scale, seeds, comparisons=comparisons)
    return replace(gap, half=math.inf) if one.few_seeds or other.few_seeds else gap


def losses(path: Path, metric: str) -> np.ndarray | None:
    """Read each test row's loss from the ``predictions.parquet`` of a run on one split: means over its seeds.

    Args:
        metric: ``nll``: −log p(y | x); ``rmse``: the squared error of the mean; ``accuracy``: minus 1 where the most
            probable class is the target, else 0; a metric of stored predictions: each row's contribution to it.

    Returns:
        None if there is no such file, or if the rows' contributions are unknown.
    """
    of = metric_of(metric)
    if not path.is_file():
        return None
    if isinstance(of, StoredMetric):
        fits = [of.rows(fit) for _, fit in read(path)] if of.rows is not None else []
        contributions = [rows for rows in fits if rows is not None]
        return -of.better * np.mean(contributions, axis=0) if contributions else None
    if metric not in _BY_ROW:
        return None
    rows = pq.read_table(path, columns=["row", "log_prob"] if metric == "nll" else None).to_pandas()
    if metric == "nll":
        loss = -rows["log_prob"].to_numpy()
    elif metric == "rmse":
        targets, means = (rows.filter(regex=rf"^{name}(_\d+)?$").to_numpy() for name in ("target", "mean"))
        loss = ((targets - means) ** 2).mean(1)
    else:
        loss = -1.0 * (rows["target"].to_numpy() == rows.filter(regex=r"^p_\d+$").to_numpy().argmax(1))
    return rows.assign(loss=loss).groupby("row")["loss"].mean().to_numpy(np.float64)


def sentences(standings: Sequence[Standing]) -> list[str]:
    """Return sentences with the conclusions from the standings on a data set."""
    if not standings:
        return []
    best, *others = standings
    splits = best.candidate.scores.splits
    over = f"over {splits} splits" if splits > 1 else "over the test rows of one split"
    gaps = {one.candidate.name: one.to_best for one in others}
    known = {name: gap for name, gap in gaps.items() if gap is not None and math.isfinite(gap.half)}
    tied = [name for name, gap in known.items() if not gap.apart]
    texts = [f"{best.candidate.name} has the lowest NLL."]
    if len(known) == len(others) and not tied:
        texts.append(f"It is better than all others: {over}, the 95 % interval of every difference from it excludes 0.")
    elif known:
        parts = [f"it is statistically tied with {', '.join(tied)}"] if tied else []
        worse = len(known) - len(tied)
        parts += [f"{worse} of {len(others)} others are significantly worse"] if worse else []
        texts.append(f"{over.capitalize()} {'; '.join(parts)}.")
    if splits == 1:
        texts.append("With a single train/test split, another split could give another ranking.")
    if few := sum(one.candidate.few_seeds for one in standings):
        lacking = f"{few} of {len(standings)} runs have fewer than {SEEDS} seeds"
        texts.append(f"{lacking}, so that no difference from them is established.")
    networks = {one.candidate.network for one in standings if one.candidate.network}
    if len(networks) > 1:
        texts.append(f"The runs use {len(networks)} networks: a difference can come from the network, not the method.")
    to_baseline = [one.to_baseline for one in standings if one.to_baseline is not None]
    if to_baseline:
        better = sum(one.apart and one.mean < 0 for one in to_baseline)
        texts.append(
            f"{better} of {len(to_baseline)} runs are better than the deterministic network of the same architecture."
        )
    front = ", ".join(one.candidate.name for one in standings if one.efficient)
    return [*texts, f"Best trade-offs between NLL and prediction time: {front}."]


def ranks(datasets: Iterable[Iterable[tuple[str, float]]]) -> Ranks | None:
    """Rank the methods that every data set has; return None for fewer than two data sets or two such methods.

    Args:
        datasets: for each data set, methods with the finite NLL of a run. A method with several runs on a data set is
            ranked by its best run.
    """
    by_set: list[dict[str, float]] = []
    for scored in datasets:
        best = dict[str, float]()
        for method, nll in scored:
            best[method] = min(nll, best.get(method, math.inf))
        by_set.append(best)
    methods = sorted(set.intersection(*map(set, by_set))) if by_set else []
    if len(by_set) < 2 or len(methods) < 2:
        return None
    return comparison.mean_ranks(methods, np.array([[best[method] for method in methods] for best in by_set]))
