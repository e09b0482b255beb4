"""The result of an inspection, of a table or of images."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np

from ..raw import Raw
from ..size import Size
from ..sources.images import ImageFolder, Npz
from ..sources.table import Table
from ..tables.columns import ColumnKind
from ..tables.forms import listed

FEWEST: Final = 50  # the least number of rows of a data set
FEWEST_OF_CLASS: Final = 5  # the least number of rows of a class, so that training, validation and test rows have it


@dataclass(frozen=True)
class Profile:
    """The description of a user's table or images.

    Attributes:
        source: the source of the inspected rows.
        raw: the rows, from the source.
        rows: the number of training rows, or of all rows of a table that have a target.
        shape: the shape of a network's input: (number,) or (channel, height, width).
        classes: class -> number of training rows, the largest first; empty for regression.
        remarks: warnings for the user, one line each.
        test_rows: the number of the data set's own test images; 0 if it has none.
        left_out: column of a table that is not a feature -> reason.
        without_target: the number of rows of a table that lack a target and are left out.
    """

    source: Table | ImageFolder | Npz
    raw: Raw = field(repr=False, compare=False)
    rows: int
    shape: tuple[int, ...]
    classes: Mapping[str, int]
    remarks: Sequence[str]
    test_rows: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    without_target: int = 0

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """Return the features of a table with their kinds; empty for images."""
        return (self.source.columns or {}) if isinstance(self.source, Table) else {}

    def size(self, calibration: float = 0.0) -> Size:
        """Return the data set's size, from which default hyperparameters follow.

        Args:
            calibration: the share of training rows that are excluded from all fits.
        """
        inputs = list(chain.from_iterable(column.bounded for column in self.raw.columns))
        return Size(
            self.source.task,
            self.rows,
            math.prod(self.shape),
            calibration=calibration,
            image=None if isinstance(self.source, Table) else self.shape,  # type: ignore[arg-type]
            fewest=min(self.classes.values(), default=0),
            has_test=self.test_rows > 0,
            numbers=tuple(i for i, bounded in enumerate(inputs) if not bounded),
        )

    def dataset(self, log: bool | None = None) -> dict[str, Any]:
        """Return the keys of a :class:`~bdl_pipe.DatasetConfig` that depend on the data, for ``read_config``.

        Args:
            log: whether the logarithms of a table's targets are fitted. None: chosen on the training rows of a split.
        """
        source = {"name": self.source.name, **_changed(self.source)}
        if not isinstance(self.source, Table):
            return {"source": source, "normalise": "train", "targets": "none"}
        scaling = {None: "auto", True: "log", False: "standardise"}[log]
        targets = scaling if self.source.task == "regression" else "log" if log else "none"
        return {"source": source, "normalise": "robust", "targets": targets}

    def describe(self) -> list[str]:
        """Return a description of the data, a line for each finding."""
        if isinstance(self.source, Table):
            kind = f"{self.rows:,} rows, {len(self.columns)} columns to predict {', '.join(self.source.target)}"
        else:
            (channels, height, width), tests = self.shape, f" and {self.test_rows:,} test images"
            kind = f"{self.rows:,} {'grey' if channels == 1 else 'colour'} images of {height}×{width} pixels"
            kind += tests if self.test_rows else ""
        lines = [f"{self.source.path}: {kind}"]
        for kind in ("number", "category", "date"):
            names = [name or "''" for name, its_kind in self.columns.items() if its_kind == kind]
            lines += [f"  {kind}: {listed(names)}"] if names else []
        if isinstance(self.source, Table) and (by := self.source.split_by) is not None:
            assert self.raw.train.units is not None
            of = "the rows of a group are in one of training, validation, calibration and test rows"
            of = "the latest rows are tested, and validation and calibration rows precede them" if by.date else of
            lines.append(f"  split by {by.column}, {len(np.unique(self.raw.train.units)):,} values: {of}")
        if self.without_target:
            lines.append(f"  dropped {self.without_target:,} rows without a target")
        lines += [f"  dropped column {column or 'without a name'}: {why}" for column, why in self.left_out.items()]
        lines += [f"  note: {remark}" for remark in self.remarks]
        if self.classes:
            counts = [f"{label} {count:,}" for label, count in self.classes.items()]
            lines.append(f"  {len(counts)} classes: {listed(counts)}")
        return lines


def _changed(config: Any) -> dict[str, Any]:
    """Return a source's keys that differ from their defaults, and ``categories``, which a table's width depends on."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    changed = {key: value for key, value in values.items() if value != defaults[key] or key == "categories"}
    return {
        key: _changed(value) if dataclasses.is_dataclass(value) else [*value] if isinstance(value, tuple) else value
        for key, value in changed.items()
    }
