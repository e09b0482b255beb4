"""Inspection of a user's table: its columns, their kinds, and problems that would spoil a fit.

All rows are read. A fit uses only these results: the counts of rows, columns and categories, and the kinds of columns.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ConfigError, DataError, brief, short
from ..encoding import ColumnKind
from ..raw import Task, checked, encode_labels
from ..sources.cells import Cells, is_index
from ..sources.columns import codes_of, describe, labels_of
from ..sources.forms import WHOLE, are_all, is_number
from ..sources.names import require_column
from ..sources.table import (
    CsvForm,
    Decimal,
    Table,
    Thousands,
    is_parquet,
    open_table,
    sniffed,
    table_rows,
    with_targets,
)
from . import leaks
from .cells import MOST, amounts, mixed_dates, names_rows, number_share, refusal
from .cells import remarks as cell_remarks
from .doubts import doubts
from .profile import FEWEST, FEWEST_OF_CLASS, Profile, listed

_CLASSES: Final = 20  # whole numbers with more different values are quantities
CATEGORIES: Final = 20  # the most network inputs of a category
_TOTAL: Final = re.compile(r"(?i:(grand |sub)?totals?|sum|averages?|mean|overall|summe|gesamt|mittelwert|moyenne|suma)")
_PEAK: Final = 0.2  # from this share of equal targets on, their density decides between runs
_IDENTIFIER: Final = 0.9  # a column with at least this share of different values identifies rows
_INDEX: Final = "it is the index of a table; give it a name of its own to use it"


def inspect_table(
    path: Path,
    targets: Sequence[str],
    task: Task | None = None,
    leave_out: Sequence[str] = (),
    *,
    decimal: Decimal | None = None,
    thousands: Thousands | None = None,
) -> Profile:
    """Inspect a CSV or Parquet file.

    Args:
        targets: the columns to predict.
        task: the task. None: it follows from the targets.
        leave_out: columns that must not be features.
        decimal: the decimal point of a CSV file. None: it follows from the cells, if they leave no doubt.
        thousands: the separator of thousands of a CSV file. None: its numbers have none.

    Raises:
        DataError: the table cannot be used; the message names the cure.
    """
    before = _stamp(path)
    form = _form(path, decimal, thousands)
    table = open_table(path, form)
    if _stamp(path) != before:
        raise DataError(f"{path}: changed while it was read; wait until it is whole")
    targets = [require_column(table, name, str(path)) for name in targets]
    leave_out = [require_column(table, name, str(path)) for name in leave_out]
    if decimal is None and thousands is None:
        _require_clear_numbers(table, form, path)
    all_rows = table.num_rows
    table = with_targets(table, targets, str(path))
    if table.num_rows < FEWEST:
        raise DataError(f"{path}: must have at least {FEWEST} rows with a target, got {table.num_rows}")
    answers = [Cells.of(table, name, str(path)) for name in targets]
    for cells in answers:
        _require_target(cells)
    task = task or task_of(answers)
    remarks = [remark for cells in answers for remark in (*cell_remarks(cells), *doubts(cells))]
    if task == "classification":
        labels, classes = _classes(answers, table.num_rows)
        if answers[0].kind == "text" and (why := refusal(answers[0])):
            remarks.append(f"{targets[0]}: {why}; as they are, they are classes")
        values = labels[:, None].astype(np.float64)
    else:
        values, classes = _targets(answers), dict[str, int]()
        remarks += [line for name, of_rows in zip(targets, values.T, strict=True) for line in _peak(name, of_rows)]
    if form.encoding != "utf-8" and (text := _foreign(table)):
        rule = f"its texts are no UTF-8 and are read as {form.encoding}, such as {short(text)}"
        remarks.append(f"{path.name}: {rule}; if they look wrong, save it as UTF-8: iconv -f ENCODING -t UTF-8")
    rest = [name for name in table.column_names if name not in targets]
    features = inspect_features(table, rest, str(path), leave_out=leave_out, rows=all_rows)
    columns, codes = features.columns, features.codes
    remarks += [*_swallowed(table, form.separator), *_totals(table)]
    remarks += [*features.remarks, *leaks.repeated_rows([*codes.values(), *values.T])]
    ranks = {name: leaks.ranked(codes[name]) for name, kind in columns.items() if kind == "number"}
    remarks += leaks.same_orders(ranks)
    for target, answer in zip(targets, values.T, strict=True):
        for name in columns:
            leaks.require_no_leak(name, codes[name], target, answer, path)
        remarks += leaks.orders_of_target(ranks, target, leaks.ranked(answer))
        remarks += leaks.fixed_targets({name: codes[name] for name in columns}, target, answer)
    source = Table(
        str(path),
        tuple(targets),
        task,
        columns=dict(columns),
        categories=CATEGORIES,
        csv=form,
        skip_without_target=table.num_rows < all_rows,
    )
    left_out, width = features.left_out, features.width
    del codes, ranks, features  # frees memory for the rows
    return Profile(
        source,
        checked(table_rows(table, source)),
        table.num_rows,
        (width,),
        classes,
        remarks,
        left_out=left_out,
        without_target=all_rows - table.num_rows,
    )


def _form(path: Path, decimal: Decimal | None, thousands: Thousands | None) -> CsvForm:
    """Return the format of a CSV file, with the user's decimal point and separator of thousands."""
    found = sniffed(path)
    if decimal is None and thousands is None:
        return found
    if is_parquet(path):
        raise DataError(f"{path}: is a Parquet file, whose numbers have a type; leave out --decimal and --thousands")
    other: Decimal = "," if thousands == "." else "." if thousands == "," else found.decimal
    try:
        return replace(found, decimal=decimal or other, thousands=thousands or "")
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
        if not are_all(shared, rf"^[+-]?[1-9][0-9]{{0,2}}{re.escape(point)}[0-9]{{3}}$"):
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


