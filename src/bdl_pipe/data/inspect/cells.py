"""Findings about how the cells of a column were read: reasons to refuse them, and remarks."""

import re
from collections import Counter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import brief, short
from ..sources.cells import Cells
from ..sources.forms import (
    ANY_DATE,
    CLOCK,
    CODE,
    DRESSED,
    HEX,
    ISO,
    NUMBER,
    PERIOD,
    are_all,
    gap_mask,
    is_number,
    unparsed,
)

MOST: Final = 0.5  # the least share of numbers in a column that is meant as numbers
_SOME: Final = 0.1  # the least share of numbers beside few different texts
_FEW: Final = 3  # the most different texts beside numbers, and the most forms of amounts in a column
_ONE_NUMBER: Final = re.compile(r"[0-9]+(?:[.,'’_ \u00a0\u202f][0-9]+)*")
_BEFORE: Final = r"^([^\p{L}\p{N}]*|\p{L}{0,3}\p{Sc}\s*|Rs\.?\s*|[A-Z]{3}\s*)#"  # a sign or a currency
_BANDS: Final = re.compile(r"#(\s*(?:[-–—]|to)\s*#)+.*")  # 20-30 is an interval, and 50-00-0 a code


def refusal(cells: Cells) -> str:
    """Return why cells can be neither numbers, categories nor dates; empty if they can."""
    if cells.kind == "other":
        return f"it holds {brief(cells.values.type)}, which is neither numbers, texts nor dates"
    if cells.kind == "number" and cells.is_rounded:
        return "its whole numbers go beyond 2^53 and would be rounded: write them as texts unless they only name rows"
    if cells.kind != "text" or cells.is_code:
        return ""
    texts = cells.filled.filter(pc.invert(gap_mask(cells.filled)))
    if are_all(texts, CLOCK):
        return f"it holds times of day, such as {short(texts[0].as_py())}: write a number, such as hours"
    if are_all(texts, ANY_DATE):
        first, other = short(texts[0].as_py()), short(unparsed(texts))
        got = first if first == other or not are_all(texts[:1], ISO) else f"{first} and {other}"
        return f"its texts are dates, such as {got}, not all in one form: write each as 2026-01-31"
    if are_all(texts, DRESSED):
        way = "write numbers without separators of thousands and without units, with a point"
        return f"its texts are numbers, such as {short(no_number(texts))}, in a form that cannot be read: {way}"
    return ""


def names_rows(cells: Cells) -> str:
    """Return why nearly all texts of a column differ: they are numbers with a few words, or free texts."""
    share = number_share(cells)
    word = short(no_number(cells.filled))
    if MOST <= share < 1:
        rule = f"numbers and the others are texts such as {word}: write gaps as empty cells"
        return f"{share:.0%} of its cells are {rule}"
    if found := mixed_dates(cells) or amounts(cells.filled):
        return found
    return f"it identifies rows: nearly every row has a different text, such as {word}"


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
    usual = [form for form, _ in rows.most_common(_FEW) if _is_amount(form)]
    dressed = [form for form in usual if not is_number(examples[form])]
    is_most = sum(rows[form] for form in usual) >= MOST * rows.total()
    if not dressed or not is_most or sum(values[form] for form in usual) < 2 * len(usual):
        return ""
    return f"its texts are amounts, such as {short(examples[dressed[0]])}: write the numbers alone, all in one unit"


def _is_amount(form: str) -> bool:
    column = pa.chunked_array([[form]])
    return are_all(column, _BEFORE) and not _BANDS.fullmatch(form)


def mixed_dates(cells: Cells) -> str:
    """Say that most texts are dates and which other text there is; empty if they are not."""
    others = cells.filled.filter(pc.invert(pc.match_substring_regex(cells.filled, ANY_DATE)))
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


def remarks(cells: Cells) -> list[str]:
    """Return remarks on how cells were read, one line each."""
    name, words = cells.name or "''", cells.gap_words
    if cells.kind != "text":
        return [f"{name}: {short(word)} is read as a gap, in {count:,} rows" for word, count in words.items()]
    if cells.is_code:
        code = cells.filled.filter(pc.match_substring_regex(cells.filled, CODE))[0].as_py()
        found = [f"{name}: codes such as {short(code)} begin with 0: they are texts, not numbers"]
    else:
        found = []
    counts = cells.filled.filter(gap_mask(cells.filled)).value_counts().to_pylist()
    found += [
        f"{name}: {short(c['values'])} is a value, in {c['counts']:,} rows; write a gap as an empty cell"
        for c in counts
    ]
    share = number_share(cells)
    if (MOST <= share < 1 or (_SOME <= share < MOST and _has_few_words(cells))) and not cells.is_code:
        word = short(no_number(cells.filled))
        rule = f"numbers and the others are texts such as {word}: it is a category; write gaps as empty cells"
        found.append(f"{name}: {share:.0%} of its cells are {rule}")
    if said := mixed_dates(cells):
        found.append(f"{name}: {said}; as it is, it is a category")
    elif said := amounts(cells.filled):
        found.append(f"{name}: {said}; as they are, they are categories")
    return found


def _has_few_words(cells: Cells) -> bool:
    """Return True if a column has several numbers, and few different other texts."""
    numbers = pc.match_substring_regex(cells.filled.unique(), NUMBER)
    count = int(pc.sum(numbers.cast(pa.int64())).as_py())
    return len(numbers) - count <= _FEW < count
