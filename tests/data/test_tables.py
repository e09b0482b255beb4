"""Tables of users: each is read right, or a message of one line names what is wrong; cases are in tables.yaml.

A case names its public report, ``repository#number`` (results/inputs.md); the inputs are our own.
"""

import re
from collections.abc import Callable, Sequence
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
from bdl_pipe.data.raw import Raw
from bdl_pipe.data.tables.columns import Column
from bdl_pipe.data.tables.formats import other_kind
from bdl_pipe.errors import DataError
from bdl_pipe.seeds import Seed
from pipeline.prepared.preparation import check_splits
from tests.case_files import sections_of
from tests.data.test_cells import ROWS, X, Y, added, cycle, feature, parquet, requested, schema_of, stored
from tests.data.user_tables import CONTENTS, DAYS, EPOCH, PLAIN, SQUARES, cells_of, lines_of
from tests.preparing import dataset_of, transform_of

CASES: dict[str, list[list[Any]]] = sections_of(__file__)
MOMENTS = [f"2024-03-0{1 + i % 9} 12:00:00" for i in range(ROWS)]
LONG = np.random.default_rng(0).normal(size=2 * ROWS).round(4).tolist()


def cases(section: str) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case[1:], id=str(case[0])) for case in CASES[section]])


def is_remark(part: str, text: str) -> bool:
    return part in text or re.search(part, text) is not None


def write(path: Path, content: Any) -> Path:
    content = content.to_csv(index=False) if isinstance(content, pd.DataFrame) else content
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def inspected(path: Path, lines: Sequence[str]) -> Profile:
    return inspect_table(write(path, "\n".join(lines) + "\n"), ["y"])


COLUMNS = [(rows, *case) for rows in (ROWS, 2 * ROWS) for case in CASES[f"columns of {rows} rows"]]


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case[1])) for case in COLUMNS])
def test_a_column_has_its_kind_and_its_remark_or_is_left_out_with_the_reason(case: Any, tmp_path: Path) -> None:
    rows, _, cells, kind, remark, name = [*case, "f"][:6]
    columns = {"x": LONG[:rows], name: cells_of(cells, rows), "y": LONG[::-1][:rows]}
    profile = added(stored(tmp_path, "csv", columns))[0]
    lines = [line for line in profile.describe() if f" {name}: " in line or f"column {name}, " in line]
    assert profile.columns.get(name, "left out") == kind
    assert is_remark(remark, "\n".join(lines)) if remark else lines == [], lines


@cases("targets")
def test_a_target_of_texts_is_refused_or_gets_a_remark(case: list[Any], tmp_path: Path) -> None:
    rows, cells, remark = case
    path = stored(tmp_path, "csv", {"x": LONG[:rows], "y": cells_of(cells, rows)})
    try:
        lines = "\n".join(added(path)[0].remarks)
    except DataError as error:
        lines = str(error)
    assert is_remark(remark, lines)


@cases("refused tables")
def test_a_table_that_cannot_be_used_is_refused_with_a_cure(case: list[Any], tmp_path: Path) -> None:
    content, target, task, remark = case
    path = write(tmp_path / "t.csv", CONTENTS[content])
    with pytest.raises(DataError) as refused:
        inspect_table(path, target if isinstance(target, list) else [target], task)
    assert is_remark(remark, str(refused.value)), refused.value


@cases("other formats")
def test_inspection_and_prediction_refuse_a_file_of_another_format(case: list[Any], tmp_path: Path) -> None:
    name, content, remark = case
    path = write(tmp_path / name, CONTENTS[content])
    with pytest.raises(DataError, match=remark):
        added(path)
    with pytest.raises(DataError, match=remark):
        new_inputs(path, {"kind": "table", "features": ["x"], "input_shape": [1]})


@pytest.mark.parametrize(("start", "remark"), CASES["beginnings"])
def test_a_file_of_another_program_is_named_with_the_command_that_converts_it(start: str, remark: str) -> None:
    line = other_kind(start.encode("latin-1"), "t")
    assert remark in line and bool(line) == bool(remark)


SEPARATED: dict[str, tuple[list[str], dict[str, str]]] = {  # case -> lines, some kinds of columns
    "a comma in the header": (["Preis, EUR;Zimmer;y", *(f"{i},50;{i % 5};{i * i % 71}" for i in range(60))], {}),
    "commas in each row": (["City, State\ty\tx", *(f"T{i % 4}, ST\t{i * i % 71}\t{i % 3}" for i in range(60))], {}),
    "a late decimal comma": (
        ["b;x;y", *(f"{(i * i % 97 if i < 70 else f'{i},5')};{i % 7};{i * i % 71}" for i in range(120))],
        {"b": "number"},
    ),
    "points do not vote": (
        ["Umsatz;Anteil;y", *(f"{i + 1}.000;0,{i % 9 + 1};{i * i % 71}" for i in range(60))],
        {"Anteil": "number"},
    ),
    "texts with semicolons": (["tags,y", *(f"a{i % 3};b;c,{i * i % 71}" for i in range(60))], {"tags": "category"}),
}


