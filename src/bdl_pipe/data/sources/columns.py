"""The columns of an open table as arrays: numbers, categories, dates, labels; cells are read by :class:`.cells.Cells`.

Every function raises DataError for a value that breaks its rule, and names the file (``origin``), column and row.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DataError, brief, short
from .. import scratch
from ..encoding import UNSEEN, Column, ColumnKind
from ..raw import check_finite
from .cells import Cells
from .forms import TRUTHS, canonical, clean, is_gap_word, is_number, truth
from .names import require_column

_FAR: Final = 10.0  # a value is far if it is outside the file's range by more than this many ranges


def describe(cells: Cells, kind: ColumnKind, categories: int) -> Column:
    """Describe a whole column: its categories, whether any cell is empty, whether dates have hours and a zone.

    Args:
        categories: the largest number of network inputs of a category.

    Raises:
        DataError: the column has no value, or a value that is not of this kind.
    """
    if cells.is_empty:
        rule = "must have a value in some row, got none; leave it out"
        raise DataError(f"{cells.origin}: column {short(cells.name)} {rule}")
    if kind == "category":
        texts = cells.texts()
        known = sorted(value for value in texts.unique().to_pylist() if value is not None)
        return Column(cells.name, kind, tuple(known), texts.null_count > 0, categories)
    codes = cells.days() if kind == "date" else cells.numbers()
    there = codes[~np.isnan(codes)]
    missing = len(there) < len(codes)
    ends = (float(there.min()), float(there.max())) if len(there) else ()
    if kind == "number":
        return Column(cells.name, kind, (), missing, ends=ends)
    return Column(cells.name, kind, (), missing, hours=bool((there % 1 != 0).any()), zoned=cells.zoned, ends=ends)


def described_matrix(
    table: pa.Table, kinds: Mapping[str, ColumnKind], categories: int, origin: str
) -> tuple[tuple[Column, ...], np.ndarray]:
    """Describe columns, and return them as numbers, see :func:`coded_matrix`."""
    described = []
    matrix = scratch.empty((table.num_rows, len(kinds)), np.float64)
    for place, (name, kind) in enumerate(kinds.items()):
        cells = Cells.of(table, name, origin)
        described.append(describe(cells, kind, categories))
        matrix[:, place] = codes_of(cells, described[-1])
    return tuple(described), matrix


def coded_matrix(table: pa.Table, columns: tuple[Column, ...], origin: str) -> np.ndarray:
    """Return columns as numbers, float64 [n, column]: NaN for empty cells, ``UNSEEN`` for new categories.

    Raises:
        DataError: a column is missing or of another kind, or has an empty cell although the described column has none.
    """
    matrix = scratch.empty((table.num_rows, len(columns)), np.float64)
    for place, column in enumerate(columns):
        matrix[:, place] = codes_of(Cells.of(table, column.name, origin), column)
    for column, values in zip(columns, matrix.T, strict=True):
        if not column.missing and np.isnan(values).any():
            row = int(np.argmax(np.isnan(values))) + 1
            rule = "must have a value in every row, as in the file that was fitted"
            raise DataError(f"{origin}: column {short(column.name)} {rule}, got none in row {row}")
    return matrix


def codes_of(cells: Cells, column: Column) -> np.ndarray:
    """Return one column as float64 [n], see :func:`coded_matrix`.

    Raises:
        DataError: a cell does not fit the described column: it is not a number, a date has an unexpected time zone, a
            cell among truths is not a truth, or a number is among codes with leading zeros.
    """
    if column.kind == "category":
        return _places(cells, column)
    if column.kind == "number":
        return cells.numbers()
    days = cells.days()
    if column.zoned is not None and cells.zoned != column.zoned and not np.isnan(days).all():
        was, now = ("with", "without") if column.zoned else ("without", "with")
        rule = f"must be dates {was} a zone, as in the file that was fitted, got dates {now} one"
        raise DataError(f"{cells.origin}: column {short(cells.name)} {rule}")
    return days


def _places(cells: Cells, column: Column) -> np.ndarray:
    """Return the index of each category in the column's values, by equal text or else by equal number or truth."""
    texts = cells.values if cells.is_text else cells.texts()
    found = pc.index_in(texts, value_set=pa.array([clean(value) for value in column.values], pa.string()))
    codes = found.cast(pa.float64()).fill_null(UNSEEN).to_numpy().astype(np.float64)
    gaps = texts.is_null().to_numpy()
    codes[gaps] = np.nan
    new = codes == UNSEEN
    if new.any():
        strange = texts.filter(pa.array(new)).combine_chunks().dictionary_encode()
        places = [_place(value, cells, column) for value in strange.dictionary.to_pylist()]
        codes[new] = np.array(places)[strange.indices.to_numpy()]
    return codes


