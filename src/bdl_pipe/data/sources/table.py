"""A user's table: CSV with a header line, or Parquet.

Without ``columns`` every feature is a number, and no cell is empty. With ``columns`` each feature is a number, a
category or a date, and :mod:`bdl_pipe.data.transform` fits its network inputs to the training rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...config import LATER
from ...errors import DataError, require, short
from ..examples import Examples
from ..raw import Kind, OfPath, Raw, Task, encode_labels
from ..tables.cells import Cells
from ..tables.columns import Column, ColumnKind, described_matrix, feature_matrix, is_index, labels_of
from ..tables.forms import names_of, require_column
from ..tables.read import CsvForm, open_table


@dataclass(frozen=True)
class SplitBy:
    """The column that says which rows belong together: no split divides the rows of one value.

    Attributes:
        date: a column of dates or numbers; test, calibration and validation rows are the latest in turn. It may be a
            feature.
        group: a column of any values, such as patients; a feature only if ``features`` or ``columns`` names it.
    """

    date: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        named = (self.date, self.group)
        require((self.date is None) != (self.group is None), "date", "must be given, or group, and not both", named)

    @property
    def column(self) -> str:
        """Return the column's name."""
        return self.date or self.group or ""

    def units(self, cells: Cells) -> np.ndarray:
        """Return the number of each row's group, or of its date in the dates' order, int64 [n].

        Raises:
            DataError: a cell is empty, or is neither a date nor a number.
        """
        gaps = cells.missing()
        if gaps.any():
            rule = "must have a value in every row, since split_by names it"
            got = f"got none in row {int(np.argmax(gaps)) + 1}"
            raise DataError(f"{cells.origin}: column {short(cells.name)} {rule}, {got}")
        if self.group is not None:
            texts = cells.texts()
            return np.asarray(pc.index_in(texts, texts.unique()).to_numpy(), np.int64)
        values = cells.numbers() if cells.kind == "number" else cells.days()
        return np.unique(values, return_inverse=True)[1].astype(np.int64).reshape(-1)


@dataclass(frozen=True)
class Table(OfPath):
    """A user's CSV (with a header line) or Parquet file.

    Attributes:
        path: the file.
        target: the target column, or several for regression.
        task: ``classification`` (labels: whole numbers or texts) or ``regression``.
        features: the feature columns. Empty: all columns except the targets.
        columns: feature column -> ``number``, ``category`` or ``date``; cells may be empty. null: all features are
            numbers.
        categories: the largest number of network inputs per category column; less frequent values share the last input.
        csv: the format of a CSV file.
        skip_without_target: whether rows without a target are skipped.
        split_by: the column by which rows are split into training, validation, calibration and test rows. null: rows
            are independent, and splits are random.
    """

    path: str
    target: tuple[str, ...]
    task: Task
    features: tuple[str, ...] = ()
    columns: dict[str, ColumnKind] | None = field(default=None, metadata=LATER)
    categories: int = field(default=20, metadata=LATER)
    csv: CsvForm = field(default=CsvForm(), metadata=LATER)
    skip_without_target: bool = field(default=False, metadata=LATER)
    split_by: SplitBy | None = field(default=None, metadata=LATER)
    name: Literal["table"] = "table"
    kind: ClassVar[Kind] = "table"

    def __post_init__(self) -> None:
        require(len(self.target) > 0, "target", "must name at least one column")
        single = self.task == "regression" or len(self.target) == 1
        require(single, "target", "must be one column for classification", list(self.target))
        check_columns(self.target, self.features)
        require(self.categories >= 2, "categories", "must be >= 2", self.categories)
        if self.columns is not None:
            require(not self.features, "features", "must be empty if columns is given", list(self.features))
            require(len(self.columns) > 0, "columns", "must name at least one column, or be null")
            check_columns(self.target, tuple(self.columns))
        by = "" if self.split_by is None else self.split_by.column
        require(by not in self.target, "split_by", "must not name a target", by)

    def read(self) -> Raw:
        """Read features float64 [n, feature] and labels int64 [n] or targets float64 [n, output].

        Raises:
            DataError: the file is missing, empty or malformed; a column is missing, doubled or not
                numeric; a value is missing, NaN or inf; a label is not whole.
        """
        table = open_table(Path(self.path), self.csv)
        if self.skip_without_target:
            table = with_targets(table, self.target, self.path)
            if table.num_rows == 0:
                raise DataError(f"{self.path}: must have a row with a target, got none")
        return table_rows(table, self)


def check_columns(target: tuple[str, ...], features: tuple[str, ...]) -> None:
    """Raise ConfigError if a column is named twice."""
    for key, names in (("target", target), ("features", features)):
        require(len({*names}) == len(names), key, "must not name a column twice", list(names))
    both = [name for name in target if name in features]
    require(not both, "features", "must not contain a target column", both)


def table_rows(table: pa.Table, source: Table) -> Raw:
    """Return the rows of an open table, whose columns ``source`` describes."""
    answers = [require_column(table, name, source.path) for name in source.target]
    by, units, grouped = source.split_by, None, ""
    if by is not None:
        cells = Cells.of(table, by.column, source.path)
        units, grouped = by.units(cells), cells.name if by.group is not None else ""
    columns: tuple[Column, ...] = ()
    if source.columns is not None:
        features = tuple(source.columns)
        columns, inputs = described_matrix(table, source.columns, source.categories, source.path)
    else:
        others = (n for n in table.column_names if n not in (*answers, grouped) and not is_index(table, n))
        features = source.features or tuple(others)
        if not features:
            raise DataError(f"{source.path}: must have a column besides the target, got {names_of(table)}")
        inputs = feature_matrix(table, features, source.path)
    if source.task == "regression":
        targets = feature_matrix(table, source.target, source.path)
        rows, classes = Examples(inputs, targets, units), tuple[str, ...]()
    else:
        column = source.target[0]
        labels, classes = encode_labels(labels_of(Cells.of(table, column, source.path)), source.path, column)
        rows = Examples(inputs, labels, units)
    ordered = by is not None and by.date is not None
    return Raw(source.path, source.task, "table", rows, None, classes, features, source.target, columns, ordered)


def with_targets(table: pa.Table, targets: Sequence[str], origin: str) -> pa.Table:
    """Remove the rows without a target."""
    for name in targets:
        gaps = Cells.of(table, name, origin).missing()
        table = table.filter(pa.array(~gaps)) if gaps.any() else table
    return table
