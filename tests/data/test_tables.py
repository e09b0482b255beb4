"""Tables of users: each is read right, or a message of one line names what is wrong; cases are in tables.yaml.

A case names its public report, ``repository#number`` (results/inputs.md); the inputs are our own.
"""

import datetime as dt
import gzip
import io
import pickle
import re
import unicodedata
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bdl_pipe.data import sources
from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.new_inputs import frame_inputs, new_inputs, unseen
from bdl_pipe.data.tables.columns import Column
from bdl_pipe.data.tables.formats import other_kind
from bdl_pipe.errors import DataError
from bdl_pipe.seeds import Seed
from pipeline.prepared.preparation import check_splits
from tests.case_files import sections_of
from tests.data.test_cells import ROWS, X, Y, added, cycle, feature, parquet, requested, schema_of, stored
from tests.preparing import dataset_of, transform_of
from tests.tables import houses

CASES: dict[str, list[list[Any]]] = sections_of(__file__)
PLAIN = "x,y\n" + "".join(f"{x},{y}\n" for x, y in zip(X, Y, strict=True))
SQUARES = [round(float(x * x), 4) for x in X]
DAYS = [dt.date(2023, 1, 1) + dt.timedelta(days=7 * i % 400) for i in range(ROWS)]
EPOCH = [1_680_000_000 + 86_400 * (7 * i % 400) for i in range(ROWS)]
SERIAL = [45_000 + 7 * i % 400 for i in range(ROWS)]
MOMENTS = [f"2024-03-0{1 + i % 9} 12:00:00" for i in range(ROWS)]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:6652\nsize 146946961\n"
LONG = np.random.default_rng(0).normal(size=2 * ROWS).round(4).tolist()
E_NFC, E_NFD = unicodedata.normalize("NFC", "été"), unicodedata.normalize("NFD", "été")


def cases(section: str) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case[1:], id=str(case[0])) for case in CASES[section]])


def made(text: str, **names: Any) -> Any:
    """Evaluate an expression of the file of cases."""
    modules = {"gzip": gzip, "pa": pa, "pickle": pickle}
    return eval(text, {**globals(), **modules, "houses": houses, **names})


def cells_of(written: str | list[Any], rows: int) -> list[Any]:
    return [made(written, i=i) if isinstance(written, str) else written[i % len(written)] for i in range(rows)]


def is_said(part: str, text: str) -> bool:
    return part in text or re.search(part, text) is not None


def zipped(member: str) -> bytes:
    with zipfile.ZipFile(content := io.BytesIO(), "w") as archive:
        archive.writestr(member, PLAIN)
    return content.getvalue()


def lines_of(values: list[Any], separator: str = ",", names: str = "x,f,y") -> str:
    rows = zip(X, values, Y, strict=True)
    return names.replace(",", separator) + "\n" + "".join(separator.join(map(str, row)) + "\n" for row in rows)


def write(path: Path, content: Any) -> Path:
    content = content.to_csv(index=False) if isinstance(content, pd.DataFrame) else content
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def inspected(path: Path, lines: Sequence[str]) -> Profile:
    return inspect_table(write(path, "\n".join(lines) + "\n"), ["y"])


COLUMNS = [(rows, *case) for rows in (ROWS, 2 * ROWS) for case in CASES[f"columns of {rows} rows"]]


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case[1])) for case in COLUMNS])
def test_a_column_has_its_kind_and_its_remark_or_is_left_out_with_the_reason(case: Any, tmp_path: Path) -> None:
    rows, _, cells, kind, said, name = [*case, "f"][:6]
    columns = {"x": LONG[:rows], name: cells_of(cells, rows), "y": LONG[::-1][:rows]}
    profile = added(stored(tmp_path, "csv", columns))[0]
    lines = [line for line in profile.describe() if f" {name}: " in line or f"column {name}, " in line]
    assert profile.columns.get(name, "left out") == kind
    assert is_said(said, "\n".join(lines)) if said else lines == [], lines


@cases("targets")
def test_a_target_of_texts_is_refused_or_gets_a_remark(case: list[Any], tmp_path: Path) -> None:
    rows, cells, said = case
    path = stored(tmp_path, "csv", {"x": LONG[:rows], "y": cells_of(cells, rows)})
    try:
        lines = "\n".join(added(path)[0].remarks)
    except DataError as error:
        lines = str(error)
    assert is_said(said, lines)


