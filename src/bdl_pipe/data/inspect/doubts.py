"""Remarks on values that may mean something else: dates, gaps, codes, one word in two spellings.

Values are always read as written; a remark tells the user about a possible other meaning.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow.compute as pc

from ...errors import short
from ..sources.cells import Cells
from ..sources.forms import CODE, HEX, PERIOD, are_all
from .cells import have_units

_DAYS: Final = re.compile(r"dat[eu]|day|time|fecha|jour|(^|[_ ])(dt|tag|when)($|[_ ])", re.IGNORECASE)
_EXCEL: Final = 25_569  # days from Excel's day 0 to 1970
_UNITS: Final = (("seconds", 1.0), ("milliseconds", 1e3), ("microseconds", 1e6))
_SINCE: Final = (8e8, 2.3e9)  # seconds since 1970, for the years 1995 to 2042
_NINES: Final = re.compile(r"-?(9\.)?9{2,}(\.9+|\.0+)?")
_FILLS: Final = {-32768, 32767, 65535, -2147483648, 2147483647, 4294967295}
_NO_DAYS: Final = ("0001-01-01", "1753-01-01", "1899-12-30", "1900-01-01", "1970-01-01", "2999-12-31", "9999-12-31")


def doubts(cells: Cells) -> list[str]:
    """Return a line for each possible meaning of a column's values that differs from how they are read."""
    name = cells.name or "''"
    if cells.kind == "number" and not cells.is_rounded:
        return [f"{name}: {line}" for line in _of_numbers(cells)]
    if cells.kind == "date":
        days = cells.days()
        line = _gap(days[~np.isnan(days)], _is_no_day, lambda day: str(np.datetime64(int(day), "D")))
        return [f"{name}: {line}"] if line else []
    return [f"{name}: {line}" for line in _of_texts(cells)] if cells.kind == "text" else []


def _of_numbers(cells: Cells) -> Iterator[str]:
    numbers = cells.numbers()
    values = numbers[~np.isnan(numbers)]
    if not len(values):
        return
    low, high, is_whole = values.min(), values.max(), bool((values == np.floor(values)).all())
    if line := _gap(values, _is_fill, lambda value: f"{value:.15g}"):
        yield line
    if is_whole and low < high and _are_days(values):
        jump = "read as numbers, they jump at a month's end; write 2026-01-31"
        yield f"numbers such as {low:.0f} look like days without hyphens: {jump}"
    for unit, per_second in _UNITS:
        if is_whole and low >= per_second * _SINCE[0] and high <= per_second * _SINCE[1]:
            until = f"{_day(low / per_second / 86_400)} to {_day(high / per_second / 86_400)}"
            cure = "write dates, or use this unit in new rows, too"
            yield f"look like {unit} since 1970 ({until}): they are read as numbers; {cure}"
    if _DAYS.search(cells.name) and 20_000 <= low < high <= 60_000:
        span = f"{_day(low - _EXCEL)} to {_day(high - _EXCEL)}"
        yield f"look like Excel's days ({span}): they are read as numbers; write dates"
    if is_whole and len(values) > 2 and high - low == len(values) - 1 == len(np.unique(values)) - 1:
        yield f"has each whole number from {low:.0f} to {high:.0f} once: if it numbers the rows, leave it out"
    if cells.is_text and cells.decimal == ",":
        shared = cells.filled.filter(pc.match_substring(cells.filled, ","))
        if are_all(shared, r"^[+-]?[1-9][0-9]{0,2},[0-9]{3}$"):
            text = str(shared[0].as_py())
            read = f"{short(text)} is read as {text.replace(',', '.')}, with a decimal comma"
            yield f"{read}; if commas separate thousands, write numbers without them"
    if cells.is_text and (codes := cells.filled.filter(pc.match_substring_regex(cells.filled, CODE))):
        more = len(codes) - 1
        yield f"{short(codes[0].as_py())} and {more:,} more begin with 0 and are read as numbers; write codes as C0123"


def _of_texts(cells: Cells) -> Iterator[str]:
    found = cells.filled.value_counts().to_pylist()
    if pairs := twins(pair["values"] for pair in found):
        more = f", and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
        first, second = pairs[0]
        rule = f"are two values that differ only in case or blanks{more}; write them alike"
        yield f"{short(first)} and {short(second)} {rule}"
    if have_units(cells.filled):
        text = short(cells.filled[0].as_py())
        yield f"numbers with a unit, such as {text}, are categories; write the numbers alone"
    if are_all(cells.filled, HEX):
        yield f"hexadecimal numbers such as {short(cells.filled[0].as_py())} are categories; write them as decimal ones"
    if not cells.is_code and are_all(cells.filled, PERIOD):
        yield f"periods such as {short(cells.filled[0].as_py())} are categories; write 2026-01-31 for dates"


def twins(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of names that differ only in case and blanks, each paired with the first."""
    first, pairs = dict[str, str](), []
    for name in sorted(names):
        other = first.setdefault(re.sub(r"[\s_]+", " ", name.strip().casefold()), name)
        if other != name:
            pairs.append((other, name))
    return pairs


def _gap(values: np.ndarray, is_known: Callable[[float], bool], written: Callable[[float], str]) -> str:
    """Name the smallest or largest value if it is a usual fill value, is repeated and is far from all others."""
    if not len(values):
        return ""
    for value in (values.min(), values.max()):
        rest = values[values != value]
        count = len(values) - len(rest)
        if count < 2 or not len(rest) or not is_known(float(value)):
            continue
        if np.abs(rest - value).min() > np.ptp(rest):
            return f"{written(value)} is a value, in {count:,} rows, far from all others; write a gap as an empty cell"
    return ""


def _is_fill(value: float) -> bool:
    """Return True for values like -999, the limits of 16-bit and 32-bit integers, and absolute values from 1e20."""
    return bool(_NINES.fullmatch(f"{value:.15g}")) or value in _FILLS or abs(value) >= 1e20


def _is_no_day(day: float) -> bool:
    return day.is_integer() and str(np.datetime64(int(day), "D")) in _NO_DAYS


def _are_days(values: np.ndarray) -> bool:
    """Return True if all whole numbers are days written like 20260131."""
    years, rest = np.divmod(values, 10_000)
    months, days = np.divmod(rest, 100)
    return bool(((years >= 1900) & (years <= 2100) & (months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())


def _day(days: float) -> str:
    return str(np.datetime64(int(days), "D"))
