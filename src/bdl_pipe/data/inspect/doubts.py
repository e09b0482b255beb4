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
from ..sources.forms import CODE, GROUPED, HEX, PERIOD, WHOLE, are_all, canonical

_DAYS: Final = re.compile(r"dat[eu]|day|time|fecha|jour|(^|[_ ])(dt|tag|when)($|[_ ])", re.IGNORECASE)
_EXCEL: Final = 25_569  # days from Excel's day 0 to 1970
_UNITS: Final = (("seconds", 1.0), ("milliseconds", 1e3), ("microseconds", 1e6))
_SINCE: Final = (8e8, 2.3e9)  # seconds since 1970, for the years 1995 to 2042
_SCALES: Final = (1, 1e2, 1e4, 1e6)  # the digits of hours, minutes and seconds after a day
_NAMES: Final = re.compile(r"(^|[ _.-])(?i:id|nr|no|key|uid)$|[a-z]I[dD]$")  # names of columns that name rows
_NINES: Final = re.compile(r"-?(9\.)?9{2,}(\.9+|\.0+)?")
_ANSWERS: Final = re.compile(r"-?9{0,3}[789]")  # "refused" and "does not know" of surveys: 8 and 9, 98 and 99
_FILLS: Final = {-32768, 32767, 65535, -2147483648, 2147483647, 4294967295}
_NO_DAYS: Final = ("0001-01-01", "1753-01-01", "1899-12-30", "1900-01-01", "1970-01-01", "2999-12-31", "9999-12-31")


def doubts(cells: Cells) -> list[str]:
    """Return a line for each possible meaning of a column's values that differs from how they are read."""
    name = cells.name or "''"
    if cells.kind == "number" and not cells.is_rounded:
        return [f"{name}: {line}" for line in _of_numbers(cells)]
    if cells.kind == "date":
        days = cells.days()
        lines = _gaps(days[~np.isnan(days)], _is_no_day, lambda day: str(np.datetime64(int(day), "D")))
        return [f"{name}: {line}" for line in lines]
    return [f"{name}: {line}" for line in _of_texts(cells)] if cells.kind == "text" else []


def _of_numbers(cells: Cells) -> Iterator[str]:
    numbers = cells.numbers()
    values = numbers[~np.isnan(numbers)]
    if not len(values):
        return
    low, high, is_whole = values.min(), values.max(), bool((values == np.floor(values)).all())
    yield from _gaps(values, _is_fill, lambda value: f"{value:.15g}")
    days = [scale for scale in _SCALES if is_whole and low < high and _are_days(np.floor(values / scale))]
    if days or (is_whole and _are_months(values)):
        jump = "read as numbers, they jump at a month's end; write 2026-01-31"
        yield f"numbers such as {low:.0f} look like {'days' if days else 'months'} without hyphens: {jump}"
    for unit, per_second in _UNITS if not days else ():
        if (is_whole or unit == "seconds") and low >= per_second * _SINCE[0] and high <= per_second * _SINCE[1]:
            until = f"{_day(low / per_second / 86_400)} to {_day(high / per_second / 86_400)}"
            cure = "write dates, or use this unit in new rows, too"
            yield f"look like {unit} since 1970 ({until}): they are read as numbers; {cure}"
    if _DAYS.search(cells.name) and 20_000 <= low < high <= 60_000:
        span = f"{_day(low - _EXCEL)} to {_day(high - _EXCEL)}"
        yield f"look like Excel's days ({span}): they are read as numbers; write dates"
    if is_whole and len(values) > 2 and high - low == len(values) - 1 == len(np.unique(values)) - 1:
        yield f"has each whole number from {low:.0f} to {high:.0f} once: if it numbers the rows, leave it out"
    elif is_whole and len(values) > 2 and _NAMES.search(cells.name) and len(np.unique(values)) == len(values):
        yield "has a different whole number in each row: if it names the rows, leave it out"
    if cells.is_text and cells.decimal == "." and (text := _grouped(cells)):
        read = f"{short(text)} is read as {float(text):g}, with a decimal point"
        yield f"{read}; if points separate thousands, write numbers without them"
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
        rule = f"are two values that differ only in case, blanks or form{more}; write them alike"
        yield f"{short(first)} and {short(second)} {rule}"
    if are_all(cells.filled, HEX):
        yield f"hexadecimal numbers such as {short(cells.filled[0].as_py())} are categories; write them as decimal ones"
    if not cells.is_code and are_all(cells.filled, PERIOD):
        yield f"periods such as {short(cells.filled[0].as_py())} are categories; write 2026-01-31 for dates"