@cases("refused tables")
def test_a_table_that_cannot_be_used_is_refused_with_a_cure(case: list[Any], tmp_path: Path) -> None:
    content, target, task, said = case
    path = write(tmp_path / "t.csv", made(content))
    with pytest.raises(DataError) as refused:
        inspect_table(path, target if isinstance(target, list) else [target], task)
    assert is_said(said, str(refused.value)), refused.value


@cases("other formats")
def test_inspection_and_prediction_refuse_a_file_of_another_format(case: list[Any], tmp_path: Path) -> None:
    name, content, said = case
    path = write(tmp_path / name, made(content))
    with pytest.raises(DataError, match=said):
        added(path)
    with pytest.raises(DataError, match=said):
        new_inputs(path, {"kind": "table", "features": ["x"], "input_shape": [1]})


@pytest.mark.parametrize(("start", "said"), CASES["beginnings"])
def test_a_file_of_another_program_is_named_with_the_command_that_converts_it(start: str, said: str) -> None:
    line = other_kind(made(start), "t")
    assert said in line and bool(line) == bool(said)


@cases("separators")
def test_a_file_is_cut_at_the_separator_that_all_its_lines_share(case: list[Any], tmp_path: Path) -> None:
    lines, kinds = made(case[0]), case[1]
    profile = inspected(tmp_path / "t.csv", lines)
    assert dict(profile.columns) | kinds == dict(profile.columns)
    assert len(profile.columns) + len(profile.left_out) == max(map(lines[0].count, ",;\t"))


@cases("new cells")
def test_new_cells_are_read_as_the_fitted_ones_or_refused(case: list[Any], tmp_path: Path) -> None:
    fitted, new, read = case
    raw, cells = feature(tmp_path, made(fitted))[1], made(new)
    if isinstance(read, str):
        with pytest.raises(DataError, match=read):
            requested(raw, cells)
    else:
        np.testing.assert_array_equal(requested(raw, cells)[:, 1], np.array(read, float))


FITTED = [Column("n", "number"), Column("c", "category", ("Köln", "blue", "green", "red")), Column("d", "date")]
FITTED += [Column("t", "category", ("no", "yes")), Column("g", "number", missing=True)]
OF_FITTED = {"kind": "table", "features": list("ncdtg"), "columns": [column.mapping() for column in FITTED]}


def check_new_file(path: Path, content: str | bytes, read: str | list[float | None]) -> None:
    write(path, content)
    if isinstance(read, str):
        with pytest.raises(DataError, match=re.escape(read)):
            new_inputs(path, OF_FITTED)
    else:
        np.testing.assert_array_equal(new_inputs(path, OF_FITTED)[0], np.array(read, float))


@cases("new files")
def test_a_file_of_new_rows_is_read_or_refused(case: list[Any], tmp_path: Path) -> None:
    content, read = case
    check_new_file(tmp_path / "new.csv", made(content) if content.startswith("b'") else content, read)


@pytest.mark.parametrize(("cell", "number"), CASES["new numbers"])
def test_a_new_number_is_read_or_refused(cell: str, number: str | float, tmp_path: Path) -> None:
    read = number if isinstance(number, str) else [number, 3, 20458, 1, 3]
    check_new_file(tmp_path / "new.csv", f"n,c,d,t,g\n{cell},red,2026-01-05,yes,3\n", read)


@cases("files")
def test_a_file_is_read_or_remarked_on(case: list[Any], tmp_path: Path) -> None:
    content, target, question, answer = case
    profile, raw = added(write(tmp_path / "t.csv", made(content)), target)
    assert made(question, profile=profile, raw=raw) == answer


@cases("names")
def test_a_column_is_found_by_another_spelling_of_its_name(case: list[str], tmp_path: Path) -> None:
    x, y, target, asked = map(made, case)
    (tmp_path / "t.csv").write_text(PLAIN.replace("x,y", f"{x},{y}", 1))
    raw = added(tmp_path / "t.csv", target)[1]
    assert len(raw.features) == 1
    assert frame_inputs(pd.DataFrame([[0.5, 1]], columns=[asked, "more"]), schema_of(raw)).tolist() == [[0.5]]
    (tmp_path / "new.csv").write_text(f"more,{x}\n1,0.5\n")  # dmlc/xgboost#8357, EducationalTestingService/skll#145
    assert new_inputs(tmp_path / "new.csv", schema_of(raw)).tolist() == [[0.5]]


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


