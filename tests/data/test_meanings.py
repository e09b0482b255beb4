"""Remarks on what a column may mean, tables that are not read as they look, and columns that tell the target."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.tables.formats import other_kind
from bdl_pipe.errors import DataError

ROWS = 120
Y = np.random.default_rng(0).normal(size=ROWS).round(4)


def written(path: Path, lines: Sequence[str], target: str = "y") -> Profile:
    path.write_text("\n".join(lines) + "\n")
    return inspect_table(path, [target])


def column(folder: Path, cells: Sequence[object], name: str = "f") -> Profile:
    rows = [
        f"{i * i % 71},{'' if cell is None else cell},{y}" for i, (cell, y) in enumerate(zip(cells, Y, strict=True))
    ]
    return written(folder / "t.csv", [f"x,{name},y", *rows])


def each(of: Callable[[int], object]) -> list[object]:
    return [of(i) for i in range(ROWS)]


AMOUNTS: dict[str, Callable[[int], object]] = {
    "years": lambda i: f"{i % 30} years",
    "a plus": lambda i: f"{i % 30}+ years",
    "reais": lambda i: f"R$ {i % 30}",
    "rupees": lambda i: f"Rs. {i % 30}",
    "millions": lambda i: f"€{i % 30}M",
    "one word among percentages": lambda i: f"{i % 30}%" if i % 7 else "tbd",
    "free": lambda i: f"${i % 30}.99" if i % 7 else "Free",
    "about": lambda i: f"~{i % 30}",
    "quoted": lambda i: f"'{i % 30}'",
    "shares": lambda i: f"{i % 30}/7",
    "feet and inches": lambda i: f"{i % 9}'{i % 12}\"",
    "underscores": lambda i: f"{i % 30 + 1}_000",
    "durations": lambda i: f"{i % 30} days 01:30:00",
    "censored": lambda i: "<0.5" if i % 5 < 3 else i % 30,
}
NO_AMOUNTS: dict[str, Callable[[int], object]] = {
    "bands": lambda i: f"{i % 4 * 10}-{i % 4 * 10 + 10}",
    "bands with a unit": lambda i: f"{i % 4}-{i % 4 + 1} per day",
    "codes": lambda i: f"A{i % 9}",
    "codes of digits": lambda i: f"00{i % 9}",
    "rooms": lambda i: f"Room {i % 9}",
    "sizes": lambda i: ("S", "M", "L", "XL", "2XL")[i % 5],
    "places": lambda i: ("1st", "2nd", "3rd", "4th")[i % 4],
    "substances": lambda i: f"50-0{i % 9}-{i % 7}",
    "two words": lambda i: ("a", "b")[i % 2],
}


@pytest.mark.parametrize("name", AMOUNTS)
def test_texts_with_amounts_are_remarked_on(name: str, tmp_path: Path) -> None:
    found = column(tmp_path, each(AMOUNTS[name]))
    assert found.source.columns["f"] == "category"
    assert any("f: its texts are amounts, such as" in line for line in found.remarks), found.remarks


@pytest.mark.parametrize("name", NO_AMOUNTS)
def test_bands_codes_and_words_are_no_amounts(name: str, tmp_path: Path) -> None:
    found = column(tmp_path, each(NO_AMOUNTS[name]))
    assert found.source.columns["f"] == "category" and not any("amounts" in line for line in found.remarks)


def test_amounts_that_nearly_all_differ_are_left_out_as_amounts(tmp_path: Path) -> None:
    assert "amounts, such as '0 years'" in column(tmp_path, each(lambda i: f"{i} years")).left_out["f"]


DAYS = [str(np.datetime64("2023-01-01") + i % 60) for i in range(ROWS)]
MEANINGS: dict[str, tuple[Callable[[int], object], str]] = {
    "a word among dates": (lambda i: DAYS[i] if i % 40 else "present", "98% of its cells are dates and the others are"),
    "a gap of pandas among dates": (lambda i: DAYS[i] if i % 40 else "NaT", "'NaT' is read as a gap, in 3 rows"),
    "few words among few numbers": (lambda i: "not recorded" if i % 5 < 3 else i % 30, "40% of its cells are numbers"),
    "points for thousands": (
        lambda i: f"{i % 90 + 10}.{i % 900 + 100}" if i % 3 else i % 90,
        "if points separate thou",
    ),
    "quarters": (lambda i: f"Q{i % 4 + 1} {2020 + i % 3}", "periods such as 'Q1 2020'"),
    "months": (lambda i: 202300 + 100 * (i % 2) + i % 12 + 1, "look like months without hyphens"),
    "seconds after a day": (lambda i: 20240101000000 + i % 28 * 1000000, "look like days without hyphens"),
    "hours after a day": (lambda i: 2024010100 + i % 28 * 100 + i % 24, "look like days without hyphens"),
    "fractions of seconds": (lambda i: 1.7e9 + i * 1000 + 0.5, "look like seconds since 1970"),
    "two forms of a number": (lambda i: ("1", "1.0", "2", "A")[i % 4], "'1' and '1.0' are two values"),
    "nines beside amounts": (lambda i: i * 40 if i % 10 else -999, "-999 is a value, in 12 rows"),
    "two fill values": (lambda i: (-999, 9999)[i % 20] if i % 20 < 2 else i % 50, "9999 is a value, in 6 rows"),
    "a round fill value": (lambda i: i % 97 / 10 if i % 10 else -200, "-200 is a value, in 12 rows"),
    "answers of surveys": (lambda i: (98, 99)[i % 20] if i % 20 < 2 else i % 5 + 1, "98 is a value, in 6 rows"),
    "negative answers": (lambda i: (-8, -9)[i % 20] if i % 20 < 2 else i % 5 + 1, "-8 is a value, in 6 rows"),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_another_meaning_of_a_column_is_remarked_on(name: str, tmp_path: Path) -> None:
    of, said = MEANINGS[name]
    found = column(tmp_path, each(of))
    assert any(line.startswith("f: ") and said in line for line in found.remarks), found.remarks


@pytest.mark.parametrize(
    "of",
    [
        lambda i: i % 5 + 5,  # months, in which 7, 8 and 9 are no answers
        lambda i: 6 + 2 * (i % 2),
        lambda i: round(i * 1.37, 2),
        lambda i: f"{i % 90 + 10}.{i % 900 + 100}",
        lambda i: 1000 + i % 40,
        lambda i: 100 * (i % 40) - 500,
        lambda i: i % 70 * 5 if i % 10 else -200,  # a debt beside payments
    ],
)
def test_usual_numbers_have_no_remark(of: Callable[[int], object], tmp_path: Path) -> None:
    found = column(tmp_path, each(of))
    assert found.source.columns["f"] == "number" and not [line for line in found.remarks if line.startswith("f: ")]


@pytest.mark.parametrize(("name", "names_rows"), [("customer_id", True), ("rowID", True), ("paid", False)])
def test_a_column_that_names_rows_is_remarked_on_by_its_name(name: str, names_rows: bool, tmp_path: Path) -> None:
    found = column(tmp_path, list(np.random.default_rng(1).permutation(900_000)[:ROWS]), name)
    assert any("if it names the rows, leave it out" in line for line in found.remarks) == names_rows


def test_a_column_that_counts_the_rows_is_left_out_if_rows_lack_the_target(tmp_path: Path) -> None:
    rows = [f"{i + 1},{i % 7},{'' if i in (5, 50) else i * i % 71}" for i in range(ROWS)]
    assert written(tmp_path / "t.csv", ["id,x,y", *rows]).left_out == {"id": "it counts the rows"}


FORMS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "a comma in the header": (["Preis, EUR;Zimmer;y", *(f"{i},50;{i % 5};{i * i % 71}" for i in range(60))], {}),
    "commas in each row": (["City, State\ty\tx", *(f"T{i % 4}, ST\t{i * i % 71}\t{i % 3}" for i in range(60))], {}),
    "a late decimal comma": (
        ["b;x;y", *(f"{i * i % 97 if i < 70 else f'{i},5'};{i % 7};{i * i % 71}" for i in range(120))],
        {"b": "number"},
    ),
    "points do not vote": (
        ["Umsatz;Anteil;y", *(f"{i + 1}.000;0,{i % 9 + 1};{i * i % 71}" for i in range(60))],
        {"Anteil": "number"},
    ),
    "texts with semicolons": (["tags,y", *(f"a{i % 3};b;c,{i * i % 71}" for i in range(60))], {"tags": "category"}),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_file_is_cut_at_the_separator_that_all_its_lines_share(name: str, tmp_path: Path) -> None:
    lines, kinds = FORMS[name]
    found = written(tmp_path / "t.csv", lines)
    assert dict(found.source.columns) | kinds == dict(found.source.columns)
    assert len(found.source.columns) + len(found.left_out) == max(map(lines[0].count, ",;\t"))


def test_a_quote_that_is_not_closed_and_a_row_of_totals_are_remarked_on(tmp_path: Path) -> None:
    rows = [(f'"wide {i}' if i in (10, 30) else f"n{i % 7}") + f",{i % 9},{i * i % 71}" for i in range(ROWS)]
    found = written(tmp_path / "t.csv", ["name,x,y", *rows, "Total,540,9999"])
    assert found.rows == 101
    assert any("the cell that begins with 'wide 10,1,29' holds 21 lines" in line for line in found.remarks)
    assert any("name: the last row has 'Total'" in line for line in found.remarks)


TARGETS: dict[str, tuple[Callable[[int], object], str]] = {
    "years": (lambda i: f"{i} years", "must be numbers or classes: its texts are amounts, such as '0 years'"),
    "some years": (lambda i: f"{i % 50} years", "must be numbers or classes: its texts are amounts, such as '0 years'"),
    "days": (lambda i: f"{i % 12 + 1}/{i % 7 + 1}/2024", "must be numbers or classes: its texts are dates, such as"),
    "kilograms": (lambda i: f"{i % 50} kg", "must be numbers or classes: its texts are amounts, such as"),
    "names": (lambda i: f"name {i}", "identifies rows: nearly every row has a different value; choose another target"),
    "rare words": (lambda i: f"name {i % 60}", "must have at least 5 rows of each class"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_of_texts_that_are_no_classes_is_refused_for_its_own_reason(name: str, tmp_path: Path) -> None:
    of, said = TARGETS[name]
    with pytest.raises(DataError, match=said):
        written(tmp_path / "t.csv", ["x,y", *(f"{i * i % 71},{of(i)}" for i in range(ROWS))])


def test_codes_are_classes_whatever_their_number(tmp_path: Path) -> None:
    found = written(tmp_path / "t.csv", ["x,y", *(f"{i * i % 71},{i % 24:05d}" for i in range(ROWS))])
    assert found.source.task == "classification" and len(found.classes) == 24 and "00001" in found.classes


def test_the_cure_of_blanks_before_quotes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="; delete the blanks between separators and quotes"):
        written(tmp_path / "t.csv", ['"t", "x", "y"', *(f'"a", {i}, {i * i % 71}' for i in range(60))])


def test_the_cure_of_a_first_line_without_names_and_of_decimal_commas(tmp_path: Path) -> None:
    rows = [f"{i % 3},{i % 3},{i * i % 71}" for i in range(60)]
    for first in ("Report 2024,,", "1,1,5"):
        with pytest.raises(DataError, match="twice; the first line must have the columns' names"):
            written(tmp_path / "t.csv", [first, *rows])
    with pytest.raises(DataError, match="texts such as '0,000' in row 1; write numbers with a point"):
        written(tmp_path / "t.csv", ["x,y", *(f'{i},"0,{i:03d}"' for i in range(60))])


TELLING: dict[str, tuple[Callable[[int], tuple[str, str]], str]] = {
    "gaps": (lambda i: ("" if i % 3 else f"r{i % 4}", "no" if i % 3 else "yes"), "f is empty for some values of y"),
    "a category": (lambda i: ("abcd"[i % 4], "no" if i % 4 in (0, 3) else "yes"), "each value of f has one y"),
    "groups of rows": (lambda i: (f"p{i // 10}", "no" if i // 10 % 3 else "yes"), "each value of f has one y"),
    "neither": (lambda i: (f"p{i // 10}", "no" if i % 3 else "yes"), ""),
}


@pytest.mark.parametrize("name", TELLING)
def test_a_column_that_tells_the_class_is_remarked_on(name: str, tmp_path: Path) -> None:
    of, said = TELLING[name]
    rows = [f"{cell},{i * 37 % 11},{label}" for i in range(ROWS) for cell, label in [of(i)]]
    lines = [line for line in written(tmp_path / "t.csv", ["f,x,y", *rows]).remarks if "is it known when" in line]
    assert [line.startswith(said) for line in lines] == ([True] if said else [])


def test_many_columns_of_one_order_are_counted_and_a_nameless_copy_is_left_out(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(20)]
    rows = [",".join([*(str(i * i + 0.5 * j) for j in range(20)), str(i * i * 7 % 71)]) for i in range(60)]
    found = written(tmp_path / "t.csv", [",".join([*names, "y"]), *rows])
    assert len(found.remarks) == 6 and found.remarks[-1] == "185 more pairs of columns order the rows alike"
    rows = [f"{i * 37 % 11}.5,{i * 37 % 11}.5,{i * i * 7 % 71}" for i in range(60)]
    assert written(tmp_path / "t.csv", [",x,y", *rows]).left_out == {"": "it is equal to x"}


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b'{"a": 1}\n{"a": 2}\n', "read_json('t', dtype=False, lines=True)"),
        (b'[\n  {\n    "a": 1\n', "read_json('t', dtype=False)"),
        (b'{\n "a": [1, 2]}', "read_json('t', dtype=False)"),
        (b'[["x", "y"], [1, 2]]', "a list for each row"),
        (b"ORC\x10\0\0", "read_orc"),
        (b"ORCID,FEA1,y\n1,2,3\n", ""),
        (b"FEA1,FEA2,y\n1,2,3\n", ""),
        (b"<stata_dta><header>", "read_stata"),
        (b"$FL2@(#) SPSS", "read_spss"),
        (b"Obj\x01\x04\x16avro", "Avro"),
        (b"\xff\xff\xff\xff\x10\0", "a stream of Arrow"),
        (b"FEA1\0\0\0\0", "read_feather"),
        (b"<table><tr>", "web page"),
        (b"a,b\n1,2\n", ""),
    ],
)
def test_a_file_of_another_program_is_named_with_the_command_that_converts_it(start: bytes, said: str) -> None:
    found = other_kind(start, "t")
    assert said in found and bool(found) == bool(said)
