"""Conformal sets and intervals without calibration rows: each half of the rows calibrates the other half.

Stored predictions have no calibration rows. The rows are split at random into halves, and the scores of each half set
the threshold of the other half. The sets then contain new targets with the stated probability, so that posteriors are
compared by width or size at equal coverage.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from ..errors import DataError
from ..seeds import Seed
from . import conformal

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (probs [row, class], u [row]) -> scores [row, class]


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


def class_sets(
    score: Score, probs: Float[np.ndarray, "row class"], labels: Int[np.ndarray, " row"], level: float, rng: Seed
) -> Bool[np.ndarray, "row class"]:
    """Return which classes are in the conformal set of each row, from the rows of the other half.

    Args:
        score: a function such as :func:`.conformal.aps`; it gets u of each row, drawn at the address ``rng``.
    """
    scores = score(probs, rng.fold("uniform").numpy().random(len(probs)))
    members = np.empty(scores.shape, bool)
    for known, others in halves(len(probs), rng):
        members[others] = conformal.class_sets(scores[others], scores[known], labels[known], level)
    return members


@dataclass(frozen=True)
class Interval:
    """An interval of each row, calibrated on the other half; infinite where a half has too few rows for the level."""

    low: Float[np.ndarray, " row"]
    high: Float[np.ndarray, " row"]

    @property
    def width(self) -> float:
        """Return the mean width."""
        return float((self.high - self.low).mean())

    def holds(self, targets: Float[np.ndarray, " row"]) -> Bool[np.ndarray, " row"]:
        """Return for each row whether the interval holds its target."""
        return (self.low <= targets) & (targets <= self.high)


def widened(
    low: Float[np.ndarray, " row"],
    centre: Float[np.ndarray, " row"],
    high: Float[np.ndarray, " row"],
    targets: Float[np.ndarray, " row"],
    level: float,
    rng: Seed,
) -> Interval:
    """Widen or narrow intervals by a factor with which they hold the targets of the other half.

    The mean width is sharpness at equal coverage: a posterior gains nothing from intervals that hold too few targets.

    Args:
        low, centre, high: see :func:`.conformal.widening`.
    """
    factor = np.empty(len(targets))
    for known, others in halves(len(targets), rng):
        factor[others] = conformal.widening(low[known], centre[known], high[known], targets[known], level)
    return Interval(centre - factor * (centre - low), centre + factor * (high - centre))


def moved(
    low: Float[np.ndarray, " row"],
    high: Float[np.ndarray, " row"],
    targets: Float[np.ndarray, " row"],
    level: float,
    rng: Seed,
) -> Interval:
    """Move both ends of intervals outwards by one distance for all rows of a half, by :func:`.conformal.cqr`."""
    outwards = np.empty(len(targets))
    for known, others in halves(len(targets), rng):
        outwards[others] = conformal.cqr(low[known], high[known], targets[known], level)
    return Interval(low - outwards, high + outwards)