def _place(value: str, cells: Cells, column: Column) -> float:
    """Return the index of the value that equals a text as a number or truth; ``UNSEEN`` if there is none.

    One system writes a truth as ``yes``, another as true: the two words of a column that mean true and false stand for
    all words with these meanings.
    """
    written = {canonical(known): place for place, known in enumerate(column.values)}
    is_truth, text = {*written} <= {*TRUTHS}, canonical(value)
    text = TRUTHS[int(text)] if is_truth and text in ("0", "1") else text
    if text in written:
        return written[text]
    truths = {truth(known): place for known, place in written.items()}
    if {*truths} == {True, False} and len(written) == 2 and (found := truth(text)) is not None:
        return truths[found]
    if is_gap_word(value) and (is_truth or all(map(is_number, written))):
        return np.nan
    codes = [known for known in column.values if known.startswith("0") and known.lstrip("0") == text]
    if is_truth or (codes and not cells.is_text):
        rule = "must be true or false" if is_truth else f"must be texts such as {short(codes[0])}, not numbers,"
        got = f"got {short(value)} in row {cells.row_of(value)}"
        raise DataError(f"{cells.origin}: column {short(cells.name)} {rule} as in the file that was fitted, {got}")
    return UNSEEN


def unseen(inputs: np.ndarray, columns: tuple[Column, ...]) -> list[str]:
    """Return a line for each column of ``inputs`` [n, column] with values unlike any in the fitted file.

    These are new categories, and numbers and dates outside the file's range by more than ``_FAR`` times the range.
    """
    lines = []
    for column, values in zip(columns, inputs.T, strict=True):
        new = values == UNSEEN
        if column.kind == "category" and new.any():
            where = f"{int(new.sum()):,} rows, the first {int(np.argmax(new)) + 1}"
            way = "taken as one of the rare categories or, if there are none, as no category"
            lines.append(f"{column.name}: a category that the fitted file did not have, in {where}: {way}")
        if column.ends and (far := _is_far(values, *column.ends)).any():
            where = f"{int(far.sum()):,} rows, the first {int(np.argmax(far)) + 1}"
            got, low, high = (_written(float(v), column) for v in (values[np.argmax(far)], *column.ends))
            lines.append(
                f"{column.name}: {got} is far from {low} to {high} of the fitted file, in {where}: do the units differ?"
            )
    return lines


def _is_far(values: np.ndarray, low: float, high: float) -> np.ndarray:
    span = _FAR * ((high - low) or abs(high) or 1.0)
    return (values < low - span) | (values > high + span)


def _written(value: float, column: Column) -> str:
    return f"{value:.6g}" if column.kind == "number" else str(np.datetime64(int(value), "D"))


def feature_matrix(table: pa.Table, columns: tuple[str, ...], origin: str) -> np.ndarray:
    """Return columns of finite numbers as float64 [n, column]; truths are 0 and 1."""
    for name in columns:
        require_column(table, name, origin)
    matrix = scratch.empty((table.num_rows, len(columns)), np.float64)
    for place, name in enumerate(columns):
        column = Cells.of(table, name, origin)  # one at a time, because each holds a copy of its column
        matrix[:, place] = column.numbers()
        if np.isnan(matrix[:, place]).any():
            _missing(column, np.isnan(matrix[:, place]))
    check_finite(matrix, origin, columns)
    return matrix


def labels_of(cells: Cells) -> np.ndarray:
    """Return the labels of a column [n]: numbers, truths or texts; every row must have a label."""
    if cells.missing().any():
        _missing(cells, cells.missing())
    if cells.kind not in ("number", "truth", "text"):
        what = "dates" if cells.kind == "date" else brief(cells.values.type)
        rule = "labels must be whole numbers or texts"
        raise DataError(f"{cells.origin}: column {short(cells.name)}: {rule}, got {what}")
    if cells.kind == "number" and not cells.is_rounded:
        return cells.numbers()
    return cells.truths().to_numpy() if cells.kind == "truth" else cells.texts().to_numpy()


def _missing(cells: Cells, gaps: np.ndarray) -> None:
    row = int(np.argmax(gaps)) + 1
    got = cells.values[row - 1].as_py()
    found = "none or NaN" if got is None else short(got)
    rule = "must have a value in every row"
    raise DataError(f"{cells.origin}: column {short(cells.name)} {rule}, got {found} in row {row}")
