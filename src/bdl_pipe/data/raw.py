"""Raw rows, the interface of data sources, and the checks of their rows."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np

from ..errors import DataError, short
from .examples import Examples
from .examples import Task as Task
from .tables.columns import Column

FEWEST_ROWS: Final = 10  # with fewer rows, a 90/10 split has no test row
Kind = Literal["image", "table"]


@dataclass(frozen=True)
class Raw:
    """A whole data set in original units.

    Attributes:
        origin: the file or folder, for error messages only.
        train: all rows, or all rows except the test rows.
        test: the set's own test rows. None: the standard UCI splits are used.
        classes: the classes' names, in label order; empty for regression.
        features: the names of a table's feature columns.
        targets: the names of a table's target columns.
        columns: the descriptions of a table's feature columns; empty if all are plain numbers.
        ordered: whether ``train.units`` are dates, and held-out rows are the latest.
    """

    origin: str
    task: Task
    kind: Kind
    train: Examples
    test: Examples | None = None
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    targets: tuple[str, ...] = ("label",)
    columns: tuple[Column, ...] = ()
    ordered: bool = False


@runtime_checkable
class Source(Protocol):
    """A source of raw rows, which ``source`` of a data set in params.yaml selects."""

    @property
    def name(self) -> str:
        """Return the source's name in params.yaml."""

    @property
    def kind(self) -> Kind:
        """Return whether inputs are images or rows of a table."""

    @property
    def task(self) -> Task:
        """Return the task: classification or regression."""

    def read(self) -> Raw:
        """Read the whole data set, in original units.

        Raises:
            UserError: the data set is not on this machine and cannot be downloaded; the message lists solutions.
            DataError: the rows are wrong; the message names the file, the rule and the value.
        """

    def files(self) -> tuple[Path, ...]:
        """List the users' files and folders that hold the rows; empty if checksums pin the rows."""


class OfPath:
    """The part of a source that reads the user's file or folder ``path``."""

    path: str

    def files(self) -> tuple[Path, ...]:
        """List the user's file or folder."""
        return (Path(self.path),)


def checked(raw: Raw) -> Raw:
    """Check ``raw`` and return it.

    Raises:
        DataError: there are too few rows, only one class, or a constant target.
    """
    if len(raw.train) < FEWEST_ROWS:
        raise DataError(f"{raw.origin}: must have at least {FEWEST_ROWS} rows, got {len(raw.train)}")
    if raw.test is not None and len(raw.test) == 0:
        raise DataError(f"{raw.origin}: must have at least 1 test row, got 0")
    if raw.task == "classification":
        labels = np.unique(raw.train.targets)
        if len(labels) < 2:
            only = raw.classes[int(labels[0])]
            raise DataError(
                f"{raw.origin}: target {short(raw.targets[0])} must have at least 2 classes, got only {short(only)}"
            )
        return raw
    for name, column in zip(raw.targets, raw.train.targets.T, strict=True):
        if np.ptp(column) == 0:
            raise DataError(f"{raw.origin}: target {short(name)} must vary, got {column[0]:g} in every row")
        if not 0 < np.var(column) < np.inf:  # squares overflow or underflow float64
            rule = "must vary by more than 1e-150 and less than 1e150; write it in other units"
            raise DataError(f"{raw.origin}: target {short(name)} {rule}, got {np.ptp(column):g}")
    return raw


def encode_labels(values: np.ndarray, origin: str, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encode labels (whole numbers or texts) as int64 [n], with the sorted class names.

    Raises:
        DataError: a label is missing or is not a whole number.
    """
    values = np.asarray(values)
    if values.dtype.kind == "f":
        bad = ~((np.abs(values) <= 2.0**53) & (values == np.floor(values)))  # NaN and infinity are bad too
        if bad.any():
            row = int(np.argmax(bad))
            rule = "labels must be whole numbers or texts"
            raise DataError(f"{origin}: column {short(column)}: {rule}, got {values[row]:g} in row {row + 1}")
        values = values.astype(np.int64)
    if values.dtype.kind in "OT":
        values = values.astype(str)
    if values.dtype.kind not in "biuU":
        cure = f"; save {column}.astype(str)" if values.dtype.kind == "S" else ""
        rule = "labels must be whole numbers or texts"
        raise DataError(f"{origin}: column {short(column)}: {rule}, got {values.dtype}{cure}")
    names, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64).reshape(-1), tuple(str(n) for n in names)


def relabel(examples: Examples, names: Any, classes: tuple[str, ...], origin: str) -> Examples:
    """Replace the targets of ``examples``, which are indices of ``names``, by indices of ``classes``.

    Raises:
        DataError: a test row has a class without training rows.
    """
    place = {name: i for i, name in enumerate(classes)}
    unknown = sorted(set(names) - set(place))
    if unknown:
        raise DataError(f"{origin}: every class of the test rows must have training rows, got {short(unknown[0])}")
    codes = np.array([place[n] for n in names], dtype=np.int64)
    return replace(examples, targets=codes[examples.targets])
