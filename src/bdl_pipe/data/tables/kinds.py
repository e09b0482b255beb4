"""The kinds of a table's columns: which become features, as what, and why the others are left out."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DataError, NothingToFit, brief, short
from .. import scratch
from ..examples import Task
from .cells import Cells
from .columns import Column, ColumnKind, describe, is_index
from .forms import DRESSED, ISO, NUMBER, are_all, canonical, cast, gap_mask, grouped, is_number, listed, no_day

CATEGORIES: Final = 20  # the most network inputs of a category
IDENTIFIER: Final = 0.9  # a column with at least this share of different values identifies rows
MOST: Final = 0.5  # the least share of numbers in a column that is meant as numbers
_CLASSES: Final = 20  # whole numbers with more different values are quantities
_FEW: Final = 3  # the most forms of amounts in a column
_KINDS: Final[dict[str, ColumnKind]] = {"text": "category", "truth": "category", "date": "date"}
_INDEX: Final = "it is the index of a table; give it a name of its own to use it"
_ONE_NUMBER: Final = re.compile(r"[0-9]+(?:[.,'’_ \u00a0\u202f][0-9]+)*")
_BEFORE: Final = r"^([^\p{L}\p{N}]*|\p{L}{0,3}\p{Sc}\s*|Rs\.?\s*|[A-Z]{3}\s*)#"  # a sign or a currency
_BANDS: Final = re.compile(r"#(\s*(?:[-–—]|to)\s*#)+.*")  # 20-30 is an interval, and 50-00-0 a code
_MONTH: Final = (  # English, German, French, Spanish and Italian names, whole or short
    r"(?i:(jan(uary?|v|vier)?|ene(ro)?|gen(naio)?|feb(ruary?|rero|braio)?|f[eé]vr?(ier)?|mar(ch|s|z|zo)?|m[äa]e?rz?|mrz"
    r"|apr(ile?)?|avr(il)?|abr(il)?|ma[yi]|mayo|mag(gio)?|june?|juni|junio|juin|giu(gno)?|july?|juli|julio|juil(let)?"
    r"|lug(lio)?|aug(ust)?|ao[uû]t|ago(sto)?|sept?(ember|embre|iembre)?|set(tembre)?|o[ck]t(ober|obre|ubre)?|ott(obre)?"
    r"|nov(ember|embre|iembre)?|de[cz](ember)?|d[eé]c(embre)?|dic(embre|iembre)?)\.?)"
)
_DATE: Final = (
    r"^(([0-9]{4}[./-][0-9]{1,2}[./-][0-9]{1,2}|[0-9]{1,2}[./-][0-9]{1,2}[./-]([0-9]{2}|[0-9]{4}))([ T].*)?"
    r"|[0-9]{8}T[0-9]{4,6}Z?"
    rf"|(\p{{L}}{{2,10}}\.?,?\s+)?"
    rf"([0-9]{{1,2}}(st|nd|rd|th|\.)?[-/ ]*{_MONTH}|{_MONTH}[-/ ]*[0-9]{{1,2}}(st|nd|rd|th)?)"
    r"[-/, ]+([0-9]{4}|[0-9]{2})([ T,].*)?"
    rf"|[0-9]{{1,2}}{_MONTH}([0-9]{{4}}|[0-9]{{2}})([ :].*)?|[0-9]{{4}}[-/ ]{_MONTH}[-/ ][0-9]{{1,2}}([ T].*)?"
    r"|[0-9]{4}年[0-9]{1,2}月[0-9]{1,2}日.*)$"
)
PERIOD: Final = (
    rf"^([0-9]{{4}}[-/ ]?(0[1-9]|1[0-2]|W[0-5][0-9](-[1-7])?|[Qq][1-4]|{_MONTH})|(0?[1-9]|1[0-2])[-/.][0-9]{{4}}"
    rf"|[Qq][1-4][-/ ]?[0-9]{{4}}|FY ?([0-9]{{2}}|[0-9]{{4}})|[0-9]{{4}}/[0-9]{{2}}"
    rf"|{_MONTH}[-/ .]*([0-9]{{2}}|[0-9]{{4}}))$"
)
_CLOCK: Final = r"^[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?(?i:[\s\p{Z}]*[ap]\.?m\.?)?$"
HEX: Final = r"^0[xX][0-9a-fA-F]+$"


@dataclass(frozen=True)
class Features:
    """The feature columns of a table.

    Attributes:
        columns: the descriptions, in the table's order.
        codes: column -> its cells as numbers [n], for features and their copies.
        left_out: column -> the reason why it is not a feature.
        remarks: warnings for the user, one line each.
    """

    columns: tuple[Column, ...]
    codes: Mapping[str, np.ndarray]
    left_out: Mapping[str, str]
    remarks: Sequence[str]

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """Return the kind of each feature."""
        return {column.name: column.kind for column in self.columns}

    @property
    def width(self) -> int:
        """Return the number of network inputs."""
        return sum(column.width for column in self.columns)

    def matrix(self) -> np.ndarray:
        """Return the features' cells as float64 [n, column]."""
        rows = len(self.codes[self.columns[0].name])
        matrix = scratch.empty((rows, len(self.columns)), np.float64)
        for place, column in enumerate(self.columns):
            matrix[:, place] = self.codes[column.name]
        return matrix


