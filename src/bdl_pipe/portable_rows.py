"""The rows of a CSV file as an exported program takes them: a copy of this file is in its folder, as ``rows.py``.

It needs NumPy alone. It reads cells as ``python -m pipeline predict`` does, and stops with one line at a cell that was
none of the fitted file's kind.
"""

import csv
import io
import math
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

SEPARATORS = (",", ";", "\t", "|")
SNIFFED = 65_536  # bytes of a file that determine its separator and encoding
SIGNS = dict(  # full width, a printed minus, Arabic and Persian digits
    zip("０１２３４５６７８９．－＋−٠١٢٣٤٥٦٧٨٩٫۰۱۲۳۴۵۶۷۸۹", "0123456789.-+-0123456789.0123456789", strict=True)
)
SAME = {" ": "\u00a0\u202f\u2009", "'": "’"}  # a separator of thousands -> characters that are printed for it
_BLANKS = "".join(c for c in map(chr, range(0x3001)) if c.isspace()) + "\u200b\u200e\u200f\u2060\ufeff"
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?)?(Z|[-+][0-9]{2}:?[0-9]{2})?)?"
)
_TRUTHS = {"true": "True", "1": "True", "false": "False", "0": "False"}
_WORDS = dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True)
_WORDS |= dict.fromkeys(("false", "f", "no", "n", "off", "0"), False)
_LARGEST = 1e150


def read(path: str, schema: Mapping[str, Any]) -> np.ndarray:
    """Read the fitted columns of a CSV file by name, float64 [n, column].

    The file is UTF-8 or, if it is not, Windows-1252. Its cells are separated by commas, semicolons, tabs or bars.
    Numbers are written as in the fitted file; if it had decimal commas, a file between commas has decimal points.
    """
    text = _text(path)
    apart = separator(text[:SNIFFED])
    lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=apart) if line]
    if len(lines) < 2:
        sys.exit(f"{path}: must have rows below its header, got none")
    names = [clean(name) for name in lines[0]]
    columns = schema.get("columns") or [{"name": name, "kind": "number"} for name in schema["features"]]
    for column in columns:
        if column["name"] not in names:
            sys.exit(f"{path}: must have the column {column['name']!r}, got {', '.join(names)}")
    for number, line in enumerate(lines[1:], 1):
        if len(line) != len(names):
            sys.exit(f"{path}: must have {len(names)} cells in each row, got {len(line)} in row {number}")
    named = [name for name, *cells in zip(names, *lines[1:], strict=True) if name or any(map(clean, cells))]
    for name in named:
        if named.count(name) > 1:
            sys.exit(f"{path}: column names must differ, got {name!r} twice")
    numbers = schema.get("numbers") or {}
    decimal, thousands = numbers.get("decimal", "."), numbers.get("thousands", "")
    if apart == "," == decimal:
        decimal, thousands = ".", ""
    found = []
    for column in columns:
        place = names.index(column["name"])
        cells = [clean(line[place]) for line in lines[1:]]
        if column["kind"] == "number":
            cells = _numbers_of_truths(cells, schema["gaps"])
        coded = [code(column, cell, schema["gaps"], decimal, thousands) for cell in cells]
        for number, (cell, value) in enumerate(zip(cells, coded, strict=True), 1):
            if isinstance(value, str):
                sys.exit(f"{path}: column {column['name']!r} {value}, got {cell!r} in row {number}")
        found.append(np.array(coded, np.float64))
    return np.stack(found, axis=1)


def separator(start: str) -> str:
    """Return the separator of a CSV file's cells: one that gives all lines equally many cells, if there is one.

    Args:
        start: the beginning of the file, whose last line may be cut off.
    """
    lines = start.splitlines()
    header = lines[0] if lines else ""
    try:
        found = csv.Sniffer().sniff("\n".join(lines[:50]), "".join(SEPARATORS)).delimiter
    except csv.Error:
        found = max(SEPARATORS, key=header.count)
    if header.count(found) == 0:
        found = max(SEPARATORS, key=header.count)
    return max(SEPARATORS, key=lambda one: (_width(lines[:50], one), one == found))


def _width(lines: Sequence[str], one: str) -> int:
    """Return the number of cells of a line if all lines have equally many and more than one; else 0."""
    rows = [row for row in csv.reader(lines, delimiter=one) if row]
    widths = {len(row) for row in rows[:-1] or rows}  # a quoted text may go on after the last line
    return max(widths) if len(widths) == 1 and widths != {1} else 0


