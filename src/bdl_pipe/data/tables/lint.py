"""Doubts about a table that can be read: what its values may mean, and columns from which the target can be read.

Values are always read as written; a remark is a line for the user. No result of a fit depends on this module.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DataError, short
from .cells import Cells
from .columns import MANY_EQUAL
from .forms import CODE, NUMBER, WHOLE, are_all, gap_mask, grouped_once
from .kinds import HEX, MOST, PERIOD, Features, amounts, mixed_dates, no_number, number_share, twins

_DAYS: Final = re.compile(r"dat[eu]|day|time|fecha|jour|(^|[_ ])(dt|tag|when)($|[_ ])", re.IGNORECASE)
_EXCEL: Final = 25_569  # days from Excel's day 0 to 1970
_NAMES: Final = re.compile(r"(^|[ _.-])(?i:id|nr|no|key|uid)$|[a-z]I[dD]$")  # names of columns that name rows
_FILL: Final = re.compile(  # 999 for none; 8 and 9, 98 and 99 of surveys; -200 and other round ones; from ±1e20 on
    r"-?(9\.)?9{2,}(\.9+|\.0+)?|-?9{0,3}[789]|-[0-9]*00|-[0-9.]+e\+[0-9]+|[0-9.]+e\+([2-9][0-9]|[0-9]{3})"
)
_FILLS: Final = {-32768, 32767, 65535, -2147483648, 2147483647, 4294967295}
_NO_DAYS: Final = ("0001-01-01", "1753-01-01", "1899-12-30", "1900-01-01", "1970-01-01", "2999-12-31", "9999-12-31")
_TOTAL: Final = re.compile(r"(?i:(grand |sub)?totals?|sum|averages?|mean|overall|summe|gesamt|mittelwert|moyenne|suma)")
_SOME: Final = 0.1  # the least share of numbers beside few different texts
_FEW: Final = 3  # the most different texts beside numbers
_VALUES: Final = 20  # a column with more different values is not a column of classes
_SAME_ORDER: Final = 0.9999  # a rank correlation above this means the same order
_NAMED: Final = 5  # the most pairs of columns to name
_ROWS_OF_VALUE: Final = 5  # from this mean number of rows on, it is no chance that each value has one target


def of_cells(cells: Cells) -> list[str]:
    """Return remarks on how a column was read and on what else its values may mean, one line each."""
    if cells.kind == "number" and not cells.is_rounded:
        lines = _of_numbers(cells)
    elif cells.kind == "date":
        days = cells.days()
        lines = _fills(days[~np.isnan(days)], lambda day: day.is_integer() and _day(day) in _NO_DAYS, _day)
    else:
        lines = _of_texts(cells) if cells.kind == "text" else iter(())
    gaps = (f"{short(word)} is read as a gap, in {count:,} rows" for word, count in cells.gap_words.items())
    return [f"{cells.name or repr('')}: {line}" for line in (*gaps, *lines)]


def _of_numbers(cells: Cells) -> Iterator[str]:
    numbers = cells.numbers()
    values = numbers[~np.isnan(numbers)]
    if not len(values):
        return
    low, high, is_whole, write = values.min(), values.max(), (values == np.floor(values)).all(), "{:.15g}".format
    yield from _fills(values, lambda value: bool(_FILL.fullmatch(write(value))) or value in _FILLS, write)
    scales = (1, 1e2, 1e4, 1e6) if is_whole and low < high else ()  # hours, minutes and seconds may follow a day
    days = any(_are_dates(day // 10_000, day // 100 % 100, day % 100) for day in (values // scale for scale in scales))
    if days or (is_whole and _are_dates(values // 100, values % 100, 1) and len(np.unique(values)) > 2):
        jump = "read as numbers, they jump at a month's end; write 2026-01-31"
        yield f"numbers such as {low:.0f} look like {'days' if days else 'months'} without hyphens: {jump}"
    units = (("seconds", 1.0), ("milliseconds", 1e3), ("microseconds", 1e6))
    for unit, per_second in units if not days else ():  # the years 1995 to 2042
        if (is_whole or unit == "seconds") and 8e8 * per_second <= low and high <= 2.3e9 * per_second:
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
    if cells.is_text:
        point, pointed = cells.decimal, pc.match_substring(cells.filled, cells.decimal)
        shared, others = cells.filled.filter(pointed), cells.filled.filter(pc.invert(pointed))
        whole = others.filter(pc.match_substring_regex(others, WHOLE))
        if are_all(shared, grouped_once(point)) and (point == "," or are_all(whole, r"^[+-]?[0-9]{1,3}$")):
            text, mark = str(shared[0].as_py()), "comma" if point == "," else "point"
            read = text.replace(",", ".") if point == "," else f"{float(text):g}"
            cure = f"if {mark}s separate thousands, write numbers without them"
            yield f"{short(text)} is read as {read}, with a decimal {mark}; {cure}"
    if cells.is_text and (codes := cells.filled.filter(pc.match_substring_regex(cells.filled, CODE))):
        rule = f"and {len(codes) - 1:,} more begin with 0 and are read as numbers; write codes as C0123"
        yield f"{short(codes[0].as_py())} {rule}"


def _of_texts(cells: Cells) -> Iterator[str]:
    filled, share = cells.filled, number_share(cells)
    if cells.is_code:
        code = filled.filter(pc.match_substring_regex(filled, CODE))[0].as_py()
        yield f"codes such as {short(code)} begin with 0: they are texts, not numbers"
    for pair in filled.filter(gap_mask(filled)).value_counts().to_pylist():
        yield f"{short(pair['values'])} is a value, in {pair['counts']:,} rows; write a gap as an empty cell"
    numbers = pc.sum(pc.match_substring_regex(filled.unique(), NUMBER).cast(pa.int64())).as_py()
    few_words = len(filled.unique()) - numbers <= _FEW < numbers
    if (MOST <= share < 1 or (_SOME <= share < MOST and few_words)) and not cells.is_code:
        rule = f"numbers and the others are texts such as {short(no_number(filled))}: it is a category"
        yield f"{share:.0%} of its cells are {rule}; write gaps as empty cells"
    if dates := mixed_dates(cells):
        yield f"{dates}; now it is read as a category"
    elif dressed := amounts(filled):
        yield f"{dressed}; now they are read as categories"
    if pairs := twins(filled.unique().to_pylist()):
        more = f", and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
        first, second = pairs[0]
        rule = f"are two values that differ only in case, blanks or form{more}; write them alike"
        yield f"{short(first)} and {short(second)} {rule}"
    if are_all(filled, HEX):
        yield f"hexadecimal numbers such as {short(filled[0].as_py())} are categories; write them as decimal ones"
    if not cells.is_code and are_all(filled, PERIOD):
        yield f"periods such as {short(filled[0].as_py())} are categories; write 2026-01-31 for dates"


def _fills(values: np.ndarray, is_fill: Callable[[float], bool], write: Callable[[float], str]) -> Iterator[str]:
    """Name the usual fill values that are repeated and far from all values that are no fill values."""
    different, counts = np.unique(values, return_counts=True)
    fill = np.array([is_fill(float(value)) for value in different], bool)
    rest = different[~fill]
    if not len(rest):
        return
    for side in (different < rest[0], different > rest[-1]):
        fills = different[fill & side]
        if len(rest) < 2:
            fills = fills[np.abs(fills) >= 99]  # 8 beside 6 is no fill value
        far = len(fills) and min(abs(fills[-1] - rest[0]), abs(fills[0] - rest[-1])) > np.ptp(rest)
        for value in fills:
            count = counts[different == value][0]
            usual = value <= -99 and value % 100 != 0  # -999 beside positive numbers is none of them, -200 may be
            if count > 1 and (far or (usual and rest[0] >= 0)):
                rule = f"in {count:,} rows, far from other values; write a gap as an empty cell"
                yield f"{write(value)} is a value, {rule}"


def _are_dates(years: np.ndarray, months: np.ndarray, days: np.ndarray | int) -> bool:
    valid = (years >= 1900) & (years <= 2100) & (months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)
    return bool(valid.all())


def _day(days: float) -> str:
    return str(np.datetime64(int(days), "D"))


def of_table(table: pa.Table, separator: str) -> list[str]:
    """Return remarks on a text that holds whole lines, as after a quote that is not closed, and on a row of totals."""
    swallowed, totals, cells = list[str](), list[str](), table.num_columns - 1
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_string(column.type):
            continue
        for text in column.filter(pc.fill_null(pc.match_substring(column, "\n"), False)).to_pylist():
            lines = text.split("\n")
            if any(line.count(separator) == cells > 0 for line in lines[1:-1]):
                rule = f"holds {len(lines):,} lines of the file as one text; if a quote is not closed, write it as two"
                swallowed.append(f"{name or repr('')}: the cell that begins with {short(lines[0])} {rule}")
        last = str(column[-1].as_py()).strip()
        if _TOTAL.fullmatch(last) and pc.sum(pc.equal(column, column[-1])).as_py() == 1:
            totals.append(f"{name or repr('')}: the last row has {last!r}; if it sums up the others, delete it")
    return [*swallowed[:1], *totals[:1]]


def of_targets(names: Sequence[str], values: np.ndarray) -> Iterator[str]:
    """Return a remark if many targets of a regression have one value, where a density may be as high as one likes."""
    for name, of_rows in zip(names, values.T, strict=True):
        distinct, counts = np.unique(of_rows, return_counts=True)
        if (share := counts.max() / len(of_rows)) >= MANY_EQUAL:
            most = f"{name}: {100 * share:.0f} % of the rows have the value {distinct[counts.argmax()]:.6g}"
            yield f"{most}; a narrow peak there makes the NLL of a run small, so compare runs by the CRPS, too"


def of_rows(features: Features, targets: Mapping[str, np.ndarray], path: Path) -> list[str]:
    """Return remarks on features that order the rows alike or tell a target.

    The values of an identifier of a group, such as a patient, often have one target each; training and test rows then
    share groups.

    Raises:
        DataError: a feature is equal to a target, or has a target's classes under other names.
    """
    lines = list[str]()
    codes = {name: features.codes[name] for name in features.kinds}
    ranks = {name: _ranked(codes[name]) for name, kind in features.kinds.items() if kind == "number"}
    if len(names := list(ranks)) > 1:
        table = np.stack(list(ranks.values()))
        pairs = np.argwhere(np.triu(np.abs(table @ table.T), 1) > _SAME_ORDER)
        first = pairs[:_NAMED]
        lines += [f"{names[j]} orders the rows as {names[i]} does: one of the two is enough" for i, j in first]
        more = len(pairs) - len(first)
        lines += [f"{more:,} more pairs of columns order the rows alike"] if more else []
    for target, answer in targets.items():
        for name, values in codes.items():
            there = ~np.isnan(values)
            if 2 * there.sum() >= len(values) and _are_one(values[there], answer[there]):
                cure = f"leave it out with --leave-out {name}, or choose another target"
                raise DataError(f"{path}: column {short(name)} repeats the target {short(target)}; {cure}")
        order = _ranked(answer)
        question = f"orders the rows as the target {target} does: is it known when you predict?"
        lines += [f"{name} {question}" for name, of_feature in ranks.items() if _have_one_order(of_feature, order)]
        lines += [line for name, values in codes.items() for line in _fixed(name, values, target, answer)]
    return lines


def _fixed(name: str, values: np.ndarray, target: str, answer: np.ndarray) -> Iterator[str]:
    """Return a remark on a feature whose gaps tell the target, or whose values each have one target."""
    targets, of_row = np.unique(answer, return_inverse=True)
    gaps = np.isnan(values)
    empty, filled = of_row[gaps], of_row[~gaps]
    if len(targets) <= _VALUES and min(len(empty), len(filled)) >= _ROWS_OF_VALUE and not {*empty} & {*filled}:
        yield f"{name} is empty for some values of {target} and for no other: is it known when you predict?"
    different, places = np.unique(values[~gaps], return_inverse=True)
    if not 1 < len(different) <= len(places) / _ROWS_OF_VALUE or np.ptp(filled) == 0:
        return
    if len(np.unique(places * len(targets) + filled)) == len(different):
        groups = "is it known when you predict? If it names groups of rows, training and test rows share them"
        yield f"each value of {name} has one {target}: {groups}"


def _ranked(values: np.ndarray) -> np.ndarray:
    """Return ranks scaled to mean 0 and norm 1; 0 for empty cells."""
    from scipy.stats import rankdata

    gaps = np.isnan(values)
    ranks = np.zeros(len(values))
    ranks[~gaps] = rankdata(values[~gaps])
    ranks[~gaps] -= ranks[~gaps].mean() if (~gaps).any() else 0
    return ranks / max(float(np.linalg.norm(ranks)), 1e-300)


def _have_one_order(ranks: np.ndarray, answer: np.ndarray) -> bool:
    """Return True if at least half of the rows have the feature, and it orders them like the target."""
    there = ranks != 0
    if there.all() or 2 * there.sum() < len(ranks):
        return abs(float(ranks @ answer)) > _SAME_ORDER
    return abs(float(_ranked(ranks[there]) @ _ranked(answer[there]))) > _SAME_ORDER


def _are_one(first: np.ndarray, second: np.ndarray) -> bool:
    """Return True if two columns are equal, or have few values and divide the rows into the same groups."""
    count, other = (len(np.unique(column)) for column in (first, second))
    groups = len(np.unique(np.stack([first, second]), axis=1).T) if count == other <= _VALUES else 0
    return np.array_equal(first, second) or groups == count
