"""The rows of an exported program are coded as the pipeline codes them, cell by cell."""

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bdl_pipe import portable_rows
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.inspect.table import inspect_features, inspect_table
from bdl_pipe.data.new_inputs import new_inputs
from bdl_pipe.data.prepare import schema
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
        got = portable_rows.code(stored, portable_rows.clean(cell), [*GAPS])
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


H, ROW = "n,c,d,t,g\n", "1.5,red,2026-01-05,yes,3\n"
FILES: dict[str, bytes | str] = {
    "plain": H + ROW,
    "a mark": "\ufeff" + H + ROW,
    "UTF-16": (H + ROW).encode("utf-16"),
    "Windows-1252": (H + ROW.replace("red", "Köln")).encode("cp1252"),
    "no text of either": b"n,c,d,t,g\n1.5,\x81,2026-01-05,yes,3\n",
    "a zero byte": H + ROW.replace("red", "red\0"),
    "CR alone": (H + ROW).replace("\n", "\r"),
    "CR LF": (H + ROW).replace("\n", "\r\n"),
    "blank lines": H + "\n" + ROW + "\n\n" + ROW,
    "a line of commas": H + ROW + ",,,,\n",
    "a comma at each end": H[:-1] + ",\n" + ROW[:-1] + ",\n",
    "a comma at the end of a row": H + ROW[:-1] + ",\n",
    "a cell too many": H + ROW[:-1] + ",9\n",
    "a cell too few": H + "1.5,red\n",
    "a doubled column": "n," + H + "7," + ROW,
    "another doubled column": "z,z," + H + "7,8," + ROW,
    "two columns without a name": ",," + H + "7,8," + ROW,
    "two empty columns without a name": ",," + H + ",," + ROW,
    "a line sep=": "sep=,\n" + H + ROW,
    "a comment": "# made by a program\n" + H + ROW,
    "a quote inside": H + ROW.replace("red", 're"d'),
    "doubled quotes": H + ROW.replace("red", '"re""d"'),
    "an open quote": H + ROW.replace("red", '"red') + ROW,
    "commas in a name, between semicolons": "n;c;d;t;g;a,b,c,d,e,f\n1.5;red;2026-01-05;yes;3;1\n",
    "bars": (H + ROW).replace(",", "|"),
    "truths of a number": H + ROW.replace("1.5", "TRUE") + ROW.replace("1.5", "0"),
    "a truth among numbers": H + ROW.replace("1.5", "TRUE") + ROW,
    **{f"number {cell!a}": H + ROW.replace("1.5", cell) for cell in (
        *("１２", "٣", "−5", "\u20285", "5\u200b", "1_000", "0x10", "1e400", "5-", "(5)", "1\u202f234", "\\N"),
        *("#N/A N/A", "½", "1.#IND", "inf", "+5", ".5", "5.", "0005", "９．５", "1d3"),
    )},
    **{f"gap {cell!a}": H + ROW.replace("3\n", cell + "\n") for cell in (
        *("\\N", "(null)", "#N/A N/A", "−", "TRUE"),
    )},
}  # fmt: skip


@pytest.mark.slow
def test_predict_and_a_program_read_a_file_equally_or_both_refuse_it(tmp_path: Path) -> None:
    random, colours = np.random.default_rng(0), ["red", "green", "blue", "Köln"]
    lines = [
        f"{random.normal():.3f},{colours[i % 4]},2026-01-{1 + i % 28:02},{['yes', 'no'][i % 2]},"
        f"{i if i % 7 else ''},{random.normal():.4f}\n"
        for i in range(60)
    ]
    (tmp_path / "fitted.csv").write_text("n,c,d,t,g,y\n" + "".join(lines))
    profile = inspect_table(tmp_path / "fitted.csv", ["y"], "regression")
    dataset = DatasetConfig(profile.source, "train", False, 0.2, "train", 1, (), 0, "made")
    about = json.loads(json.dumps({**schema(profile.raw, dataset), "gaps": [*GAPS]}))
    path, different, answered = tmp_path / "new.csv", list[str](), 0
    for name, content in FILES.items():
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        ours = theirs = None
        with suppress(DataError):
            ours = new_inputs(path, about)
        with suppress(SystemExit):
            theirs = portable_rows.read(str(path), about)
        answered += ours is not None
        if (ours is None) != (theirs is None) or not np.array_equal(ours, theirs, equal_nan=ours is not None):
            different.append(f"{name}: {ours} by predict, {theirs} by a program")
    assert not different, "\n".join(different)
    assert 25 < answered < len(FILES) - 20