def clean(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), without surrounding blanks or invisible characters.

    Its lines end with a line feed.
    """
    return unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").strip(_BLANKS)


def _text(path: str) -> str:
    """Return the text of a file that is UTF-8 or, from its beginning on, Windows-1252."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        if b"\0" not in data:
            return data.decode("utf-8-sig")
        wrong = "byte 0x00"
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{data[error.start]:02X}"
        if error.start < SNIFFED - 3:
            try:
                return data.decode("cp1252")
            except UnicodeDecodeError:
                pass
    sys.exit(f"{path}: must be UTF-8 text, got {wrong}; save it as UTF-8")


def _numbers_of_truths(cells: list[str], gaps: list[str]) -> list[str]:
    """Return 1 and 0 in place of the words of a column that has only true and false; other columns unchanged."""
    words = {cell.lower() for cell in cells if not _is_gap(cell, gaps)}
    if not words & {"true", "false"} or not words <= {*_TRUTHS}:
        return cells
    return [{"true": "1", "false": "0"}.get(cell.lower(), cell) for cell in cells]


def _is_gap(cell: str, gaps: list[str]) -> bool:
    return cell.lower() in gaps or not any(map(str.isalnum, cell))


def code(column: Mapping[str, Any], cell: str, gaps: list[str], decimal: str = ".", thousands: str = "") -> float | str:
    """Return the number of a cell, -1 for a new category, NaN for a gap; a rule as text if the cell breaks it.

    Args:
        gaps: words that are gaps among numbers, truths and dates, in lower case.
        decimal: the decimal point of numbers.
        thousands: their separator of thousands; empty: they have none.
    """
    kind, values = column["kind"], column.get("values") or []
    truths = bool(values) and {*values} <= {*_TRUTHS.values()}
    words = kind == "category" and not truths and not all(_NUMBER.fullmatch(value) for value in values)
    if kind == "category" and cell in values:
        return values.index(cell)
    if not cell or (not words and _is_gap(cell, gaps)):
        return math.nan if column.get("missing", True) else "must have a value in every row, as in the fitted file"
    if kind == "date":
        return _days(cell, column.get("zoned"))
    if kind == "category":
        return _place(cell, values, truths)
    number = _amount(cell, decimal, thousands)
    return number if abs(number) <= _LARGEST else "must be numbers up to 1e150"


def _amount(text: str, decimal: str, thousands: str) -> float:
    """Return the number that a text is, inf if it is none."""
    text = "".join(SIGNS.get(sign, sign) for sign in text)
    for other in SAME.get(thousands, ""):
        text = text.replace(other, thousands)
    if thousands and thousands in text:
        between, point = re.escape(thousands), re.escape(decimal)
        if not re.fullmatch(rf"[+-]?[0-9]{{1,3}}({between}[0-9]{{3}})+({point}[0-9]*)?", text):
            return math.inf
        text = text.replace(thousands, "")
    if decimal == ",":
        text = "" if "." in text else text.replace(",", ".")
    return float(text) if _NUMBER.fullmatch(text) else math.inf


def _place(cell: str, values: list[str], truths: bool) -> float | str:
    """Return the place of an equal truth or number in the values of a category, or -1."""
    meant = {_WORDS.get(value.lower()): place for place, value in enumerate(values)}
    word = f"{float(cell):g}" if _is_amount(cell) else cell.lower()
    if {*meant} == {True, False} and len(values) == 2 and word in _WORDS:
        return float(meant[_WORDS[word]])
    if truths:
        known = _TRUTHS.get(f"{float(cell):g}" if _is_amount(cell) else cell.lower())
        return float(values.index(known)) if known in values else "must be true or false"
    same = [value for value in values if _is_amount(value) and float(value) == float(cell)] if _is_amount(cell) else []
    return values.index(same[0]) if same else -1


def _is_amount(text: str) -> bool:
    """Return True for a number that is no code with a leading 0."""
    return _NUMBER.fullmatch(text) is not None and not re.fullmatch("0[0-9]+", text)


def _days(cell: str, zoned: bool | None) -> float | str:
    """Return the days since 1970 of a date, in UTC if it has a zone."""
    try:
        date = datetime.fromisoformat(cell.replace("Z", "+00:00")) if _DATE.fullmatch(cell) else None
    except ValueError:
        date = None
    if date is None:
        return "must be dates such as 2026-01-31 or 2026-01-31 12:00:00"
    if zoned is not None and zoned != (date.tzinfo is not None):
        return f"must be dates {'with' if zoned else 'without'} a zone, as in the fitted file"
    start = datetime(1970, 1, 1, tzinfo=UTC if date.tzinfo else None)
    return (date - start).total_seconds() / 86_400