def _swallowed(table: pa.Table, separator: str) -> list[str]:
    """Return a remark on texts that hold whole lines of the table, as after a quote that is not closed."""
    cells = table.num_columns - 1
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_string(column.type):
            continue
        for text in column.filter(pc.fill_null(pc.match_substring(column, "\n"), False)).to_pylist():
            lines = text.split("\n")
            if any(line.count(separator) == cells > 0 for line in lines[1:-1]):
                rule = f"holds {len(lines):,} lines of the file as one text; if a quote is not closed, write it as two"
                return [f"{name or repr('')}: the cell that begins with {short(lines[0])} {rule}"]
    return []


def _totals(table: pa.Table) -> list[str]:
    """Return a remark if the last row has the word for a total, which no other row has."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        last = str(column[-1].as_py()).strip() if pa.types.is_string(column.type) else ""
        if _TOTAL.fullmatch(last) and pc.sum(pc.equal(column, column[-1])).as_py() == 1:
            return [f"{name or repr('')}: the last row has {last!r}; if it sums up the others, delete it"]
    return []


def _peak(name: str, values: np.ndarray) -> list[str]:
    """Return a remark if many targets of a regression have one value, where a density may be as high as one likes."""
    distinct, counts = np.unique(values, return_counts=True)
    share = counts.max() / len(values)
    if share < _PEAK:
        return []
    most = f"{name}: {100 * share:.0f} % of the rows have the value {distinct[counts.argmax()]:.6g}"
    return [f"{most}; a narrow peak there makes the NLL of a run small, so compare runs by the CRPS, too"]


@dataclass(frozen=True)
class Features:
    """The feature columns of a table.

    Attributes:
        columns: name -> kind.
        width: the number of network inputs.
        left_out: column -> the reason why it is not a feature.
        codes: column -> its cells as numbers [n], for features and their copies.
        remarks: warnings for the user, one line each.
    """

    columns: Mapping[str, ColumnKind]
    width: int
    left_out: Mapping[str, str]
    codes: Mapping[str, np.ndarray]
    remarks: Sequence[str]


def inspect_features(
    table: pa.Table,
    names: Iterable[str],
    origin: str,
    *,
    leave_out: Sequence[str] = (),
    kinds: Mapping[str, ColumnKind] | None = None,
    rows: int | None = None,
) -> Features:
    """Inspect the columns of an open table that are not targets.

    Args:
        origin: the table's name in errors.
        leave_out: columns that must not be features.
        kinds: column -> the user's kind; such a column is left out only if it is empty, constant or a copy.
        rows: the number of rows of the file, some of which the table may lack. None: the table has all rows.

    Raises:
        DataError: no column is left, or a cell does not have the user's kind.
    """
    columns, left_out = dict[str, ColumnKind](), dict.fromkeys(leave_out, "as you said")
    codes, widths, remarks = dict[str, np.ndarray](), dict[str, int](), list[str]()
    for name in names:
        if name in left_out:
            continue
        cells, said = Cells.of(table, name, origin), (kinds or {}).get(name)
        kind, why = (None, _INDEX) if said is None and is_index(table, name) else _kind(cells, said, rows)
        if kind is None:
            left_out[name] = why
            continue
        described = describe(cells, kind, CATEGORIES)
        columns[name], widths[name], codes[name] = kind, described.width, codes_of(cells, described)
        remarks += [*cell_remarks(cells), *doubts(cells)]
    left_out |= leaks.copies(codes)
    columns = {name: kind for name, kind in columns.items() if name not in left_out}
    if not columns:
        raise DataError(f"{origin}: must have a column to predict from, got {listed(left_out, 6) or 'none'}")
    return Features(columns, sum(widths[name] for name in columns), left_out, codes, remarks)


def _foreign(table: pa.Table) -> str:
    """Return the first name or text that has a character outside ASCII."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not name.isascii():
            return str(name)
        if len(found := column.filter(pc.invert(pc.fill_null(pc.string_is_ascii(column), True)))):
            return str(found[0].as_py())
    return ""


