"""``X`` of an estimator: arrays, frames, Arrow tables and images in memory, in the library's form.

``data.tables`` reads cells here and in the files of ``add``, so that categories, dates, gaps and words for gaps
mean the same; the same inspection decides which columns are features.
"""

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from ..data.examples import Examples, native
from ..data.inspect.profile import Profile
from ..data.raw import FEWEST_ROWS, Raw, checked
from ..data.sources.images import Npz, image_array
from ..data.sources.table import Table
from ..data.tables import lint
from ..data.tables.columns import Column, ColumnKind, coded_matrix, typed_cells, unseen
from ..data.tables.forms import clean, listed
from ..data.tables.kinds import features_of
from ..errors import DataError, short
from .fitted import Fitted
from .targets import Targets, is_gap, without_masks

ORIGIN: Final = "X"
_TARGET: Final = "y"
_AS_IT_IS: Final[dict[str, Any]] = {"dtype": None, "ensure_all_finite": False, "allow_nd": True}
_ARROW_UNITS: Final = ("s", "ms", "us", "ns")


def is_frame(x: object) -> bool:
    """Return True for frames of pandas and polars, Arrow tables, objects with Arrow's column interface, and NumPy's
    arrays with named fields."""
    fields = isinstance(x, np.ndarray) and x.dtype.names is not None
    return fields or hasattr(x, "iloc") or hasattr(x, "__arrow_c_stream__")


def as_table(x: Any) -> Any:
    """Return a pandas frame unchanged, and any other frame as an Arrow table.

    Raises:
        DataError: ``x`` is one column, not a frame.
    """
    if isinstance(x, np.ndarray):
        return pa.table({name: typed_column(without_masks(x[name])) for name in x.dtype.names or ()})
    if getattr(x, "ndim", 2) != 1 and (hasattr(x, "iloc") or isinstance(x, pa.Table)):
        return x
    with contextlib.suppress(pa.ArrowInvalid):  # for one column of polars
        if getattr(x, "ndim", 2) != 1 and not isinstance(x, pa.ChunkedArray):
            return pa.table(x)
    what = short(type(x).__name__)
    of_pandas = hasattr(x, "iloc")
    cure = "X.to_frame() for one column, X.to_frame().T for one row" if of_pandas else "a frame or a table"
    raise DataError(f"{ORIGIN}: must be a frame of columns, got one column ({what}); pass {cure}")


def warn_of_another_order(x: object, y: object, level: int = 3) -> None:
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
        rule = "y: its index is that of X in another order, and rows are paired by place; pass y.loc[X.index]"
        warnings.warn(rule, stacklevel=level)


def table_of(x: Any, names: Sequence[str] | None = None) -> pa.Table:
    """Return a frame, or an array [n, column], as an Arrow table of typed columns.

    Args:
        names: the columns' names in order. None keeps the frame's names, or names an array's columns ``x0``, ``x1`` …

    Raises:
        DataError: two columns have the same name, or a column has complex numbers.
    """
    if isinstance(x, np.ndarray):
        columns: list[Any] = [typed_column(values) for values in x.T]
        present = [f"x{number}" for number in range(len(columns))]
    elif isinstance(x, pa.Table):
        columns, present = x.columns, _names(x)
    else:
        present = _names(x)
        for name, dtype in zip(present, x.dtypes, strict=True):
            if getattr(dtype, "kind", "") == "c":
                raise DataError(f"{ORIGIN}: column {short(name)} must have real numbers, got {dtype}")
        columns = [typed_cells(x.iloc[:, place]) for place in range(x.shape[1])]
    return pa.table(columns, names=list(names or present))


def _names(x: Any) -> list[str]:
    """Return the columns' names of a pandas frame or an Arrow table.

    Raises:
        DataError: two columns have the same name.
    """
    names = [clean(str(name)) for name in (x.columns if hasattr(x, "iloc") else x.column_names)]
    if len({*names}) < len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{ORIGIN}: column names must differ, got {short(doubled)} twice")
    return names


def taken(x: Any, index: np.ndarray) -> Any:
    """Return the rows ``index`` of an array, a frame, a frame's column or an Arrow table."""
    if hasattr(x, "iloc"):
        return x.iloc[index]
    if not isinstance(x, pa.Array | pa.ChunkedArray) and is_frame(x) and hasattr(x, "columns"):
        x = as_table(x)
    arrow = isinstance(x, pa.Table | pa.Array | pa.ChunkedArray)
    return x.take(pa.array(index)) if arrow else np.asarray(x)[index]


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
            rule = f"must name columns of {ORIGIN}"
            raise DataError(f"columns: {rule}, got {short(name)} (it has {listed(table.column_names)})")
    kinds: dict[str, ColumnKind] = dict.fromkeys(table.column_names, "number") if numbers else {}
    kinds |= columns or {}
    features = features_of(table, table.column_names, ORIGIN, kinds=kinds, remarks=lint.of_cells)
    if features.left_out and not numbers:
        reasons = "; ".join(f"column {name or 'without a name'}: {why}" for name, why in features.left_out.items())
        warnings.warn(f"dropped {reasons}", stacklevel=4)
    outputs = 1 if targets.values.ndim == 1 else targets.values.shape[1]
    names = (_TARGET,) if outputs == 1 else tuple(f"{_TARGET}_{i}" for i in range(outputs))
    rows, kept = Examples(features.matrix(), targets.values), tuple(features.kinds)
    raw = checked(Raw(ORIGIN, targets.task, "table", rows, None, targets.classes, kept, names, features.columns))
    longest = "_" * max(map(len, kept))  # appended to a target that is called like a column
    apart = tuple(f"{name}{longest}" if name in kept else name for name in names)
    source = Table(ORIGIN, apart, targets.task, columns=features.kinds)
    counts, width = _counts(targets), (features.width,)
    return Profile(source, raw, len(rows), width, counts, features.remarks, left_out=features.left_out)


