"""A user's table: CSV with a header line, or Parquet."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as pa

from ...errors import DataError, brief, require, short
from ...files import require_file, require_utf8
from ..fitdata import Examples
from ..raw import Kind, Raw, Task, check_finite, encode_labels

_LABELS: Final = (  # the kinds of columns that can name classes
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
)


@dataclass(frozen=True)
class Table:
    """A user's CSV (with a header line) or Parquet file.

    Attributes:
        path: the file.
        target: the target column, or several for regression.
        task: ``classification`` (labels: whole numbers or texts) or ``regression``.
        features: the feature columns; empty: every column that is not a target.
    """

    path: str
    target: tuple[str, ...]
    task: Task
    features: tuple[str, ...] = ()
    name: Literal["table"] = "table"
    kind: ClassVar[Kind] = "table"

    def __post_init__(self) -> None:
        require(len(self.target) > 0, "target", "must name at least one column")
        single = self.task == "regression" or len(self.target) == 1
        require(single, "target", "must be one column for classification", list(self.target))
        check_columns(self.target, self.features)

    def read(self) -> Raw:
        """Read features float64 [n, feature] and labels int64 [n] or targets float64 [n, output].

        Raises:
            DataError: the file is missing, empty or malformed; a column is missing, doubled or not
                numeric; a value is missing, NaN or inf; a label is not whole.
        """
        return table_rows(open_table(Path(self.path)), self)

    def files(self) -> tuple[Path, ...]:
        """List the user's file."""
        return (Path(self.path),)


def check_columns(target: tuple[str, ...], features: tuple[str, ...]) -> None:
    """Raise ConfigError where a column stands twice."""
    for key, names in (("target", target), ("features", features)):
        require(len({*names}) == len(names), key, "must not name a column twice", list(names))
    both = [name for name in target if name in features]
    require(not both, "features", "must not contain a target column", both)


def table_rows(table: pa.Table, source: Table) -> Raw:
    """Take the rows of an open table; ``source`` says which columns are which, and is named in errors."""
    for name in source.target:
        if name not in table.column_names:
            raise DataError(f"{source.path}: must have the target column {short(name)}, got {_listed(table)}")
    features = source.features or tuple(n for n in table.column_names if n not in source.target)
    if not features:
        raise DataError(f"{source.path}: must have a column beside the target, got {_listed(table)}")
    inputs = feature_matrix(table, features, source.path)
    if source.task == "regression":
        targets = feature_matrix(table, source.target, source.path)
        return Raw(source.path, "regression", "table", Examples(inputs, targets), None, (), features, source.target)
    column = source.target[0]
    labels, classes = encode_labels(_labels(table, column, source.path), source.path, column)
    return Raw(source.path, "classification", "table", Examples(inputs, labels), None, classes, features, source.target)


def open_table(path: Path) -> pa.Table:
    """Open the table at ``path``, which must exist, parse, have unique column names and at least a row."""
    require_file(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path}: is empty")
    if not _is_parquet(path):
        require_utf8(path)
    try:
        table = _parse(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: is not a readable CSV or Parquet file ({brief(error)})") from None
    doubled = [name for name, count in Counter(table.column_names).items() if count > 1]
    if doubled:
        raise DataError(f"{path}: column names must differ, got {short(doubled[0])} twice")
    if table.num_rows == 0:
        raise DataError(f"{path}: must have rows below its header, got none")
    return table


def feature_matrix(table: pa.Table, columns: tuple[str, ...], origin: str) -> np.ndarray:
    """Take columns of finite numbers, float64 [n, column]."""
    for name in columns:
        if name not in table.column_names:
            raise DataError(f"{origin}: must have the column {short(name)}, got {_listed(table)}")
    matrix = np.stack([_numbers(table.column(name), name, origin) for name in columns], axis=1)
    check_finite(matrix, origin, columns)
    return matrix


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def _parse(path: Path) -> pa.Table:
    # without threads: Arrow's pool, where TFDS is loaded too, can abort the interpreter at its exit
    if _is_parquet(path):
        import pyarrow.parquet

        return pyarrow.parquet.ParquetFile(path).read(use_threads=False)
    import pyarrow.csv

    return pyarrow.csv.read_csv(path, read_options=pyarrow.csv.ReadOptions(use_threads=False))


def _numbers(column: pa.ChunkedArray, name: str, origin: str) -> np.ndarray:
    kind = column.type
    if pa.types.is_null(kind) or column.null_count:
        _missing(column, name, origin)
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (numeric or pa.types.is_decimal(kind)):
        row, value = _first_word(column)
        way = "encode it as numbers or leave it out with `features`"
        raise DataError(f"{origin}: column {short(name)} must be numeric, got {short(value)} in row {row}; {way}")
    try:
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid as error:  # whole numbers beyond 2^53
        raise DataError(
            f"{origin}: column {short(name)} must be numbers that a float64 holds ({brief(error)})"
        ) from None


def _labels(table: pa.Table, name: str, origin: str) -> np.ndarray:
    column = table.column(name)
    if pa.types.is_null(column.type) or column.null_count:
        _missing(column, name, origin)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(fits(kind) for fits in _LABELS):
        raise DataError(f"{origin}: column {short(name)}: labels must be whole numbers or texts, got {brief(kind)}")
    values = column.to_numpy()
    if values.dtype.kind in "OTU" and (values == "").any():
        row = int(np.argmax(values == "")) + 1
        raise DataError(f"{origin}: column {short(name)} must have a value in every row, got '' in row {row}")
    return values


def _missing(column: pa.ChunkedArray, name: str, origin: str) -> None:
    row = column.is_null().to_pylist().index(True) + 1
    raise DataError(f"{origin}: column {short(name)} must have a value in every row, got none or NaN in row {row}")


def _first_word(column: pa.ChunkedArray) -> tuple[int, Any]:
    """Find the first value that is no number, and its row (counted from 1)."""
    for row, value in enumerate(column.to_pylist(), start=1):
        try:
            float(value)
        except (TypeError, ValueError):
            return row, value
    return 1, column[0].as_py()


def _listed(table: pa.Table) -> str:
    names = brief(", ".join(table.column_names[:8]))
    return names + (", …" if table.num_columns > 8 else "")
