"""What a table is: its columns and their kinds, and what a reader should know before anything is fitted to it.

All rows are looked at, as a person would who opens the file; no number that a fit uses comes from here but counts of
rows, columns and categories, and whether the targets are so skewed that their logarithm is nearer to a bell.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bdl_pipe.data.encoding import ColumnKind
from bdl_pipe.data.raw import Task
from bdl_pipe.data.sources.table import CsvForm, open_table, sniffed
from bdl_pipe.errors import DataError, brief, short

FEWEST: Final = 50  # rows
_CLASSES: Final = 20  # whole numbers of more values than that are quantities
_IDENTIFIER: Final = 0.9  # the share of values of a column that differ, from which on it names rows
FEWEST_OF_CLASS: Final = 5  # fewer cannot be in training, validation and test rows
_SKEWED: Final = 2.0
_SAME: Final = 0.9999  # of a rank correlation
_LISTED: Final = 6


@dataclass(frozen=True)
class Look:
    """What was found.

    Attributes:
        form: how a CSV file is written.
        columns: the features that stay, and what each is.
        left_out: column -> why.
        remarks: what else a reader should know, a line each.
        classes: class -> rows, of classification.
        log: whether the targets are to be fitted as logarithms.
        width: how many numbers a network sees.
        without_target: rows that lack a target and are left out.
    """

    path: Path
    form: CsvForm
    task: Task
    targets: tuple[str, ...]
    rows: int
    columns: dict[str, ColumnKind]
    left_out: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    log: bool = False
    width: int = 0
    without_target: int = 0


def look(path: Path, targets: Sequence[str], task: Task | None, leave_out: Sequence[str], categories: int) -> Look:
    """Look at a table.

    Args:
        task: None: found by the target.
        leave_out: columns that are no features.
        categories: the most columns that a category becomes.

    Raises:
        DataError: it cannot be used, with the cure.
    """
    before = _stamp(path)
    form = sniffed(path)
    table = open_table(path, form)
    if _stamp(path) != before:
        raise DataError(f"{path}: changed while it was read; wait until it is whole")
    for name in (*targets, *leave_out):
        _require_column(table, name, path)
    whole = table.num_rows
    table = _with_targets(table, targets)
    if table.num_rows < FEWEST:
        raise DataError(f"{path}: must have at least {FEWEST} rows with a target, got {table.num_rows}")
    task = task or _task(table, targets)
    classes = _classes(table, targets, path) if task == "classification" else {}
    values = None if classes else _targets(table, targets, path)
    columns, left_out, remarks = dict[str, ColumnKind](), dict.fromkeys(leave_out, "as you said"), list[str]()
    widths = dict[str, int]()
    codes = dict[str, np.ndarray]()
    for name in table.column_names:
        if name in targets or name in left_out:
            continue
        kind, why, wide = _kind(table.column(name), categories)
        if kind is None:
            left_out[name] = why
            continue
        codes[name] = _numbers(table.column(name), kind)
        columns[name], widths[name] = kind, wide
    answer = _codes(table.column(targets[0]))[:, None] if values is None else values
    _find_copies(codes, columns, left_out, remarks)
    _find_leaks(codes, answer, columns, targets, remarks, path)
    if not columns:
        raise DataError(f"{path}: must have a column to predict from, got {_brief(left_out) or 'none'}")
    return Look(
        path=path,
        form=form,
        task=task,
        targets=tuple(targets),
        rows=table.num_rows,
        columns=columns,
        left_out=left_out,
        remarks=remarks,
        classes=classes,
        log=values is not None and _skewed(values),
        width=sum(widths[name] for name in columns),
        without_target=whole - table.num_rows,
    )


def _stamp(path: Path) -> tuple[int, int]:
    """Return what differs once a file is written to."""
    if not path.is_file():
        return 0, 0
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _require_column(table: pa.Table, name: str, path: Path) -> None:
    if name in table.column_names:
        return
    near = difflib.get_close_matches(name, table.column_names, 1)
    hint = f"; did you mean {short(near[0])}?" if near else ""
    raise DataError(f"{path}: must have the column {short(name)}, got {_brief(table.column_names)}{hint}")


def _brief(names: Any) -> str:
    listed = list(names)
    return brief(", ".join(listed[:_LISTED])) + (f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else "")


def _with_targets(table: pa.Table, targets: Sequence[str]) -> pa.Table:
    import pyarrow.compute as pc

    for name in targets:
        table = table.filter(pc.invert(pc.is_null(table.column(name), nan_is_null=True)))
    return table


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind)


def _task(table: pa.Table, targets: Sequence[str]) -> Task:
    """Several targets, fractions and many different whole numbers are quantities; all else are classes."""
    column = _plain(table.column(targets[0]))
    if len(targets) > 1 or (_is_number(column.type) and not pa.types.is_integer(column.type)):
        return "regression"
    return "regression" if _is_number(column.type) and len(column.unique()) > _CLASSES else "classification"


def _classes(table: pa.Table, targets: Sequence[str], path: Path) -> dict[str, int]:
    """Count the rows of each class.

    Raises:
        DataError: there are several targets, one class, or too few rows of one.
    """
    if len(targets) > 1:
        raise DataError(f"{path}: classification must have one target, got {_brief(targets)}")
    column = _plain(table.column(targets[0]))
    if pa.types.is_floating(column.type):
        column = column.cast(pa.int64())
    found = column.value_counts()
    counts = {str(pair["values"]): int(pair["counts"]) for pair in found.to_pylist()}
    name = short(targets[0])
    if len(counts) < 2:
        raise DataError(f"{path}: column {name} must have at least 2 classes, got only {_brief(counts)}")
    rare = [label for label, count in counts.items() if count < FEWEST_OF_CLASS]
    if len(counts) > _IDENTIFIER * table.num_rows:
        rule = "names rows rather than classes: nearly every row has a value of its own; choose another target"
        raise DataError(f"{path}: column {name} {rule}")
    if rare:
        rule = f"must have at least {FEWEST_OF_CLASS} rows of each class"
        cure = "put rare classes together, leave their rows out, or say --task regression"
        got = f"{len(rare)} with fewer: {_brief(rare)}"
        raise DataError(f"{path}: column {name} {rule}, got {got}; {cure}")
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def _targets(table: pa.Table, targets: Sequence[str], path: Path) -> np.ndarray:
    """Give the targets of regression [n, output].

    Raises:
        DataError: one is not a number, is not finite, does not vary, or counts the rows.
    """
    found = []
    for name in targets:
        column = _plain(table.column(name))
        if not _is_number(column.type):
            first = column[0].as_py()
            cure = "say --task classification, or write numbers with a point and without separators of thousands"
            raise DataError(f"{path}: column {short(name)} must be numeric, got {short(first)} in row 1; {cure}")
        values = column.cast(pa.float64()).to_numpy()
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise DataError(f"{path}: column {short(name)} must be finite, got {values[row]:g} in row {row + 1}")
        if np.ptp(values) == 0:
            raise DataError(f"{path}: column {short(name)} must vary, got {values[0]:g} in every row")
        if len(values) > 1 and (np.diff(values) == 1).all():
            raise DataError(f"{path}: column {short(name)} counts the rows; choose another target")
        found.append(values)
    return np.stack(found, axis=1)


def _kind(cells: pa.ChunkedArray, categories: int) -> tuple[ColumnKind | None, str, int]:
    """Say what a column is, or why it is left out, and how many numbers it becomes."""
    column, count = _plain(cells), len(cells)
    if column.null_count == count:
        return None, "it is empty", 0
    there = column.drop_null()
    different, gaps = len(there.unique()), int(column.null_count > 0)
    if different == 1 and not gaps:
        return None, "it has one value", 0
    if _is_text(column.type):
        if different > _IDENTIFIER * len(there) and different > categories:
            return None, "it names rows: nearly every one has a text of its own", 0
        return "category", "", min(different, categories) + gaps
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return "date", "", 5 + gaps
    if not _is_number(column.type):
        return None, f"it holds {brief(column.type)}", 0
    if pa.types.is_integer(column.type) and count > 2 and not gaps:
        values = column.to_numpy()
        if (np.diff(values) == 1).all():
            return None, "it counts the rows", 0
    return "number", "", 1 + gaps


def _numbers(cells: pa.ChunkedArray, kind: ColumnKind) -> np.ndarray:
    """Give a column as numbers that can be compared; NaN where it is empty."""
    column = _plain(cells)
    if kind == "number":
        values: np.ndarray = column.cast(pa.float64()).to_numpy().astype(np.float64)
        return values
    if kind == "date":
        moments: np.ndarray = column.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy().astype(np.float64)
        return moments
    return _codes(column)


def _codes(cells: pa.ChunkedArray) -> np.ndarray:
    """Give the place of each value among the different ones, in order."""
    column = _plain(cells)
    texts = column.cast(pa.string()).to_numpy()
    there = ~column.is_null().to_numpy()
    codes = np.full(len(texts), np.nan)
    codes[there] = np.unique(texts[there], return_inverse=True)[1]
    return codes


def _find_copies(
    codes: dict[str, np.ndarray], columns: dict[str, ColumnKind], left_out: dict[str, str], remarks: list[str]
) -> None:
    """Leave out columns that are equal to an earlier one, and name those that are nearly so."""
    seen = dict[bytes, str]()
    for name in list(columns):
        mark = codes[name].tobytes()
        if mark in seen:
            left_out[name] = f"it is equal to {seen[mark]}"
            del columns[name]
        seen.setdefault(mark, name)
    ranks = {name: _ranks(codes[name]) for name, kind in columns.items() if kind == "number"}
    names = list(ranks)
    if len(names) < 2:
        return
    table = np.stack(list(ranks.values()))
    correlation = np.abs(table @ table.T)
    for i, j in np.argwhere(np.triu(correlation, 1) > _SAME):
        remarks.append(f"{names[j]} has the order of {names[i]}: one of the two would do")


def _ranks(values: np.ndarray) -> np.ndarray:
    """Give ranks of mean 0 and norm 1; 0 for empty cells."""
    from scipy.stats import rankdata

    gaps = np.isnan(values)
    ranks = np.zeros(len(values))
    ranks[~gaps] = rankdata(values[~gaps])
    ranks[~gaps] -= ranks[~gaps].mean() if (~gaps).any() else 0
    return ranks / max(float(np.linalg.norm(ranks)), 1e-300)


def _find_leaks(
    codes: dict[str, np.ndarray],
    targets: np.ndarray,
    columns: dict[str, ColumnKind],
    names: Sequence[str],
    remarks: list[str],
    path: Path,
) -> None:
    """Refuse a feature that is the target, and name those from which it can be read.

    Raises:
        DataError: a column is equal to the target, or to it under other names.
    """
    for target, values in zip(names, targets.T, strict=True):
        ranks = _ranks(values)
        for name in columns:
            found = codes[name]
            if np.array_equal(found, values) or _same_partition(found, values):
                cure = f"leave it out with --leave-out {name}, or choose another target"
                raise DataError(f"{path}: column {short(name)} is the target {short(target)} once more; {cure}")
            if columns[name] == "number" and abs(float(_ranks(found) @ ranks)) > _SAME:
                remarks.append(f"{name} has the order of the target {target}: is it known when you predict?")


def _same_partition(first: np.ndarray, second: np.ndarray) -> bool:
    """Tell whether two columns of few values divide the rows alike."""
    if np.isnan(first).any():
        return False
    counts = [len(np.unique(column)) for column in (first, second)]
    if counts[0] != counts[1] or counts[0] > _CLASSES:
        return False
    return len(np.unique(np.stack([first, second]), axis=1).T) == counts[0]


def _skewed(values: np.ndarray) -> bool:
    """Tell whether all outputs are positive and skewed, and less so as logarithms."""
    from scipy.stats import skew

    if not (values > 0).all():
        return False
    plain, logs = np.abs(skew(values, axis=0)), np.abs(skew(np.log(values), axis=0))
    return bool(((plain > _SKEWED) & (logs < plain / 2)).all())
