"""Tables of public reports: each is read right, or a message of one line names it.

A case names its report, ``repository#number``; the inputs are our own.
"""

import gzip
import re
import unicodedata
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bdl_pipe import config
from bdl_pipe.data import sources
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.new_inputs import frame_inputs, new_inputs
from bdl_pipe.data.normalise import fit_transform
from bdl_pipe.data.prepare import check_splits
from bdl_pipe.errors import DataError
from bdl_pipe.seeds import Seed
from tests.data.reported import DAYS, EPOCH, PLAIN, SQUARES
from tests.data.test_cells import ROWS, X, Y, added, cycle, feature, schema_of, stored

E_NFC, E_NFD = unicodedata.normalize("NFC", "été"), unicodedata.normalize("NFD", "été")


def zipped(member: str) -> Any:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, PLAIN)

    return write


def pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:6652\nsize 146946961\n")


# report: (file's name, its content or a function that writes it, a part of the error)
OTHER_FILES: dict[str, tuple[str, Any, str]] = {
    "SolarArbiter/solarforecastarbiter-dashboard#115": (
        "t.xlsx",
        zipped("xl/workbook.xml"),
        "is an Excel workbook; save the sheet as CSV",
    ),
    "etalab/csvapi#7": (
        "t.csv",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504),
        "is an Excel workbook; save the sheet as CSV",
    ),
    "cytomining/pycytominer#95": (
        "t.csv.gz",
        gzip.compress(PLAIN.replace(",", ";").encode()),
        r"is compressed with gzip; unpack it first: gunzip -k t\.csv\.gz",
    ),
    "refinery-platform/heatmap-scatter-dash#161": (
        "t.zip",
        zipped("t.csv"),
        r"is a zip archive; unpack it first: unzip t\.zip",
    ),
    "InertExpert2911/Mutual_Fund_Data#1": ("t.parquet", pointer, "is a pointer of Git LFS, .*: git lfs pull"),
    "benedekrozemberczki/datasets#10": ("t.csv", pointer, "is a pointer of Git LFS, .*: git lfs pull"),
    "SheetJS/sheetjs#575": ("t.csv", PLAIN.encode("utf-16"), "must be UTF-8 text, got UTF-16; save it as UTF-8"),
    "rap2hpoutre/fast-excel#327": (
        "t.csv",
        b"sep=;\n" + PLAIN.encode(),
        r"begins with Excel's line sep=; delete it: tail -n \+2 t\.csv > new\.csv",
    ),
    "nietras/Sep#274": ("t.csv", b"# created 4/22/2025\n" + PLAIN.encode(), "delete the lines above the column nam"),
    "ludwig-ai/ludwig#3396 (a Parquet file called CSV)": (
        "t.csv",
        lambda path: pd.DataFrame({"x": X, "y": Y}).to_parquet(path),
        r"is a Parquet file; name it so: mv t\.csv t\.parquet",
    ),
    "a web page": ("t.csv", b"<!DOCTYPE html>\n<html>Sign in</html>\n" * 60, "is a web page, perhaps one that asks to"),
    "a pickle": ("t.csv", lambda path: pd.DataFrame({"x": X, "y": Y}).to_pickle(path), "is a pickle, which is never r"),
    "JSON": ("t.csv", b'[{"x": 1, "y": 2}]', "is JSON; make it Parquet: python -c .*read_json"),
}


@pytest.mark.parametrize("report", OTHER_FILES)
def test_inspection_and_prediction_refuse_a_file_of_another_format(report: str, tmp_path: Path) -> None:
    name, content, said = OTHER_FILES[report]
    path = tmp_path / name
    content(path) if callable(content) else path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        added(path)
    with pytest.raises(DataError, match=said):  # a prediction refuses the file, too
        new_inputs(path, {"kind": "table", "features": ["x"], "input_shape": [1]})


