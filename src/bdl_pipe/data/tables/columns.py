"""The columns of an open table as arrays: numbers, categories, dates, labels; cells are read by :class:`.cells.Cells`.

A column is stored as one number for each cell, see :mod:`bdl_pipe.data.transform`. Every function raises DataError for
a value that breaks its rule, and names the file (``origin``), column and row.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DataError, brief, short
from .. import scratch
from .cells import Cells
from .forms import TRUTHS, canonical, clean, is_gap_word, is_number, require_column, truth

if TYPE_CHECKING:
    import pandas as pd

ColumnKind = Literal["number", "category", "date"]
KINDS: Final = get_args(ColumnKind)
UNSEEN: Final = -1.0
MANY_EQUAL: Final = 0.15  # from this share of rows with one target on, quantiles describe it and a density does not
_FAR: Final = 10.0  # a value is far if it is outside the file's range by more than this many ranges


@dataclass(frozen=True)
class Column:
    """A feature column of a file.

    Attributes:
        values: for a category, all values of the file, sorted; a cell stores the index of its value.
        missing: whether any cell of the column is empty in the file.
        slots: for a category, the largest number of one-hot columns.
        hours: for a date, whether any row has a time of day.
        zoned: for a date, whether rows have a time zone and are instants. None: unknown (data prepared earlier).
        ends: for a number or a date, the smallest and largest value of the file. Empty: unknown (data prepared
            earlier).
    """

    name: str
    kind: ColumnKind
    values: tuple[str, ...] = ()
    missing: bool = False
    slots: int = 20
    hours: bool = False
    zoned: bool | None = None
    ends: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Return the number of network inputs of the column."""
        widths = {"number": 1, "category": min(len(self.values), self.slots), "date": 7 if self.hours else 5}
        return widths[self.kind] + self.missing

    @property
    def bounded(self) -> list[bool]:
        """Return, for each of these inputs, whether it is 0/1, a sine or a cosine."""
        return [self.kind == "category", *[True] * (self.width - 1)]

    def mapping(self) -> dict[str, Any]:
        """Return the column as JSON-able values."""
        absent = {*(() if self.kind == "date" else ("zoned",)), *(() if self.ends else ("ends",))}
        fields = {key: value for key, value in vars(self).items() if key not in absent}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> "Column":
        """Rebuild a column from its :meth:`mapping`."""
        return cls(**{**mapping, "values": tuple(mapping["values"]), "ends": tuple(mapping.get("ends", ()))})