@pytest.mark.parametrize(("lines", "kinds"), SEPARATED.values(), ids=SEPARATED)
def test_a_file_is_cut_at_the_separator_that_all_its_lines_share(
    lines: list[str], kinds: dict[str, str], tmp_path: Path
) -> None:
    profile = inspected(tmp_path / "t.csv", lines)
    assert dict(profile.columns) | kinds == dict(profile.columns)
    assert len(profile.columns) + len(profile.left_out) == max(map(lines[0].count, ",;\t"))


FITTED_CELLS: dict[str, list[Any]] = {
    "moments": MOMENTS,
    "squares": SQUARES,
    "squares and a gap": [*SQUARES[:-1], None],
    "days": DAYS,
    "seconds since 1970": EPOCH,
    "codes": cycle("00501", "90210", "10001"),
}
NEW_CELLS: dict[str, Any] = {
    "pandas-dev/pandas#20692": pd.arrays.SparseArray([1.0, 2.0]),
    "long doubles": np.array([1, 2], np.longdouble),
    "adamreeve/npTDMS#315": np.array([1 + 2j, 2]),
    "mlflow/mlflow#25593": pd.array([1, None], "Int64"),
    "lists of one": pd.Series([[1.0], [2.0]]),
    "dates with and without a zone": pd.Series([pd.Timestamp(DAYS[0]), pd.Timestamp(DAYS[1], tz="UTC")], dtype=object),
}


@cases("new cells")
def test_new_cells_are_read_as_the_fitted_ones_or_refused(case: list[Any], tmp_path: Path) -> None:
    fitted, new, read = case
    raw = feature(tmp_path, FITTED_CELLS[fitted])[1]
    cells = NEW_CELLS[new] if isinstance(new, str) else new
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
    check_new_file(tmp_path / "new.csv", content, read)


@pytest.mark.parametrize(("cell", "number"), CASES["new numbers"])
def test_a_new_number_is_read_or_refused(cell: str, number: str | float, tmp_path: Path) -> None:
    read = number if isinstance(number, str) else [number, 3, 20458, 1, 3]
    check_new_file(tmp_path / "new.csv", f"n,c,d,t,g\n{cell},red,2026-01-05,yes,3\n", read)


CP1252 = "t.csv: its texts are no UTF-8 and are read as cp1252, such as 'Ìîñêâà'; if they look wrong"
FILES: dict[str, tuple[Any, str, Callable[[Profile, Raw], Any], Any]] = {  # case -> contents, target, question, answer
    "a header in angle brackets (MetaStock)": (
        PLAIN.replace("x,y", "<DATE>,<OPEN>"),
        "<OPEN>",
        lambda profile, raw: list(raw.features),
        ["<DATE>"],
    ),
    "commas at the end of each line": (
        PLAIN.replace("\n", ",,,\n"),
        "y",
        lambda profile, raw: list(raw.features),
        ["x"],
    ),
    "cp1252": (
        lines_of(cycle("Москва", "Тула")).encode("cp1251"),
        "y",
        lambda profile, raw: [
            *(line.startswith(CP1252) for line in profile.remarks if "cp1252" in line),
            raw.columns[1].values,
        ],
        [True, tuple(text.encode("cp1251").decode("cp1252") for text in ("Москва", "Тула"))],
    ),
    "a column that counts the rows if rows lack the target": (
        "id,x,y\n" + "".join(f"{i + 1},{i % 7},{'' if i in (5, 50) else i * i % 71}\n" for i in range(120)),
        "y",
        lambda profile, raw: profile.left_out,
        {"id": "it is a row number"},
    ),
    "codes are classes whatever their number": (
        "x,y\n" + "".join(f"{i * i % 71},{i % 24:05d}\n" for i in range(120)),
        "y",
        lambda profile, raw: [profile.source.task, len(profile.classes), "00001" in profile.classes],
        ["classification", 24, True],
    ),
    "a copy without a name": (
        ",x,y\n" + "".join(f"{i * 37 % 11}.5,{i * 37 % 11}.5,{i * i * 7 % 71}\n" for i in range(60)),
        "y",
        lambda profile, raw: profile.left_out,
        {"": "it is equal to x"},
    ),
}