def test_a_header_in_angle_brackets_is_not_taken_for_a_web_page(tmp_path: Path) -> None:
    """MetaStock writes its headers in angle brackets."""
    path = tmp_path / "t.csv"
    path.write_text(PLAIN.replace("x,y", "<DATE>,<OPEN>"))
    assert added(path, "<OPEN>")[1].features == ("<DATE>",)


# --- names of columns -------------------------------------------------------------------------------------------------

# report: (the names of x and y in the file, the target as the user types it, the name of x in a request)
NAMES = {
    "pandas-dev/pandas#9067 (blanks around names)": (" x ", "  y", "y", "x"),
    "JuliaData/DataFrames.jl#2904 (NFC typed, NFD in the file)": ("x", E_NFD, E_NFC, "x"),
    "learningequality/ricecooker#143 (NFC fitted, NFD predicted)": (E_NFC, "y", "y", E_NFD),
    "openml/automlbenchmark#357 (whole numbers as names)": ("0", "1", "1", 0),
    "lightgbm-org/LightGBM#6202 (signs of JSON; right before)": ('"[a].{b}: c, km"', "y", "y", "[a].{b}: c, km"),
}


@pytest.mark.parametrize("report", NAMES)
def test_a_column_is_found_by_another_spelling_of_its_name(report: str, tmp_path: Path) -> None:
    x, y, target, asked = NAMES[report]
    (tmp_path / "t.csv").write_text(PLAIN.replace("x,y", f"{x},{y}", 1))
    raw = added(tmp_path / "t.csv", target)[1]
    assert len(raw.features) == 1
    assert frame_inputs(pd.DataFrame([[0.5, 1]], columns=[asked, "more"]), schema_of(raw)).tolist() == [[0.5]]
    (tmp_path / "new.csv").write_text(f"more,{x}\n1,0.5\n")  # dmlc/xgboost#8357, EducationalTestingService/skll#145
    assert new_inputs(tmp_path / "new.csv", schema_of(raw)).tolist() == [[0.5]]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        pytest.param("x,x,y", "column names must differ, got 'x' twice", id="skrub-data/skrub#636 (right before)"),
        pytest.param("x,x ,y", "column names must differ, got 'x' twice", id="metabase/metabase#72421"),
        pytest.param("x,Z,Y", "must have the column 'y', got x, Z, Y; did you mean 'Y'?", id="case of a name"),
    ],
)
def test_doubled_names_and_a_target_in_another_case_are_refused(header: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join([header, *(f"{x},1,{y}" for x, y in zip(X, Y, strict=True))]))
    with pytest.raises(DataError, match=said):
        added(tmp_path / "t.csv")


# --- columns that are read, and the remarks on them -------------------------------------------------------------------