def twins(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of names that differ only in case, blanks or a number's form, each paired with the first."""
    first, pairs = dict[str, str](), []
    for name in sorted(names):
        other = first.setdefault(re.sub(r"[\s_]+", " ", canonical(name.strip()).casefold()), name)
        if other != name:
            pairs.append((other, name))
    return pairs


def _gaps(values: np.ndarray, is_known: Callable[[float], bool], written: Callable[[float], str]) -> Iterator[str]:
    """Name the usual fill values that are repeated and far from all values that are no fill values."""
    different, counts = np.unique(values, return_counts=True)
    known = np.array([is_known(float(value)) for value in different], bool)
    rest = different[~known]
    if not len(rest):
        return
    for side in (different < rest[0], different > rest[-1]):
        fills = different[known & side]
        if len(rest) < 2:
            fills = fills[np.abs(fills) >= 99]  # 8 beside 6 is no fill value
        far = len(fills) and min(abs(fills[-1] - rest[0]), abs(fills[0] - rest[-1])) > np.ptp(rest)
        for value in fills:
            count = counts[different == value][0]
            usual = value <= -99 and value % 100 != 0  # -999 beside positive numbers is none of them, -200 may be
            if count > 1 and (far or (usual and rest[0] >= 0)):
                rule = f"in {count:,} rows, far from other values; write a gap as an empty cell"
                yield f"{written(value)} is a value, {rule}"


def _is_fill(value: float) -> bool:
    """Return True for values like -999, 98 or -200, limits of integers of 16 and 32 bits, and values from ±1e20 on."""
    text, is_round = f"{value:.15g}", value < 0 and value % 100 == 0
    usual = _NINES.fullmatch(text) or _ANSWERS.fullmatch(text) or value in _FILLS
    return bool(usual) or is_round or abs(value) >= 1e20


def _is_no_day(day: float) -> bool:
    return day.is_integer() and str(np.datetime64(int(day), "D")) in _NO_DAYS


def _grouped(cells: Cells) -> str:
    """Return a text like 12.345 beside whole numbers below 1,000 if no text has other decimals; empty otherwise."""
    pointed = pc.match_substring(cells.filled, ".")
    shared, others = cells.filled.filter(pointed), cells.filled.filter(pc.invert(pointed))
    small = others.filter(pc.match_substring_regex(others, WHOLE))
    if not are_all(shared, GROUPED) or not are_all(small, r"^[+-]?[0-9]{1,3}$"):
        return ""
    return str(shared[0].as_py())


def _are_months(values: np.ndarray) -> bool:
    """Return True if there are at least three different numbers, and all are months written like 202601."""
    years, months = np.divmod(values, 100)
    valid = (years >= 1900) & (years <= 2100) & (months >= 1) & (months <= 12)
    return bool(valid.all()) and len(np.unique(values)) > 2


def _are_days(values: np.ndarray) -> bool:
    """Return True if all whole numbers are days written like 20260131."""
    years, rest = np.divmod(values, 10_000)
    months, days = np.divmod(rest, 100)
    return bool(((years >= 1900) & (years <= 2100) & (months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())


def _day(days: float) -> str:
    return str(np.datetime64(int(days), "D"))
