"""The columns of an open table as arrays: numbers, categories, dates, labels.

Every function raises DataError for a value that breaks its rule, and names the file (``origin``), column and row.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from ...errors import DataError, brief, short
from .. import scratch
from ..encoding import UNSEEN, Column, ColumnKind
from ..raw import check_finite

_LABELS: Final = (  # the kinds of columns that can name classes
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
)
_DAY: Final = 86_400_000_000  # a day has so many microseconds


def describe(table: pa.Table, name: str, kind: ColumnKind, categories: int, origin: str) -> Column:
    """Read a whole column and describe it: its categories, whether cells are empty, whether dates have hours.

    Args:
        categories: the most columns of a network's input that a category becomes.
        origin: the file, as errors name it.

    Raises:
        DataError: the table has no such column, or the column has no value or a value that is no ``kind``.
    """
    values = _cells(table, name, origin)
    if values.null_count == len(values):
        raise DataError(f"{origin}: column {short(name)} must have a value in some row, got none; leave it out")
    if kind == "category":
        known = sorted(value for value in _texts(values).unique().to_pylist() if value is not None)
        return Column(name, kind, tuple(known), values.null_count > 0, categories)
    codes = _codes(table, Column(name, kind), origin)
    there = codes[~np.isnan(codes)]
    return Column(name, kind, (), len(there) < len(codes), hours=kind == "date" and bool((there % 1 != 0).any()))


def coded_matrix(table: pa.Table, columns: tuple[Column, ...], origin: str) -> np.ndarray:
    """Take the columns as numbers, float64 [n, column]: NaN where a cell is empty, ``UNSEEN`` for a new category.

    Raises:
        DataError: a column is not there or holds something else; a cell is empty in a column that had a value in every
            row when it was described.
    """
    matrix = scratch.empty((table.num_rows, len(columns)), np.float64)
    for place, column in enumerate(columns):
        matrix[:, place] = _codes(table, column, origin)
    for column, values in zip(columns, matrix.T, strict=True):
        if not column.missing and np.isnan(values).any():
            row = int(np.argmax(np.isnan(values))) + 1
            rule = "must have a value in every row, as it had in the file that was fitted"
            raise DataError(f"{origin}: column {short(column.name)} {rule}, got none in row {row}")
    return matrix


def _cells(table: pa.Table, name: str, origin: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise DataError(f"{origin}: must have the column {short(name)}, got {names_of(table)}")
    return table.column(name)


def _codes(table: pa.Table, column: Column, origin: str) -> np.ndarray:
    """Give one column as float64 [n]."""
    cells = _cells(table, column.name, origin)
    if column.kind == "category":
        return _places(cells, column)
    if pa.types.is_null(cells.type):
        return np.full(len(cells), np.nan)
    if column.kind == "date":
        return _days(cells, column.name, origin)
    _require_numeric(cells, column.name, origin)
    values: np.ndarray = cells.cast(pa.float64()).to_numpy().astype(np.float64)
    if np.isinf(values).any():
        row = int(np.argmax(np.isinf(values)))
        raise DataError(f"{origin}: column {short(column.name)} must be finite, got {values[row]:g} in row {row + 1}")
    return values


def _texts(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
    return cells.cast(kind).cast(pa.string())


def _places(cells: pa.ChunkedArray, column: Column) -> np.ndarray:
    """Give the place of each category in the column's values."""
    import pyarrow.compute as pc

    texts = _texts(cells)
    found = pc.index_in(texts, value_set=pa.array(column.values, pa.string()))
    codes = found.cast(pa.float64()).fill_null(UNSEEN).to_numpy().astype(np.float64)
    codes[texts.is_null().to_numpy()] = np.nan
    return codes


def _days(cells: pa.ChunkedArray, name: str, origin: str) -> np.ndarray:
    """Give dates and times as days since 1970."""
    if not (pa.types.is_date(cells.type) or pa.types.is_timestamp(cells.type)):
        row, value = _first_word(cells)
        way = "write it as 2026-01-31 or 2026-01-31 12:00:00"
        raise DataError(f"{origin}: column {short(name)} must be dates, got {short(value)} in row {row}; {way}")
    moments = cells.cast(pa.timestamp("us")).cast(pa.int64())
    days: np.ndarray = moments.cast(pa.float64(), safe=False).to_numpy().astype(np.float64) / _DAY
    return days


def feature_matrix(table: pa.Table, columns: tuple[str, ...], origin: str) -> np.ndarray:
    """Take columns of finite numbers, float64 [n, column]."""
    cells = [_cells(table, name, origin) for name in columns]
    matrix = scratch.empty((table.num_rows, len(columns)), np.float64)
    for place, (name, column) in enumerate(zip(columns, cells, strict=True)):
        matrix[:, place] = _numbers(column, name, origin)
    check_finite(matrix, origin, columns)
    return matrix


def _numbers(column: pa.ChunkedArray, name: str, origin: str) -> np.ndarray:
    kind = column.type
    if pa.types.is_null(kind) or column.null_count:
        _missing(column, name, origin)
    _require_numeric(column, name, origin)
    try:
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid as error:  # whole numbers beyond 2^53
        raise DataError(
            f"{origin}: column {short(name)} must be numbers that a float64 holds ({brief(error)})"
        ) from None


def _require_numeric(column: pa.ChunkedArray, name: str, origin: str) -> None:
    kind = column.type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (numeric or pa.types.is_decimal(kind)):
        row, value = _first_word(column)
        way = "say what it is with `columns`, or leave it out with `features`"
        if isinstance(value, str) and value.replace(",", "").replace(" ", "").replace("'", "").lstrip("+-").isdigit():
            way = "write numbers without separators of thousands"
        raise DataError(f"{origin}: column {short(name)} must be numeric, got {short(value)} in row {row}; {way}")


def labels_of(table: pa.Table, name: str, origin: str) -> np.ndarray:
    """Return the labels of a column, whole numbers or texts [n]; every row must have one."""
    column = table.column(name)
    if pa.types.is_null(column.type) or column.null_count:
        _missing(column, name, origin)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(fits(kind) for fits in _LABELS):
        raise DataError(f"{origin}: column {short(name)}: labels must be whole numbers or texts, got {brief(kind)}")
    values = column.to_numpy()
    if values.dtype.kind in "OTU" and (values == "").any():
        row = int(np.argmax(values == "")) + 1
        raise DataError(f"{origin}: column {short(name)} must have a value in every row, got '' in row {row}")
    return values


def _missing(column: pa.ChunkedArray, name: str, origin: str) -> None:
    row = column.is_null().to_pylist().index(True) + 1
    raise DataError(f"{origin}: column {short(name)} must have a value in every row, got none or NaN in row {row}")


def _first_word(column: pa.ChunkedArray) -> tuple[int, Any]:
    """Find the first value that is no number, and its row (counted from 1)."""
    for row, value in enumerate(column.to_pylist(), start=1):
        try:
            float(value)
        except (TypeError, ValueError):
            return row, value
    return 1, column[0].as_py()


def names_of(table: pa.Table) -> str:
    """Return the names of the first eight columns, for an error."""
    names = brief(", ".join(table.column_names[:8]))
    return names + (", …" if table.num_columns > 8 else "")
