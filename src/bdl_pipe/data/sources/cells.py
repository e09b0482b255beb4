"""The one reader of a user's cells: equal values are equal, whatever file, frame or request carries them.

A cell comes with a type (Parquet, Arrow, pandas, a number of JSON) or as a text (CSV, a text of any of these). A column
of texts is read by all its texts: numbers, truths, dates (ISO 8601) or texts. Blanks around a text do not count, and an
empty text is a gap. In a column otherwise of numbers, truths or dates so are words such as ``NA`` and ``?``
(``GAPS``, and texts without letter or digit); in a column of texts they are texts.

Nothing is guessed: separators of thousands, units (``12 %``, ``$5``), dates in another form, and whole numbers that a
float64 would round are named, and are no numbers.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DataError, brief, short

CellKind = Literal["number", "truth", "date", "text", "empty", "other"]
GAPS: Final = (
    *("na", "n/a", "#n/a", "#na", "<na>", "n.a.", "nan", "null", "none", "nil"),
    *("missing", "unknown", "nd", "n.d."),
)
DECIMAL: Final = b"decimal"  # the point of numbers in texts, in the metadata of a table's schema
TRUTHS: Final = ("False", "True")
LARGEST: Final = 2.0**53  # whole numbers beyond it are rounded by a float64
_DAY: Final = 86_400_000_000  # a day has so many microseconds
_SIGNS: Final = dict(zip("０１２３４５６７８９．－＋−", "0123456789.-+-", strict=True))  # full width; a printed minus
_WHOLE: Final = r"^[+-]?[0-9]+$"
_CODE: Final = r"^0[0-9]+$"
_WORDLESS: Final = r"^[^\p{L}\p{N}]+$"
_ISO: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ANY_DATE: Final = (
    r"^([0-9]{4}[./-][0-9]{1,2}[./-][0-9]{1,2}|[0-9]{1,2}[./-][0-9]{1,2}[./-]([0-9]{2}|[0-9]{4}))([ T].*)?$"
)
_NUMBER: Final = r"^([-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][-+]?[0-9]+)?|(?i:[-+]?(inf|infinity|nan)))$"
_CLOCK: Final = r"^[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?$"
_DRESSED: Final = r"^[-+(]?\s*[\p{Sc}%]?\s*[-+]?[0-9][0-9.,'’\s]*\s*[\p{Sc}%‰]?\s*\)?$"


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of one column of an open table.

    Attributes:
        origin: the file, as errors name it.
        values: typed, or texts without blanks around them; null where a cell is empty.
        decimal: the point of numbers in texts.
    """

    origin: str
    name: str
    values: pa.ChunkedArray
    decimal: str = "."

    @classmethod
    def of(cls, table: pa.Table, name: str, origin: str) -> "Cells":
        """Take a column of a table.

        Raises:
            DataError: there is no such column.
        """
        require_column(table, name, origin)
        decimal = (table.schema.metadata or {}).get(DECIMAL, b".").decode()
        return cls(origin, name, _plain(table.column(name)), decimal)

    @property
    def is_text(self) -> bool:
        """Return True if the cells came as texts."""
        return pa.types.is_string(self.values.type)

    @property
    def is_empty(self) -> bool:
        """Return True if no cell has a value."""
        return bool(self.values.null_count == len(self.values))

    @cached_property
    def kind(self) -> CellKind:
        """Return what the cells are, by all of them; ``other``: neither of these."""
        kind = self.values.type
        if self.is_empty:
            return "empty"
        if pa.types.is_boolean(kind):
            return "truth"
        if pa.types.is_timestamp(kind):
            return "date"
        if not self.is_text:
            return "number" if _is_number(kind) else "other"
        if self._numeric is not None and not self.is_code:
            return "number"
        return "truth" if self._truths is not None else "date" if self._moments is not None else "text"

    @cached_property
    def is_code(self) -> bool:
        """Return True for texts of digits, all of one length, of which some begin with 0: numbers would lose it."""
        if not self.is_text or not pc.any(pc.match_substring_regex(self.values, _CODE)).as_py():
            return False
        return len(pc.unique(pc.utf8_length(self._filled))) == 1 and _all(self._filled, r"^[0-9]+$")

    @cached_property
    def is_rounded(self) -> bool:
        """Return True if there are whole numbers that a float64 would round."""
        if pa.types.is_floating(self.values.type) or not (self.is_text or _is_number(self.values.type)):
            return False
        large = np.abs(self._floats) > LARGEST
        if not self.is_text or not large.any():
            return bool(large.any())
        return bool(pc.any(pc.match_substring_regex(self.values.filter(pa.array(large)), _WHOLE)).as_py())

    @cached_property
    def zoned(self) -> bool:
        """Return True for dates with a zone, which are instants."""
        moments = self._moments
        return moments is not None and moments.type.tz is not None

    @property
    def gap_words(self) -> Counter[str]:
        """Count the words that are read as gaps of a column of numbers, truths or dates."""
        if not self.is_text or self.kind not in ("number", "truth", "date"):
            return Counter()
        pairs = self.values.filter(self._gap_mask).drop_null().value_counts().to_pylist()
        return Counter({pair["values"]: pair["counts"] for pair in pairs})

    def missing(self) -> np.ndarray:
        """Say of each cell whether it is a gap [n]."""
        gaps = self.values.is_null()
        if self.is_text and self.kind in ("number", "truth", "date"):
            gaps = pc.or_(gaps, self._gap_mask)
        return np.asarray(gaps.to_numpy(zero_copy_only=False) if isinstance(gaps, pa.Array) else gaps.to_numpy())

    def numbers(self) -> np.ndarray:
        """Return the cells as finite float64 [n], NaN for gaps; truths are 0 and 1.

        Raises:
            DataError: a cell is no number, is infinite, or is a whole number that would be rounded.
        """
        values = self._floats
        if self.is_rounded:
            row = int(np.argmax(np.abs(values) > LARGEST))
            got = f"got {self.values[row].as_py()} in row {row + 1}"
            raise self._error(f"must be numbers that a float64 holds (whole ones up to 2^53), {got}")
        if np.isinf(values).any():
            row = int(np.argmax(np.isinf(values)))
            raise self._error(f"must be finite, got {values[row]:g} in row {row + 1}; write a gap as an empty cell")
        return values

    def days(self) -> np.ndarray:
        """Return dates as days since 1970, float64 [n], NaN for gaps; instants in UTC.

        Raises:
            DataError: a cell is no date.
        """
        if self._moments is None:
            if self._is_gap_alone:
                return np.full(len(self.values), np.nan)
            row, value = self._first(_ISO)
            way = "write it as 2026-01-31 or 2026-01-31 12:00:00, either all with a zone or none"
            raise self._error(f"must be dates, got {short(value)} in row {row}; {way}")
        micros = self._moments.cast(pa.int64()).cast(pa.float64(), safe=False)
        return micros.to_numpy().astype(np.float64) / _DAY

    def texts(self) -> pa.ChunkedArray:
        """Return the cells as texts, null for gaps: a number as 3 or 0.5, a truth as True, a day as 2026-01-31.

        Raises:
            DataError: the cells are lists or the like.
        """
        if self.kind == "other":
            raise self._error(f"must be texts, got {brief(self.values.type)}")
        if self.kind in ("text", "empty"):
            return self.values.cast(pa.string())
        if self.kind == "truth":
            return pc.if_else(self.truths(), TRUTHS[1], TRUTHS[0])
        if self.kind == "date":
            return _date_texts(self._moments)
        if self.is_rounded:
            return (self._words if self.is_text else self.values).cast(pa.string())
        return _number_texts(self._floats)

    def row_of(self, text: str) -> int:
        """Return the first row, counted from 1, of this text."""
        texts = self.values if self.is_text else self.texts()
        return int(pc.index(texts, text).as_py()) + 1

    def truths(self) -> pa.ChunkedArray:
        """Return the cells as booleans, null for gaps; the kind must be ``truth``."""
        found = self.values if not self.is_text else self._truths
        assert found is not None
        return found

    def refusal(self) -> str:
        """Say why these cells can be neither numbers, categories nor dates; empty if they can."""
        kind = self.values.type
        if self.kind == "other":
            return f"it holds {brief(kind)}, which is neither numbers, texts nor dates"
        if self.kind == "number" and self.is_rounded:
            return "its whole numbers go beyond 2^53 and would be rounded: it names rows, or write it as a text"
        if self.kind != "text" or self.is_code:
            return ""
        example = short(self._filled[0].as_py())
        if _all(self._filled, _CLOCK):
            return f"it holds times of day, such as {example}: write a number, such as hours"
        if _all(self._filled, _ANY_DATE):
            return f"its texts are dates, such as {example}, not all in one form: write each as 2026-01-31"
        if _all(self._filled.filter(pc.invert(_gap_mask(self._filled))), _DRESSED):
            way = "write numbers without separators of thousands and without units, with a point"
            return f"its texts are numbers, such as {example}, in no form that is read: {way}"
        return ""

    def remarks(self) -> list[str]:
        """Return what a reader should know of how the cells were read, a line each."""
        words = self.gap_words
        found = [f"{self.name}: {short(word)} is read as a gap, in {count:,} rows" for word, count in words.items()]
        if self.is_code and self.kind == "text":
            found.append(f"{self.name}: codes such as {short(self._code)} begin with 0: they are texts, not numbers")
        elif self.kind == "text":
            found += self._words_among_texts()
        return found

    def _words_among_texts(self) -> list[str]:
        """Return remarks on gaps that are categories, and on words among numbers."""
        gaps = self._filled.filter(_gap_mask(self._filled)).value_counts().to_pylist()
        found = [
            f"{self.name}: {short(pair['values'])} is a value, in {pair['counts']:,} rows; write a gap as an empty cell"
            for pair in gaps
        ]
        numbers = pc.match_substring_regex(self._filled, _NUMBER)
        share = pc.mean(numbers.cast(pa.float64())).as_py()
        if share and 0.5 <= share < 1:
            word = short(self._filled.filter(pc.invert(numbers))[0].as_py())
            rule = f"numbers but for texts such as {word}: it is a category; write gaps as empty cells"
            found.append(f"{self.name}: {share:.0%} of its cells are {rule}")
        return found

    @property
    def _code(self) -> str:
        return str(self.values.filter(pc.match_substring_regex(self.values, _CODE))[0].as_py())

    @cached_property
    def _filled(self) -> pa.ChunkedArray:
        return self.values.drop_null()

    @cached_property
    def _gap_mask(self) -> pa.ChunkedArray:
        return _gap_mask(self.values)

    @property
    def _is_gap_alone(self) -> bool:
        return self.is_empty or (self.is_text and bool(pc.all(self._gap_mask).as_py()))

    @cached_property
    def _words(self) -> pa.ChunkedArray:
        """The texts that are not read as gaps."""
        return pc.if_else(self._gap_mask, pa.scalar(None, pa.string()), self.values)

    @cached_property
    def _numeric(self) -> pa.ChunkedArray | None:
        """Texts as float64; None if one is no number, or all are words for gaps."""
        if self.decimal == "." and (found := _cast(self.values, pa.float64())) is not None:
            return found
        texts = self._words
        if texts.null_count == len(texts):
            return None
        if pc.any(pc.match_substring_regex(texts, f"[{''.join(_SIGNS)}]")).as_py():
            for sign, plain in _SIGNS.items():
                texts = pc.replace_substring(texts, sign, plain)
        if self.decimal == ",":
            if pc.any(pc.match_substring(texts, ".")).as_py():  # of thousands, or another point
                return None
            texts = pc.replace_substring(texts, ",", ".")
        return _cast(texts, pa.float64())

    @cached_property
    def _truths(self) -> pa.ChunkedArray | None:
        """Texts as booleans: true and false in any letters, and 1 and 0 among these; None if one is another."""
        lower = pc.utf8_lower(self._words)
        known = pc.is_in(lower, pa.array([None, "true", "false", "1", "0"]))
        if not pc.all(known).as_py() or not pc.any(pc.is_in(lower, pa.array(["true", "false"]))).as_py():
            return None
        return pc.if_else(lower.is_null(), None, pc.is_in(lower, pa.array(["true", "1"])))

    @cached_property
    def _moments(self) -> pa.ChunkedArray | None:
        """Dates as microseconds; None if a cell is none."""
        if pa.types.is_timestamp(self.values.type):
            return self.values
        if not self.is_text or self.is_empty:
            return None
        if re.match(_ISO, self._filled[0].as_py()) and (found := _parsed(self.values)) is not None:
            return found
        return _parsed(self._words) if _all(self._words, _ISO) else None

    @cached_property
    def _floats(self) -> np.ndarray:
        """The cells as float64 [n], rounded where whole numbers are large; NaN for gaps.

        Raises:
            DataError: a cell is no number.
        """
        kind = self.values.type
        if self.is_text and self._numeric is not None:
            found = self._numeric
        elif self._is_gap_alone:
            return np.full(len(self.values), np.nan)
        elif _is_number(kind):
            found = self.values.cast(pa.float64(), safe=False)
        elif self.kind == "truth":
            found = self.truths().cast(pa.float64())
        else:
            row, value = self._first()
            way = "say what it is with `columns`, or leave it out with `features`"
            if self.is_text and pc.match_substring_regex(pa.scalar(value), _DRESSED).as_py():
                way = "write numbers without separators of thousands and without units, with a point"
            raise self._error(f"must be numeric, got {short(value)} in row {row}; {way}")
        return np.asarray(found.to_numpy(), np.float64)

    def _first(self, form: str = _NUMBER) -> tuple[int, str]:
        """Find the first cell that is no gap and not of this form, or else the first that is no gap, and its row."""
        words = self._words if self.is_text else self.values
        wrong = pc.invert(pc.match_substring_regex(words, form)) if self.is_text else words.is_valid()
        found = np.asarray(pc.fill_null(wrong, False).to_numpy())
        row = int(np.argmax(found if found.any() else words.is_valid().to_numpy()))
        return row + 1, str(words[row].as_py())

    def _error(self, rule: str) -> DataError:
        return DataError(f"{self.origin}: column {short(self.name)} {rule}")


