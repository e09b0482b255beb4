"""The columns of an open table by name; surrounding blanks and the Unicode form are ignored, but case matters."""

import difflib
import re

import pyarrow as pa

from ...errors import DataError, brief, short
from .forms import clean, is_number


def require_column(table: pa.Table, name: str, origin: str) -> str:
    """Return the table's own spelling of a column's name; raise DataError if there is no such column."""
    if (found := clean(name)) not in table.column_names:
        near = difflib.get_close_matches(found.lower(), table.column_names, 1, 0.75)
        near = [other for other in table.column_names if other.lower() == found.lower()] or near
        hint = f"; did you mean {short(near[0])}?" if near else ""
        raise DataError(f"{origin}: must have the column {short(name)}, got {names_of(table)}{hint or _cure(table)}")
    return found


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
