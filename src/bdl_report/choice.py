"""Choose among runs by a stored metric and by cost.

The runs are :class:`~bdl_pipe.metrics.standings.Candidate` objects. A loss is a metric with its sign changed where
higher values are better.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow.compute as pc

from bdl_pipe import artifacts
from bdl_pipe.metrics import comparison
from bdl_pipe.metrics.comparison import Difference
from bdl_pipe.metrics.pit import THIRDS
from bdl_pipe.metrics.standings import TEST_OVER_TRAIN, Candidate, difference
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.metrics.written import writer
from bdl_pipe.scores import Quantity, average

LONGER: Final = "run them longer"  # the warning about chains that are too short ends with these words
LEVEL: Final = 0.9  # the level of the intervals with a stored coverage
_HELD: Final = (0.80, 0.97)  # bounds of a third's coverage without a warning
_FIT: Final = Quantity("fit_seconds", "cost")


@dataclass(frozen=True)
class Choice:
    """The run to take by a metric.

    Attributes:
        ordered: the runs with a finite score, the best first; of runs with equal scores, the faster fit first.
        gaps: key of another run -> its loss minus the best run's; only differences with a known interval. A difference
            from a run of one seed has none.
        near: the best run, and the runs within one standard error of it.
        tied: the best run, and the runs with 0 in the 95 % interval of their gap.
    """

    metric: str
    ordered: Sequence[Candidate]
    gaps: dict[str, Difference]
    near: Sequence[Candidate]
    tied: Sequence[Candidate]

    @property
    def best(self) -> Candidate:
        """Return the run with the best score."""
        return self.ordered[0]

    @property
    def taken(self) -> Candidate:
        """Return the run of ``near`` that is the cheapest to fit.

        Source: Breiman et al. 1984, section 3.4.3. Deviation: we use standard errors of paired differences.
        """
        return min(self.near, key=fit_seconds)

    def faster(self, than: Candidate) -> list[Candidate]:
        """List the runs that are cheaper to fit than a run."""
        return [one for one in self.ordered if fit_seconds(one) < fit_seconds(than)]


def choose(candidates: Iterable[Candidate], metric: str) -> Choice | None:
    """Choose by ``accuracy``, ``rmse`` or ``nll``; return None if no run has a finite score."""
    ordered = sorted(finite(candidates, metric), key=lambda one: (loss(one, metric), fit_seconds(one)))
    if not ordered:
        return None
    best, *others = ordered
    differences = {one.key: difference(one, best, metric=metric) for one in others}
    gaps = {key: gap for key, gap in differences.items() if gap is not None and math.isfinite(gap.half)}
    near = [one for one in others if one.key in gaps and gaps[one.key].mean <= gaps[one.key].error]
    tied = [one for one in others if one.key in gaps and not gaps[one.key].apart]
    return Choice(metric, ordered, gaps, [best, *near], [best, *tied])


def coverage(one: Candidate) -> Difference | None:
    """Return the share of test rows in the 90 % intervals minus 90 %, with its 95 % interval; None without scores.

    On one split the error is binomial, and the seeds' error is added. The outputs of one row may depend on each other,
    so that the binomial error is of as many targets as there are rows.
    """
    shares = np.array(one.scores.values(Quantity("coverage_90")))
    if not len(shares) or not np.isfinite(shares).all():
        return None
    if one.scores.splits > 1:
        return comparison.over_splits(shares - LEVEL, TEST_OVER_TRAIN)
    rows = one.scores.stored.filter(pc.field("metric") == "nll")["n"][0].as_py()
    binomial = Difference(average(shares.tolist()) - LEVEL, math.nan, math.sqrt(LEVEL * (1 - LEVEL) / rows))
    return comparison.over_seeds(binomial, [] if one.optimal else [shares.tolist()])


def off_by_width(one: Candidate) -> str:
    """Return a warning if 90 % intervals cover less than 80 % or more than 97 % in a third of the rows by their width.

    One noise for all inputs covers too few targets where the noise is large, and too many where it is small, although
    the share of all rows agrees with 90 %. The warning is empty if no third is outside these bounds, or if the third's
    distance from 90 % is below two binomial errors; seeds are averaged, since they share rows.
    """
    outside = []
    for name, third in THIRDS.items():
        shares = one.scores.values(Quantity(name))
        if not shares:
            return ""
        share = average(shares)
        of_seed = one.scores.stored.filter((pc.field("metric") == name) & (pc.field("seed") == 0))
        error = math.sqrt(LEVEL * (1 - LEVEL) * len(THIRDS) / max(sum(of_seed["n"].to_pylist()), 1))
        if not _HELD[0] <= share <= _HELD[1] and abs(share - LEVEL) > 2 * error:
            outside.append(f"{100 * share:.0f} % of the targets in the third of the {third} intervals")
    noise = one.scores.values(Quantity("noise_ratio"))
    same = bool(noise) and writer(metric_of("noise_ratio"))(average(noise)) == "one"
    cure = ": its noise is one for all inputs; take noise: each input, where the method has it" if same else ""
    return f"90 % intervals cover {' and '.join(outside)}{cure}" if outside else ""


def half_width(splits: int) -> float:
    """Return the half-width of an interval over splits, for differences of variance 1."""
    return comparison.quantile(1, splits - 1) * math.sqrt(1 / splits + TEST_OVER_TRAIN)


def ended(config: Any, epochs: int, validated: bool) -> Literal["validation", "steps", "schedule", ""]:
    """Return the reason why a fit ended after ``epochs`` epochs.

    Args:
        config: a method's config with the fields of ``training.learner.TrainingConfig``, or with a field ``training``
            that has them.
        validated: whether there were validation rows.

    Returns:
        ``validation``: the scores of validation rows ended the fit, since later epochs did not improve them. ``steps``:
        the limit of epochs ended the fit, so soon after the best score that more epochs could improve it. ``schedule``:
        the fit had to run all epochs. Empty: the config has no such fields.
    """
    training = getattr(config, "training", config)
    if not hasattr(training, "early_stopping"):
        return ""
    stopping = training.early_stopping
    if stopping is None or not validated:
        return "schedule"
    best = epochs - getattr(training, "extra_epochs", 0)
    return "validation" if best + (stopping.patience or stopping.every) <= training.epochs else "steps"


def ends(folder: Path, kind: str, config: Any, validated: bool) -> tuple[str, ...]:
    """Return the result of :func:`ended` for each fit of a stored artifact that recorded its epochs.

    Raises:
        ArtifactError: the artifact is damaged.
    """
    if not (folder / artifacts.MANIFEST).is_file():
        return ()
    stored = artifacts.load(folder, kind, verify=False)
    epochs = [state["epochs"] for state in (stored.open(name).config for name in stored.names()) if "epochs" in state]
    return tuple(reason for count in epochs if (reason := ended(config, count, validated)))


def finite(candidates: Iterable[Candidate], metric: str) -> list[Candidate]:
    """List the runs with a finite mean score."""
    return [one for one in candidates if math.isfinite(loss(one, metric))]


def loss(one: Candidate, metric: str) -> float:
    """Return a run's mean loss by a metric. It is NaN if there is none."""
    losses = one.scores.values(Quantity(metric), -metric_of(metric).better)
    return average(losses) if losses else math.nan


def fit_seconds(one: Candidate) -> float:
    """Return the seconds of a fit, with its upstream stages. They are infinite if they are not recorded."""
    seconds = one.scores.estimate(_FIT)
    return seconds.mean if seconds and math.isfinite(seconds.mean) else math.inf


def split_seconds(one: Candidate) -> float:
    """Return the seconds of all fits of a split, one for each seed; infinite if a time is not recorded."""
    seconds = [value for group in one.scores.groups(_FIT) for value in group]
    return math.fsum(seconds) / one.scores.splits if seconds and all(map(math.isfinite, seconds)) else math.inf
