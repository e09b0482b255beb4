"""Cells of users' tables: a value has one meaning in every format, at inspection, preparation and prediction."""

import datetime as dt
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas._libs.parsers import STR_NA_VALUES

from bdl_pipe import BayesianRegressor
from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.new_inputs import frame_inputs, new_inputs, unseen
from bdl_pipe.data.raw import Raw
from bdl_pipe.data.sources.folders import is_hidden
from bdl_pipe.data.sources.table import Table
from bdl_pipe.data.tables.cells import Cells
from bdl_pipe.data.tables.columns import typed_cells
from bdl_pipe.errors import DataError

ROWS = 60
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=ROWS).round(4)
Y = RANDOM.normal(size=ROWS).round(4)
CARRIERS = ("csv", "parquet", "texts")


def cycle(*values: Any) -> list[Any]:
    return [values[i % len(values)] for i in range(ROWS)]


def stored(folder: Path, carrier: str, columns: dict[str, list[Any]], name: str = "t") -> Path:
    """Write columns as CSV, as Parquet with their types, or as Parquet of texts."""
    path = folder / f"{name}.{'csv' if carrier == 'csv' else 'parquet'}"
    if carrier == "csv":
        pd.DataFrame(columns, dtype=object).to_csv(path, index=False)
        return path
    if carrier == "texts":
        columns = {key: [None if v is None else str(v) for v in values] for key, values in columns.items()}
    pq.write_table(pa.table(columns), path)
    return path


def added(path: Path, target: str = "y", task: Any = None) -> tuple[Profile, Raw]:
    """Inspect a table, read it as ``prepare`` does, and check that both agree."""
    profile = inspect_table(path, [target], task)
    raw = profile.source.read()
    assert len(raw.train) == profile.rows
    assert raw.features == tuple(profile.columns)
    assert sum(column.width for column in raw.columns) == profile.shape[0]
    if profile.classes:
        counts = np.bincount(raw.train.targets)
        assert dict(zip(raw.classes, counts.tolist(), strict=True)) == dict(profile.classes)
    return profile, raw


def schema_of(raw: Raw) -> dict[str, Any]:
    columns = [column.mapping() for column in raw.columns]
    return {"kind": "table", "features": list(raw.features), "columns": columns, "input_shape": [len(columns)]}


def feature(folder: Path, values: list[Any], carrier: str = "csv") -> tuple[Profile, Raw]:
    return added(stored(folder, carrier, {"x": X.tolist(), "f": values, "y": Y.tolist()}))


def requested(raw: Raw, cells: Any, x: Any = 0.0) -> np.ndarray:
    """The inputs that a request with these cells in its column ``f`` gives."""
    cells = pd.Series(cells, dtype=object) if isinstance(cells, list | tuple) else cells
    return frame_inputs(pd.DataFrame({"x": x, "f": cells}), schema_of(raw))


def parquet(folder: Path, cells: Any) -> Path:
    pq.write_table(pa.table({"x": X, "f": cells, "y": Y}), folder / "t.parquet")
    return folder / "t.parquet"


EQUAL_COLUMNS: dict[str, list[Any]] = {
    "numbers": [0.5 * i for i in range(ROWS)][::-1],
    "whole numbers": [i * i for i in range(ROWS)],
    "numbers with gaps": cycle(1.5, None, 2.5, 7.0),
    "truths": cycle(True, False, False),
    "truths with gaps": cycle(True, None, False),
    "texts": cycle("red", "blue", "NA", "None", "null"),
    "days": [dt.date(2024, 1, 1) + dt.timedelta(days=3 * i % 17) for i in range(ROWS)],
    "moments": [dt.datetime(2024, 1, 1, 7, 30) + dt.timedelta(hours=5 * i % 97) for i in range(ROWS)],
}


