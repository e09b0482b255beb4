"""Inspection of a user's table: its columns, their kinds, and problems that would spoil a fit.

All rows are read. A fit uses only these results: the counts of rows, columns and categories, and the kinds of columns.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ConfigError, DataError, brief, short
from ..examples import Examples
from ..raw import Raw, Task, checked, encode_labels
from ..sources.table import SplitBy, Table, with_targets
from ..tables import kinds, lint
from ..tables.cells import Cells
from ..tables.columns import labels_of
from ..tables.forms import WHOLE, are_all, grouped_once, listed, require_column
from ..tables.read import CsvForm, Decimal, Thousands, is_parquet, open_table, sniffed
from . import leaks
from .profile import FEWEST, FEWEST_OF_CLASS, Profile


def inspect_table(
    path: Path,
    targets: Sequence[str],
    task: Task | None = None,
    leave_out: Sequence[str] = (),
    *,
    decimal: Decimal | None = None,
    thousands: Thousands | None = None,
    split_by: SplitBy | None = None,
) -> Profile:
    """Inspect a CSV or Parquet file.

    Args:
        targets: the columns to predict.
        task: the task. None: it follows from the targets.
        leave_out: columns that must not be features.
        decimal: the decimal point of a CSV file. None: it follows from the cells, if they leave no doubt.
        thousands: the separator of thousands of a CSV file. None: its numbers have none.
        split_by: the column that says which rows belong together. A column of groups is no feature.

    Raises:
        DataError: the table cannot be used; the message names the cure.
    """
    origin, before = str(path), _stamp(path)
    form = _form(path, decimal, thousands)
    table = open_table(path, form)
    if _stamp(path) != before:
        raise DataError(f"{path}: changed while it was read; wait until it is whole")
    targets = [require_column(table, name, origin) for name in targets]
    leave_out = [require_column(table, name, origin) for name in leave_out]
    if both := [name for name in leave_out if name in targets]:
        raise DataError(f"--leave-out: must not name the target {short(both[0])}")
    if decimal is None and thousands is None:
        _require_clear_numbers(table, form, path)
    all_rows = table.num_rows
    table = with_targets(table, targets, origin)
    if table.num_rows < FEWEST:
        raise DataError(f"{path}: must have at least {FEWEST} rows with a target, got {table.num_rows}")
    answers = [Cells.of(table, name, origin) for name in targets]
    for cells in answers:
        if cells.kind in ("date", "other"):
            what = "dates" if cells.kind == "date" else brief(cells.values.type)
            rule = f"must be numbers or classes to be predicted, got {what}"
            cure = "choose another target, or write it as numbers, such as days since 2000"
            raise DataError(f"{path}: column {short(cells.name)} {rule}; {cure}")
    task = task or kinds.task_of(answers)
    remarks = [remark for cells in answers for remark in lint.of_cells(cells)]
    if task == "classification":
        values, classes = _classes(answers, table.num_rows)
        counts = dict(zip(classes, np.bincount(values, minlength=len(classes)).tolist(), strict=True))
        if answers[0].kind == "text" and (why := kinds.refusal(answers[0])):
            remarks.append(f"{targets[0]}: {why}; now they are read as classes")
    else:
        values, classes, counts = _targets(answers), (), {}
        remarks += lint.of_targets(targets, values)
    by, units = split_by, None
    if by is not None:
        name = require_column(table, by.column, origin)
        if name in targets:
            raise DataError(f"--split-by: must not name the target {short(name)}")
        units = by.units(Cells.of(table, name, origin))
        leave_out = [*leave_out, name] if by.group is not None else leave_out
    if form.encoding != "utf-8" and (text := _foreign(table)):
        rule = f"its texts are no UTF-8 and are read as {form.encoding}, such as {short(text)}"
        remarks.append(f"{path.name}: {rule}; if they look wrong, save it as UTF-8: iconv -f ENCODING -t UTF-8")
    rest = [name for name in table.column_names if name not in targets]
    features = kinds.features_of(table, rest, origin, leave_out=leave_out, rows=all_rows, remarks=lint.of_cells)
    remarks += [*lint.of_table(table, form.separator), *features.remarks]
    outputs = values.reshape(len(values), -1).astype(np.float64).T
    answers_by_name = dict(zip(targets, outputs, strict=True))
    remarks += lint.of_rows(features, answers_by_name, path)
    doubts = leaks.doubts(features, answers_by_name, path, classes=task == "classification", split=by is not None)
    named = {line.partition(" ")[0] for line in remarks}
    remarks += [line for line in doubts if " nearly determines " not in line or line.partition(" ")[0] not in named]
    source = Table(
        origin,
        tuple(targets),
        task,
        columns=features.kinds,
        categories=kinds.CATEGORIES,
        csv=form,
        skip_without_target=table.num_rows < all_rows,
        split_by=by,
    )
    names, rows = tuple(features.kinds), Examples(features.matrix(), values, units)
    ordered = by is not None and by.date is not None
    raw = checked(Raw(origin, task, "table", rows, None, classes, names, source.target, features.columns, ordered))
    return Profile(
        source,
        raw,
        table.num_rows,
        (features.width,),
        dict(sorted(counts.items(), key=lambda pair: -pair[1])),
        remarks,
        left_out=features.left_out,
        without_target=all_rows - table.num_rows,
    )


def _form(path: Path, decimal: Decimal | None, thousands: Thousands | None) -> CsvForm:
    """Return the format of a CSV file, with the user's decimal point and separator of thousands."""
    form = sniffed(path)
    if decimal is None and thousands is None:
        return form
    if is_parquet(path):
        raise DataError(f"{path}: is a Parquet file, whose numbers have a type; leave out --decimal and --thousands")
    other: Decimal = "," if thousands == "." else "." if thousands == "," else form.decimal
    try:
        return replace(form, decimal=decimal or other, thousands=thousands or "")
    except ConfigError as error:
        raise DataError(f"--{error.path}: {error.rule}, got {error.value!r}") from None


