"""The reader of a user's cells, which treats equal values in a file, a frame or a request equally.

A cell has a type (Parquet, Arrow, pandas, JSON numbers) or is a text (CSV, or a text in the other formats). All texts
of a column together decide whether it holds numbers, truths, dates (ISO 8601) or texts. Blanks around a text are
ignored, and an empty text is a gap. In a column of numbers, truths or dates, words such as ``NA`` and ``?`` are gaps,
too (``forms.GAPS``, and texts without a letter or digit); in a column of texts they are texts.

Nothing is guessed: separators of thousands, units (``12 %``, ``$5``), other date formats, and whole numbers that a
float64 would round are reported and are not numbers.
"""

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DataError, brief, short
from . import forms
from .forms import SAME, SIGNS, require_column

CellKind = Literal["number", "truth", "date", "text", "empty", "other"]
DECIMAL: Final = b"decimal"  # key, in a table's schema metadata, of the decimal point in texts
THOUSANDS: Final = b"thousands"  # and of the separator of thousands, empty if there is none
SEPARATOR: Final = b"separator"  # and of the separator of a CSV file's cells
_DAY: Final = 86_400_000_000  # microseconds per day


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of one column of an open table.

    Attributes:
        origin: the file's name in errors.
        values: typed values, or texts without surrounding blanks; null for empty cells.
        decimal: the decimal point of numbers in texts.
        thousands: their separator of thousands; empty: they have none.
        separator: the separator of cells in a CSV file; empty in other tables.
    """

    origin: str
    name: str
    values: pa.ChunkedArray
    decimal: str = "."
    thousands: str = ""
    separator: str = ""

    @classmethod
    def of(cls, table: pa.Table, name: str, origin: str) -> "Cells":
        """Return the cells of a table's column.

        Raises:
            DataError: there is no such column.
        """
        name = require_column(table, name, origin)
        about = table.schema.metadata or {}
        form = [about.get(key, usual).decode() for key, usual in ((DECIMAL, b"."), (THOUSANDS, b""), (SEPARATOR, b""))]
        try:
            values = forms.plain(table.column(name))
        except pa.ArrowInvalid as error:
            rule = "must hold moments that 64 bits of microseconds hold, as infinite dates do not"
            cure = "write such a cell as a gap, or leave the column out"
            raise DataError(f"{origin}: column {short(name)} {rule} ({brief(error)}); {cure}") from None
        except UnicodeDecodeError:
            rule = "must be texts in UTF-8, which some are not; write them as UTF-8, or leave the column out"
            raise DataError(f"{origin}: column {short(name)} {rule}") from None
        return cls(origin, name, values, *form)

    @property
    def is_text(self) -> bool:
        """Return True if the cells came as texts."""
        return pa.types.is_string(self.values.type)

    @property
    def is_empty(self) -> bool:
        """Return True if no cell has a value."""
        return bool(self.values.null_count == len(self.values))

    @property
    def kind(self) -> CellKind:
        """Return the one kind that fits all cells; ``other`` if no kind fits."""
        return self._reading[0]

    @cached_property
    def _reading(self) -> tuple[CellKind, pa.ChunkedArray]:
        """Return the kind, and the values; texts as float64, booleans or moments if they are such."""
        kind, values = self.values.type, self.values
        if self.is_empty:
            return "empty", values
        if pa.types.is_boolean(kind) or pa.types.is_timestamp(kind):
            return "truth" if pa.types.is_boolean(kind) else "date", values
        if not self.is_text:
            return "number" if forms.is_numeric(kind) else "other", values
        if self._numeric is not None and not self.is_code:
            return "number", self._numeric
        lower = pc.utf8_lower(self._words)
        are_truths = pc.all(pc.is_in(lower, pa.array([None, "true", "false", "1", "0"]))).as_py()
        if are_truths and pc.any(pc.is_in(lower, pa.array(["true", "false"]))).as_py():
            return "truth", pc.if_else(lower.is_null(), None, pc.is_in(lower, pa.array(["true", "1"])))
        moments = forms.parsed(values) if re.match(forms.ISO, self.filled[0].as_py()) else None
        if moments is None and forms.are_all(self._words, forms.ISO):
            moments = forms.parsed(self._words)
        return ("text", values) if moments is None else ("date", moments)

    @cached_property
    def is_code(self) -> bool:
        """Return True for texts of digits, all of one length, some with a leading 0, which numbers would lose."""
        if not self.is_text or not pc.any(pc.match_substring_regex(self.values, forms.CODE)).as_py():
            return False
        words = self._words.drop_null()
        return len(pc.unique(pc.utf8_length(words))) == 1 and forms.are_all(words, r"^[0-9]+$")

    @cached_property
    def is_rounded(self) -> bool:
        """Return True if there are whole numbers that a float64 would round."""
        if pa.types.is_floating(self.values.type) or not (self.is_text or forms.is_numeric(self.values.type)):
            return False
        large = np.abs(self.floats) > forms.LARGEST
        if not self.is_text or not large.any():
            return bool(large.any())
        return bool(pc.any(pc.match_substring_regex(self.values.filter(pa.array(large)), forms.WHOLE)).as_py())

    @property
    def zoned(self) -> bool:
        """Return True for dates with a zone, which are instants."""
        return self.kind == "date" and self._reading[1].type.tz is not None

    @property
    def gap_words(self) -> Counter[str]:
        """Count the words that are read as gaps in a column of numbers, truths or dates."""
        if not self.is_text or self.kind in ("text", "empty"):
            return Counter()
        pairs = self.values.filter(self._gaps).drop_null().value_counts().to_pylist()
        return Counter({pair["values"]: pair["counts"] for pair in pairs})

    def missing(self) -> np.ndarray:
        """Return, for each cell, whether it is a gap [n]."""
        return np.asarray(self._reading[1].is_null(nan_is_null=True).to_numpy())

    def numbers(self) -> np.ndarray:
        """Return the cells as finite float64 [n], NaN for gaps; truths are 0 and 1.

        Raises:
            DataError: a cell is not a number, is infinite or beyond ±1e150, or is a whole number that would be rounded.
        """
        values = self.floats
        if self.is_rounded:
            row = int(np.argmax(np.abs(values) > forms.LARGEST))
            got = f"got {brief(self.values[row].as_py(), 40)} in row {row + 1}"
            raise self._error(f"must be numbers that a float64 holds (whole ones up to 2^53), {got}")
        if np.isinf(values).any():
            row = int(np.argmax(np.isinf(values)))
            raise self._error(f"must be finite, got {values[row]:g} in row {row + 1}; write a gap as an empty cell")
        if (np.abs(values) > forms.FARTHEST).any():
            row = int(np.argmax(np.abs(values) > forms.FARTHEST))
            raise self._error(f"must be below 1e150, got {values[row]:g} in row {row + 1}; write it in other units")
        return values

    def days(self) -> np.ndarray:
        """Return dates as days since 1970, float64 [n], NaN for gaps; instants in UTC.

        Raises:
            DataError: a cell is not a date.
        """
        if self.kind != "date":
            if self._is_gap_alone:
                return np.full(len(self.values), np.nan)
            row, value = self._first(forms.ISO)
            way = "write it as 2026-01-31 or 2026-01-31 12:00:00, either all with a zone or none"
            if self.is_text and forms.are_all(self._words, forms.ISO):
                row = self._first_unread()
                value = str(self._words[row - 1].as_py())
                way = "the calendar has no such day" if forms.no_day([value]) else way
            raise self._error(f"must be dates, got {short(value)} in row {row}; {way}")
        micros = self._reading[1].cast(pa.int64()).cast(pa.float64(), safe=False)
        return micros.to_numpy().astype(np.float64) / _DAY

    def texts(self) -> pa.ChunkedArray:
        """Return the cells as texts, null for gaps: a number as 3 or 0.5, a truth as True, a day as 2026-01-31.

        Raises:
            DataError: the cells have another type, such as lists.
        """
        if self.kind == "other":
            raise self._error(f"must be texts, got {brief(self.values.type)}")
        if self.kind in ("text", "empty"):
            return self.values.cast(pa.string())
        if self.kind == "truth":
            return pc.if_else(self.truths(), forms.TRUTHS[1], forms.TRUTHS[0])
        if self.kind == "date":
            return forms.date_texts(self._reading[1])
        if self.is_rounded:
            return (self._words if self.is_text else self.values).cast(pa.string())
        return forms.number_texts(self.floats)

    def row_of(self, text: str) -> int:
        """Return the first row, counted from 1, that has this text."""
        texts = self.values if self.is_text else self.texts()
        return int(pc.index(texts, text).as_py()) + 1

    def truths(self) -> pa.ChunkedArray:
        """Return the cells as booleans, null for gaps; the kind must be ``truth``."""
        return self._reading[1]

    @cached_property
    def filled(self) -> pa.ChunkedArray:
        """Return the cells that are not empty."""
        return self.values.drop_null()

    @cached_property
    def _gaps(self) -> pa.ChunkedArray:
        return forms.gap_mask(self.values)

    @property
    def _is_gap_alone(self) -> bool:
        return self.is_empty or (self.is_text and bool(pc.all(self._gaps).as_py()))

    @cached_property
    def _words(self) -> pa.ChunkedArray:
        """Return the texts that are not read as gaps."""
        return pc.if_else(self._gaps, pa.scalar(None, pa.string()), self.values)

    @cached_property
    def _numeric(self) -> pa.ChunkedArray | None:
        """Return texts as float64; None if a text is not a number, or all are words for gaps."""
        plain = self.decimal == "." and self.thousands != "."
        if plain and (numbers := forms.cast(self.values, pa.float64())) is not None:
            return numbers
        texts = self._words
        if texts.null_count == len(texts):
            return None
        if pc.any(pc.match_substring_regex(texts, f"[{''.join(SIGNS)}]")).as_py():
            for sign, other in SIGNS.items():
                texts = pc.replace_substring(texts, sign, other)
        for other in SAME.get(self.thousands, ""):
            texts = pc.replace_substring(texts, other, self.thousands)
        if self.thousands:
            apart = texts.filter(pc.match_substring(texts, self.thousands))
            if len(apart) and not forms.are_all(apart, forms.grouped(self.thousands, self.decimal)):
                return None
            texts = pc.replace_substring(texts, self.thousands, "")
        if self.decimal == ",":
            if pc.any(pc.match_substring(texts, ".")).as_py():  # a separator of thousands, or another decimal point
                return None
            texts = pc.replace_substring(texts, ",", ".")
        return forms.cast(texts, pa.float64())

    @cached_property
    def floats(self) -> np.ndarray:
        """Return the cells as float64 [n], with large whole numbers rounded; NaN for gaps.

        Raises:
            DataError: a cell is not a number.
        """
        if self.is_text and self._numeric is not None:
            numbers = self._numeric
        elif self._is_gap_alone:
            return np.full(len(self.values), np.nan)
        elif self.kind in ("number", "truth"):
            numbers = self._reading[1].cast(pa.float64(), safe=False)
        else:
            row, value = self._first()
            way = "correct the cells, or fit with another type in `columns`"
            if self.is_text and pc.match_substring_regex(pa.scalar(value), forms.DRESSED).as_py():
                way = "write numbers without separators of thousands and without units, with a point"
            raise self._error(f"must be numeric, got {short(value)} in row {row}; {way}")
        return np.asarray(numbers.to_numpy(), np.float64)

    def _first(self, form: str = forms.NUMBER) -> tuple[int, str]:
        """Return row and text of the first nonempty cell that lacks this form, else of the first nonempty cell."""
        words = self._words if self.is_text else self.values
        form = form.replace("[.,]", f"[{self.decimal}]")
        wrong = pc.invert(pc.match_substring_regex(words, form)) if self.is_text else words.is_valid()
        mask = np.asarray(pc.fill_null(wrong, False).to_numpy())
        row = int(np.argmax(mask if mask.any() else words.is_valid().to_numpy()))
        return row + 1, str(words[row].as_py())

    def _first_unread(self) -> int:
        """Return the first row, counted from 1, whose text cannot be read as a date like those before it."""
        unread = range(1, len(self._words) + 1)
        return unread[bisect_left(unread, True, key=lambda row: forms.parsed(self._words.slice(0, row)) is None)]

    def _error(self, rule: str) -> DataError:
        return DataError(f"{self.origin}: column {short(self.name)} {rule}")
