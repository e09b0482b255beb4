"""Inspect a user's table: its columns, their kinds, and what would spoil a fit.

All rows are read. A fit uses only these results: counts of rows, columns and categories, the kinds of the columns, and
whether the targets are so skewed that their logarithms are fitted.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from ...errors import DataError, brief, short
from ..encoding import ColumnKind
from ..raw import Task
from ..sources.table import Table, open_table, sniffed
from . import leaks
from .profile import FEWEST, FEWEST_OF_CLASS, Profile, listed

_CLASSES: Final = 20  # Whole numbers with more values than this are quantities.
_CATEGORIES: Final = 20  # A category becomes at most this many columns.
_IDENTIFIER: Final = 0.9  # A column with at least this share of different values names rows.
_SKEWED: Final = 2.0


def inspect_table(
    path: Path, targets: Sequence[str], task: Task | None = None, leave_out: Sequence[str] = ()
) -> Profile:
    """Inspect a CSV or Parquet file.

    Args:
        targets: the columns that are predicted.
        task: None: the targets decide.
        leave_out: columns that are no features.

    Raises:
        DataError: the table cannot be used; the message names the cure.
    """
    before = _stamp(path)
    form = sniffed(path)
    table = open_table(path, form)
    if _stamp(path) != before:
        raise DataError(f"{path}: changed while it was read; wait until it is whole")
    for name in (*targets, *leave_out):
        _require_column(table, name, path)
    all_rows = table.num_rows
    table = _with_targets(table, targets)
    if table.num_rows < FEWEST:
        raise DataError(f"{path}: must have at least {FEWEST} rows with a target, got {table.num_rows}")
    task = task or _task(table, targets)
    classes = _classes(table, targets, path) if task == "classification" else {}
    values = _codes(table.column(targets[0]))[:, None] if classes else _targets(table, targets, path)
    columns, left_out = dict[str, ColumnKind](), dict.fromkeys(leave_out, "as you said")
    codes, widths = dict[str, np.ndarray](), dict[str, int]()
    for name in table.column_names:
        if name in targets or name in left_out:
            continue
        kind, why, widths[name] = _kind(table.column(name))
        if kind is None:
            left_out[name] = why
        else:
            columns[name], codes[name] = kind, _numbers(table.column(name), kind)
    left_out |= leaks.copies(codes)
    columns = {name: kind for name, kind in columns.items() if name not in left_out}
    ranks = {name: leaks.ranked(codes[name]) for name, kind in columns.items() if kind == "number"}
    remarks = leaks.same_orders(ranks)
    for target, answer in zip(targets, values.T, strict=True):
        for name in columns:
            leaks.require_no_leak(name, codes[name], target, answer, path)
        remarks += leaks.orders_of_target(ranks, target, leaks.ranked(answer))
    if not columns:
        raise DataError(f"{path}: must have a column to predict from, got {listed(left_out, 6) or 'none'}")
    source = Table(
        str(path),
        tuple(targets),
        task,
        columns=columns,
        categories=_CATEGORIES,
        csv=form,
        skip_without_target=table.num_rows < all_rows,
    )
    return Profile(
        source,
        table.num_rows,
        (sum(widths[name] for name in columns),),
        classes,
        remarks,
        left_out=left_out,
        without_target=all_rows - table.num_rows,
        is_skewed=not classes and _skewed(values),
    )


def _stamp(path: Path) -> tuple[int, int]:
    """Return a file's length and time of change, which differ once a program has written to it."""
    if not path.is_file():
        return 0, 0
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _require_column(table: pa.Table, name: str, path: Path) -> None:
    if name in table.column_names:
        return
    near = difflib.get_close_matches(name, table.column_names, 1)
    hint = f"; did you mean {short(near[0])}?" if near else ""
    raise DataError(f"{path}: must have the column {short(name)}, got {listed(table.column_names, 6)}{hint}")


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
    """Return the task: several targets, fractions and many different whole numbers are quantities, others classes."""
    column = _plain(table.column(targets[0]))
    if len(targets) > 1 or (_is_number(column.type) and not pa.types.is_integer(column.type)):
        return "regression"
    return "regression" if _is_number(column.type) and len(column.unique()) > _CLASSES else "classification"