def _stamp(path: Path) -> tuple[int, int]:
    """Return a file's length and time of change, which differ after a program has written to it."""
    if not path.is_file():
        return 0, 0
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _require_target(cells: Cells) -> None:
    """Raise DataError for a target that is neither numbers nor classes."""
    if cells.kind in ("date", "other"):
        what = "dates" if cells.kind == "date" else brief(cells.values.type)
        rule = "must be numbers or classes to be predicted"
        cure = "choose another target, or write it as numbers, such as days since 2000"
        raise DataError(f"{cells.origin}: column {short(cells.name)} {rule}, got {what}; {cure}")


def task_of(answers: Sequence[Cells]) -> Task:
    """Return the task: regression for several targets, fractions or many different whole numbers, else
    classification."""
    if len(answers) > 1:
        return "regression"
    cells = answers[0]
    mixed = cells.kind == "text" and not cells.is_code and number_share(cells) >= MOST
    if mixed and len(cells.filled.unique()) > _CLASSES:
        texts = cells.filled.to_pylist()
        word = next((text for text in texts if not is_number(text)), texts[0])
        rule = f"must be numbers or classes, got numbers and texts such as {short(word)}"
        comma = re.fullmatch(r"[+-]?[0-9]*,[0-9]+", word)
        cure = "write numbers with a point" if comma else "leave such rows out, or write a gap as an empty cell"
        raise DataError(f"{cells.origin}: column {short(cells.name)} {rule} in row {cells.row_of(word)}; {cure}")
    if cells.kind != "number" or cells.is_rounded:
        return "classification"
    different = np.unique(cells.numbers())
    return "regression" if len(different) > _CLASSES or (different % 1 != 0).any() else "classification"


def _classes(answers: Sequence[Cells], rows: int) -> tuple[np.ndarray, dict[str, int]]:
    """Return the labels [n], and the number of rows of each class, the largest first.

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
    rare = [label for label, count in counts.items() if count < FEWEST_OF_CLASS]
    if rare and (why := _no_classes(cells)):
        raise DataError(f"{column} must be numbers or classes: {why}")
    if len(counts) > _IDENTIFIER * rows:
        rule = "identifies rows: nearly every row has a different value; choose another target"
        raise DataError(f"{column} {rule}")
    if rare:
        rule = f"must have at least {FEWEST_OF_CLASS} rows of each class"
        cure = "put rare classes together, leave their rows out, or say --task regression"
        got = f"{len(rare)} with fewer: {listed(rare, 6)}"
        raise DataError(f"{column} {rule}, got {got}; {cure}")
    return labels, dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def _no_classes(cells: Cells) -> str:
    """Return why texts are meant as numbers or dates; empty if they are not."""
    if cells.kind != "text":
        return refusal(cells)
    return refusal(cells) or amounts(cells.filled) or mixed_dates(cells)


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
        if len(values) > 1 and _counts_rows(values, len(values)):
            raise DataError(f"{column} counts the rows; choose another target")
        outputs.append(values)
    return np.stack(outputs, axis=1)


def _kind(cells: Cells, said: ColumnKind | None, rows: int | None) -> tuple[ColumnKind | None, str]:
    """Return a feature's kind, or None and the reason for leaving it out.

    Args:
        said: the user's kind.
        rows: see :func:`inspect_features`.
    """
    if cells.kind == "empty":
        return None, "it is empty"
    if said is None and (why := refusal(cells)):
        return None, why
    texts = said == "category" or (said is None and cells.kind in ("text", "truth"))
    dates = said == "date" or (said is None and cells.kind == "date")
    values = cells.texts() if texts else pa.chunked_array([cells.days() if dates else cells.numbers()])
    filled = values.drop_null() if texts else values.filter(pa.array(~cells.missing()))
    different = len(filled.unique())
    if different == 1 and len(filled) == len(values):
        return None, "it has one value"
    if said is not None:
        return said, ""
    if texts:
        if different > _IDENTIFIER * len(filled) and different > CATEGORIES:
            return None, names_rows(cells)
        return "category", ""
    if dates:
        return "date", ""
    if len(filled) == len(values) > 2 and _counts_rows(filled.to_numpy(), rows or len(values)):
        return None, "it counts the rows"
    return "number", ""


def _counts_rows(values: np.ndarray, rows: int) -> bool:
    """Return True if whole numbers increase from row to row, and ``rows`` of them would have no gaps."""
    whole = (values == np.floor(values)).all() and (np.diff(values) > 0).all()
    return bool(whole) and bool(values[-1] - values[0] < rows)
