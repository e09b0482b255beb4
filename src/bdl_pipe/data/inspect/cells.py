"""Findings about how the cells of a column were read: reasons to refuse them, and remarks."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import brief, short
from ..sources.cells import Cells
from ..sources.forms import ANY_DATE, CLOCK, CODE, DRESSED, HEX, ISO, NUMBER, UNIT, are_all, gap_mask, unparsed

MOST: Final = 0.5  # the least share of numbers in a column that is meant as numbers


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
    if have_units(cells.filled):
        return f"its texts are numbers with a unit, such as {word}: write the numbers alone"
    if MOST <= share < 1:
        rule = f"numbers and the others are texts such as {word}: write gaps as empty cells"
        return f"{share:.0%} of its cells are {rule}"
    return f"it identifies rows: nearly every row has a different text, such as {word}"


def have_units(texts: pa.ChunkedArray) -> bool:
    """Return True if texts are all numbers with one of at most three units or currencies."""
    if are_all(texts, HEX) or not are_all(texts, UNIT):
        return False
    different = texts.unique()
    units = {part["unit"] or part["money"] for part in pc.extract_regex(different, UNIT).to_pylist()}
    return len(units) <= 3 and len(different) >= max(2, 2 * len(units))


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
    if MOST <= share < 1 and not cells.is_code:
        word = short(no_number(cells.filled))
        rule = f"numbers and the others are texts such as {word}: it is a category; write gaps as empty cells"
        found.append(f"{name}: {share:.0%} of its cells are {rule}")
    return found
