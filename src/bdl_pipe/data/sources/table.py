"""A user's table: CSV with a header line, or Parquet.

Without ``columns`` every feature is a number, and no cell is empty. With ``columns`` each feature is a number, a
category or a date, and :mod:`bdl_pipe.data.encoding` fits its network inputs to the training rows.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal

import pyarrow as pa

from ... import portable_rows
from ...config import LATER
from ...errors import ConfigError, DataError, brief, require, short
from ...files import require_file, require_utf8
from .. import scratch
from ..encoding import Column, ColumnKind
from ..examples import Examples
from ..raw import Kind, Raw, Task, encode_labels
from .cells import DECIMAL, THOUSANDS, Cells, is_index
from .columns import described_matrix, feature_matrix, labels_of
from .formats import require_table
from .forms import GROUPED, clean, is_number
from .names import names_of, require_column

_PIECE: Final = 2**25  # bytes of a large CSV file that are read together
Decimal = Literal[".", ","]
Thousands = Literal["", ",", ".", "'", " "]


@dataclass(frozen=True)
class CsvForm:
    """The format of a CSV file.

    Attributes:
        separator: the separator of cells.
        decimal: the decimal point of numbers.
        encoding: the encoding of characters.
        thousands: the separator of thousands in numbers; empty: they have none.
    """

    separator: str = ","
    decimal: Decimal = "."
    encoding: str = "utf-8"
    thousands: Thousands = field(default="", metadata=LATER)

    def __post_init__(self) -> None:
        require(len(self.separator) == 1, "separator", "must be one character", self.separator)
        require(self.separator != self.decimal, "decimal", "must not be the separator", self.decimal)
        require(self.thousands != self.decimal, "thousands", "must not be the decimal point", self.thousands)
        try:
            "".encode(self.encoding)
        except LookupError:
            raise ConfigError("encoding", "must be an encoding that Python knows", self.encoding) from None


@dataclass(frozen=True)
class Table:
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
    """

    path: str
    target: tuple[str, ...]
    task: Task
    features: tuple[str, ...] = ()
    columns: dict[str, ColumnKind] | None = field(default=None, metadata=LATER)
    categories: int = field(default=20, metadata=LATER)
    csv: CsvForm = field(default=CsvForm(), metadata=LATER)
    skip_without_target: bool = field(default=False, metadata=LATER)
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

    def files(self) -> tuple[Path, ...]:
        """List the user's file."""
        return (Path(self.path),)


def check_columns(target: tuple[str, ...], features: tuple[str, ...]) -> None:
    """Raise ConfigError if a column is named twice."""
    for key, names in (("target", target), ("features", features)):
        require(len({*names}) == len(names), key, "must not name a column twice", list(names))
    both = [name for name in target if name in features]
    require(not both, "features", "must not contain a target column", both)


def table_rows(table: pa.Table, source: Table) -> Raw:
    """Return the rows of an open table, whose columns ``source`` describes."""
    answers = [require_column(table, name, source.path) for name in source.target]
    described: tuple[Column, ...] = ()
    if source.columns is not None:
        features = tuple(source.columns)
        described, inputs = described_matrix(table, source.columns, source.categories, source.path)
    else:
        others = (n for n in table.column_names if n not in answers and not is_index(table, n))
        features = source.features or tuple(others)
        if not features:
            raise DataError(f"{source.path}: must have a column besides the target, got {names_of(table)}")
        inputs = feature_matrix(table, features, source.path)
    if source.task == "regression":
        targets = feature_matrix(table, source.target, source.path)
        rows, classes = Examples(inputs, targets), tuple[str, ...]()
    else:
        column = source.target[0]
        labels, classes = encode_labels(labels_of(Cells.of(table, column, source.path)), source.path, column)
        rows = Examples(inputs, labels)
    return Raw(source.path, source.task, "table", rows, None, classes, features, source.target, described)


def with_targets(table: pa.Table, targets: Sequence[str], origin: str) -> pa.Table:
    """Remove the rows without a target."""
    for name in targets:
        gaps = Cells.of(table, name, origin).missing()
        table = table.filter(pa.array(~gaps)) if gaps.any() else table
    return table