@pytest.mark.parametrize("cells", EQUAL_COLUMNS.values(), ids=EQUAL_COLUMNS)
def test_a_column_is_read_identically_from_every_carrier(tmp_path: Path, cells: list[Any]) -> None:
    columns = {carrier: feature(tmp_path, cells, carrier) for carrier in CARRIERS}
    first, raw = columns["csv"]
    for carrier, (profile, other) in columns.items():
        assert profile.columns == first.columns, carrier
        assert other.columns == raw.columns, carrier
        np.testing.assert_array_equal(other.train.inputs, raw.train.inputs, err_msg=carrier)
        for new in CARRIERS:  # the columns fitted from one carrier, predicted from each carrier
            path = stored(tmp_path, new, {"f": cells, "x": X.tolist()}, "new")
            inputs = new_inputs(path, schema_of(other))
            np.testing.assert_array_equal(inputs, raw.train.inputs, err_msg=f"{carrier} {new}")
        np.testing.assert_array_equal(requested(other, cells, X), raw.train.inputs)


SPELT = [("yes", "no"), ("Y", "N"), ("t", "f"), ("On", "Off"), ("True", "False"), ("TRUE", "FALSE"), ("true", "false")]


@pytest.mark.parametrize("cells", [*SPELT, ("True", "0"), (True, False)])
def test_a_truth_value_gets_one_code_in_every_spelling(tmp_path: Path, cells: Any) -> None:
    profile, raw = feature(tmp_path, cycle(*cells), "csv")
    assert profile.columns["f"] == "category"
    assert raw.columns[1].values == (("False", "True") if str(cells[0]).lower() == "true" else cells[::-1])
    for new in (*SPELT, (True, False), (1, 0), (1.0, 0.0), ("1", "0")):
        assert requested(raw, new)[:, 1].tolist() == [1.0, 0.0], new


@pytest.mark.parametrize("values", [("False", "True"), ("false", "true")])
def test_truth_values_match_the_categories_of_data_prepared_earlier(values: tuple[str, str]) -> None:
    column = {"name": "f", "kind": "category", "values": list(values), "missing": False, "slots": 20, "hours": False}
    schema = {"kind": "table", "features": ["f"], "columns": [column], "input_shape": [1]}
    for new in (True, "true", "True", "TRUE", 1):
        assert frame_inputs(pd.DataFrame({"f": [new]}, dtype=object), schema).tolist() == [[1.0]]
    message = "'f' must be true or false as in the file that was fitted, got 'maybe' in row 2"
    with pytest.raises(DataError, match=message):
        frame_inputs(pd.DataFrame({"f": ["true", "maybe"]}), schema)


@pytest.mark.parametrize(
    "kind", [pa.float16(), pa.float32(), pa.int8(), pa.uint64(), pa.decimal128(9, 2), pa.decimal256(50, 2)]
)
def test_arrow_numbers_of_every_width_are_read_as_numbers(tmp_path: Path, kind: pa.DataType) -> None:
    values = [Decimal(i * i % 23) if pa.types.is_decimal(kind) else i * i % 23 for i in range(ROWS)]
    whole = pa.array([*values[:-1], None], kind if kind != pa.float16() else pa.float32()).cast(kind)
    profile, raw = added(parquet(tmp_path, whole))
    assert profile.columns["f"] == "number" and raw.columns[1].missing
    np.testing.assert_array_equal(raw.train.inputs[:, 1], [*map(float, values[:-1]), np.nan])


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_arrow_texts_of_every_type_give_the_same_categories(tmp_path: Path, kind: pa.DataType) -> None:
    assert added(parquet(tmp_path, pa.array(cycle(" b", "a ", None), kind)))[1].columns[1].values == ("a", "b")


@pytest.mark.parametrize("word", ["?", "-", "None", "NA", "n/a", "%", "NULL", " ", "***"])
def test_a_word_among_numbers_is_read_as_a_gap_with_a_remark(tmp_path: Path, word: str) -> None:
    profile, raw = feature(tmp_path, [word if i in (0, 7) else 1.5 * (i % 9) for i in range(ROWS)])
    assert profile.columns["f"] == "number" and raw.columns[1].missing
    assert np.flatnonzero(np.isnan(raw.train.inputs[:, 1])).tolist() == [0, 7]
    if word.strip():
        assert f"f: '{word}' is read as a gap, in 2 rows" in profile.remarks
    assert np.isnan(requested(raw, [word])[0, 1])


