"""What ``fit`` takes of each row besides ``X`` and ``y``: its group or its date, and its weight."""

import warnings
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
import pyarrow as pa

from ..data.raw import FEWEST_ROWS
from ..data.sources.table import SplitBy
from ..data.tables.cells import Cells
from ..data.tables.columns import typed_cells
from ..errors import DataError, UserError, short
from ..registry import METHODS
from .given import ORIGIN, as_table, is_frame, taken, typed_column
from .plan import AUTO
from .targets import values_of, without_masks

if TYPE_CHECKING:
    from .base import BayesianEstimator

_WEIGHTS: Final = (1e-30, 1e30)  # the smallest and largest weight; squares and sums of others leave a float64
F = TypeVar("F", bound=Callable[..., Any])


def weighing(fit: F) -> F:
    """Give ``fit`` of an estimator the parameter ``sample_weight`` only if the estimator's method weighs rows.

    scikit-learn's tools, such as bagging, read the signature to know whether an estimator weighs rows. Its own
    ``available_if`` hides a whole method, not a parameter.
    """
    return cast(F, _FitOfMethod(fit))


class _FitOfMethod:
    def __init__(self, fit: Callable[..., Any]) -> None:
        self._fit, self.__doc__ = fit, fit.__doc__

    def __get__(self, estimator: "BayesianEstimator | None", owner: type | None = None) -> Callable[..., Any]:
        if estimator is None:
            return self._fit
        fit, name = MethodType(self._fit, estimator), estimator.method
        if name == AUTO or (isinstance(name, str) and name in METHODS and METHODS[name].weighs_rows):
            return fit

        def plain(X: object, y: object, *, groups: object = None, dates: object = None, **others: object) -> object:
            if others.pop("sample_weight", None) is not None:
                can = ", ".join(name for name in METHODS if METHODS[name].weighs_rows)
                raise UserError(f"sample_weight: must be None for {name}, whose loss does not weigh rows ({can} do)")
            return fit(X, y, groups=groups, dates=dates, **others)

        plain.__doc__ = self.__doc__
        return plain


def units_of(rows: int, groups: Any, dates: Any) -> tuple[np.ndarray | None, bool]:
    """Return the numbers of the groups or dates that no split divides [n], or None, and whether they are dates.

    Raises:
        DataError: both are given, they are no column, their number is not that of the rows, a value is a gap, or a date
            is none.
    """
    if groups is None and dates is None:
        return None, False
    if groups is not None and dates is not None:
        raise DataError("groups: must not be given together with dates")
    name, values = ("groups", groups) if dates is None else ("dates", dates)
    plain = values_of(values)
    if plain.ndim != 1:
        rule = f"must be one column with a value for each of the {rows:,} rows"
        raise DataError(f"{name}: {rule}, got an array {list(plain.shape)}")
    cells = typed_cells(values) if hasattr(values, "iloc") else typed_column(plain)
    if len(cells) != rows:
        raise DataError(f"{name}: must have a value for each of the {rows:,} rows, got {len(cells):,}")
    by = SplitBy(group=name) if dates is None else SplitBy(date=name)
    return by.units(Cells.of(pa.table({name: cells}), name, ORIGIN)), dates is not None


def with_weight(x: Any, y: Any, groups: Any, dates: Any, weights: Any) -> tuple[Any, Any, Any, Any, np.ndarray]:
    """Return rows, targets, groups, dates and weights float64 [n] of the rows with a weight above 0.

    Weights that together count fewer rows than a fit needs get a warning.

    Raises:
        DataError: the weights are not one number for each row, 0 or not far from 1, or all are 0.
    """
    x = as_table(x) if is_frame(x) else np.asarray(without_masks(x))
    try:
        numbers = np.array(values_of(weights), dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"sample_weight: must be numbers [n], got {short(weights)}") from None
    rows = x.shape[0] if x.ndim else 0
    numbers = np.full(rows, float(numbers)) if numbers.ndim == 0 else numbers
    if numbers.shape != (rows,):
        rule = f"must have one weight for each of the {rows:,} rows"
        raise DataError(f"sample_weight: {rule}, got an array {list(numbers.shape)}")
    wrong = ~(np.isfinite(numbers) & (numbers >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"sample_weight: must be finite and >= 0, got {numbers[row]:g} in row {row + 1}")
    kept = np.flatnonzero(numbers)
    if not len(kept):
        raise DataError("sample_weight: must not be zero in every row")
    far = (numbers > 0) & ((numbers < _WEIGHTS[0]) | (numbers > _WEIGHTS[1]))
    if far.any():
        rule = f"must be 0 or from {_WEIGHTS[0]:g} to {_WEIGHTS[1]:g}; divide weights by their mean"
        row = int(np.argmax(far))
        raise DataError(f"sample_weight: {rule}, got {numbers[row]:g} in row {row + 1}")
    if (total := float(numbers.sum())) < FEWEST_ROWS:
        rule = "weights count rows; if they are meant as shares, divide them by their mean"
        warnings.warn(f"sample_weight: all rows together count as {total:.3g} rows: {rule}", stacklevel=5)
    if len(kept) == rows:
        return x, y, groups, dates, numbers
    chosen = [None if of is None else taken(of, kept) for of in (x, y, groups, dates)]
    return chosen[0], chosen[1], chosen[2], chosen[3], numbers[kept]
