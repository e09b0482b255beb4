"""Convert rows in memory to the library's form: arrays, frames, Arrow tables and images.

``data.tables`` reads cells here and in the files of ``add``, so that categories, dates, gaps and words for gaps
mean the same; the same inspection decides which columns are features.
"""

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..data.examples import Examples, native
from ..data.inspect.profile import Profile
from ..data.raw import Raw, checked
from ..data.size import Size
from ..data.sources.images import Npz, image_array
from ..data.sources.table import Table
from ..data.tables import lint
from ..data.tables.columns import Column, ColumnKind, coded_matrix, typed_cells, unseen
from ..data.tables.forms import clean, listed
from ..data.tables.kinds import features_of
from ..errors import DataError, short
from .targets import Targets, is_gap, without_masks

ORIGIN: Final = "X"
_TARGET: Final = "y"
_ARROW_UNITS: Final = ("s", "ms", "us", "ns")


def is_frame(given: Any) -> bool:
    """Return True for frames of pandas and polars, Arrow tables, objects with Arrow's column interface, and NumPy's
    arrays with named fields."""
    fields = isinstance(given, np.ndarray) and given.dtype.names is not None
    return fields or hasattr(given, "iloc") or hasattr(given, "__arrow_c_stream__")


def as_table(given: Any) -> Any:
    """Return a pandas frame unchanged, and any other frame as an Arrow table.

    Raises:
        DataError: ``given`` is one column, not a frame.
    """
    if isinstance(given, np.ndarray):
        return pa.table({name: _column(without_masks(given[name])) for name in given.dtype.names or ()})
    if getattr(given, "ndim", 2) != 1 and (hasattr(given, "iloc") or isinstance(given, pa.Table)):
        return given
    with contextlib.suppress(pa.ArrowInvalid):  # for one column of polars
        if getattr(given, "ndim", 2) != 1 and not isinstance(given, pa.ChunkedArray):
            return pa.table(given)
    what = short(type(given).__name__)
    of_pandas = hasattr(given, "iloc")
    cure = "X.to_frame() for one column, X.to_frame().T for one row" if of_pandas else "a frame or a table"
    raise DataError(f"{ORIGIN}: must be a frame of columns, got one column ({what}); pass {cure}")


def warn_of_another_order(x: Any, y: Any, level: int = 3) -> None:
    """Warn if rows and targets of pandas have one index in two orders.

    Args:
        level: the number of calls from here to the user's line.
    """
    one: Any = getattr(x, "index", None)
    other: Any = getattr(y, "index", None)
    if not (hasattr(one, "sort_values") and hasattr(other, "sort_values")) or one.equals(other):
        return
    try:
        alike = one.sort_values().equals(other.sort_values())
    except TypeError:  # labels of several types
        return
    if alike:
        said = "y: its index is that of X in another order, and rows are paired by place; pass y.loc[X.index]"
        warnings.warn(said, stacklevel=level)


def table_of(given: Any, names: Sequence[str] | None = None) -> pa.Table:
    """Return a frame, or an array [n, column], as an Arrow table of typed columns.

    Args:
        names: the columns' names in order. None keeps the frame's names, or names an array's columns ``x0``, ``x1`` …

    Raises:
        DataError: two columns have the same name.
    """
    if isinstance(given, np.ndarray):
        columns: list[Any] = [_column(values) for values in given.T]
        own = [f"x{number}" for number in range(len(columns))]
    elif isinstance(given, pa.Table):
        columns, own = given.columns, [clean(name) for name in given.column_names]
    else:
        columns = [typed_cells(given.iloc[:, place]) for place in range(given.shape[1])]
        own = [clean(str(name)) for name in given.columns]
    doubled = next((name for name in own if own.count(name) > 1), None) if len({*own}) < len(own) else None
    if doubled is not None:
        raise DataError(f"{ORIGIN}: column names must differ, got {short(doubled)} twice")
    return pa.table(columns, names=list(names or own))


def taken(given: Any, index: np.ndarray) -> Any:
    """Return the rows ``index`` of an array, a frame, a frame's column or an Arrow table."""
    if hasattr(given, "iloc"):
        return given.iloc[index]
    if isinstance(given, pa.Table | pa.Array | pa.ChunkedArray):
        return given.take(pa.array(index))
    return (
        as_table(given).take(pa.array(index))
        if is_frame(given) and hasattr(given, "columns")
        else np.asarray(given)[index]
    )