@pytest.mark.parametrize("word", ["NA", "None", "null", "NaN", "nan", "n/a", "?"])
def test_a_word_for_a_gap_among_texts_is_read_as_a_text(tmp_path: Path, word: str) -> None:
    texts = cycle("EU", word, "AS")
    path = stored(tmp_path, "csv", {"x": X.tolist(), "f": texts, "y": RANDOM.permutation(texts).tolist()})
    profile, raw = added(path)
    assert profile.classes == {"AS": 20, "EU": 20, word: 20}
    assert word in raw.columns[1].values and not raw.columns[1].missing
    assert any(remark.startswith(f"y: '{word}' is a value, in 20 rows") for remark in profile.remarks)
    assert requested(raw, [word])[0, 1] == raw.columns[1].values.index(word)


def test_whole_numbers_with_a_decimal_point_are_classes_and_fractions_are_not(tmp_path: Path) -> None:
    for carrier, values in (("csv", ("0.0", "1.0", "2.0")), ("parquet", (0.0, 1.0, 2.0))):
        path = stored(tmp_path, carrier, {"x": X.tolist(), "y": cycle(*values)})
        for task in (None, "classification"):
            assert added(path, task=task)[0].classes == {"0": 20, "1": 20, "2": 20}
    for values in ((0.5, 1.5), (1.0, 2.5)):
        path = stored(tmp_path, "csv", {"x": X.tolist(), "y": cycle(*values)})
        with pytest.raises(DataError, match=r"'y': labels must be whole numbers or texts, got .\.5 in row"):
            added(path, task="classification")
        assert not added(path)[0].classes


def test_rows_whose_target_is_a_word_are_left_out(tmp_path: Path) -> None:
    path = stored(tmp_path, "csv", {"x": X.tolist(), "y": ["?" if i < 5 else v for i, v in enumerate(Y.tolist())]})
    profile, raw = added(path)
    assert profile.without_target == 5 and len(raw.train) == 55
    assert Table(str(path), ("y",), "regression", skip_without_target=True).read().train.targets[0, 0] == Y[5]
    with pytest.raises(DataError, match=r"'y' must have a value in every row, got '\?' in row 1"):
        Table(str(path), ("y",), "regression").read()


@pytest.mark.parametrize("text", ["１２.５", "+12.5", " 12.5", "1.25e1", "12.50"])
def test_an_unusual_spelling_of_a_number_is_read_as_the_number(tmp_path: Path, text: str) -> None:
    profile, raw = feature(tmp_path, [text if i == 3 else -0.25 * i * i for i in range(ROWS)])
    assert profile.columns["f"] == "number" and raw.train.inputs[3, 1] == 12.5


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_timestamp_has_the_same_value_in_every_unit(tmp_path: Path, unit: str) -> None:
    extra = 803 if unit == "ns" else 0  # pandas' nanoseconds are no whole microseconds
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    moments = pa.array([(1_600_000_000 + 7_000 * (i * i % 31)) * per + extra for i in range(ROWS)], pa.timestamp(unit))
    profile, raw = added(parquet(tmp_path, moments))
    days = [(1_600_000_000 + 7_000 * (i * i % 31)) / 86_400 for i in range(ROWS)]
    assert profile.columns["f"] == "date" and raw.columns[1].hours
    np.testing.assert_allclose(raw.train.inputs[:, 1], days, rtol=1e-14)


NAIVE = [f"2024-03-0{1 + i % 9} 12:00:00" for i in range(ROWS)]
ZONED = [f"2024-03-0{1 + i % 9}T12:00:00+02:00" for i in range(ROWS)]