def features_of(
    table: pa.Table,
    names: Iterable[str],
    origin: str,
    *,
    leave_out: Sequence[str] = (),
    kinds: Mapping[str, ColumnKind] | None = None,
    rows: int | None = None,
    remarks: Callable[[Cells], Iterable[str]] = lambda cells: (),
) -> Features:
    """Read the columns of an open table that are not targets, each once, and choose their kinds.

    Args:
        origin: the table's name in errors.
        leave_out: columns that must not be features.
        kinds: column -> the user's kind; such a column is left out only if it is empty, constant or a copy.
        rows: the number of rows of the file, some of which the table may lack. None: the table has all rows.
        remarks: the remarks on a column that is read.

    Raises:
        DataError: no column is left, or a cell does not have the user's kind.
    """
    left_out = dict.fromkeys(leave_out, "as you said")
    columns, codes, lines = list[Column](), dict[str, np.ndarray](), list[str]()
    for name in names:
        if name in left_out:
            continue
        cells, wanted = Cells.of(table, name, origin), (kinds or {}).get(name)
        if wanted is None and is_index(table, name):
            left_out[name] = _INDEX
        elif cells.kind == "empty":
            left_out[name] = "it is empty"
        elif wanted is None and (why := refusal(cells)):
            left_out[name] = why
        else:
            column, values = describe(cells, wanted or _kind(cells, table.schema.field(cells.name).type), CATEGORIES)
            if why := _useless(cells, column, values, wanted is not None, rows or len(values)):
                left_out[name] = why
                continue
            columns.append(column)
            codes[name] = values
            lines += remarks(cells)
    first = dict[bytes, str]()
    for name, values in sorted(codes.items(), key=lambda item: not item[0]):  # a column without a name is last
        original = first.setdefault((values + 0.0).tobytes(), name)  # −0 is 0
        if original != name:
            left_out[name] = f"it is equal to {original}"
    kept = tuple(column for column in columns if column.name not in left_out)
    if not kept:
        raise NothingToFit(f"{origin}: must have a column to predict from, got {listed(left_out, 6) or 'none'}")
    return Features(kept, codes, left_out, lines)


def _kind(cells: Cells, of: pa.DataType) -> ColumnKind:
    """Return the kind of a column's cells; numbers of the type of categories, such as pandas', are a category.

    Ordered categories of numbers stay numbers, which keep their order.
    """
    if cells.kind == "number" and pa.types.is_dictionary(of) and not of.ordered:
        return "category"
    return _KINDS.get(cells.kind, "number")


def _useless(cells: Cells, column: Column, values: np.ndarray, is_wanted: bool, rows: int) -> str:
    """Return why a column that can be read tells nothing; empty if it may tell something."""
    filled = values[~np.isnan(values)]
    is_whole, different = len(filled) == len(values), len(column.values) or len(np.unique(filled))
    if is_whole and different == 1:
        return "it has one value"
    if is_wanted:
        return ""
    if column.kind == "category" and different > max(IDENTIFIER * len(filled), CATEGORIES):
        if not cells.is_text:
            return "it identifies rows: nearly every row has a different category"
        share, word = number_share(cells), short(no_number(cells.filled))
        if MOST <= share < 1:
            rule = f"numbers and the others are texts such as {word}: write gaps as empty cells"
            return f"{share:.0%} of its cells are {rule}"
        reason = mixed_dates(cells) or amounts(cells.filled)
        return reason or f"it identifies rows: nearly every row has a different text, such as {word}"
    return "it is a row number" if column.kind == "number" and is_whole and counts_rows(filled, rows) else ""


def counts_rows(values: np.ndarray, rows: int) -> bool:
    """Return True if at least three whole numbers increase from row to row, and ``rows`` of them would have no gaps."""
    whole = len(values) > 2 and (values == np.floor(values)).all() and (np.diff(values) > 0).all()
    return bool(whole) and bool(values[-1] - values[0] < rows)


def task_of(answers: Sequence[Cells]) -> Task:
    """Return the task: regression for several targets, fractions or many different whole numbers, else
    classification."""
    if len(answers) > 1:
        return "regression"
    cells = answers[0]
    mixed = cells.kind == "text" and not cells.is_code and number_share(cells) >= MOST
    if mixed and len(cells.filled.unique()) > _CLASSES:
        texts = cells.filled.to_pylist()
        word = next((text for text in texts if not is_number(text)), texts[0])
        rule = f"must be numbers or classes, got numbers and texts such as {short(word)}"
        comma = re.fullmatch(r"[+-]?[0-9]*,[0-9]+", word)
        cure = "write numbers with a point" if comma else "leave such rows out, or write a gap as an empty cell"
        raise DataError(f"{cells.origin}: column {short(cells.name)} {rule} in row {cells.row_of(word)}; {cure}")
    if cells.kind != "number" or cells.is_rounded:
        return "classification"
    different = np.unique(cells.numbers())
    return "regression" if len(different) > _CLASSES or (different % 1 != 0).any() else "classification"


