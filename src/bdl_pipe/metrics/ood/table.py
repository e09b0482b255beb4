"""Compare OOD scores by how well they detect unfamiliar rows, run by run: figures, tables and a sentence.

Each metric is computed against each set and averaged over the near sets and over the far sets, with equal weights, as
OpenOOD 1.5 does (Zhang et al. 2023). The error of an area under the ROC curve is over the fits of a run if there are
several, s/√n, and over its rows if there is one (:mod:`.areas`). FPR95 and the average precisions have an error over
fits only.

OpenOOD (Yang et al. 2022; version 1.5, Zhang et al. 2023) calls a set near if its rows look similar but have another
meaning, and far if the kind of picture differs, too. Classes that are held out of the data set itself are near, as in
open-set recognition (Neal et al. 2018). For CIFAR-10, CIFAR-100 and Tiny ImageNet are near, and for CIFAR-100 likewise.
All other sets are far. Deviation: OpenOOD calls Fashion-MNIST near to MNIST. Digits are another kind of picture than
clothes, and scores of features separate them almost without error (results/ood), so that each is far from the
other here.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa

from ...errors import ArtifactError
from ...scores import parquet
from ..comparison import Difference, over_splits, quantile
from ..separation import DETECTION, detection
from .areas import Area, area
from .rows import SCORES, TEST, StoredFit, label_of, scores_of

if TYPE_CHECKING:
    import pandas as pd

Group = Literal["near", "far"]
GROUPS: Final[tuple[Group, Group]] = ("near", "far")
_NEAR_EACH_OTHER: Final = ("cifar10", "cifar100", "tiny_imagenet")
METRICS: Final = tuple(metric.name for metric in DETECTION)
ABSENT: Final = "–"
SCHEMA: Final = pa.schema(  # of the stored figures of a run
    [
        ("fits", pa.int32()),
        ("group", pa.string()),
        ("sets", pa.list_(pa.string())),
        ("score", pa.string()),
        *((metric, pa.list_(pa.float64())) for metric in METRICS),
        ("errors", pa.map_(pa.string(), pa.float64())),
    ]
)
Row = list[str]
Values = Mapping[str, np.ndarray]  # set -> [row]


@dataclass(frozen=True, eq=False)
class Figure:
    """One score of one run against the sets of one group.

    Attributes:
        score: the score's name.
        values: metric -> its value for each seed or, for a run on several splits, for each split (mean over seeds).
        errors: of one fit's area, over rows: under the score's own name the standard error, under another score's name
            the standard error of the difference from that score's area. Empty for several fits.
    """

    score: str
    values: Mapping[str, tuple[float, ...]]
    errors: Mapping[str, float]

    def mean(self, metric: str = "auroc") -> float:
        """Return the mean over fits."""
        return float(np.mean(self.values[metric]))

    def error(self, metric: str = "auroc") -> float:
        """Return the standard error of the mean; infinite where it is unknown."""
        each = self.values[metric]
        if len(each) > 1:
            return float(np.std(each, ddof=1)) / math.sqrt(len(each))
        return self.errors[self.score] if metric == "auroc" else math.inf

    def over(self, other: "Figure", comparisons: int = 1) -> Difference:
        """Return the area of this score minus another score's area in the same run, in pairs of fits or of rows."""
        if len(self.values["auroc"]) == 1:
            error = self.errors[other.score]
            return Difference(self.mean() - other.mean(), quantile(comparisons, math.inf) * error, error)
        gaps = np.subtract(self.values["auroc"], other.values["auroc"])
        return over_splits(gaps, 0.0, comparisons=comparisons)


