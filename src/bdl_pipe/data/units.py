"""Splits of rows that belong together: the rows of a group, or the rows of a date.

``units`` [n] are whole numbers: equal ones belong to one group or to one date, and larger dates are later. No split
divides the rows of a unit. Groups are drawn at random; dates are cut in their order, so that held-out rows are the
latest.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np
import torch

from ..errors import DataError
from ..seeds import Seed

_DRAWS: Final = 100  # of a split's test groups, until they are not those of an earlier split


def splits_of(
    units: np.ndarray, splits: int, share: float, origin: str, *, ordered: bool, rng: Seed
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (training rows, test rows) of each split; training rows are in random order.

    Groups: each split draws its own test groups, again if an earlier split tests the same ones. Dates: split 0 tests
    the latest rows, split 1 the rows before these, and so on, and each trains on all earlier rows: the expanding window
    of scikit-learn's ``TimeSeriesSplit`` with ``test_size``, its last split first, so that more splits keep the first
    ones. Later splits have fewer training rows.

    Args:
        share: the share of rows of each test.

    Raises:
        DataError: there are too few groups or dates.
    """
    count = len(units) - round((1 - share) * len(units))
    left, tested = np.arange(len(units)), set[bytes]()
    for split in range(splits):
        at = rng.fold("split", split)
        for draw in range(_DRAWS):
            address = at.fold("draw", draw) if draw else at
            train, test = (left[rows] for rows in held(units[left], count, origin, ordered=ordered, rng=address))
            if test.tobytes() not in tested:
                break
        else:
            rule = f"must be at most {split} (--splits {split} of add), as each split must test other groups"
            got = f"got {splits} splits and {len(np.unique(units))} groups"
            raise DataError(f"{origin}: splits {rule}, {got}")
        tested.add(test.tobytes())
        yield at.fold("order").numpy().permutation(train), test
        left = train if ordered else left


def most_splits(units: np.ndarray, splits: int, share: float, *, rng: Seed) -> int:
    """Return how many of ``splits`` splits by groups :func:`splits_of` can draw; all if there are too few groups."""
    drawn = 0
    with suppress(DataError):
        for _ in splits_of(units, splits, share, "", ordered=False, rng=rng):
            drawn += 1
    return drawn or splits


def held(units: np.ndarray, count: int, origin: str, *, ordered: bool, rng: Seed) -> tuple[np.ndarray, np.ndarray]:
    """Return (the rest, about ``count`` held-out rows), each in order; both have a unit.

    Dates: the latest rows, cut at the border between two dates that is nearest to ``count`` rows. Groups: in an order
    drawn from ``rng``, each group is held out if that brings the number of rows nearer to ``count``; so a group with
    more than twice as many rows is held out only if no group is smaller (scikit-learn's ``GroupShuffleSplit`` counts
    groups and not rows).

    Raises:
        DataError: there is only one unit.
    """
    different, of_row, sizes = np.unique(units, return_inverse=True, return_counts=True)
    if len(different) < 2:
        what = "dates" if ordered else "groups"
        rule = f"must have more {what}: training, validation, calibration and test rows of each split share none"
        raise DataError(f"{origin}: split_by {rule}, got only 1 for two of these")
    out = np.zeros(len(different), bool)
    if ordered:
        rest = np.cumsum(sizes)[:-1]  # the number of rows before each border
        out[1 + int(np.argmin(np.abs(rest - (len(units) - count)))) :] = True
    else:
        order, total = rng.numpy().permutation(len(different)), 0
        for group in order:
            if abs(total + sizes[group] - count) < abs(total - count):
                out[group], total = True, total + sizes[group]
        if not out.any() or out.all():
            out = np.arange(len(different)) == order[np.argmin(sizes[order])]
    chosen = out[of_row.reshape(-1)]
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def folds(units: np.ndarray, count: int, *, ordered: bool, rng: Seed) -> np.ndarray:
    """Return the fold of each row for a cross-validation by :func:`left_out`; a unit is in one fold.

    Groups, in a drawn order, each go to the smallest of ``count`` folds, or of as many folds as there are groups.
    Dates are cut into ``count`` + 1 consecutive folds of about equally many rows; fold 0 is never predicted.
    """
    different, of_row, sizes = np.unique(units, return_inverse=True, return_counts=True)
    if ordered:
        middles = np.cumsum(sizes) - sizes / 2
        places = np.minimum(middles * (count + 1) // len(units), count)
        places = np.unique(places, return_inverse=True)[1]  # a long date may leave a fold empty
    else:
        places, totals = np.empty(len(different), int), np.zeros(min(count, len(different)), int)
        for group in rng.numpy().permutation(len(different)):
            places[group] = np.argmin(totals)
            totals[places[group]] += sizes[group]
    return places.astype(int)[of_row.reshape(-1)]


def folds_of(
    units: np.ndarray | None, rows: int, labels: np.ndarray | None, count: int, *, ordered: bool, rng: Seed
) -> np.ndarray:
    """Return the fold of each of ``rows`` rows for a cross-validation by :func:`left_out`, also of rows without units.

    Independent rows go to the folds at random, those of each class about equally often, and there is no fold for fewer
    than two rows.

    Args:
        labels: the class of each row; None for regression.
    """
    if units is not None:
        return folds(units, count, ordered=ordered, rng=rng)
    random = torch.rand(rows, generator=rng.generator(), dtype=torch.float64).numpy()
    order = np.lexsort((random, np.zeros(rows) if labels is None else labels))
    of_row = np.empty(rows, dtype=int)
    of_row[order] = np.arange(rows) % min(count, max(2, rows // 2))
    return of_row


def left_out(folds: np.ndarray, *, ordered: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (rows to fit, rows to predict) for each fold: all other folds, or if ``ordered`` all earlier folds."""
    for fold in range(int(ordered), int(folds.max()) + 1):
        yield np.flatnonzero(folds < fold if ordered else folds != fold), np.flatnonzero(folds == fold)