def is_index(table: pa.Table, name: str) -> bool:
    """Return True for the index of a pandas table, which is no feature.

    It is a column ``__index_level_0__`` of a Parquet file, or a column of whole numbers from 0 on that has no name and
    is the first, or that pandas has called ``Unnamed: 0``.
    """
    if re.fullmatch(r"__index_level_\d+__", name):
        return True
    if not (name == "" == table.column_names[0] or re.fullmatch(r"Unnamed: 0(\.\d+)?", name)):
        return False
    cells = Cells.of(table, name, "")
    if cells.kind != "number":
        return False
    values = cells._floats
    return bool(((values >= 0) & (values == np.floor(values))).all())


def require_column(table: pa.Table, name: str, origin: str) -> None:
    """Raise DataError if the table has no such column."""
    if name not in table.column_names:
        raise DataError(f"{origin}: must have the column {short(name)}, got {names_of(table)}")


def names_of(table: pa.Table) -> str:
    """Return the names of the first eight columns, for an error."""
    names = brief(", ".join(table.column_names[:8]))
    return names + (", …" if table.num_columns > 8 else "")


def is_number(text: str) -> bool:
    """Return True if a text is a number with a point."""
    return re.match(_NUMBER, text) is not None and "," not in text


def is_gap_word(text: str) -> bool:
    """Return True if a text is read as a gap among numbers."""
    return text.lower() in GAPS or not any(map(str.isalnum, text))