SERIAL = [45_000 + 7 * i % 400 for i in range(ROWS)]
# report: (name of the column, its cells, its kind or None, a part of the remark or of the reason for leaving it out)
NOTED: dict[str, tuple[str, list[Any], str | None, str]] = {
    "biolab/orange3#5172": (
        "f",
        ["#VALUE!", "#DIV/0!", *SQUARES[2:]],
        "number",
        "'#VALUE!' is read as a gap, in 1 rows",
    ),
    "tidyverse/readxl#62": ("f", ["#NV", "#NV", *SQUARES[2:]], "number", "'#NV' is read as a gap, in 2 rows"),
    "Data-Centric-AI-Community/fg-data-profiling#675": (
        "f",
        [*SQUARES[:-1], "Total"],
        None,
        "98% of its cells are numbers and the others are texts such as 'Total': write gaps as empty cells",
    ),
    "turicas/rows#302": ("f", cycle("0123", "456", "00789"), "number", "'0123' and 39 more begin with 0 and are read"),
    "ribbondz/rsv#8": ("sold_date", SERIAL, "number", "look like Excel's days (2023-03-15 to 2024-04-17)"),
    "eddelbuettel/anytime#17": ("f", [int(f"{d:%Y%m%d}") for d in DAYS], "number", "look like days without hyphens"),
    "moment/luxon#345": ("f", EPOCH, "number", "look like seconds since 1970 (2023-03-28 to 2024-04-30)"),
    "postlight/parser#702": ("f", [1000 * s for s in EPOCH], "number", "look like milliseconds since 1970 (2023-03-28"),
    "Quartz/bad-data-guide#14": (
        "f",
        [-99999, -99999, *SQUARES[2:]],
        "number",
        "-99999 is a value, in 2 rows, far from",
    ),
    "dankelley/oce#983": ("f", [-999.0, -999.0, *SQUARES[2:]], "number", "-999 is a value, in 2 rows, far from other"),
    "a date for none": (
        "f",
        ["9999-12-31", "9999-12-31", *map(str, DAYS[2:])],
        "date",
        "9999-12-31 is a value, in 2 r",
    ),
    "uncharted-distil/distil#1865": (
        "f",
        cycle("Red", "red", "blue "),
        "category",
        "'Red' and 'red' are two values that",
    ),
    "months": ("f", cycle("2024-01", "2024-02", "2023-12"), "category", "periods such as '2024-01' are categories"),
    "moments without hyphens": (
        "f",
        cycle("20240131T120000Z", "20240201T000000Z"),
        None,
        "its texts are dates, such as",
    ),
    "numbers of Fortran": ("f", [f"{x:.4f}D+02" for x in X], None, "its texts are numbers, such as '"),
    "minus at the end": (
        "f",
        [f"{abs(x):.4f}-" if x < 0 else f"{x:.4f}" for x in X],
        None,
        "texts are numbers, such as ",
    ),
    "rows in another order": (
        "f",
        np.random.default_rng(1).permutation(ROWS).tolist(),
        "number",
        "has each whole number from 0 to 59 once: if it numbers the rows, leave it out",
    ),
}


@pytest.mark.parametrize("report", NOTED)
def test_the_profile_describes_doubtful_columns(report: str, tmp_path: Path) -> None:
    name, cells, kind, said = NOTED[report]
    profile = added(stored(tmp_path, "csv", {"x": X.tolist(), name: cells, "y": Y.tolist()}))[0]
    assert profile.columns.get(name) == kind
    assert said in "\n".join(profile.describe())


def test_usual_columns_get_no_remarks(tmp_path: Path) -> None:
    """Counts, years, ages with a 99 among them, prices and identifiers of products."""
    columns = {
        "count": [i * i for i in range(ROWS)],
        "year": [1990 + 7 * i % 30 for i in range(ROWS)],
        "age": [20 + 13 * i % 80 for i in range(ROWS)],
        "price": [25_000 + 997 * i % 30_000 for i in range(ROWS)],
        "code": cycle("12D3", "A-1", "7"),
        "day": [str(day) for day in DAYS],
        "yes": cycle("yes", "no"),
        "y": Y.tolist(),
    }
    assert added(stored(tmp_path, "csv", columns))[0].remarks == []


# report: (cells, values of the category)
ONE_VALUE = {
    "chamilo/chamilo-lms#7176 (U+200B, U+FEFF)": (
        cycle("\u200bred", "red\ufeff", "red", "blue\u00a0"),
        ("blue", "red"),
    ),
    "semantic-reasoning/verinote#161 (NFC and NFD)": (cycle(E_NFC, E_NFD, "x"), ("x", E_NFC)),
    "texts of two lines, as Linux and Windows end them": (cycle("a\nb", "a\r\nb", "a b"), ("a\nb", "a b")),
}


@pytest.mark.parametrize("report", ONE_VALUE)
def test_texts_that_look_equal_are_one_category(report: str, tmp_path: Path) -> None:
    cells, values = ONE_VALUE[report]
    raw = feature(tmp_path, cells)[1]
    assert raw.columns[1].values == values
    inputs = frame_inputs(pd.DataFrame({"x": X, "f": cells}), schema_of(raw))
    np.testing.assert_array_equal(inputs, raw.train.inputs)


