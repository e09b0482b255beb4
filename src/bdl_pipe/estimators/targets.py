"""Convert targets in memory to the library's form: numbers and labels of pandas, polars, Arrow and NumPy."""

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
    gaps = [row for row, label in enumerate(flat, 1) if is_gap(label)]
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


def is_gap(value: Any) -> bool:
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