def test_dates_with_a_zone_are_read_as_instants(tmp_path: Path) -> None:
    naive, zoned = feature(tmp_path, NAIVE)[1], feature(tmp_path, ZONED)[1]
    np.testing.assert_allclose(zoned.train.inputs[:, 1], naive.train.inputs[:, 1] - 2 / 24)
    berlin = pd.DataFrame({"x": X, "f": pd.to_datetime(pd.Series(ZONED)).dt.tz_convert("Europe/Berlin")})
    np.testing.assert_array_equal(frame_inputs(berlin, schema_of(zoned)), zoned.train.inputs)
    message = "'f' must be dates {} a zone, as in the file that was fitted, got dates {}"
    with pytest.raises(DataError, match=message.format("without", "with")):
        frame_inputs(berlin, schema_of(naive))
    with pytest.raises(DataError, match=message.format("with", "without")):
        requested(zoned, NAIVE, X)


def test_pandas_moments_with_a_zone_are_read_without_a_warning() -> None:
    zoned = pd.Series(pd.to_datetime([ZONED[0], None, ZONED[1]])).dt.tz_convert("Europe/Berlin")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cells = typed_cells(zoned)
    utc = [dt.datetime(2024, 3, day, 10, tzinfo=dt.UTC) for day in (1, 2)]
    assert cells.to_pylist() == [utc[0], None, utc[1]] and cells.type.tz == "UTC"


def test_a_moment_has_one_category_in_every_spelling(tmp_path: Path) -> None:
    path = stored(tmp_path, "csv", {"f": cycle("2024-01-02T12:00:00", "2024-01-03 00:00:00", "NA"), "y": Y.tolist()})
    raw = Table(str(path), ("y",), "regression", columns={"f": "category"}).read()
    assert raw.columns[0].values == ("2024-01-02 12:00:00", "2024-01-03") and raw.columns[0].missing
    np.testing.assert_array_equal(raw.train.inputs[:3, 0], [0.0, 1.0, np.nan])


@pytest.mark.parametrize("carrier", ["csv", "parquet", "saved twice"])
def test_the_index_of_a_pandas_table_is_no_feature(tmp_path: Path, carrier: str) -> None:
    frame = pd.DataFrame({"x": X, "z": np.roll(X, 3) ** 2, "y": Y}).sample(frac=1, random_state=0)
    path = tmp_path / f"t.{'parquet' if carrier == 'parquet' else 'csv'}"
    frame.to_parquet(path) if carrier == "parquet" else frame.to_csv(path)
    if carrier == "saved twice":
        pd.read_csv(path).to_csv(path, index=False)
    profile, raw = added(path)
    assert raw.features == ("x", "z")
    assert list(profile.left_out.values()) == ["it is the index of a table; give it a name of its own to use it"]
    assert Table(str(path), ("y",), "regression").read().features == ("x", "z")
    assert new_inputs(stored(tmp_path, "csv", {"z": [1.0], "x": [2.0]}, "new"), schema_of(raw)).tolist() == [[2.0, 1.0]]


def test_an_unseen_category_is_reported_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = feature(tmp_path, cycle("red", "blue"))[1]
    inputs = requested(raw, ["red", "green"])
    assert inputs[:, 1].tolist() == [1.0, -1.0]
    (line,) = unseen(inputs, schema_of(raw))
    message = "Column f: 1 row has a category not seen in fit (first: row 2), treated as"
    assert line.startswith(message)
    assert caplog.messages == [line], "a server's log has it"
    assert unseen(inputs[:1], schema_of(raw)) == []


def test_a_category_that_is_a_number_is_found_in_every_spelling(tmp_path: Path) -> None:
    for carrier in CARRIERS:
        path = stored(tmp_path, carrier, {"f": cycle(1, 2, 10), "y": Y.tolist()})
        raw = Table(str(path), ("y",), "regression", columns={"f": "category"}).read()
        assert raw.columns[0].values == ("1", "10", "2")
        for new in (10, 10.0, "10", "10.0", "1e1"):
            frame = pd.DataFrame({"f": pd.Series([new], dtype=object)})
            assert frame_inputs(frame, schema_of(raw)).tolist() == [[1.0]]


def test_the_error_names_a_missing_or_doubled_column_of_a_request(tmp_path: Path) -> None:
    schema = {"kind": "table", "features": ["a"], "input_shape": [1]}
    with pytest.raises(DataError, match="the input: must have the column 'a' once, got b"):
        frame_inputs(pd.DataFrame({"b": [1.0]}), schema)
    with pytest.raises(DataError, match="the input: must have the column 'a' once, got it 2 times"):
        frame_inputs(pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), schema)