@cases("equal texts")
def test_texts_that_look_equal_are_one_category(case: list[str], tmp_path: Path) -> None:
    texts, values = map(made, case)
    raw = feature(tmp_path, cycle(*texts))[1]
    assert raw.columns[1].values == values
    np.testing.assert_array_equal(requested(raw, cycle(*texts), X), raw.train.inputs)


def test_digits_of_other_scripts_are_read_as_numbers(tmp_path: Path) -> None:
    for zero in "０٠۰":  # full width, Arabic, Persian
        written = ["".join(chr(ord(zero) + int(d)) for d in str(i * i)) for i in range(ROWS)]
        assert feature(tmp_path, written)[1].train.inputs[:, 1].tolist() == [i * i for i in range(ROWS)]


def test_columns_that_add_accepts_can_be_split_and_transformed(tmp_path: Path) -> None:
    """All columns that are read above, in one table: its splits are accepted, and the transformed inputs are finite."""
    read = [case for case in CASES["columns of 60 rows"] if case[2] != "left out"]
    columns = {f"{[*case, 'f'][4]}{i}": cells_of(case[1], ROWS) for i, case in enumerate(read)} | {"y": Y.tolist()}
    profile = added(stored(tmp_path, "csv", columns))[0]
    entry = dataset_of(**{**profile.dataset(), "splits": 5})
    raw = sources.load(entry.source)
    check_splits(raw, entry, "d", Seed(0))
    fitted = transform_of(raw.train.inputs, raw.train.targets, columns=raw.columns)
    assert fitted.inputs(raw.train.inputs).isfinite().all()


def test_commas_that_may_separate_thousands_are_refused_or_get_a_remark(tmp_path: Path) -> None:
    """A number of another column that has a decimal comma leaves little doubt."""
    whole = "x;f;y\n" + "".join(f"{3 * i % 47};{1000 + 1234 * i:,};{7 * i % 53}\n" for i in range(60))
    (tmp_path / "t.csv").write_text(whole)
    cure = r"'?f'?: 1,000 may be 1\.000 or 1000; say which with --decimal , or --thousands ,$"
    with pytest.raises(DataError, match=cure):
        added(tmp_path / "t.csv")
    said = "f: '1,000' is read as 1.000, with a decimal comma; if commas separate thousands, write numbers without them"
    (tmp_path / "t.csv").write_text(whole.replace("\n3;", "\n3,5;"))
    assert said in added(tmp_path / "t.csv")[0].remarks
    (tmp_path / "t.csv").write_text(whole.replace("1,000", "1,25"))
    assert added(tmp_path / "t.csv")[0].remarks == []


def test_a_quote_that_is_not_closed_and_a_row_of_totals_are_remarked_on(tmp_path: Path) -> None:
    rows = [(f'"wide {i}' if i in (10, 30) else f"n{i % 7}") + f",{i % 9},{i * i % 71}" for i in range(2 * ROWS)]
    profile = inspected(tmp_path / "t.csv", ["name,x,y", *rows, "Total,540,9999"])
    assert profile.rows == 101
    assert any("the cell that begins with 'wide 10,1,29' holds 21 lines" in line for line in profile.remarks)
    assert any("name: the last row has 'Total'" in line for line in profile.remarks)


@cases("telling columns")
def test_a_column_that_tells_the_class_is_remarked_on(case: list[str], tmp_path: Path) -> None:
    cell, label, start = case
    rows = [f"{made(cell, i=i)},{i * 37 % 11},{made(label, i=i)}" for i in range(2 * ROWS)]
    lines = [line for line in inspected(tmp_path / "t.csv", ["f,x,y", *rows]).remarks if "is it known when" in line]
    assert [line.startswith(start) for line in lines] == ([True] if start else [])


def test_many_columns_of_one_order_are_counted(tmp_path: Path) -> None:
    rows = [",".join([*(str(i * i + 0.5 * j) for j in range(20)), str(i * i * 7 % 71)]) for i in range(60)]
    profile = inspected(tmp_path / "t.csv", [",".join([*(f"c{i}" for i in range(20)), "y"]), *rows])
    assert len(profile.remarks) == 6 and profile.remarks[-1] == "185 more pairs of columns order the rows alike"


