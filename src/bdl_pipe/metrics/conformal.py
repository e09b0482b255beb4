"""Sets and intervals at equal coverage: conformal scores of stored predictions, and coverage in groups of rows.

:mod:`bdl_pipe.conformal` has the threshold q, with which {y: r(x, y) ≤ q} holds a new target. Scores r of class k:

- LAC: 1 − p_k (Sadinle, Lei & Wasserman 2019). The smallest sets on average; they hold the targets of hard rows less
  often.
- APS: the probability of all likelier classes + u p_k, with u uniform on [0, 1] (Romano, Sesia & Candès 2020). The sets
  grow where a row is hard.
- RAPS: APS + weight · max(0, rank of k − beyond) (Angelopoulos et al. 2021). Improbable classes are left out of sets.

For regression, CQR takes max(low(x) − y, y − high(x)), so that an interval from quantiles low and high moves both of
its ends by q (Romano, Patterson & Candès 2019); q may be below 0.
Sets of APS and RAPS may be empty; without empty sets the probability would not be exact.

Stored predictions have no calibration rows. The rows are split at random into halves, and the scores of each half set
the threshold of the other half. The sets then contain new targets with the stated probability, so that posteriors are
compared by width or size at equal coverage.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float, Int

from ..conformal import threshold
from ..errors import DataError, require
from ..seeds import Seed
from .metric import StoredMetric
from .stored import StoredClasses

_WEIGHT: Final = 0.01
_BEYOND: Final = 5
LEVEL: Final = 0.9
_STEP: Final = 0.02  # step of the level that measures how fast sets grow with it
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (probs [row, class], u [row]) -> scores [row, class]
Rows = Float[np.ndarray, " row"]
Classes = Float[np.ndarray, "row class"]
Ends = tuple[Rows, Rows]  # of the interval of each row


def lac(probs: Classes) -> Classes:
    """Return 1 − p of each class."""
    return 1 - np.asarray(probs, np.float64)


def aps(probs: Classes, uniform: Rows | float) -> Classes:
    """Return the probability of all likelier classes + u p of each class.

    Args:
        uniform: u of each row, drawn from [0, 1]. With 1 for all rows the score is not random, and the sets hold more
            targets than they should.
    """
    return raps(probs, uniform, weight=0.0)


def raps(probs: Classes, uniform: Rows | float, weight: float = _WEIGHT, beyond: int = _BEYOND) -> Classes:
    """Return APS's score + ``weight`` · max(0, rank − ``beyond``) of each class; the likeliest class has the rank 1.

    If two classes are equally likely, the first counts as likelier.

    Raises:
        ConfigError: ``weight`` or ``beyond`` is below 0.
    """
    require(weight >= 0, "weight", "must be at least 0", weight)
    require(beyond >= 0, "beyond", "must be at least 0", beyond)
    probs = np.asarray(probs, np.float64)
    order = np.argsort(-probs, axis=1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=1)
    share = np.broadcast_to(np.asarray(uniform, np.float64), len(probs))[:, None]
    rank = np.arange(1, probs.shape[1] + 1)
    by_rank = ordered.cumsum(1) - (1 - share) * ordered + weight * np.maximum(0, rank - beyond)
    scores = np.empty_like(by_rank)
    np.put_along_axis(scores, order, by_rank, axis=1)
    return scores


def cqr(low: Rows, high: Rows, targets: Rows, level: float) -> float:
    """Return by how much both ends of an interval move outwards, from the quantiles and targets of calibration rows."""
    return threshold(np.maximum(low - targets, targets - high), level)


def widening(low: Rows, centre: Rows, high: Rows, targets: Rows, level: float) -> float:
    """Return the factor of both arms, centre − low and high − centre, with which an interval holds new targets.

    Args:
        low, centre, high: low < centre < high of the calibration rows, such as the 5 %, 50 % and 95 % quantiles.
    """
    below, above = (centre - targets) / (centre - low), (targets - centre) / (high - centre)
    return threshold(np.maximum(below, above), level)


def halves(rows: int, rng: Seed) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield twice (calibration rows, other rows): the halves of a random order, and the two exchanged.

    Raises:
        DataError: there are fewer than 2 rows.
    """
    if rows < 2:
        raise DataError(f"conformal halves need at least 2 rows, got {rows}")
    order = rng.fold("halves").numpy().permutation(rows)
    first, second = order[: rows // 2], order[rows // 2 :]
    yield first, second
    yield second, first


def _from_other_half(rows: int, rng: Seed, of_half: Callable[[np.ndarray], float]) -> Rows:
    """Return for each row the value that ``of_half`` has for the indices of the other half's rows."""
    values = np.empty(rows)
    for half, other in halves(rows, rng):
        values[other] = of_half(half)
    return values


def sets_by_halves(
    score: Score, probs: Classes, labels: Int[np.ndarray, " row"], level: float, rng: Seed
) -> Bool[np.ndarray, "row class"]:
    """Return which classes are in the conformal set of each row, from the rows of the other half.

    Args:
        score: a function such as :func:`aps`; it gets u of each row, drawn at the address ``rng``.
    """
    scores = score(probs, rng.fold("uniform").numpy().random(len(probs)))
    of_label = scores[np.arange(len(labels)), labels]
    return scores <= _from_other_half(len(probs), rng, lambda half: threshold(of_label[half], level))[:, None]


def widened_by_halves(low: Rows, centre: Rows, high: Rows, targets: Rows, level: float, rng: Seed) -> Ends:
    """Widen or narrow intervals by the factor (:func:`widening`) with which they hold the targets of the other half.

    The mean width is sharpness at equal coverage: a posterior gains nothing from intervals that hold too few targets.
    The ends are infinite where a half has too few rows for the level.
    """

    def of_half(half: np.ndarray) -> float:
        return widening(low[half], centre[half], high[half], targets[half], level)

    factor = _from_other_half(len(targets), rng, of_half)
    return centre - factor * (centre - low), centre + factor * (high - centre)


def moved_by_halves(low: Rows, high: Rows, targets: Rows, level: float, rng: Seed) -> Ends:
    """Move both ends of intervals outwards by one distance for all rows of a half, by :func:`cqr`."""
    outwards = _from_other_half(len(targets), rng, lambda half: cqr(low[half], high[half], targets[half], level))
    return low - outwards, high + outwards


@dataclass(frozen=True)
class Held:
    """How often sets held the target in one group of rows.

    Attributes:
        group: the group's value.
        count: the number of its rows.
        share: the share of its rows in which the set held the target.
        low, high: the exact interval of the probability (Clopper & Pearson 1934).
    """

    group: object
    count: int
    share: float
    low: float
    high: float

    def differs(self, level: float) -> bool:
        """Return whether the interval excludes ``level``."""
        return not self.low <= level <= self.high


def held_by_group(held: Bool[np.ndarray, " row"], groups: np.ndarray, confidence: float = 0.95) -> list[Held]:
    """Count in each group of rows how often sets held the target, the least often first.

    Args:
        groups: [row], such as the predicted class, the true class, or a column of the inputs.
        confidence: the level of all intervals together; each is at 1 − (1 − confidence)/(number of groups)
            (Bonferroni).
    """
    from scipy.stats import binomtest

    values, which, counts = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.bincount(which, np.asarray(held, np.float64), len(values)).astype(int)
    each = 1 - (1 - confidence) / max(1, len(values))
    by_group = []
    for value, count, happened in zip(values.tolist(), counts.tolist(), sums.tolist(), strict=True):
        exact = binomtest(happened, count).proportion_ci(each, method="exact")
        by_group.append(Held(value, count, happened / count, float(exact.low), float(exact.high)))
    return sorted(by_group, key=lambda one: one.share)


def _set_size(name: str, score: Score) -> StoredMetric:
    def sets(fit: StoredClasses, level: float) -> np.ndarray:
        return sets_by_halves(score, fit.probs, fit.labels, level, fit.rng)

    def of(fit: StoredClasses) -> float | None:
        return float(sets(fit, LEVEL).sum(1).mean()) if len(fit) > 1 else None

    def rows(fit: StoredClasses) -> np.ndarray:
        """Return sizes plus each row's effect on the threshold, to first order: rows outside their set raise it."""
        low, members, high = (sets(fit, LEVEL + step) for step in (-_STEP, 0, _STEP))
        slope = (high.sum() - low.sum()) / len(fit) / (2 * _STEP)  # d mean size / d level
        of_row = members.sum(1) - slope * members[np.arange(len(fit)), fit.labels]
        return members.sum(1).mean() + of_row - of_row.mean()

    about = f"mean number of classes in {name.upper()} sets with 90 % coverage; each half calibrates the other"
    look: Any = {"task": "classification", "question": "intervals", "rows": rows}
    return StoredMetric(f"set_size_{name}", f"Set size {name.upper()}", about, -1, function=of, **look)


def _worst(fit: StoredClasses) -> float | None:
    if len(fit) < 2:
        return None
    members = sets_by_halves(lambda probs, _: lac(probs), fit.probs, fit.labels, LEVEL, fit.rng)
    return held_by_group(members[range(len(fit)), fit.labels], fit.probs.argmax(1))[0].share


METRICS: Final = (
    _set_size("lac", lambda probs, _: lac(probs)),
    _set_size("aps", aps),
    _set_size("raps", raps),
    StoredMetric(
        "worst_class_coverage",
        "Worst class %",
        "lowest coverage of a predicted class by LAC sets, which cover 90 % of all rows",
        +1,
        "classification",
        percent=True,
        question="intervals",
        function=_worst,
    ),
)