@pytest.mark.parametrize(("content", "target", "question", "answer"), FILES.values(), ids=FILES)
def test_a_file_is_read_or_remarked_on(
    content: str | bytes, target: str, question: Callable[[Profile, Raw], Any], answer: Any, tmp_path: Path
) -> None:
    assert question(*added(write(tmp_path / "t.csv", content), target)) == answer


@cases("names")
def test_a_column_is_found_by_another_spelling_of_its_name(case: list[Any], tmp_path: Path) -> None:
    x, y, target, asked = case
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
def test_texts_that_look_equal_are_one_category(case: list[list[str]], tmp_path: Path) -> None:
    texts, values = case
    raw = feature(tmp_path, cycle(*texts))[1]
    assert raw.columns[1].values == tuple(values)
    np.testing.assert_array_equal(requested(raw, cycle(*texts), X), raw.train.inputs)


def test_digits_of_other_scripts_are_read_as_numbers(tmp_path: Path) -> None:
    for zero in "０٠۰":  # full width, Arabic, Persian
        texts = ["".join(chr(ord(zero) + int(d)) for d in str(i * i)) for i in range(ROWS)]
        assert feature(tmp_path, texts)[1].train.inputs[:, 1].tolist() == [i * i for i in range(ROWS)]


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


def test_a_quote_that_is_not_closed_and_a_row_of_totals_are_remarked_on(tmp_path: Path) -> None:
    rows = [(f'"wide {i}' if i in (10, 30) else f"n{i % 7}") + f",{i % 9},{i * i % 71}" for i in range(2 * ROWS)]
    profile = inspected(tmp_path / "t.csv", ["name,x,y", *rows, "Total,540,9999"])
    assert profile.rows == 101
    assert any("the cell that begins with 'wide 10,1,29' holds 21 lines" in line for line in profile.remarks)
    assert any("name: the last row has 'Total'" in line for line in profile.remarks)


@cases("telling columns")
def test_a_column_that_tells_the_class_is_remarked_on(case: list[Any], tmp_path: Path) -> None:
    cells, labels, start = case
    columns = zip(cells_of(cells, 2 * ROWS), cells_of(labels, 2 * ROWS), strict=True)
    rows = [f"{cell},{i * 37 % 11},{label}" for i, (cell, label) in enumerate(columns)]
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
def test_a_new_value_far_from_the_fitted_values_is_reported(case: list[Any], tmp_path: Path) -> None:
    name, new, start = case
    raw = feature(tmp_path, FITTED_CELLS[name])[1]
    inputs = requested(raw, [FITTED_CELLS[name][0], new])
    (line,) = unseen(inputs, schema_of(raw))
    assert start in line and line.endswith("(first: row 2). Do the units differ?")
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


ARROW_CELLS: dict[str, tuple[pa.Array, str]] = {  # case -> cells, their kind or the reason or the error
    "bool8": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1] * 30, pa.int8())), "category"),
    "periods": (pa.array(pd.Series(pd.period_range("2024-01", periods=60, freq="M"))), "it holds extension"),
    "an infinite day": (
        pa.array([2147483647, *range(59)], pa.int32()).cast(pa.date32()),
        "'f' must hold moments that 64 bits of microseconds hold",
    ),
    "lists": (pa.array([[1.0, 2.0]] * 60), "which is neither numbers, texts nor dates"),
    "structures": (pa.array([{"a": 1}] * 60), "which is neither numbers, texts nor dates"),
    "maps": (
        pa.array([[("k", 1)]] * 60, pa.map_(pa.string(), pa.int64())),
        "which is neither numbers, texts nor dates",
    ),
    "bytes": (pa.array([b"\xff"] * 60), "which is neither numbers, texts nor dates"),
    "durations": (pa.array(range(60), pa.duration("us")), "which is neither numbers, texts nor dates"),
    "times of day": (pa.array(range(60), pa.time32("ms")), "which is neither numbers, texts nor dates"),
    "no UTF-8": (
        pa.Array.from_buffers(pa.string(), 60, pa.array([b"\xff", b"ok"] * 30).buffers()),
        "'f' must be texts in UTF-8",
    ),
}


@pytest.mark.parametrize(("cells", "answer"), ARROW_CELLS.values(), ids=ARROW_CELLS)
def test_unusual_arrow_types_are_read_left_out_or_refused(cells: pa.Array, answer: str, tmp_path: Path) -> None:
    try:
        profile, raw = added(parquet(tmp_path, cells))
        remark = profile.left_out.get("f") or next(column.kind for column in raw.columns if column.name == "f")
    except DataError as error:
        remark = str(error)
    assert answer in remark