@dataclass(frozen=True, eq=False)
class Result:
    """All scores of one run.

    Attributes:
        name: the run's name.
        fits: the number of fits.
        figures: group -> score -> figure; a group without a set is missing.
        sets: group -> the names of its sets.
    """

    name: str
    fits: int
    figures: Mapping[Group, Mapping[str, Figure]]
    sets: Mapping[Group, tuple[str, ...]]

    def ordered(self, group: Group) -> list[str]:
        """List the scores, the largest mean area first."""
        return sorted(self.figures.get(group, {}), key=lambda score: -self.figures[group][score].mean())

    def tied(self, group: Group) -> list[str]:
        """List the best score and all scores that do not differ from it, at 95 % for all comparisons together."""
        first, *others = self.ordered(group)
        best = self.figures[group][first]
        near = [score for score in others if not best.over(self.figures[group][score], len(others)).apart]
        return [first, *near]


def group_of(dataset: str, unfamiliar: str) -> Group:
    """Return whether a set is near a data set or far from it."""
    pair = dataset in _NEAR_EACH_OTHER and unfamiliar in _NEAR_EACH_OTHER
    return "near" if pair or unfamiliar == "held_out" else "far"


def result(name: str, dataset: str, fits: Mapping[tuple[int, int], StoredFit]) -> Result:
    """Return the figures of one run from its stored rows.

    Args:
        dataset: the fitted data set, which decides what sets are near, see :func:`group_of`.
        fits: (split, seed) -> rows, with the same unfamiliar sets.
    """
    scores, sets = {at: scores_of(fit) for at, fit in fits.items()}, dict[Group, tuple[str, ...]]()
    by_group = [(group_of(dataset, other), other) for other in next(iter(fits.values())).others]
    for group in GROUPS:
        if others := tuple(other for its_group, other in by_group if its_group == group):
            sets[group] = others
    return Result(name, len(fits), {group: _figures(scores, others) for group, others in sets.items()}, sets)


def _figures(fits: Mapping[tuple[int, int], Mapping[str, Values]], names: Sequence[str]) -> dict[str, Figure]:
    """Return the figures of all scores against the sets ``names``, from (split, seed) -> score -> set -> [row]."""
    several, areas, figures = len({split for split, _ in fits}) > 1, dict[str, Area](), dict[str, Figure]()
    if len(fits) == 1:
        (scores,) = fits.values()
        areas = {score: area(rows[TEST], [rows[name] for name in names]) for score, rows in scores.items()}
    for score in next(iter(fits.values())):
        units = defaultdict[int, list[dict[str, float]]](list)  # independent units: splits if there are several
        for (split, seed), scores in fits.items():
            of_sets = [detection(scores[score][TEST], scores[score][name]) for name in names]
            means = {metric: float(np.mean([one[metric] for one in of_sets])) for metric in METRICS}
            units[split if several else seed].append(means)
        values = {m: tuple(float(np.mean([one[m] for one in unit])) for unit in units.values()) for m in METRICS}
        errors = {k: of.error if k == score else areas[score].error_to(of) for k, of in areas.items()}
        figures[score] = Figure(score, values, errors)
    return figures