def _require_clear_numbers(table: pa.Table, form: CsvForm, path: Path) -> None:
    """Raise DataError if a column may be wrong by a factor of 1,000 and no column tells what its points mean.

    In a file between semicolons, ``4,923`` may be 4.923 or 4923. It is the first if another number of the file has
    a different number of decimals, or a whole number of the same column has four digits without a separator.
    """
    if form.separator == "," or is_parquet(path):
        return
    point, doubtful = form.decimal, None
    for name in table.column_names:
        cells = Cells.of(table, name, str(path))
        if not cells.is_text or cells.kind != "number":
            continue
        pointed = pc.match_substring(cells.filled, point)
        shared, rest = cells.filled.filter(pointed), cells.filled.filter(pc.invert(pointed))
        if not len(shared):
            continue
        if not are_all(shared, grouped_once(point)):
            return
        whole = rest.filter(pc.match_substring_regex(rest, WHOLE))
        small = are_all(whole, r"^[+-]?[0-9]{1,3}$") if len(whole) else point == ","  # programs write three decimals
        if small and doubtful is None:
            doubtful = name, str(shared[0].as_py())
    if doubtful:
        name, text = doubtful
        rule = f"{text} may be {text.replace(point, '.')} or {text.replace(point, '')}"
        cure = f"say which with --decimal {point} or --thousands {point}"
        raise DataError(f"{path}: column {short(name)}: {rule}; {cure}")


def _foreign(table: pa.Table) -> str:
    """Return the first name or text that has a character outside ASCII."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        texts = pa.chunked_array([[name], *column.chunks], pa.string())
        if len(foreign := texts.filter(pc.invert(pc.fill_null(pc.string_is_ascii(texts), True)))):
            return str(foreign[0].as_py())
    return ""


def _stamp(path: Path) -> tuple[int, int]:
    """Return a file's length and time of change, which differ after a program has written to it."""
    if not path.is_file():
        return 0, 0
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _classes(answers: Sequence[Cells], rows: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the labels [n] and the classes' names.

    Raises:
        DataError: there are several targets, a label is a fraction, there is only one class, or a class has too few
            rows.
    """
    cells = answers[0]
    if len(answers) > 1:
        names = listed([each.name for each in answers], 6)
        raise DataError(f"{cells.origin}: classification must have one target, got {names}")
    labels, classes = encode_labels(labels_of(cells), cells.origin, cells.name)
    column = f"{cells.origin}: column {short(cells.name)}"
    if len(classes) < 2:
        raise DataError(f"{column} must have at least 2 classes, got only {listed(classes, 6)}")
    counts = np.bincount(labels, minlength=len(classes))
    rare = [name for name, count in zip(classes, counts, strict=True) if count < FEWEST_OF_CLASS]
    why = kinds.refusal(cells) if rare else ""
    if rare and not why and cells.kind == "text":
        why = kinds.amounts(cells.filled) or kinds.mixed_dates(cells)
    if why:
        raise DataError(f"{column} must be numbers or classes: {why}")
    if len(classes) > kinds.IDENTIFIER * rows:
        rule = "identifies rows: nearly every row has a different value; choose another target"
        raise DataError(f"{column} {rule}")
    if rare:
        rule = f"must have at least {FEWEST_OF_CLASS} rows of each class"
        cure = "put rare classes together, leave their rows out, or say --task regression"
        got = f"{len(rare)} with fewer: {listed(rare, 6)}"
        raise DataError(f"{column} {rule}, got {got}; {cure}")
    return labels, classes


def _targets(answers: Sequence[Cells]) -> np.ndarray:
    """Return the targets of regression [n, output].

    Raises:
        DataError: a target is not a number, is not finite, does not vary, or is a row number.
    """
    outputs = []
    for cells in answers:
        column = f"{cells.origin}: column {short(cells.name)}"
        if cells.kind in ("text", "truth"):
            cure = "say --task classification, or write numbers with a point and without separators of thousands"
            cure += kinds.how_to_say(cells)
            word = kinds.no_number(cells.filled if cells.is_text else cells.texts().drop_null())
            raise DataError(f"{column} must be numeric, got {short(word)} in row {cells.row_of(word)}; {cure}")
        values = cells.numbers()
        if np.ptp(values) == 0:
            raise DataError(f"{column} must vary, got {values[0]:g} in every row")
        if kinds.counts_rows(values, len(values)):
            raise DataError(f"{column} is a row number; choose another target")
        outputs.append(values)
    return np.stack(outputs, axis=1)