def canonical(text: str) -> str:
    """Write a text that is a number or a truth as :meth:`Cells.texts` writes those; any other as it is."""
    if text.lower() in ("true", "false"):
        return text.lower().capitalize()
    if not is_number(text) or re.match(_CODE, text) or re.match(_WHOLE, text):
        return str(int(text)) if re.match(_WHOLE, text) and not re.match(_CODE, text) else text
    return str(_number_texts(np.array([float(text)]))[0])


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Bring a column to one type of its kind: texts, float64, moments of microseconds; whole numbers stay whole."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
        kind = column.type
    if pa.types.is_run_end_encoded(kind):
        column = pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], kind.value_type)
        kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        texts = column.cast(pa.string())
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


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _gap_mask(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Say of each text whether it is a word for a gap, or an empty cell."""
    named = pc.is_in(pc.utf8_lower(texts), pa.array([None, *GAPS]))
    return pc.or_(named, pc.fill_null(pc.match_substring_regex(texts, _WORDLESS), True))


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


def _parsed(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Read dates as microseconds, all with a zone or all without; None if one is none."""
    for zone in (None, "UTC"):
        for unit in ("us", "ns"):
            if (found := _cast(texts, pa.timestamp(unit, zone))) is not None:
                return found.cast(pa.timestamp("us", zone), safe=False)
    return None


def _all(texts: pa.ChunkedArray, form: str) -> bool:
    """Return True if there is a text, and all are of this form."""
    found = pc.match_substring_regex(texts, form)
    return bool(pc.all(found, min_count=1).as_py())


def _number_texts(values: np.ndarray) -> pa.ChunkedArray:
    """Write whole numbers without a point, others as Python does, and 0 without a sign."""
    different, places = np.unique(values, return_inverse=True)
    texts = [
        None if np.isnan(v) else str(int(v)) if v == np.floor(v) and abs(v) <= LARGEST else repr(float(v))
        for v in different
    ]
    return pa.chunked_array([pa.array(texts, pa.string()).take(pa.array(places.reshape(-1)))])


def _date_texts(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write a moment as a day where its time is midnight, and with the time elsewhere."""
    texts = pc.replace_substring(moments.cast(pa.timestamp("us")).cast(pa.string()), ".000000", "")
    return pc.replace_substring(texts, " 00:00:00", "")