def sniffed(path: Path) -> CsvForm:
    """Determine the format of a CSV file from its beginning; return the default for other files."""
    if is_parquet(path) or not path.is_file():
        return CsvForm()
    with path.open("rb") as file:
        start = file.read(portable_rows.SNIFFED)
    encoding = "utf-8"
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError as error:
        cut_off = error.start >= len(start) - 3  # the beginning ends in the middle of a character
        encoding, text = ("utf-8", start[: error.start].decode()) if cut_off else ("cp1252", start.decode("latin-1"))
    lines = text.splitlines()
    separator = portable_rows.separator(text)
    cells = [cell.strip() for line in lines[1:] for cell in line.split(separator)] if separator != "," else []
    commas = sum(_is_decimal(cell, ",") for cell in cells)
    points = sum(_is_decimal(cell, ".") and not re.match(GROUPED, cell) for cell in cells)
    return CsvForm(separator, "," if commas > points else ".", encoding)


def like_fitted(path: Path, decimal: Decimal, thousands: Thousands) -> CsvForm:
    """Determine the format of a file of new rows; its numbers are written as in the fitted file.

    A file between commas has decimal points, and no separators of thousands if the fitted file had decimal commas.
    """
    found = sniffed(path)
    if found.separator == "," == decimal:
        decimal, thousands = ".", ""
    return CsvForm(found.separator, decimal, found.encoding, thousands)


def _is_decimal(cell: str, point: str) -> bool:
    whole, found, rest = cell.strip('"').partition(point)
    return bool(found) and whole.lstrip("+-").isdigit() and rest.isdigit()


def open_table(path: Path, form: CsvForm = CsvForm()) -> pa.Table:
    """Open the table at ``path``, which must exist, parse, have unique column names and at least one row.

    Args:
        form: the format of a CSV file. Its cells are texts, which :class:`~.cells.Cells` reads.
    """
    require_file(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path}: is empty")
    require_table(path, is_parquet(path))
    if not is_parquet(path) and form.encoding == "utf-8":
        require_utf8(path)
    try:
        table = _parse(path, form)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        cure = _cure(str(error))
        raise DataError(f"{path}: is not a readable CSV or Parquet file ({brief(error)}){cure}") from None
    about = table.schema.metadata
    table = table.rename_columns([clean(name) for name in table.column_names]).replace_schema_metadata(about)
    if table.column_names.count("") > 1:  # commas at the end of each line
        kept = [i for i, name in enumerate(table.column_names) if name or not Cells.of(_one(table, i), "", "").is_empty]
        table = table.select(kept)
    doubled = [name for name, count in Counter(table.column_names).items() if count > 1]
    if doubled:
        above = "" if doubled[0] and not is_number(doubled[0]) else "; the first line must have the columns' names"
        raise DataError(f"{path}: column names must differ, got {short(doubled[0])} twice{above}")
    if table.num_rows == 0:
        raise DataError(f"{path}: must have rows below its header, got none")
    return table


def _one(table: pa.Table, place: int) -> pa.Table:
    return table.select([place]).rename_columns([""])


def _cure(error: str) -> str:
    """Return the cure of an error of the parser; empty if there is none."""
    if "Row #2: Expected 1 columns" in error:
        return "; delete the lines above the column names"
    if re.search(r"Row #\d+: Expected \d+ columns", error):
        return "; give each line as many cells as the first line has names, and delete lines that are no rows"
    if "codec can't decode" in error:
        return "; save it as UTF-8 (iconv -f ENCODING -t UTF-8)"
    return ""


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def _parse(path: Path, form: CsvForm) -> pa.Table:
    # without threads, because with TFDS loaded Arrow's pool can abort the interpreter at exit
    if is_parquet(path):
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(path)
        if 8 * file.metadata.num_rows * file.metadata.num_columns < scratch.LARGE:
            return file.read(use_threads=False)
        groups = (file.read_row_group(number, use_threads=False) for number in range(file.num_row_groups))
        return scratch.table(file.schema_arrow, (batch for group in groups for batch in group.to_batches()))
    import pyarrow.csv

    # newlines_in_values: texts may contain line ends, so a block must end at the end of a row
    parse = pyarrow.csv.ParseOptions(delimiter=form.separator, newlines_in_values=True)
    options = pyarrow.csv.ReadOptions(use_threads=False, encoding=form.encoding)
    with pyarrow.csv.open_csv(path, read_options=options, parse_options=parse) as reader:
        names = reader.schema.names
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    if path.stat().st_size >= scratch.LARGE:
        options.block_size = _PIECE
        with pyarrow.csv.open_csv(path, read_options=options, parse_options=parse, convert_options=convert) as reader:
            table = scratch.table(reader.schema, reader)
    else:
        table = pyarrow.csv.read_csv(path, read_options=options, parse_options=parse, convert_options=convert)
    return table.replace_schema_metadata({DECIMAL: form.decimal, THOUSANDS: form.thousands})
