"""Columns that repeat another column, or from which the target can be read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ...errors import DataError, short

_VALUES: Final = 20  # a column with more different values is not a column of classes
_COPIES: Final = 0.01  # the least share of repeated rows that gives a remark
_SAME_ORDER: Final = 0.9999  # A rank correlation above this means the same order.
_NAMED: Final = 5  # the most pairs of columns to name
_ROWS_OF_VALUE: Final = 5  # from this mean number of rows on, it is no chance that each value has one target


def copies(codes: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the columns that equal an earlier column, or one with a name, each with the reason for leaving it out."""
    first, reasons = dict[bytes, str](), dict[str, str]()
    for name, values in sorted(codes.items(), key=lambda item: not item[0]):  # a column without a name is last
        original = first.setdefault((values + 0.0).tobytes(), name)  # −0 is 0
        if original != name:
            reasons[name] = f"it is equal to {original}"
    return reasons


def repeated_rows(columns: Sequence[np.ndarray]) -> list[str]:
    """Return a remark if many rows equal another row in all these columns."""
    keys = np.zeros(len(columns[0]), np.uint64)
    for values in columns:
        keys = (keys ^ (values.astype(np.float64) + 0.0).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    copies = len(keys) - len(np.unique(keys))
    if copies < _COPIES * len(keys):
        return []
    said = f"{copies:,} rows are copies of others" if copies > 1 else "1 row is a copy of another"
    return [f"{said}; training and test rows may share {'them' if copies > 1 else 'it'}"]


def ranked(values: np.ndarray) -> np.ndarray:
    """Return ranks scaled to mean 0 and norm 1; 0 for empty cells."""
    from scipy.stats import rankdata

    gaps = np.isnan(values)
    ranks = np.zeros(len(values))
    ranks[~gaps] = rankdata(values[~gaps])
    ranks[~gaps] -= ranks[~gaps].mean() if (~gaps).any() else 0
    return ranks / max(float(np.linalg.norm(ranks)), 1e-300)


def same_orders(ranks: Mapping[str, np.ndarray]) -> list[str]:
    """Return a remark for each pair of features with the same order of rows."""
    names = list(ranks)
    if len(names) < 2:
        return []
    table = np.stack(list(ranks.values()))
    pairs = np.argwhere(np.triu(np.abs(table @ table.T), 1) > _SAME_ORDER)
    said = [f"{names[j]} orders the rows as {names[i]} does: one of the two is enough" for i, j in pairs[:_NAMED]]
    more = len(pairs) - len(said)
    return [*said, f"{more:,} more pairs of columns order the rows alike"] if more else said


def orders_of_target(ranks: Mapping[str, np.ndarray], target: str, answer: np.ndarray) -> list[str]:
    """Return a remark for each feature that orders the rows like the target."""
    names = [name for name, values in ranks.items() if _have_one_order(values, answer)]
    return [f"{name} orders the rows as the target {target} does: is it known when you predict?" for name in names]


def fixed_targets(codes: Mapping[str, np.ndarray], target: str, answer: np.ndarray) -> list[str]:
    """Return a remark for each feature whose gaps tell the target, or whose values each have one target.

    The values of an identifier of a group, such as a patient, often have one target each; training and test rows then
    share groups.
    """
    said = []
    targets, of_row = np.unique(answer, return_inverse=True)
    for name, values in codes.items():
        gaps = np.isnan(values)
        empty, filled = of_row[gaps], of_row[~gaps]
        if len(targets) <= _VALUES and min(len(empty), len(filled)) >= _ROWS_OF_VALUE and not {*empty} & {*filled}:
            said.append(f"{name} is empty for some values of {target} and for no other: is it known when you predict?")
        different, places = np.unique(values[~gaps], return_inverse=True)
        if not 1 < len(different) <= len(places) / _ROWS_OF_VALUE or np.ptp(filled) == 0:
            continue
        if len(np.unique(places * len(targets) + filled)) == len(different):
            groups = "is it known when you predict? If it names groups of rows, training and test rows share them"
            said.append(f"each value of {name} has one {target}: {groups}")
    return said


def require_no_leak(name: str, values: np.ndarray, target: str, answer: np.ndarray, path: Path) -> None:
    """Raise DataError if a feature is equal to the target, or has the target's classes under other names."""
    there = ~np.isnan(values)
    if 2 * there.sum() < len(values):
        return
    if np.array_equal(values[there], answer[there]) or _same_partition(values[there], answer[there]):
        cure = f"leave it out with --leave-out {name}, or choose another target"
        raise DataError(f"{path}: column {short(name)} repeats the target {short(target)}; {cure}")


def _have_one_order(ranks: np.ndarray, answer: np.ndarray) -> bool:
    """Return True if at least half of the rows have the feature, and it orders them like the target."""
    there = ranks != 0
    if there.all() or 2 * there.sum() < len(ranks):
        return abs(float(ranks @ answer)) > _SAME_ORDER
    return abs(float(ranked(ranks[there]) @ ranked(answer[there]))) > _SAME_ORDER


def _same_partition(first: np.ndarray, second: np.ndarray) -> bool:
    """Return True if two columns with few values divide the rows into the same groups."""
    counts = [len(np.unique(column)) for column in (first, second)]
    if counts[0] != counts[1] or counts[0] > _VALUES:
        return False
    return len(np.unique(np.stack([first, second]), axis=1).T) == counts[0]