def test_digits_of_other_scripts_are_read_as_numbers(tmp_path: Path) -> None:
    for zero in "０٠۰":  # full width, Arabic, Persian
        written = ["".join(chr(ord(zero) + int(d)) for d in str(i * i)) for i in range(ROWS)]
        assert feature(tmp_path, written)[1].train.inputs[:, 1].tolist() == [i * i for i in range(ROWS)]


def test_columns_that_add_accepts_can_be_split_and_transformed(tmp_path: Path) -> None:
    """All columns that are read above, in one table: its splits are accepted, and the transformed inputs are finite."""
    columns = {f"{n}{i}": c for i, (n, c, kind, _) in enumerate(NOTED.values()) if kind} | {"y": Y.tolist()}
    profile = added(stored(tmp_path, "csv", columns))[0]
    rest = {"whiten": False, "validation": 0.2, "fit_rows": "train", "splits": 5, "ood": [], "corrupted_images": 0}
    entry = config.read(DatasetConfig, {**profile.dataset(), **rest, "corruptions": "made"}, "d")
    raw = sources.load(entry.source)
    check_splits(raw, entry, "d", Seed(0))
    made = fit_transform(
        raw.train.inputs, raw.train.targets, kind="table", normalise="robust", whiten=False, columns=raw.columns
    )
    assert made.inputs(raw.train.inputs).isfinite().all()


# --- own inputs of the same kinds -------------------------------------------------------------------------------------


def lines_of(values: list[Any], separator: str = ",", names: str = "x,f,y") -> str:
    rows = zip(X, values, Y, strict=True)
    return names.replace(",", separator) + "\n" + "".join(separator.join(map(str, row)) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param([f"{i},234" for i in range(1, 61)], "'1,234', in a form that cannot be read", id="comma"),
        pytest.param([f"{i}\u202f234" for i in range(1, 61)], "234', in a form that cannot be read", id="narrow blank"),
        pytest.param(cycle("1\xa0234", "5\xa0678"), "234', in a form that cannot be read", id="no-break blank"),
        pytest.param([f"{0.5 * i} kg" for i in range(60)], "its texts are amounts, such as '0.0 kg': write", id="unit"),
        pytest.param([f"{500 + i:05d}" for i in range(60)], "it identifies rows", id="codes, each once"),
        pytest.param([d.strftime("%b %d, %Y") for d in DAYS], "are dates, such as 'Jan 01, 2023'", id="month first"),
        pytest.param(cycle("05-Jan-2024", "7 March 2024"), "are dates, such as '05-Jan-2024'", id="months' names"),
        pytest.param(cycle("1:30 PM", "11:15 a.m."), "times of day, such as '1:30 PM'", id="hours of a half day"),
        pytest.param(
            ["0000-00-00" if i == 7 else d for i, d in enumerate(DAYS)],
            "'2023-01-01' and '0000-00-00', not all in one form",
            id="one day that does not exist",
        ),
        pytest.param(
            [f"{d}T10:00:00{'Z' if i % 2 else ''}" for i, d in enumerate(DAYS)], "00' and '.*Z', not all", id="zones"
        ),
    ],
)
def test_the_profile_gives_the_reason_why_a_column_is_left_out(values: list[Any], said: str, tmp_path: Path) -> None:
    assert re.search(said, feature(tmp_path, values)[0].left_out["f"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param(cycle("5 kg", "10 kg", "7 kg"), "its texts are amounts, such as '5 kg': write", id="kg"),
        pytest.param(cycle("USD 5", "USD 7.5"), "its texts are amounts, such as 'USD 5': write", id="USD"),
        pytest.param(cycle("0x1F", "0xFF"), "hexadecimal numbers such as '0x1F' are categories", id="hexadecimal"),
        pytest.param(cycle("01/2024", "02/2024"), "periods such as '01/2024' are categories", id="months"),
        pytest.param(cycle("Jan-24", "Feb-24"), "periods such as 'Jan-24' are categories", id="months' names"),
        pytest.param(cycle("00501", "10001", "NA"), "codes such as '00501' begin with 0: they are texts", id="codes"),
    ],
)
def test_a_category_that_may_be_numbers_or_periods_gets_a_remark(values: list[Any], said: str, tmp_path: Path) -> None:
    profile, raw = feature(tmp_path, values)
    assert any(said in line for line in profile.remarks) and raw.columns[1].kind == "category"
    plain = feature(tmp_path, cycle("18-25", "2B", "A7", "3 doors"))[0]
    assert plain.remarks == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (cycle("5%", "10%"), "'5%', in a form that cannot be read: .*; as they are, they are classes"),
        (cycle("5 Jan 2024", "6 Jan 2024"), "are dates, .*; as they are, they are classes"),
        ([f"{value:.4f} %" for value in Y], "'y' must be numbers or classes: its texts are numbers, such as"),
        ([f"{value:.4f} kg" for value in Y], "'y' must be numbers or classes: its texts are amounts"),
    ],
)
def test_a_target_of_numbers_in_an_unread_form_gets_a_remark_or_an_error(
    values: list[Any], said: str, tmp_path: Path
) -> None:
    path = stored(tmp_path, "csv", {"x": X.tolist(), "y": values})
    try:
        found = "\n".join(added(path)[0].remarks)
    except DataError as error:
        found = str(error)
    assert re.search(said, found)