FRAME = pd.DataFrame({"a": RANDOM.normal(size=80), "b": RANDOM.normal(size=80), "y": RANDOM.normal(size=80)})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_index_that_reset_index_has_made_a_column_is_left_out_and_said(tmp_path: Path, suffix: str) -> None:
    once = FRAME.sample(frac=1, random_state=0).reset_index()
    for frame in (once, once.sample(frac=1, random_state=1).reset_index()):
        path = tmp_path / f"t.{suffix}"
        frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
        profile = inspect_table(path, ["y"])
        assert {*(profile.source.columns or {})} == {"a", "b"}
        assert {*profile.left_out} == {"index", "level_0"} & {*frame.columns}
    FRAME.set_index(pd.Index(RANDOM.permutation(80), name="__null_dask_index__")).to_parquet(tmp_path / "t.parquet")
    assert {*(inspect_table(tmp_path / "t.parquet", ["y"]).source.columns or {})} == {"a", "b"}


@pytest.mark.parametrize(
    "frame",
    [
        FRAME.assign(index=RANDOM.permutation(80)),  # not first
        FRAME[["a"]].assign(index=RANDOM.integers(0, 9, 80), y=FRAME["y"])[["index", "a", "y"]],  # values repeat
        FRAME.assign(index=RANDOM.normal(size=80))[["index", "a", "y"]],  # a share price
    ],
)
def test_a_column_of_values_that_is_named_index_is_a_feature(tmp_path: Path, frame: pd.DataFrame) -> None:
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert "index" in (inspect_table(tmp_path / "t.csv", ["y"]).source.columns or {})
    (tmp_path / "t.csv").write_text("\n".join([",y", *(f"{x},{y}" for x, y in zip(X, Y, strict=True))]))
    assert added(tmp_path / "t.csv")[1].features == ("",), "an unnamed column that is no index"


def test_an_estimator_predicts_the_same_with_and_without_the_index_of_a_frame() -> None:
    mixed = FRAME.sample(frac=1, random_state=0).reset_index()
    model = BayesianRegressor("linear").fit(mixed[["index", "a", "b"]], mixed["y"])
    other = BayesianRegressor("linear").fit(mixed[["a", "b"]], mixed["y"])
    np.testing.assert_array_equal(model.predict(mixed[["index", "a", "b"]]), other.predict(mixed[["a", "b"]]))


def test_files_and_folders_that_file_servers_add_are_hidden() -> None:
    """The folders of Netatalk and Samba, and those of QNAP's and Synology's drives."""
    names = ["Network Trash Folder", "Temporary Items", "TheVolumeSettingsFolder", "TheFindByContentFolder", "Icon\r"]
    names += ["@Recently-Snapshot", "@sharebin", "@SynoResource", "@__thumb", "#recycle", "@eaDir", "ehthumbs.db"]
    assert [name for name in names if not is_hidden(Path(name))] == []
    assert not any(is_hidden(Path(name)) for name in ("Icon", "temporary", "@home", "#1", "snapshot", "network"))


def test_words_that_other_programs_write_for_a_gap_among_numbers_are_gaps() -> None:
    """pandas' own list is the oracle; beside it are the words of databases and of Excel in five languages."""
    others = (
        r"\N (null) [NULL] <null> (blank) #SPILL! #BEZUG! #WERT! #ZAHL! #NV #VALEUR! #NOMBRE! #NOM? #NUL! #N/D #RIF!"
    )
    others += " #VALORE! #¡VALOR! #¿NOMBRE? #VALOR! #NÚM!"
    wrong = [word for word in (*STR_NA_VALUES, *others.split()) if column_of(["1.5", word]).kind != "number"]
    assert wrong == []
    assert column_of(["1.5", "#5"]).kind == column_of(["1.5", "(5)"]).kind == "text"


def column_of(words: list[str]) -> Cells:
    return Cells.of(pa.table({"c": words}), "c", "t.csv")
