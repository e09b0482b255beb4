"""Targets of estimators: numbers and labels of pandas, polars, Arrow and NumPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ..data.examples import Task
from ..data.tables.forms import LARGEST
from ..errors import DataError, short


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


def without_masks(values: object) -> Any:
    """Return a masked array of NumPy as an array with gaps, a tensor as an array, and anything else unchanged."""
    if isinstance(values, torch.Tensor):  # NumPy takes none that needs a gradient, and none of bfloat16
        values = values.detach().cpu()
        return (values.double() if values.is_floating_point() else values).numpy()
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not np.ma.getmaskarray(values).any():
        return np.asarray(values.data)
    if values.dtype.kind in "biuf":
        return np.ma.filled(values.astype(np.float64), np.nan)
    return np.ma.filled(values.astype(object), None)


def values_of(y: object) -> np.ndarray:
    """Return targets of pandas, polars, Arrow or NumPy as an array; masked ones become gaps."""
    if isinstance(y, pa.Array):
        y = pa.chunked_array([y])
    if isinstance(y, pa.ChunkedArray) and pa.types.is_dictionary(y.type):
        y = y.cast(y.type.value_type)
    values = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else without_masks(y))
    return np.array(values.tolist()) if values.dtype.kind == "T" else values


def targets_of(y: object, rows: int) -> tuple[np.ndarray, int]:
    """Return targets of regression float64 [n, output], and their original number of dimensions.

    Raises:
        DataError: a target is not a finite number, or targets and rows differ in number.
    """
    values = values_of(y)
    if values.dtype.kind == "M":
        raise DataError("y: must be numbers, got dates; write them as numbers, such as days since 2000")
    if values.ndim not in (1, 2) or values.dtype.kind not in "biufOUS" or 0 in values.shape:
        raise DataError(f"y: must be numbers [n] or [n, output], got {values.dtype} {list(values.shape)}")
    _require_as_many(values, rows)
    flat = values.reshape(len(values), -1)
    if values.dtype.kind not in "biuf":
        flat = np.array([[_number(v, row) for v in one] for row, one in enumerate(flat.tolist(), 1)], np.float64)
    numbers = np.ascontiguousarray(flat, np.float64)
    if values.dtype.kind in "iu" and (np.abs(numbers) > LARGEST).any():
        row = int(np.argmax((np.abs(numbers) > LARGEST).any(1)))
        rule = "must be numbers that a float64 holds (whole ones up to 2^53)"
        raise DataError(f"y: {rule}, got {flat[row].tolist()[0]} in row {row + 1}; subtract a constant")
    if not np.isfinite(numbers).all():
        row = int(np.argmax(~np.isfinite(numbers).all(1)))
        got = numbers[row][~np.isfinite(numbers[row])][0]
        raise DataError(f"y: must be finite in every row, got {got:g} in row {row + 1}")
    return numbers, values.ndim


def classes_of(y: object, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes, in their own type, and the index of each row's class among them, int64 [n].

    Raises:
        DataError: a label is missing, or labels and rows differ in number.
        ValueError: labels are fractions.
    """
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d

    values = labels_of(y)
    check_classification_targets(values)
    values = column_or_1d(values, warn=True)
    _require_as_many(values, rows)
    classes, labels = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"y: must have at least 2 classes, got 1 class: {short(classes[0].item())}")
    return classes, labels.astype(np.int64)


def labels_of(y: object) -> np.ndarray:
    """Return labels as an array; Python's objects get the type that they share.

    Raises:
        DataError: a label is missing, or the labels are neither texts, whole numbers, truths nor floats.
    """
    labels = values_of(y)
    if labels.ndim != 1 and labels.shape[1:] != (1,):
        return labels
    times = labels.dtype.kind in "Mm"  # tolist would make whole numbers of nanoseconds
    flat = [*labels.ravel()] if times else labels.ravel().tolist()
    gaps = [row for row, label in enumerate(flat, 1) if is_gap(label)]
    if gaps:
        raise DataError(f"y: must have a class in every row, got {labels.ravel()[gaps[0] - 1]} in row {gaps[0]}")
    if labels.dtype.kind not in "OMm":
        return labels
    for kinds in ((bool, np.bool_), (int, np.integer), (float, np.floating)):
        if not times and all(isinstance(label, kinds) and (type(label) is not bool or bool in kinds) for label in flat):
            return np.array(flat).reshape(labels.shape)
    row = next((row for row, label in enumerate(flat, 1) if not isinstance(label, str)), 0)
    if row:
        rule = "labels must be all texts, all whole numbers or all truths"
        got = f"got {short(labels.ravel()[row - 1])} in row {row}"
        raise DataError(f"y: {rule}, {got}; write them as texts, such as pandas.Series(y).astype(str)")
    return labels


def is_gap(value: object) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA raises it
        return True


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
