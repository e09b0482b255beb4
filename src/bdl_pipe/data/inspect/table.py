"""Inspect a user's table: its columns, their kinds, and what would spoil a fit.

All rows are read. A fit uses only these results: counts of rows, columns and categories, and the kinds of the columns.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from ...errors import DataError, brief, short
from ..encoding import ColumnKind
from ..raw import Task, checked, encode_labels
from ..sources.cells import Cells, is_index
from ..sources.columns import codes_of, describe, labels_of
from ..sources.table import Table, open_table, sniffed, table_rows, with_targets
from . import leaks
from .cells import refusal
from .cells import remarks as cell_remarks
from .profile import FEWEST, FEWEST_OF_CLASS, Profile, listed

_CLASSES: Final = 20  # Whole numbers with more values than this are quantities.
_CATEGORIES: Final = 20  # A category becomes at most this many columns.
_IDENTIFIER: Final = 0.9  # A column with at least this share of different values names rows.
_INDEX: Final = "it is the index of a table; give it a name of its own to use it"


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
    table = with_targets(table, targets, str(path))
    if table.num_rows < FEWEST:
        raise DataError(f"{path}: must have at least {FEWEST} rows with a target, got {table.num_rows}")
    answers = [Cells.of(table, name, str(path)) for name in targets]
    for cells in answers:
        _require_target(cells)
    task = task or _task(answers)
    remarks = [remark for cells in answers for remark in cell_remarks(cells)]
    if task == "classification":
        labels, classes = _classes(answers, table.num_rows)
        values = labels[:, None].astype(np.float64)
    else:
        values, classes = _targets(answers), dict[str, int]()
    columns, left_out = dict[str, ColumnKind](), dict.fromkeys(leave_out, "as you said")
    codes, widths = dict[str, np.ndarray](), dict[str, int]()
    for name in table.column_names:
        if name in targets or name in left_out:
            continue
        cells = Cells.of(table, name, str(path))
        kind, why = (None, _INDEX) if is_index(table, name) else _kind(cells)
        if kind is None:
            left_out[name] = why
            continue
        described = describe(cells, kind, _CATEGORIES)
        columns[name], widths[name], codes[name] = kind, described.width, codes_of(cells, described)
        remarks += cell_remarks(cells)
    left_out |= leaks.copies(codes)
    columns = {name: kind for name, kind in columns.items() if name not in left_out}
    ranks = {name: leaks.ranked(codes[name]) for name, kind in columns.items() if kind == "number"}
    remarks += leaks.same_orders(ranks)
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
    del codes, ranks  # The rows take their memory.
    return Profile(
        source,
        checked(table_rows(table, source)),
        table.num_rows,
        (sum(widths[name] for name in columns),),
        classes,
        remarks,
        left_out=left_out,
        without_target=all_rows - table.num_rows,
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


def _require_target(cells: Cells) -> None:
    """Raise DataError for a target that is neither numbers nor classes."""
    if cells.kind in ("date", "other"):
        what = "dates" if cells.kind == "date" else brief(cells.values.type)
        rule = "must be numbers or classes to be predicted"
        cure = "choose another target, or write it as numbers, such as days since 2000"
        raise DataError(f"{cells.origin}: column {short(cells.name)} {rule}, got {what}; {cure}")


def _task(answers: Sequence[Cells]) -> Task:
    """Return the task: several targets, fractions and many different whole numbers are quantities, others classes."""
    if len(answers) > 1:
        return "regression"
    if answers[0].kind != "number" or answers[0].is_rounded:
        return "classification"
    different = np.unique(answers[0].numbers())
    return "regression" if len(different) > _CLASSES or (different % 1 != 0).any() else "classification"


def _classes(answers: Sequence[Cells], rows: int) -> tuple[np.ndarray, dict[str, int]]:
    """Return the labels [n], and the rows of each class, the largest first.

    Raises:
        DataError: there are several targets, a label is a fraction, there is only one class, or a class has too few
            rows.
    """
    cells = answers[0]
    if len(answers) > 1:
        names = listed([each.name for each in answers], 6)
        raise DataError(f"{cells.origin}: classification must have one target, got {names}")
    labels, classes = encode_labels(labels_of(cells), cells.origin, cells.name)
    counts = dict(zip(classes, np.bincount(labels, minlength=len(classes)).tolist(), strict=True))
    column = f"{cells.origin}: column {short(cells.name)}"
    if len(counts) < 2:
        raise DataError(f"{column} must have at least 2 classes, got only {listed(counts, 6)}")
    if len(counts) > _IDENTIFIER * rows:
        rule = "names rows rather than classes: nearly every row has a value of its own; choose another target"
        raise DataError(f"{column} {rule}")
    rare = [label for label, count in counts.items() if count < FEWEST_OF_CLASS]
    if rare:
        rule = f"must have at least {FEWEST_OF_CLASS} rows of each class"
        cure = "put rare classes together, leave their rows out, or say --task regression"
        got = f"{len(rare)} with fewer: {listed(rare, 6)}"
        raise DataError(f"{column} {rule}, got {got}; {cure}")
    return labels, dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def _targets(answers: Sequence[Cells]) -> np.ndarray:
    """Return the targets of regression [n, output].

    Raises:
        DataError: a target is not a number, is not finite, does not vary, or counts the rows.
    """
    outputs = []
    for cells in answers:
        column = f"{cells.origin}: column {short(cells.name)}"
        if cells.kind == "text" or cells.kind == "truth":
            cure = "say --task classification, or write numbers with a point and without separators of thousands"
            raise DataError(f"{column} must be numeric, got {short(cells.texts()[0].as_py())} in row 1; {cure}")
        values = cells.numbers()
        if np.ptp(values) == 0:
            raise DataError(f"{column} must vary, got {values[0]:g} in every row")
        if len(values) > 1 and (np.diff(values) == 1).all():
            raise DataError(f"{column} counts the rows; choose another target")
        outputs.append(values)
    return np.stack(outputs, axis=1)


def _kind(cells: Cells) -> tuple[ColumnKind | None, str]:
    """Return a feature's kind, or None and why it is left out."""
    if cells.kind == "empty":
        return None, "it is empty"
    if why := refusal(cells):
        return None, why
    texts = cells.kind in ("text", "truth")
    values = cells.texts() if texts else pa.chunked_array([cells.days() if cells.kind == "date" else cells.numbers()])
    filled = values.drop_null() if texts else values.filter(pa.array(~cells.missing()))
    different = len(filled.unique())
    if different == 1 and len(filled) == len(values):
        return None, "it has one value"
    if texts:
        if different > _IDENTIFIER * len(filled) and different > _CATEGORIES:
            return None, "it names rows: nearly every one has a text of its own"
        return "category", ""
    if cells.kind == "date":
        return "date", ""
    if len(filled) == len(values) > 2 and (np.diff(filled.to_numpy()) == 1).all():
        return None, "it counts the rows"
    return "number", ""