def to_table(result: Result) -> pa.Table:
    """Return the figures of a run as a table, with one row for each group and score; :func:`load` reads its file."""
    rows = [
        {"fits": result.fits, "group": group, "sets": result.sets[group], "score": score, "errors": figure.errors}
        | dict(figure.values)
        for group, figures in result.figures.items()
        for score, figure in figures.items()
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def load(path: Path) -> Result:
    """Read the table of :func:`to_table` from a Parquet file; the run's name is empty.

    Raises:
        ArtifactError: the file is no such table.
    """
    stored = parquet(path)
    if stored.schema != SCHEMA:
        got = ", ".join(stored.column_names)
        raise ArtifactError(f"{path}: must have the columns {', '.join(SCHEMA.names)}, got {got}; make it again")
    figures, sets, fits = defaultdict[Group, dict[str, Figure]](dict), dict[Group, tuple[str, ...]](), 0
    for row in stored.to_pylist():
        group, score, fits = row["group"], row["score"], row["fits"]
        values = {metric: tuple(row[metric]) for metric in METRICS}
        sets[group], figures[group][score] = tuple(row["sets"]), Figure(score, values, dict(row["errors"]))
    return Result("", fits, dict(figures), sets)


def scores_in(results: Sequence[Result]) -> list[str]:
    """List the scores that some run has, the registered ones first."""
    named = {score: None for one in results for figures in one.figures.values() for score in figures}
    return [*(score for score in SCORES if score in named), *sorted(named.keys() - SCORES.keys())]


def table(results: Sequence[Result], group: Group, metric: str = "auroc") -> tuple[Row, list[Row]]:
    """Return the header and one row for each run, in per cent, with the run's best score and its equals in bold.

    A dash stands for a score that the run lacks: its posterior has no features, no linear last layer, or one draw.
    """
    scores = scores_in(results)
    rows = []
    for one in results:
        figures = one.figures.get(group, {})
        best = set(one.tied(group)) if figures and metric == "auroc" else set[str]()
        cells = [one.name, *[ABSENT] * len(scores)]
        for at, score in enumerate(scores, start=1):
            if score in figures:
                mean, error = figures[score].mean(metric), figures[score].error(metric)
                cells[at] = f"{100 * mean:.1f}" + (f" ± {100 * error:.1f}" if math.isfinite(error) else "")
                cells[at] = f"**{cells[at]}**" if score in best else cells[at]
        rows.append(cells)
    return ["Run", *map(label_of, scores)], rows


def frame(results: Sequence[Result]) -> "pd.DataFrame":
    """Return all figures: run, fits, group, score, metric, mean, error (NaN where it is unknown)."""
    import pandas as pd

    columns = ("run", "fits", "group", "score", "metric", "mean", "error")
    rows = [
        (one.name, one.fits, group, score, metric, figure.mean(metric), figure.error(metric))
        for one in results
        for group, figures in one.figures.items()
        for score, figure in figures.items()
        for metric in METRICS
    ]
    return pd.DataFrame(rows, columns=columns).replace(math.inf, math.nan)


def markdown(header: Row, rows: Sequence[Row]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def sentence(results: Sequence[Result], group: Group) -> str:
    """Write which score has the largest mean AUROC over all runs, and in how many runs it is shown to be the best.

    Two scores are compared over the runs that have both, by the mean difference of their areas, with Student's t over
    runs, at 95 % for all comparisons together. Runs share data and trajectories, so that the interval holds for these
    runs only.
    """
    runs = [one for one in results if one.figures.get(group)]
    if not runs:
        return f"No run has a {group} set."
    sets = ", ".join(dict.fromkeys(name for one in runs for name in one.sets[group]))
    shared = [score for score in scores_in(runs) if sum(score in one.figures[group] for one in runs) > len(runs) / 2]
    figures = [one.figures[group] for one in runs]
    means = {score: float(np.mean([of[score].mean() for of in figures if score in of])) for score in shared}
    first = max(means, key=means.__getitem__)
    alone = sum(one.tied(group) == [first] for one in runs)
    among = sum(first in one.tied(group) for one in runs)
    text = f"On {group} sets ({sets}), {label_of(first)} has the largest mean AUROC, {100 * means[first]:.1f} %"
    text += f": it is significantly the best score in {alone} of {len(runs)} runs"
    text += f", and no score is significantly better in {among}."
    gaps = dict[str, Difference | None]()
    for score in shared:
        both = [of for of in figures if {first, score} <= of.keys()]
        if score != first and len(both) > 1:
            of_runs = np.array([of[first].mean() - of[score].mean() for of in both])
            gaps[score] = over_splits(of_runs, 0.0, comparisons=len(shared) - 1)
        elif score != first:
            gaps[score] = both[0][first].over(both[0][score], len(shared) - 1) if both else None
    apart = {score: gap for score, gap in gaps.items() if gap is not None and gap.apart}
    near = [label_of(score) for score in gaps if score not in apart]
    if near:
        return f"{text} Over all runs, it is statistically tied with {', '.join(near)}."
    if not apart:
        return text
    second = min(apart, key=lambda score: apart[score].mean)
    beside = f"{label_of(second)} by {100 * apart[second].mean:.1f} ± {100 * apart[second].error:.1f} points"
    return f"{text} Over all runs, it is significantly better than every other score: the next best is {beside}."