def _classes(table: pa.Table, targets: Sequence[str], path: Path) -> dict[str, int]:
    """Count the rows of each class.

    Raises:
        DataError: there are several targets, there is only one class, or a class has too few rows.
    """
    if len(targets) > 1:
        raise DataError(f"{path}: classification must have one target, got {listed(targets, 6)}")
    column = _plain(table.column(targets[0]))
    if pa.types.is_floating(column.type):
        column = column.cast(pa.int64())
    pairs = column.value_counts().to_pylist()
    counts = {str(pair["values"]): int(pair["counts"]) for pair in pairs}
    name = short(targets[0])
    if len(counts) < 2:
        raise DataError(f"{path}: column {name} must have at least 2 classes, got only {listed(counts, 6)}")
    rare = [label for label, count in counts.items() if count < FEWEST_OF_CLASS]
    if len(counts) > _IDENTIFIER * table.num_rows:
        rule = "names rows rather than classes: nearly every row has a value of its own; choose another target"
        raise DataError(f"{path}: column {name} {rule}")
    if rare:
        rule = f"must have at least {FEWEST_OF_CLASS} rows of each class"
        cure = "put rare classes together, leave their rows out, or say --task regression"
        got = f"{len(rare)} with fewer: {listed(rare, 6)}"
        raise DataError(f"{path}: column {name} {rule}, got {got}; {cure}")
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def _targets(table: pa.Table, targets: Sequence[str], path: Path) -> np.ndarray:
    """Return the targets of regression [n, output].

    Raises:
        DataError: a target is not a number, is not finite, does not vary, or counts the rows.
    """
    outputs = []
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
        outputs.append(values)
    return np.stack(outputs, axis=1)


def _kind(cells: pa.ChunkedArray) -> tuple[ColumnKind | None, str, int]:
    """Return a column's kind and how many numbers it becomes, or None and why it is left out."""
    column, count = _plain(cells), len(cells)
    if column.null_count == count:
        return None, "it is empty", 0
    filled = column.drop_null()
    different, gaps = len(filled.unique()), int(column.null_count > 0)
    if different == 1 and not gaps:
        return None, "it has one value", 0
    if _is_text(column.type):
        if different > _IDENTIFIER * len(filled) and different > _CATEGORIES:
            return None, "it names rows: nearly every one has a text of its own", 0
        return "category", "", min(different, _CATEGORIES) + gaps
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return "date", "", 5 + gaps
    if not _is_number(column.type):
        return None, f"it holds {brief(column.type)}", 0
    if pa.types.is_integer(column.type) and count > 2 and not gaps and (np.diff(column.to_numpy()) == 1).all():
        return None, "it counts the rows", 0
    return "number", "", 1 + gaps


def _numbers(cells: pa.ChunkedArray, kind: ColumnKind) -> np.ndarray:
    """Return a column as numbers that can be compared; NaN where it is empty."""
    column = _plain(cells)
    if kind == "category":
        return _codes(column)
    if kind == "date":
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
    values: np.ndarray = column.cast(pa.float64()).to_numpy().astype(np.float64)
    return values


def _codes(cells: pa.ChunkedArray) -> np.ndarray:
    """Return the rank of each value among the different values; NaN where the column is empty."""
    column = _plain(cells)
    texts = column.cast(pa.string()).to_numpy()
    filled = ~column.is_null().to_numpy()
    codes = np.full(len(texts), np.nan)
    codes[filled] = np.unique(texts[filled], return_inverse=True)[1]
    return codes


def _skewed(values: np.ndarray) -> bool:
    """Return True if all outputs are positive and skewed, and less so as logarithms."""
    from scipy.stats import skew

    if not (values > 0).all():
        return False
    plain, logs = np.abs(skew(values, axis=0)), np.abs(skew(np.log(values), axis=0))
    return bool(((plain > _SKEWED) & (logs < plain / 2)).all())
