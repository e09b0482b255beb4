"""The formats of cells and of columns' names: numbers, truths, dates, words for gaps, and their canonical texts."""

import difflib
import re
import unicodedata
from collections.abc import Iterable
from datetime import date
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DataError, brief, short

SIGNS: Final = dict(  # full width, a printed minus, Arabic and Persian digits
    zip("０１２３４５６７８９．－＋−٠١٢٣٤٥٦٧٨٩٫۰۱۲۳۴۵۶۷۸۹", "0123456789.-+-0123456789.0123456789", strict=True)
)
SAME: Final = {" ": "\u00a0\u202f\u2009", "'": "’"}  # a separator of thousands -> characters that are printed for it
_BLANKS: Final = "".join(c for c in map(chr, range(0x3001)) if c.isspace()) + "\u200b\u200e\u200f\u2060\ufeff"
GAPS: Final = (
    *("na", "n/a", "#n/a", "#na", "<na>", "n.a.", "nan", "null", "none", "nil", "#n/a n/a"),
    *("nat", "missing", "unknown", "nd", "n.d.", "-nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
    *("\\n", "(null)", "[null]", "<null>", "(blank)"),  # MySQL, SQL Server, DBeaver, pivot tables
    *("#div/0!", "#ref!", "#value!", "#name?", "#num!", "#null!", "#spill!", "#calc!", "#getting_data"),  # Excel
    *("#nv", "#bezug!", "#wert!", "#zahl!", "#n/d", "#valeur!", "#nombre!", "#nom?", "#nul!", "#rif!", "#valore!"),
    *("#¡div/0!", "#¡ref!", "#¡valor!", "#¡num!", "#¡nulo!", "#¿nombre?", "#valor!", "#nome?", "#núm!"),
)
TRUTHS: Final = ("False", "True")
_TRUTHS: Final = {  # words that systems write for each other
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}
LARGEST: Final = 2.0**53  # float64 rounds larger whole numbers
FARTHEST: Final = 1e150  # the squares of smaller numbers fit in a float64
WHOLE: Final = r"^[+-]?[0-9]+$"
CODE: Final = r"^0[0-9]+$"
_WORDLESS: Final = r"^[^\p{L}\p{N}]+$"
ISO: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
NUMBER: Final = r"^([-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][-+]?[0-9]+)?|(?i:[-+]?(inf|infinity|nan)))$"
_GAP: Final = r"[\s\p{Z}]*"  # RE2's \s is ASCII: no-break and narrow blanks are \p{Z}
DRESSED: Final = (
    rf"^[-+(]?{_GAP}[\p{{Sc}}%]?{_GAP}[-+]?[0-9][0-9.,'’\s\p{{Z}}]*([dD][-+][0-9]+|[-+])?{_GAP}[\p{{Sc}}%‰]?{_GAP}\)?$"
)


def grouped_once(point: str) -> str:
    """Return the form of a number such as 12.345: a whole one with a point for thousands, or one of three decimals."""
    return rf"^[+-]?[1-9][0-9]{{0,2}}{re.escape(point)}[0-9]{{3}}$"


def grouped(thousands: str, decimal: str) -> str:
    """Return the form of a number of 1,000 or more whose thousands are separated, with or without decimals."""
    between, point = re.escape(thousands), re.escape(decimal)
    return rf"^[+-]?[0-9]{{1,3}}({between}[0-9]{{3}})+({point}[0-9]*)?$"


def clean(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), without surrounding blanks or invisible characters.

    Its lines end with a line feed.
    """
    return unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").strip(_BLANKS)


def is_number(text: str) -> bool:
    """Return True if a text is a number without a comma."""
    return re.match(NUMBER, text) is not None and "," not in text


def is_gap_word(text: str) -> bool:
    """Return True if a text is read as a gap among numbers."""
    return text.lower() in GAPS or not any(map(str.isalnum, text))


def truth(text: str) -> bool | None:
    """Return the truth that a word such as ``yes`` or ``False`` means; None for other texts."""
    return _TRUTHS.get(text.strip().lower())


def canonical(text: str) -> str:
    """Write a text that is a number or a truth like :meth:`Cells.texts`; return other texts unchanged."""
    if text.lower() in ("true", "false"):
        return text.lower().capitalize()
    if not is_number(text) or re.match(CODE, text) or re.match(WHOLE, text):
        return str(int(text)) if re.match(WHOLE, text) and not re.match(CODE, text) else text
    return str(number_texts(np.array([float(text)]))[0])


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to the common type of its kind: texts, integers, float64, or timestamps in microseconds.

    A type of its own, such as pandas' periods, is kept unless its storage has the same meaning.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        truths = kind.extension_name == "arrow.bool8"
        if not truths and (is_numeric(kind.storage_type) or pa.types.is_struct(kind.storage_type)):
            return column
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
        column = column.cast(pa.bool_()) if truths else column
        kind = column.type
    if pa.types.is_run_end_encoded(kind):
        column = pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], kind.value_type)
        kind = column.type
    if pa.types.is_dictionary(kind):
        if isinstance(kind.value_type, pa.BaseExtensionType):
            return column
        if pa.types.is_string_view(kind.value_type):  # polars' categories, which Arrow cannot cast
            chunks = [chunk.dictionary.cast(pa.string()).take(chunk.indices) for chunk in column.chunks]
            return plain(pa.chunked_array(chunks, pa.string()))
        return plain(column.cast(kind.value_type))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        texts = column.cast(pa.string())
        if not pc.all(pc.string_is_ascii(texts)).as_py() or pc.any(pc.match_substring(texts, "\r")).as_py():
            texts = pa.chunked_array([_cleaned(chunk) for chunk in texts.chunks], pa.string())
        trimmed = pc.utf8_trim_whitespace(texts)
        if pc.sum(pc.binary_length(trimmed)).as_py() != pc.sum(pc.binary_length(texts)).as_py():
            texts = trimmed
        empty = pc.equal(texts, "")
        return pc.if_else(empty, pa.scalar(None, pa.string()), texts) if pc.any(empty).as_py() else texts
    if pa.types.is_floating(kind):
        values = column.cast(pa.float64())
        gaps = pc.is_nan(values)
        return pc.if_else(gaps, pa.scalar(None, pa.float64()), values) if pc.any(gaps).as_py() else values
    if pa.types.is_date(kind):
        return column.cast(pa.timestamp("us"))
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", "UTC" if kind.tz else None), safe=kind.unit in ("s", "ms"))
    return column


def _cleaned(texts: pa.Array) -> pa.Array:
    """Clean each different text once. Arrow's ``utf8_normalize`` does not compose (apache/arrow#51225)."""
    encoded = texts.dictionary_encode()
    different = [None if text is None else clean(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(different, pa.string()).take(encoded.indices)


def is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def gap_mask(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return, for each text, whether it is a word for a gap or an empty cell."""
    named = pc.is_in(pc.utf8_lower(texts), pa.array([None, *GAPS]))
    return pc.or_(named, pc.fill_null(pc.match_substring_regex(texts, _WORDLESS), True))


def cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


def parsed(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Read dates as microseconds, all with a time zone or all without; None if a text is not a date."""
    for zone in (None, "UTC"):
        for unit in ("us", "ns"):
            if (moments := cast(texts, pa.timestamp(unit, zone))) is not None:
                return moments.cast(pa.timestamp("us", zone), safe=False)
    return None


def no_day(texts: Iterable[str]) -> str:
    """Return the first text that begins like a date of ISO 8601 with a day that no calendar has; empty if none does."""
    for text in texts:
        try:
            if re.match(ISO, text):
                date.fromisoformat(text[:10])
        except ValueError:
            return text
    return ""


def are_all(texts: pa.ChunkedArray, form: str) -> bool:
    """Return True if there is at least one text, and all texts have this form."""
    return bool(pc.all(pc.match_substring_regex(texts, form), min_count=1).as_py())


def number_texts(values: np.ndarray) -> pa.ChunkedArray:
    """Write whole numbers without a point, others as Python does, and 0 without a sign."""
    different, places = np.unique(values, return_inverse=True)
    texts = [
        None if np.isnan(v) else str(int(v)) if v == np.floor(v) and abs(v) <= LARGEST else repr(float(v))
        for v in different
    ]
    return pa.chunked_array([pa.array(texts, pa.string()).take(pa.array(places.reshape(-1)))])


def date_texts(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write a timestamp as a day if its time is midnight, else with the time."""
    texts = pc.replace_substring(moments.cast(pa.timestamp("us")).cast(pa.string()), ".000000", "")
    return pc.replace_substring(texts, " 00:00:00", "")


def require_column(table: pa.Table, name: str, origin: str) -> str:
    """Return the table's own spelling of a column's name; raise DataError if there is no such column."""
    if (wanted := clean(name)) not in table.column_names:
        near = difflib.get_close_matches(wanted.lower(), table.column_names, 1, 0.75)
        near = [other for other in table.column_names if other.lower() == wanted.lower()] or near
        hint = f"; did you mean {short(near[0])}?" if near else ""
        raise DataError(f"{origin}: must have the column {short(name)}, got {names_of(table)}{hint or _cure(table)}")
    return wanted


def _cure(table: pa.Table) -> str:
    """Return a cure for a first line that holds no names, or cells that are not apart."""
    names = table.column_names
    if any('"' in name for name in names):
        return "; delete the blanks between separators and quotes"
    if all(map(is_number, names)):
        return "; write the names of the columns into the first line"
    if len(names) == 1 and re.search(r"\w[ :~^\x01]+\w", names[0]):
        return "; write a comma, a semicolon, a tab or a bar between cells"
    return ""


def names_of(table: pa.Table) -> str:
    """Return the names of the first eight columns, for an error."""
    names = brief(", ".join(table.column_names[:8]))
    return names + (", …" if table.num_columns > 8 else "")


def listed(names: Iterable[str], shown: int = 8) -> str:
    """Return the first names, and the number of others."""
    names = list(names)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return brief(", ".join(names[:shown])) + more