def describe(cells: Cells, kind: ColumnKind, categories: int) -> tuple[Column, np.ndarray]:
    """Describe a whole column, and return its cells as numbers [n]: NaN for gaps, for a category the value's index.

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
        values = sorted(value for value in texts.unique().to_pylist() if value is not None)
        column = Column(cells.name, kind, tuple(values), texts.null_count > 0, categories)
        return column, codes_of(cells, column)
    codes = cells.days() if kind == "date" else cells.numbers()
    there = codes[~np.isnan(codes)]
    column = Column(
        cells.name,
        kind,
        missing=len(there) < len(codes),
        hours=kind == "date" and bool((there % 1 != 0).any()),
        zoned=cells.zoned if kind == "date" else None,
        ends=(float(there.min()), float(there.max())) if len(there) else (),
    )
    return column, codes


def described_matrix(
    table: pa.Table, kinds: Mapping[str, ColumnKind], categories: int, origin: str
) -> tuple[tuple[Column, ...], np.ndarray]:
    """Describe columns, and return their cells as numbers [n, column], see :func:`describe`."""
    columns = []
    matrix = scratch.empty((table.num_rows, len(kinds)), np.float64)
    for place, (name, kind) in enumerate(kinds.items()):
        column, matrix[:, place] = describe(Cells.of(table, name, origin), kind, categories)
        columns.append(column)
    return tuple(columns), matrix


def coded_matrix(table: pa.Table, columns: Sequence[Column], origin: str) -> np.ndarray:
    """Return described columns as numbers, float64 [n, column]: NaN for gaps, ``UNSEEN`` for new categories.

    Raises:
        DataError: a column is missing or of another kind.
    """
    matrix = scratch.empty((table.num_rows, len(columns)), np.float64)
    for place, column in enumerate(columns):
        matrix[:, place] = codes_of(Cells.of(table, column.name, origin), column)
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
    values = pa.array([clean(value) for value in column.values], pa.string())
    texts = cells.values if cells.is_text else cells.texts()
    places, gaps = pc.index_in(texts, value_set=values), texts.is_null()
    if cells.is_text and cells.kind == "date":  # a moment has several texts
        places = pc.coalesce(places, pc.index_in(cells.texts(), value_set=values))
        gaps = cells.texts().is_null() if column.missing else gaps
    codes = places.cast(pa.float64()).fill_null(UNSEEN).to_numpy().astype(np.float64)
    codes[gaps.to_numpy()] = np.nan
    new = codes == UNSEEN
    if new.any():
        strange = texts.filter(pa.array(new)).combine_chunks().dictionary_encode()
        others = [_place(value, cells, column) for value in strange.dictionary.to_pylist()]
        codes[new] = np.array(others)[strange.indices.to_numpy()]
    return codes


def _place(value: str, cells: Cells, column: Column) -> float:
    """Return the index of the value that equals a text as a number or truth; ``UNSEEN`` if there is none.

    One system writes a truth as ``yes``, another as true: the two words of a column that mean true and false stand for
    all words with these meanings.
    """
    places = {canonical(word): place for place, word in enumerate(column.values)}
    is_truth, text = {*places} <= {*TRUTHS}, canonical(value)
    text = TRUTHS[int(text)] if is_truth and text in ("0", "1") else text
    if text in places:
        return places[text]
    truths = {truth(word): place for word, place in places.items()}
    if {*truths} == {True, False} and len(places) == 2 and (meaning := truth(text)) is not None:
        return truths[meaning]
    if is_gap_word(value) and (is_truth or all(map(is_number, places))):
        return np.nan
    codes = [word for word in column.values if word.startswith("0") and word.lstrip("0") == text]
    if is_truth or (codes and not cells.is_text):
        rule = "must be true or false" if is_truth else f"must be texts such as {short(codes[0])}, not numbers,"
        got = f"got {short(value)} in row {cells.row_of(value)}"
        raise DataError(f"{cells.origin}: column {short(cells.name)} {rule} as in the file that was fitted, {got}")
    return UNSEEN


def unseen(inputs: np.ndarray, columns: Sequence[Column]) -> list[str]:
    """Return a line for each column of ``inputs`` [n, column] with values unlike any in the fitted file.

    These are new categories, and numbers and dates outside the file's range by more than ``_FAR`` times the range.
    """
    lines = []
    for column, values in zip(columns, inputs.T, strict=True):
        low, high = column.ends or (-np.inf, np.inf)
        span = _FAR * ((high - low) or abs(high) or 1.0)
        is_category = column.kind == "category"
        new = values == UNSEEN if is_category else (values < low - span) | (values > high + span)
        if not new.any():
            continue
        count = int(new.sum())
        where = f"{count:,} row{' has' if count == 1 else 's have'}"
        first = f"(first: row {int(np.argmax(new)) + 1})"
        if is_category:
            way = "treated as 'rare' or, if fit had no rare ones, as no category"
            lines.append(f"Column {column.name}: {where} a category not seen in fit {first}, {way}.")
        else:
            numbers = (float(values[np.argmax(new)]), low, high)
            is_date = column.kind == "date"
            texts = [str(np.datetime64(int(value), "D")) if is_date else f"{value:.6g}" for value in numbers]
            rule = f"a value such as {texts[0]}, far from {texts[1]} to {texts[2]} in fit"
            lines.append(f"Column {column.name}: {where} {rule} {first}. Do the units differ?")
    return lines


def feature_matrix(table: pa.Table, columns: Sequence[str], origin: str) -> np.ndarray:
    """Return columns of finite numbers without gaps as float64 [n, column]; truths are 0 and 1."""
    for name in columns:
        require_column(table, name, origin)
    matrix = scratch.empty((table.num_rows, len(columns)), np.float64)
    for place, name in enumerate(columns):
        cells = Cells.of(table, name, origin)  # one at a time, because each holds a copy of its column
        matrix[:, place] = cells.numbers()
        _require_no_gap(cells, np.isnan(matrix[:, place]))
    return matrix


def labels_of(cells: Cells) -> np.ndarray:
    """Return the labels of a column [n]: numbers, truths or texts; every row must have a label."""
    _require_no_gap(cells, cells.missing())
    if cells.kind not in ("number", "truth", "text"):
        what = "dates" if cells.kind == "date" else brief(cells.values.type)
        rule = "labels must be whole numbers or texts"
        raise DataError(f"{cells.origin}: column {short(cells.name)}: {rule}, got {what}")
    if cells.kind == "number" and not cells.is_rounded:
        return cells.numbers()
    return cells.truths().to_numpy() if cells.kind == "truth" else cells.texts().to_numpy()


def _require_no_gap(cells: Cells, gaps: np.ndarray) -> None:
    if gaps.any():
        row = int(np.argmax(gaps)) + 1
        cell = cells.values[row - 1].as_py()
        got = "none or NaN" if cell is None else short(cell)
        rule = "must have a value in every row"
        raise DataError(f"{cells.origin}: column {short(cells.name)} {rule}, got {got} in row {row}")


def typed_cells(column: "pd.Series[Any]") -> pa.Array | pa.ChunkedArray:
    """Return a pandas column with one type.

    It has texts, as in CSV, if its values have several types, are intervals or periods, or are moments of which some
    have a time zone.
    """
    labels = getattr(column.dtype, "categories", None)
    as_texts = str(getattr(labels, "dtype", column.dtype)).startswith(("interval", "period"))
    if column.dtype == object:
        zones = {value.tzinfo is None for value in column if hasattr(value, "tzinfo") and value == value}
        as_texts = len(zones) > 1
    try:
        if as_texts:
            raise TypeError
        if getattr(column.dtype, "tz", None) is not None:  # Arrow reads values, which pandas 3.1 deprecates for zones
            moments = typed_cells(column.dt.tz_convert(None))
            return moments.cast(pa.timestamp(moments.type.unit, "UTC"))
        return pa.Table.from_pandas(column.to_frame("cells"), preserve_index=False).column(0)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, OverflowError):
        return pa.array([None if gap else str(value) for value, gap in zip(column, column.isna(), strict=True)])


def is_index(table: pa.Table, name: str) -> bool:
    """Return True for the index of a pandas table, which is not a feature.

    This is a column ``__index_level_0__`` or Dask's ``__null_dask_index__`` of a Parquet file; a column of whole
    numbers >= 0 that is first and unnamed, or that pandas has named ``Unnamed: 0``; or such a column that is first,
    that ``reset_index`` has named ``index`` or ``level_0``, and that has a different number in each row. A second
    ``reset_index`` puts ``level_0`` before ``index``.
    """
    if re.fullmatch(r"__index_level_\d+__|__null_dask_index__", name):
        return True
    first = table.column_names[: 2 if table.column_names[0] == "level_0" else 1]
    named = name in ("index", "level_0") and name in first
    if not (named or name == "" == table.column_names[0] or re.fullmatch(r"Unnamed: 0(\.\d+)?", name)):
        return False
    cells = Cells.of(table, name, "")
    if cells.kind != "number":
        return False
    values = cells.floats
    different = not named or len(np.unique(values)) == len(values)
    return different and bool(((values >= 0) & (values == np.floor(values))).all())
