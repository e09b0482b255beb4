"""Raw rows, the sources that deliver them, and the rules that every source's rows must meet."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np

from ..errors import DataError, short
from .encoding import Column
from .examples import Examples
from .examples import Task as Task

FEWEST_ROWS: Final = 10  # below this a 90/10 split has no row to test on
Kind = Literal["image", "table"]


@dataclass(frozen=True)
class Raw:
    """A whole data set in original units.

    Attributes:
        origin: the file or folder, for error messages only.
        train: all rows, or all but the test rows.
        test: the set's own test rows; None where the standard UCI splits provide them.
        classes: names, in label order; empty for regression.
        features, targets: column names of a table.
        columns: what the columns of a table are, where they are not all plain numbers; else none.
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


@runtime_checkable
class Source(Protocol):
    """A source of raw rows, as ``source`` of a data set in params.yaml says it."""

    @property
    def name(self) -> str:
        """Return the name that chooses it in params.yaml."""

    @property
    def kind(self) -> Kind:
        """Return what an input is."""

    @property
    def task(self) -> Task:
        """Return what is predicted from the rows."""

    def read(self) -> Raw:
        """Read the whole data set, in original units.

        Raises:
            UserError: it is not on this machine and cannot be fetched; the message names the ways out.
            DataError: the file, rule and value of whatever is wrong with the rows.
        """

    def files(self) -> tuple[Path, ...]:
        """List the users' files and folders that the rows come from; none where they are pinned by a checksum."""


def checked(raw: Raw) -> Raw:
    """Return ``raw`` itself, where it meets the rules.

    Raises:
        DataError: too few rows, one class only, or a constant target.
    """
    if len(raw.train) < FEWEST_ROWS:
        raise DataError(f"{raw.origin}: must have at least {FEWEST_ROWS} rows, got {len(raw.train)}")
    if raw.test is not None and len(raw.test) == 0:
        raise DataError(f"{raw.origin}: must have at least 1 test row, got 0")
    if raw.task == "classification":
        found = np.unique(raw.train.targets)
        if len(found) < 2:
            only = raw.classes[int(found[0])]
            raise DataError(
                f"{raw.origin}: column {short(raw.targets[0])} must have at least 2 classes, got only {short(only)}"
            )
        return raw
    for name, column in zip(raw.targets, raw.train.targets.T, strict=True):
        if np.ptp(column) == 0:
            raise DataError(f"{raw.origin}: column {short(name)} must vary, got {column[0]:g} in every row")
        if not 0 < np.var(column) < np.inf:  # its squares leave a float64
            rule = "must vary by more than 1e-150 and less than 1e150; write it in other units"
            raise DataError(f"{raw.origin}: column {short(name)} {rule}, got {np.ptp(column):g}")
    return raw


def encode_labels(values: np.ndarray, origin: str, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encode labels (whole numbers or texts) as int64 [n], with the sorted class names.

    Raises:
        DataError: a label is missing or is a number that is not whole.
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


def check_finite(values: np.ndarray, origin: str, columns: tuple[str, ...]) -> None:
    """Raise DataError naming the first column and row (counted from 1) with NaN or inf; values [n, column]."""
    bad = ~np.isfinite(values)
    if bad.any():
        column, row = (int(i) for i in np.argwhere(bad.T)[0])
        found = f"{values[row, column]:g}"
        raise DataError(f"{origin}: column {short(columns[column])} must be finite, got {found} in row {row + 1}")


def relabel(examples: Examples, names: Any, classes: tuple[str, ...], origin: str) -> Examples:
    """Turn the codes of ``examples`` into ``names`` into codes into ``classes``.

    Raises:
        DataError: a test row is of a class that no training row has.
    """
    place = {name: i for i, name in enumerate(classes)}
    unknown = sorted(set(names) - set(place))
    if unknown:
        raise DataError(f"{origin}: the test rows have a class that no training row has: {short(unknown[0])}")
    codes = np.array([place[n] for n in names], dtype=np.int64)
    return replace(examples, targets=codes[examples.targets])