def test_commas_that_may_separate_thousands_are_refused_or_get_a_remark(tmp_path: Path) -> None:
    """A number of another column that has a decimal comma leaves little doubt."""
    whole = "x;f;y\n" + "".join(f"{3 * i % 47};{1000 + 1234 * i:,};{7 * i % 53}\n" for i in range(60))
    (tmp_path / "t.csv").write_text(whole)
    with pytest.raises(
        DataError, match=r"'?f'?: 1,000 may be 1\.000 or 1000; say which with --decimal , or --thousands ,$"
    ):
        added(tmp_path / "t.csv")
    said = "f: '1,000' is read as 1.000, with a decimal comma; if commas separate thousands, write numbers without them"
    (tmp_path / "t.csv").write_text(whole.replace("\n3;", "\n3,5;"))
    assert said in added(tmp_path / "t.csv")[0].remarks
    (tmp_path / "t.csv").write_text(whole.replace("1,000", "1,25"))
    assert added(tmp_path / "t.csv")[0].remarks == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(PLAIN.replace(",", " "), "got x y; write a comma, a semicolon, a tab or a bar", id="blanks"),
        pytest.param(PLAIN.replace(",", "^"), r"got x\^y; write a comma, a semicolon, a tab or a bar", id="carets"),
        pytest.param(PLAIN.partition("\n")[2], "; write the names of the columns into the first line", id="no names"),
        pytest.param(PLAIN + "(60 rows)\n", r"\(60 rows\)\); give each line as many cells", id="a last line"),
        pytest.param(lines_of(cycle("東京", "大阪")).encode("shift-jis"), "save it as UTF-8", id="Shift-JIS"),
    ],
)
def test_a_malformed_csv_file_is_refused_with_a_cure(text: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=said):
        added(tmp_path / "t.csv")


def test_commas_at_the_end_of_each_line_add_no_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(PLAIN.replace("\n", ",,,\n"))
    assert added(tmp_path / "t.csv")[1].features == ("x",)


def test_a_file_that_is_read_as_cp1252_gets_a_remark(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(lines_of(cycle("Москва", "Тула")).encode("cp1251"))
    said = "t.csv: its texts are no UTF-8 and are read as cp1252, such as 'Ìîñêâà'; if they look wrong"
    assert any(line.startswith(said) for line in added(tmp_path / "t.csv")[0].remarks)