def image_profile(images: np.ndarray, targets: Targets) -> Profile:
    """Describe images uint8 [n, channel, height, width]."""
    raw = checked(Raw(ORIGIN, "classification", "image", Examples(images, targets.values), None, targets.classes))
    return Profile(Npz(ORIGIN), raw, len(images), images.shape[1:], _counts(targets), ())


def images_of(x: np.ndarray, shape: Sequence[int] | None = None) -> np.ndarray:
    """Return whole numbers from 0 to 255 as uint8 [n, channel, height, width]; channels may come last.

    Args:
        shape: the required (channel, height, width). None allows any shape.

    Raises:
        DataError: ``x`` is not an array of such images.
    """
    if x.dtype.kind in "iu" and x.size and x.min() >= 0 and x.max() <= 255:
        x = x.astype(np.uint8)
    images = image_array(x, ORIGIN, ORIGIN)
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
            way = "no category" if column.kind == "category" else "the median of fit"
            some = f"{int(gaps.sum()):,} row{'s have' if gaps.sum() > 1 else ' has'} a gap"
            lines.append(f"Column {column.name}: {some}, but fit had none; a gap is treated as {way}.")
    for line in lines:
        warnings.warn(line, stacklevel=4)
    return coded


def typed_column(values: np.ndarray) -> pa.Array:
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


class TakesRows(BaseEstimator):
    """An estimator that takes an array, a frame or images.

    Attributes:
        columns: the parameter of :class:`.base.BayesianEstimator`.
        fitted_: the fit, whose form new rows must have.
    """

    columns: Mapping[str, ColumnKind] | None
    fitted_: Fitted

    def _profile(self, x: Any, y: object) -> tuple[Profile, list[str]]:
        """Return the description of the rows, and the names of all columns of a table."""
        warn_of_another_order(x, y, 6)
        x, named = self._validated(x, reset=True, ensure_min_samples=FEWEST_ROWS)
        if not named and x.ndim > 2:
            return image_profile(images_of(x), self._image_targets(y, len(x))), []
        table, numbers = table_of(x), not named and x.dtype.kind in "biuf"
        if table.num_rows < FEWEST_ROWS:
            raise ValueError(f"X: must have at least {FEWEST_ROWS} samples, got {table.num_rows} sample(s)")
        kinds = None if self.columns is None else {clean(str(name)): kind for name, kind in self.columns.items()}
        targets = self._targets(y, table.num_rows)
        return table_profile(table, targets, kinds, numbers=numbers), table.column_names

    def _validated(self, x: object, **rules: Any) -> tuple[Any, bool]:
        """Return ``X`` as a frame or an array, after scikit-learn's checks, and whether it is a frame."""
        x = without_masks(x)
        if hasattr(x, "collect") and not is_frame(x):  # a query of polars or of another package, which has no rows yet
            raise DataError(f"{ORIGIN}: must be rows in memory, got {short(type(x).__name__)}; pass {ORIGIN}.collect()")
        if not is_frame(x):
            return validate_data(self, x, **rules, **_AS_IT_IS), False
        x = as_table(x)
        _names(x)  # before scikit-learn, whose error has no name
        validate_data(self, x, reset=rules["reset"], skip_check_array=True)
        return x, True

    def _targets(self, y: object, rows: int) -> Targets:
        raise NotImplementedError

    def _image_targets(self, y: object, rows: int) -> Targets:
        return self._targets(y, rows)

    def _rows(self, x: Any) -> np.ndarray:
        """Return new rows in the form of the fit's rows."""
        check_is_fitted(self, "fitted_")
        schema = self.fitted_.schema
        if schema["kind"] == "image":
            x = without_masks(x)
            if is_frame(x) or np.ndim(x) < 3:
                raise ValueError(f"X: must be images, as in fit, got {short(type(x).__name__)} {list(np.shape(x))}")
            return images_of(check_array(x, **_AS_IT_IS), schema["input_shape"])
        x, named = self._validated(x, reset=False)
        if named and x.shape[0] == 0:
            raise ValueError("X: must have at least 1 row, got 0 sample(s)")
        if not named and x.ndim > 2:
            raise ValueError(f"X: must be rows of columns, as in fit, got an array {list(x.shape)}")
        x = self._in_order(x, schema["names"]) if named else x
        return rows_of(table_of(x, schema["names"]), self.fitted_.columns)

    def _in_order(self, x: Any, names: list[str]) -> Any:
        """Return a frame with its columns in the fit's order; scikit-learn compares names only if all are texts."""
        present = _names(x)
        if present == names:
            return x
        if sorted(present) == sorted(names):
            places = [present.index(name) for name in names]
            return x.iloc[:, places] if hasattr(x, "iloc") else x.select(places)
        of_array = names == [f"x{number}" for number in range(len(names))]
        unnamed = hasattr(x, "iloc") and not any(isinstance(name, str) for name in x.columns)
        if unnamed and not of_array and not hasattr(self, "feature_names_in_"):
            columns = short(", ".join(names))
            raise DataError(f"X: must have the columns of fit by name, {columns}, got {short(', '.join(present))}")
        return x
