"""The CSV file of a benchmark's rows, from which a stopped run goes on."""

import csv
import io
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from bdl_pipe.files import write_bytes


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows; none if there is no file yet."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, columns: Collection[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write all rows, in place of the file's."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())
