"""The rows of a CSV file as an exported program takes them: a copy of this file is in its folder, as ``rows.py``.

It needs NumPy alone. It reads cells as ``python -m pipeline predict`` does, and stops with one line at a cell that was
none of the fitted file's kind.
"""

import csv
import math
import re
import sys
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

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

    The file is UTF-8. Its cells are separated by commas, semicolons, tabs or bars. Numbers are written as in the fitted
    file; if it had decimal commas, a file between commas has decimal points.
    """
    with open(path, encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        separator = max(",;\t|", key=header.count)
        file.seek(0)
        lines = [line for line in csv.reader(file, delimiter=separator) if line]
    if len(lines) < 2:
        sys.exit(f"{path}: must have rows below its header, got none")
    names = [_clean(name) for name in lines[0]]
    columns = schema.get("columns") or [{"name": name, "kind": "number"} for name in schema["features"]]
    for column in columns:
        if column["name"] not in names:
            sys.exit(f"{path}: must have the column {column['name']!r}, got {', '.join(names)}")
    places = [names.index(column["name"]) for column in columns]
    numbers = schema.get("numbers") or {}
    decimal, thousands = numbers.get("decimal", "."), numbers.get("thousands", "")
    if separator == "," == decimal:
        decimal, thousands = ".", ""
    rows = []
    for number, line in enumerate(lines[1:], 1):
        if len(line) < len(names):
            sys.exit(f"{path}: must have {len(names)} cells in each row, got {len(line)} in row {number}")
        cells = [_clean(line[place]) for place in places]
        coded = [code(c, x, schema["gaps"], decimal, thousands) for c, x in zip(columns, cells, strict=True)]
        for column, cell, value in zip(columns, cells, coded, strict=True):
            if isinstance(value, str):
                sys.exit(f"{path}: column {column['name']!r} {value}, got {cell!r} in row {number}")
        rows.append(coded)
    return np.array(rows, np.float64)


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
    if not cell or (not words and (cell.lower() in gaps or not any(map(str.isalnum, cell)))):
        return math.nan if column.get("missing", True) else "must have a value in every row, as in the fitted file"
    if kind == "date":
        return _days(cell, column.get("zoned"))
    if kind == "category":
        return _place(cell, values, truths)
    number = _amount(cell, decimal, thousands)
    return number if abs(number) <= _LARGEST else "must be numbers up to 1e150"


def _amount(text: str, decimal: str, thousands: str) -> float:
    """Return the number that a text is, inf if it is none."""
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


def _clean(text: str) -> str:
    return unicodedata.normalize("NFC", text).replace("\r\n", "\n").strip(" \t\r\n\u00a0\u200b\ufeff")