@pytest.mark.parametrize("scale", [1.6e-19, 1e-150, 1.0, 1e100])
def test_a_column_is_scaled_equally_in_every_unit(scale: float, tmp_path: Path) -> None:
    """scikit-learn/scikit-learn#19726, #19898: a width below 10 ε was taken for none, and the column became 0."""
    raw = feature(tmp_path, [scale * value for value in SQUARES])[1]
    plain = feature(tmp_path, SQUARES)[1]
    fitted, expected = (transform_of(r.train.inputs, r.train.targets, columns=r.columns) for r in (raw, plain))
    scaled_inputs = fitted.inputs(raw.train.inputs)
    np.testing.assert_allclose(scaled_inputs, expected.inputs(plain.train.inputs), rtol=1e-5, atol=1e-6)
    assert scaled_inputs[:, 1].std() > 0.3


def test_a_target_whose_squares_fit_a_float64_is_accepted(tmp_path: Path) -> None:
    path = stored(tmp_path, "csv", {"x": X.tolist(), "y": (1e149 * Y).tolist()})
    assert sources.load(added(path)[0].source).train.targets.std() > 0


def test_duplicate_rows_are_counted(tmp_path: Path) -> None:
    """TelecomsXChangeAPi/OpenTextShield#195: copies in training and test rows."""
    columns = {"x": X.tolist(), "f": cycle("a", "b"), "y": Y.tolist()}
    twice = {name: [*values[:50], *values[:10]] for name, values in columns.items()}
    line = "10 rows are copies of others; training and test rows may share them"
    assert added(stored(tmp_path, "csv", twice))[0].remarks == [line]
    other = {**twice, "y": Y.tolist()}  # equal except for the target: no copies
    assert added(stored(tmp_path, "csv", other))[0].remarks == []


def test_a_feature_with_gaps_that_repeats_the_target_is_detected(tmp_path: Path) -> None:
    """PriorLabs/TabPFN#1012: only the rows that have the feature are compared."""
    gaps = [None if i % 5 == 0 else value for i, value in enumerate(Y.tolist())]
    with pytest.raises(DataError, match="column 'f' repeats the target 'y'"):
        feature(tmp_path, gaps)
    orders = [None if value is None else float(np.exp(value)) for value in gaps]
    line = "f orders the rows as the target y does: is it known when you predict?"
    assert feature(tmp_path, orders)[0].remarks == [line]
    classes = {"x": X.tolist(), "f": [*cycle(7, 9)[:50], *[None] * 10], "y": cycle("a", "b")}
    with pytest.raises(DataError, match="column 'f' repeats the target 'y'"):
        added(stored(tmp_path, "csv", classes))


@cases("far values")
def test_a_new_value_far_from_the_fitted_values_is_reported(case: list[str], tmp_path: Path) -> None:
    cells, new, start = case
    raw = feature(tmp_path, made(cells))[1]
    inputs = requested(raw, [made(cells)[0], made(new)])
    (line,) = unseen(inputs, schema_of(raw))
    assert line.startswith(start) and line.endswith("of the fitted file, in 1 rows, the first 2: do the units differ?")
    assert unseen(inputs[:1], schema_of(raw)) == unseen(raw.train.inputs, schema_of(raw)) == []
    older = [{k: v for k, v in column.items() if k != "ends"} for column in schema_of(raw)["columns"]]
    assert unseen(inputs, {**schema_of(raw), "columns": older}) == [], "data prepared earlier have no ends"


def test_pandas_periods_and_intervals_are_read_as_their_csv_texts(tmp_path: Path) -> None:
    days = feature(tmp_path, DAYS)[1]
    period = pd.DataFrame({"x": [0.0], "f": pd.PeriodIndex([str(DAYS[3])], freq="D")})
    assert frame_inputs(period, schema_of(days))[0, 1] == days.train.inputs[3, 1]
    numbers = feature(tmp_path, SQUARES)[1]
    with pytest.raises(DataError, match=f"'f' must be numeric, got '{DAYS[3]}' in row 1"):
        frame_inputs(period, schema_of(numbers))
    cut = pd.Series(pd.cut(X, 3))
    ranges = feature(tmp_path, cut.astype(str).tolist())[1]
    for cells in (cut, pd.Series(pd.IntervalIndex(cut))):
        np.testing.assert_array_equal(requested(ranges, cells, X), ranges.train.inputs)


@cases("Arrow types")
def test_unusual_arrow_types_are_read_left_out_or_refused(case: list[str], tmp_path: Path) -> None:
    cells, answer = case
    try:
        profile, raw = added(parquet(tmp_path, made(cells)))
        said = profile.left_out.get("f") or next(column.kind for column in raw.columns if column.name == "f")
    except DataError as error:
        said = str(error)
    assert answer in said