def table_profile(
    table: pa.Table, targets: Targets, columns: Mapping[str, ColumnKind] | None, *, numbers: bool
) -> Profile:
    """Inspect a table in memory as ``add`` inspects a file.

    Args:
        columns: the kinds that the user gives for some columns.
        numbers: whether the columns come from an array of numbers; then no column is left out as an identifier of rows.

    Raises:
        DataError: the rows cannot be used; the message has the column, the rule and the value.
    """
    for name in columns or {}:
        if name not in table.column_names:
            raise DataError(
                f"columns: must name columns of {ORIGIN}, got {short(name)} (it has {listed(table.column_names)})"
            )
    kinds: dict[str, ColumnKind] = {
        **(dict.fromkeys(table.column_names, "number") if numbers else {}),
        **(columns or {}),
    }
    features = features_of(table, table.column_names, ORIGIN, kinds=kinds, remarks=lint.of_cells)
    if features.left_out and not numbers:
        reasons = "; ".join(f"column {name or 'without a name'}: {why}" for name, why in features.left_out.items())
        warnings.warn(f"left out: {reasons}", stacklevel=4)
    outputs = 1 if targets.values.ndim == 1 else targets.values.shape[1]
    names = (_TARGET,) if outputs == 1 else tuple(f"{_TARGET}_{i}" for i in range(outputs))
    rows, kept = Examples(features.matrix(), targets.values), tuple(features.kinds)
    raw = checked(Raw(ORIGIN, targets.task, "table", rows, None, targets.classes, kept, names, features.columns))
    source = Table(ORIGIN, tuple(_apart(name, kept) for name in names), targets.task, columns=features.kinds)
    counts, width = _counts(targets), (features.width,)
    return Profile(source, raw, len(rows), width, counts, features.remarks, left_out=features.left_out)


def image_profile(images: np.ndarray, targets: Targets) -> Profile:
    """Describe images uint8 [n, channel, height, width]."""
    raw = checked(Raw(ORIGIN, "classification", "image", Examples(images, targets.values), None, targets.classes))
    return Profile(Npz(ORIGIN), raw, len(images), images.shape[1:], _counts(targets), ())


def images_of(given: np.ndarray, shape: Sequence[int] | None = None) -> np.ndarray:
    """Return whole numbers from 0 to 255 as uint8 [n, channel, height, width]; channels may come last.

    Args:
        shape: the required (channel, height, width). None allows any shape.

    Raises:
        DataError: ``given`` is not an array of such images.
    """
    if given.dtype.kind in "iu" and given.size and given.min() >= 0 and given.max() <= 255:
        given = given.astype(np.uint8)
    images = image_array(given, ORIGIN, ORIGIN)
    if shape is not None and list(images.shape[1:]) != list(shape):
        raise DataError(f"{ORIGIN}: images must have shape {list(shape)}, as in fit, got {list(images.shape[1:])}")
    return images


def rows_of(table: pa.Table, columns: Sequence[Column]) -> np.ndarray:
    """Return the fitted columns of a table as numbers, float64 [n, column]; warn of values unlike all fitted values.

    Raises:
        DataError: a cell has another meaning than the column's cells in the fit.
    """
    coded = coded_matrix(table, columns, ORIGIN)
    lines = unseen(coded, columns)
    for column, values in zip(columns, coded.T, strict=True):
        if not column.missing and (gaps := np.isnan(values)).any():
            way = "taken as no category" if column.kind == "category" else "taken as the median of fit"
            lines.append(f"{column.name}: a gap in {int(gaps.sum()):,} rows, but fit had no gaps: {way}")
    for line in lines:
        warnings.warn(line, stacklevel=4)
    return coded


def size_of(profile: Profile, share: float, pace: float) -> Size:
    """Return the size that determines hyperparameters; all rows but a share are training rows.

    Args:
        share: the share of rows that no fit uses.
    """
    return replace(profile.size(share), has_test=True, pace=pace)


def _column(values: np.ndarray) -> pa.Array:
    """Return a column of an array with one type; values of several types become texts."""
    if values.dtype.kind == "T":
        return pa.array(values.tolist())
    if values.dtype.kind == "S":
        return pa.array([value.decode("utf-8", "replace") for value in values.tolist()])
    if values.dtype.kind in "Mm" and np.datetime_data(values.dtype)[0] not in _ARROW_UNITS:
        values = values.astype(f"{values.dtype.kind}8[s]")
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    if values.dtype.kind != "O":
        return pa.array(native(values), from_pandas=values.dtype.kind in "Mm")
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.array([None if is_gap(v) else str(v) for v in values.tolist()])


def _counts(targets: Targets) -> dict[str, int]:
    counts = np.bincount(targets.values, minlength=len(targets.classes)) if targets.classes else ()
    return dict(zip(targets.classes, map(int, counts), strict=True))


def _apart(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
