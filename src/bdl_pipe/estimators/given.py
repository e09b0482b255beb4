"""Convert rows in memory to the library's form: arrays, frames, Arrow tables and images.

``data.tables`` reads cells here and in the files of ``add``, so that categories, dates, gaps and words for gaps
mean the same; the same inspection decides which columns are features.
"""

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch

from ..data.examples import Examples, Task, native
from ..data.inspect.profile import Profile
from ..data.raw import Raw, checked
from ..data.size import Size
from ..data.sources.images import Npz, image_array
from ..data.sources.table import Table
from ..data.tables import lint
from ..data.tables.columns import Column, ColumnKind, coded_matrix, typed_cells, unseen
from ..data.tables.forms import LARGEST, clean, listed
from ..data.tables.kinds import features_of
from ..errors import DataError, short

ORIGIN: Final = "X"
_TARGET: Final = "y"
_ARROW_UNITS: Final = ("s", "ms", "us", "ns")


@dataclass(frozen=True)
class Targets:
    """The targets of training rows.

    Attributes:
        values: labels int64 [n] or targets float64 [n, output].
        classes: the labels' names in order; empty for regression.
    """

    values: np.ndarray
    classes: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """Return the quantity to predict."""
        return "classification" if self.values.ndim == 1 else "regression"


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


def without_masks(given: Any) -> Any:
    """Return a masked array of NumPy as an array with gaps, a tensor as an array, and anything else unchanged."""
    if isinstance(given, torch.Tensor):  # NumPy takes none that needs a gradient, and none of bfloat16
        given = given.detach().cpu()
        return (given.double() if given.is_floating_point() else given).numpy()
    if not isinstance(given, np.ma.MaskedArray):
        return given
    if not np.ma.getmaskarray(given).any():
        return np.asarray(given.data)
    if given.dtype.kind in "biuf":
        return np.ma.filled(given.astype(np.float64), np.nan)
    return np.ma.filled(given.astype(object), None)


def values_of(given: Any) -> np.ndarray:
    """Return targets of pandas, polars, Arrow or NumPy as an array; masked ones become gaps."""
    if isinstance(given, pa.Array):
        given = pa.chunked_array([given])
    if isinstance(given, pa.ChunkedArray) and pa.types.is_dictionary(given.type):
        given = given.cast(given.type.value_type)
    found = np.asarray(given.to_numpy() if hasattr(given, "to_numpy") else without_masks(given))
    return np.array(found.tolist()) if found.dtype.kind == "T" else found


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


def targets_of(given: Any, rows: int) -> tuple[np.ndarray, int]:
    """Return targets of regression float64 [n, output], and their original number of dimensions.

    Raises:
        DataError: a target is not a finite number, or targets and rows differ in number.
    """
    values = values_of(given)
    if values.dtype.kind == "M":
        raise DataError("y: must be numbers, got dates; write them as numbers, such as days since 2000")
    if values.ndim not in (1, 2) or values.dtype.kind not in "biufOUS" or 0 in values.shape:
        raise DataError(f"y: must be numbers [n] or [n, output], got {values.dtype} {list(values.shape)}")
    _require_as_many(values, rows)
    flat = values.reshape(len(values), -1)
    if values.dtype.kind not in "biuf":
        flat = np.array([[_number(v, row) for v in one] for row, one in enumerate(flat.tolist(), 1)], np.float64)
    found = np.ascontiguousarray(flat, np.float64)
    if values.dtype.kind in "iu" and (np.abs(found) > LARGEST).any():
        row = int(np.argmax((np.abs(found) > LARGEST).any(1)))
        rule = "must be numbers that a float64 holds (whole ones up to 2^53)"
        raise DataError(f"y: {rule}, got {flat[row].tolist()[0]} in row {row + 1}; subtract a constant")
    if not np.isfinite(found).all():
        row = int(np.argmax(~np.isfinite(found).all(1)))
        got = found[row][~np.isfinite(found[row])][0]
        raise DataError(f"y: must be finite in every row, got {got:g} in row {row + 1}")
    return found, values.ndim


def classes_of(given: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes, in their own type, and the index of each row's class among them, int64 [n].

    Raises:
        DataError: a label is missing, or labels and rows differ in number.
        ValueError: labels are fractions.
    """
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d

    values = labels_of(given)
    check_classification_targets(values)
    values = column_or_1d(values, warn=True)
    _require_as_many(values, rows)
    classes, labels = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"y: must have at least 2 classes, got 1 class: {short(classes[0].item())}")
    return classes, labels.astype(np.int64)


def labels_of(given: Any) -> np.ndarray:
    """Return labels as an array; Python's objects get the type that they share.

    Raises:
        DataError: a label is missing, or the labels are neither texts, whole numbers, truths nor floats.
    """
    labels = values_of(given)
    if labels.ndim != 1 and labels.shape[1:] != (1,):
        return labels
    flat = labels.ravel().tolist()
    gaps = [row for row, label in enumerate(flat, 1) if _is_gap(label)]
    if gaps:
        raise DataError(f"y: must have a class in every row, got {labels.ravel()[gaps[0] - 1]} in row {gaps[0]}")
    if labels.dtype.kind not in "OMm":
        return labels
    for kinds in ((bool, np.bool_), (int, np.integer), (float, np.floating)):
        if all(isinstance(label, kinds) and (type(label) is not bool or bool in kinds) for label in flat):
            return np.array(flat).reshape(labels.shape)
    row = next((row for row, label in enumerate(flat, 1) if not isinstance(label, str)), 0)
    if row:
        rule = "labels must be all texts, all whole numbers or all truths"
        got = f"got {short(labels.ravel()[row - 1])} in row {row}"
        raise DataError(f"y: {rule}, {got}; write them as texts, such as pandas.Series(y).astype(str)")
    return labels


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
        return pa.array([None if _is_gap(v) else str(v) for v in values.tolist()])


def _is_gap(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA raises it
        return True


def _counts(targets: Targets) -> dict[str, int]:
    counts = np.bincount(targets.values, minlength=len(targets.classes)) if targets.classes else ()
    return dict(zip(targets.classes, map(int, counts), strict=True))


def _apart(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _require_as_many(values: np.ndarray, rows: int) -> None:
    if len(values) != rows:
        raise DataError(f"y: must have as many rows as X ({rows:,}), got {len(values):,}: inconsistent lengths")


def _number(value: Any, row: int) -> float:
    if isinstance(value, str | bytes):
        rule = "must be numbers; use BayesianClassifier for classes"
        raise DataError(f"y: {rule}, got {short(value)} in row {row}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataError(f"y: must be numbers, got {short(value)} in row {row}") from None
