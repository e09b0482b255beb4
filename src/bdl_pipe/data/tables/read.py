"""Open a CSV file (with a header line) or a Parquet file, and read new rows like a fitted file's."""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from ...config import LATER
from ...errors import ConfigError, DataError, brief, require, short
from ...files import require_file, require_utf8
from .. import scratch
from .cells import DECIMAL, SEPARATOR, THOUSANDS, Cells
from .columns import Column, coded_matrix, feature_matrix
from .formats import require_table
from .forms import clean, grouped_once, is_number

SEPARATORS: Final = (",", ";", "\t", "|")
_SNIFFED: Final = 65_536  # bytes of a file that determine its separator and encoding
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


def sniffed(path: Path) -> CsvForm:
    """Determine the format of a CSV file from its beginning; return the default for other files."""
    if is_parquet(path) or not path.is_file():
        return CsvForm()
    with path.open("rb") as file:
        start = file.read(_SNIFFED)
    encoding = "utf-8"
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError as error:
        cut_off = error.start >= len(start) - 3  # the beginning ends in the middle of a character
        encoding, text = ("utf-8", start[: error.start].decode()) if cut_off else ("cp1252", start.decode("latin-1"))
    lines = text.splitlines()
    separator = _separator(lines[:50])
    cells = [cell.strip() for line in lines[1:] for cell in line.split(separator)] if separator != "," else []
    commas = sum(_is_decimal(cell, ",") for cell in cells)
    points = sum(_is_decimal(cell, ".") and not re.match(grouped_once("."), cell) for cell in cells)
    return CsvForm(separator, "," if commas > points else ".", encoding)


def _separator(lines: Sequence[str]) -> str:
    """Return the separator of a CSV file's cells: one that gives all lines equally many cells, if there is one.

    Args:
        lines: the beginning of the file, whose last line may be cut off.
    """
    header = lines[0] if lines else ""
    try:
        usual = csv.Sniffer().sniff("\n".join(lines), "".join(SEPARATORS)).delimiter
    except csv.Error:
        usual = ""
    if not usual or usual not in header:
        usual = max(SEPARATORS, key=header.count)

    def width(separator: str) -> int:
        """Return the number of cells of a line if all lines have equally many and more than one; else 0."""
        rows = [row for row in csv.reader(lines, delimiter=separator) if row]
        widths = {len(row) for row in rows[:-1] or rows}  # a quoted text may go on after the last line
        return max(widths) if len(widths) == 1 and widths != {1} else 0

    return max(SEPARATORS, key=lambda one: (width(one), one == usual))


def _is_decimal(cell: str, point: str) -> bool:
    whole, separated, rest = cell.strip('"').partition(point)
    return bool(separated) and whole.lstrip("+-").isdigit() and rest.isdigit()


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
        columns = [table.select([place]).rename_columns([""]) for place in range(table.num_columns)]
        names = enumerate(table.column_names)
        table = table.select([i for i, name in names if name or not Cells.of(columns[i], "", "").is_empty])
    doubled = [name for name, count in Counter(table.column_names).items() if count > 1]
    if doubled:
        above = "" if doubled[0] and not is_number(doubled[0]) else "; the first line must have the columns' names"
        raise DataError(f"{path}: column names must differ, got {short(doubled[0])} twice{above}")
    if table.num_rows == 0:
        raise DataError(f"{path}: must have rows below its header, got none")
    return table


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
    """Return True if a file is named as a Parquet file."""
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
    return table.replace_schema_metadata({DECIMAL: form.decimal, THOUSANDS: form.thousands, SEPARATOR: form.separator})


def read_rows(path: Path, schema: Mapping[str, Any]) -> np.ndarray:
    """Read the fitted columns of a file of new rows, float64 [n, column], see :func:`rows_of`.

    Numbers are written as in the fitted file. A file between commas has decimal points, and no separators of thousands
    if the fitted file had decimal commas.
    """
    form, numbers = sniffed(path), schema.get("numbers") or {}
    decimal, thousands = numbers.get("decimal", "."), numbers.get("thousands", "")
    if form.separator == "," == decimal:
        decimal, thousands = ".", ""
    return rows_of(open_table(path, CsvForm(form.separator, decimal, form.encoding, thousands)), schema, str(path))


def rows_of(table: pa.Table, schema: Mapping[str, Any], origin: str) -> np.ndarray:
    """Return the fitted columns of an open table, float64 [n, column].

    Args:
        schema: ``features`` and, if they are described, ``columns`` of the data's ``schema.json``.

    Raises:
        DataError: a column is missing or of another kind, or has a gap although the fitted column had none.
    """
    if not table.num_rows:
        raise DataError(f"{origin}: must have at least one row, got none")
    if "columns" not in schema:
        return feature_matrix(table, schema["features"], origin)
    columns = [Column.of(mapping) for mapping in schema["columns"]]
    matrix = coded_matrix(table, columns, origin)
    for column, values in zip(columns, matrix.T, strict=True):
        if not column.missing and np.isnan(values).any():
            row = int(np.argmax(np.isnan(values))) + 1
            rule = "must have a value in every row, as in the file that was fitted"
            raise DataError(f"{origin}: column {short(column.name)} {rule}, got none in row {row}")
    return matrix
