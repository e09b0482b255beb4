"""The rows of an exported program are coded as the pipeline codes them, cell by cell."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bdl_pipe import portable_rows
from bdl_pipe.data.inspect.table import inspect_features
from bdl_pipe.data.sources.cells import Cells
from bdl_pipe.data.sources.columns import codes_of, describe
from bdl_pipe.data.sources.forms import GAPS
from bdl_pipe.data.sources.table import CsvForm, open_table, sniffed
from bdl_pipe.errors import DataError

FITTED: dict[str, list[str]] = {
    "truth": ["TRUE", "FALSE"],
    "truth with gaps": ["true", "false", ""],
    "words": ["Bern", "K\u00f6ln", "None of them"],
    "numbers of rooms": ["1", "2.5", "3"],
    "numbers with gaps": ["1", "2.5", ""],
    "codes": ["00501", "10001"],
    "answers": ["yes", "no"],
    "answers with gaps": ["Y", "N", ""],
    "one answer and more": ["yes", "no", "maybe"],
    "days": ["2026-01-31", "2026-02-01"],
    "moments": ["2026-01-31T12:00:00Z", "2026-02-01T00:30:00+02:00"],
}
CELLS = (
    *("TRUE", "true", " False ", "1", "0", "yes", "Bern", " Bern ", "bern", "Ko\u0308ln", "Paris", "", " ", "NA", "?"),
    *("Yes", "NO", "n", "on", "off", "0.0", "1.0", "maybe"),
    *("2.50", "+3", "1e0", "1e200", "inf", "1_0", "three", "501", "00501", "20260131", "2026-W05-1"),
    *("2026-01-31", "2026-01-31 06:00", "2026-01-31T12:00:00Z", "2026-02-01T00:30:00+02:00"),
)


def table_of(folder: Path, cells: list[str]) -> pa.Table:
    path = folder / "t.csv"
    path.write_text("c,z\n" + "".join(f'"{cell}",{-i * i}\n' for i, cell in enumerate(cells)))
    return open_table(path, CsvForm())


def meant(folder: Path, column: Any, cells: list[str]) -> float | None:
    """Return the pipeline's code of the last cell; None if it refuses the file."""
    try:
        found = float(codes_of(Cells.of(table_of(folder, cells), "c", "new"), column)[-1])
    except DataError:
        return None
    return None if math.isnan(found) and not column.missing else found


@pytest.mark.parametrize("name", FITTED)
def test_a_cell_has_the_code_that_the_pipeline_gives_it_or_is_refused(name: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, FITTED[name] * 8)
    kinds = inspect_features(table, ["c", "z"], "fitted").columns
    column = describe(Cells.of(table, "c", "fitted"), kinds["c"], 20)
    stored = json.loads(json.dumps(column.mapping()))
    for cell in CELLS:
        got = portable_rows.code(stored, portable_rows._clean(cell), [*GAPS])
        right = meant(tmp_path, column, [*FITTED[name], cell])
        if right is None:
            assert isinstance(got, str), (cell, got)
        else:
            assert got == pytest.approx(right, nan_ok=True, abs=1e-9), cell


def test_a_file_is_read_with_its_separator_its_mark_and_its_decimal_comma(tmp_path: Path) -> None:
    schema = {"features": ["b", "a"], "gaps": [*GAPS], "numbers": {"decimal": ",", "thousands": ""}}
    path = tmp_path / "rows.csv"
    path.write_bytes("\ufeff a ;other;b\r\n1,5;x;2\r\n;y;-0,5\r\n".encode())
    assert np.array_equal(portable_rows.read(str(path), schema), [[2, 1.5], [-0.5, math.nan]], equal_nan=True)
    assert sniffed(path).decimal == ","


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a,c\n1,2\n", "rows.csv: must have the column 'b', got a, c"),
        ("a,b\n1\n", "rows.csv: must have 2 cells in each row, got 1 in row 1"),
        ("a,b\n", "rows.csv: must have rows below its header, got none"),
        ("", "rows.csv: must have rows below its header, got none"),
        ("a,b\n1,2\n1,two\n", "rows.csv: column 'b' must be numbers up to 1e150, got 'two' in row 2"),
    ],
)
def test_a_file_that_does_not_fit_ends_the_script_with_one_line(text: str, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(SystemExit, match=rule):
        portable_rows.read(str(path), {"features": ["b", "a"], "gaps": [*GAPS]})