def refusal(cells: Cells) -> str:
    """Return why cells can be neither numbers, categories nor dates; empty if they can."""
    if cells.kind == "other":
        return f"it holds {brief(cells.values.type)}, which is neither numbers, texts nor dates"
    if cells.kind == "number" and cells.is_rounded:
        return "its whole numbers go beyond 2^53 and would be rounded: write them as texts unless they only name rows"
    if cells.kind != "text" or cells.is_code:
        return ""
    texts = cells.filled.filter(pc.invert(gap_mask(cells.filled)))
    if are_all(texts, _CLOCK):
        return f"it holds times of day, such as {short(texts[0].as_py())}: write a number, such as hours"
    if are_all(texts, _DATE):
        how = "in a form that cannot be read: write each as 2026-01-31"
        if pc.any(pc.match_substring_regex(texts, ISO)).as_py():
            how = "not all in one form: write each as 2026-01-31"
        if wrong := no_day(texts.unique().to_pylist()):
            how = "a day that is in no calendar: correct it, or write a gap as an empty cell"
            return f"its texts are dates, but one is {short(wrong)}, {how}"
        words = [pa.chunked_array([[text]], pa.string()) for text in texts.unique().to_pylist()]
        zones = [zone for zone in (None, "UTC") if cast(words[0], pa.timestamp("ns", zone)) is not None]
        kind = pa.timestamp("ns", zones[0] if zones else None)  # the first text's, if it is a date
        others = [word for word in words if cast(word, kind) is None]
        first, other = (short(str(one[0].as_py())) for one in (words[0], (others or words)[0]))
        got = first if first == other or not are_all(texts[:1], ISO) else f"{first} and {other}"
        return f"its texts are dates, such as {got}, {how}"
    if are_all(texts, DRESSED):
        way = "write numbers without separators of thousands and without units, with a point" + how_to_say(cells)
        return f"its texts are numbers, such as {short(no_number(texts))}, in a form that cannot be read: {way}"
    return ""


def how_to_say(cells: Cells) -> str:
    """Return the options of ``add`` that make numbers of texts such as ``1.299,99``; empty if there are none."""
    for thousands, decimal in product(".,' ", ".,") if cells.separator else ():
        read = Cells("", "", cells.values, decimal, thousands)
        if decimal in (thousands, cells.separator) or read.kind != "number":
            continue
        if pc.any(pc.match_substring_regex(cells.values, grouped(thousands, decimal))).as_py():
            return f", or say --thousands {shlex.quote(thousands)} --decimal {decimal}"
    return ""


def amounts(texts: pa.ChunkedArray) -> str:
    """Say that texts are amounts in one of a few forms, such as ``12 years`` or ``~5``; empty if they are not."""
    texts = texts.filter(pc.invert(gap_mask(texts)))
    if are_all(texts, HEX) or are_all(texts, PERIOD):
        return ""
    rows, values, examples = Counter[str](), Counter[str](), dict[str, str]()
    for pair in texts.value_counts().to_pylist():
        form = _ONE_NUMBER.sub("#", pair["values"])
        rows[form] += pair["counts"]
        values[form] += 1
        examples.setdefault(form, pair["values"])
    frequent = [form for form, _ in rows.most_common(_FEW) if not _BANDS.fullmatch(form)]
    usual = [form for form in frequent if are_all(pa.chunked_array([[form]]), _BEFORE)]
    dressed = [form for form in usual if not is_number(examples[form])]
    is_most = sum(rows[form] for form in usual) >= MOST * rows.total()
    if not dressed or not is_most or sum(values[form] for form in usual) < 2 * len(usual):
        return ""
    return f"its texts are amounts, such as {short(examples[dressed[0]])}: write the numbers alone, all in one unit"


def mixed_dates(cells: Cells) -> str:
    """Say that most texts are dates and which other text there is; empty if they are not."""
    others = cells.filled.filter(pc.invert(pc.match_substring_regex(cells.filled, _DATE)))
    share = 1 - len(others) / max(1, len(cells.filled))
    if not MOST <= share < 1:
        return ""
    rule = f"dates and the others are texts such as {short(str(others[0].as_py()))}: write gaps as empty cells"
    return f"{share:.0%} of its cells are {rule}"


def number_share(cells: Cells) -> float:
    """Return the share of a column's texts that are numbers."""
    return float(pc.mean(pc.match_substring_regex(cells.filled, NUMBER).cast(pa.float64())).as_py())


def no_number(texts: pa.ChunkedArray) -> str:
    """Return the first text that is not a number, or the first text if all are numbers."""
    others = texts.filter(pc.invert(pc.match_substring_regex(texts, NUMBER)))
    return str((others if len(others) else texts)[0].as_py())


def twins(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of names that differ only in case, blanks or a number's form, each paired with the first."""
    first, pairs = dict[str, str](), []
    for name in sorted(names):
        other = first.setdefault(re.sub(r"[\s_]+", " ", canonical(name.strip()).casefold()), name)
        if other != name:
            pairs.append((other, name))
    return pairs
