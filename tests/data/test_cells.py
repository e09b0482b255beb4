"""Cells of users' tables: a value has one meaning in every format, at inspection, preparation and prediction."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.new_inputs import frame_inputs, new_inputs, unseen
from bdl_pipe.data.raw import Raw
from bdl_pipe.data.sources.table import Table
from bdl_pipe.data.tables import kinds
from bdl_pipe.data.tables.forms import are_all
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


# --- equal values are equal -------------------------------------------------------------------------------------------

SAME: dict[str, list[Any]] = {
    "numbers": [0.5 * i for i in range(ROWS)][::-1],
    "whole numbers": [i * i for i in range(ROWS)],
    "numbers with gaps": cycle(1.5, None, 2.5, 7.0),
    "truths": cycle(True, False, False),
    "truths with gaps": cycle(True, None, False),
    "texts": cycle("red", "blue", "NA", "None", "null"),
    "days": [dt.date(2024, 1, 1) + dt.timedelta(days=3 * i % 17) for i in range(ROWS)],
    "moments": [dt.datetime(2024, 1, 1, 7, 30) + dt.timedelta(hours=5 * i % 97) for i in range(ROWS)],
}


@pytest.mark.parametrize("case", SAME)
def test_a_column_is_read_identically_from_every_carrier(tmp_path: Path, case: str) -> None:
    found = {carrier: feature(tmp_path, SAME[case], carrier) for carrier in CARRIERS}
    first, raw = found["csv"]
    for carrier, (profile, other) in found.items():
        assert profile.columns == first.columns, carrier
        assert other.columns == raw.columns, carrier
        np.testing.assert_array_equal(other.train.inputs, raw.train.inputs, err_msg=carrier)
        for new in CARRIERS:  # the columns fitted from one carrier, predicted from each carrier
            path = stored(tmp_path, new, {"f": SAME[case], "x": X.tolist()}, "new")
            np.testing.assert_array_equal(
                new_inputs(path, schema_of(other)), raw.train.inputs, err_msg=f"{carrier} {new}"
            )
        frame = pd.DataFrame({"f": pd.Series(SAME[case], dtype=object), "x": X})
        np.testing.assert_array_equal(frame_inputs(frame, schema_of(other)), raw.train.inputs)


@pytest.mark.parametrize(
    "written", [("True", "False"), ("true", "false"), ("TRUE", "FALSE"), ("True", "0"), (True, False)]
)
@pytest.mark.parametrize("new", [(True, False), ("true", "false"), ("True", "False"), (1, 0), (1.0, 0.0), ("1", "0")])
def test_a_truth_value_gets_one_code_in_every_spelling(tmp_path: Path, written: Any, new: Any) -> None:
    profile, raw = feature(tmp_path, cycle(*written), "csv")
    assert profile.columns["f"] == "category" and raw.columns[1].values == ("False", "True")
    inputs = frame_inputs(pd.DataFrame({"x": [0.0, 0.0], "f": pd.Series(new, dtype=object)}), schema_of(raw))
    assert inputs[:, 1].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("values", [("False", "True"), ("false", "true")])
def test_truth_values_match_the_categories_of_data_prepared_earlier(values: tuple[str, str]) -> None:
    column = {"name": "f", "kind": "category", "values": list(values), "missing": False, "slots": 20, "hours": False}
    schema = {"kind": "table", "features": ["f"], "columns": [column], "input_shape": [1]}
    for new in (True, "true", "True", "TRUE", 1):
        assert frame_inputs(pd.DataFrame({"f": [new]}, dtype=object), schema).tolist() == [[1.0]]
    with pytest.raises(
        DataError, match="'f' must be true or false as in the file that was fitted, got 'maybe' in row 2"
    ):
        frame_inputs(pd.DataFrame({"f": ["true", "maybe"]}), schema)


@pytest.mark.parametrize(
    "kind", [pa.float16(), pa.float32(), pa.int8(), pa.uint64(), pa.decimal128(9, 2), pa.decimal256(50, 2)]
)
def test_arrow_numbers_of_every_width_are_read_as_numbers(tmp_path: Path, kind: pa.DataType) -> None:
    values = [Decimal(i * i % 23) if pa.types.is_decimal(kind) else i * i % 23 for i in range(ROWS)]
    whole = pa.array([*values[:-1], None], kind if kind != pa.float16() else pa.float32()).cast(kind)
    pq.write_table(pa.table({"x": X, "f": whole, "y": Y}), tmp_path / "t.parquet")
    profile, raw = added(tmp_path / "t.parquet")
    assert profile.columns["f"] == "number" and raw.columns[1].missing
    np.testing.assert_array_equal(raw.train.inputs[:, 1], [*map(float, values[:-1]), np.nan])


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_arrow_texts_of_every_type_give_the_same_categories(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"x": X, "f": pa.array(cycle(" b", "a ", None), kind), "y": Y}), tmp_path / "t.parquet")
    assert added(tmp_path / "t.parquet")[1].columns[1].values == ("a", "b")


# --- words, gaps and classes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["?", "-", "None", "NA", "n/a", "%", "NULL", " ", "***"])
def test_a_word_among_numbers_is_read_as_a_gap_with_a_remark(tmp_path: Path, word: str) -> None:
    profile, raw = feature(tmp_path, [word if i in (0, 7) else 1.5 * (i % 9) for i in range(ROWS)])
    assert profile.columns["f"] == "number" and raw.columns[1].missing
    assert np.flatnonzero(np.isnan(raw.train.inputs[:, 1])).tolist() == [0, 7]
    if word.strip():
        assert f"f: '{word}' is read as a gap, in 2 rows" in profile.remarks
    inputs = frame_inputs(pd.DataFrame({"x": [0.0], "f": [word]}), schema_of(raw))
    assert np.isnan(inputs[0, 1])


@pytest.mark.parametrize("word", ["NA", "None", "null", "NaN", "nan", "n/a", "?"])
def test_a_word_for_a_gap_among_texts_is_read_as_a_text(tmp_path: Path, word: str) -> None:
    texts = cycle("EU", word, "AS")
    profile, raw = added(
        stored(tmp_path, "csv", {"x": X.tolist(), "f": texts, "y": RANDOM.permutation(texts).tolist()})
    )
    assert profile.classes == {"AS": 20, "EU": 20, word: 20}
    assert word in raw.columns[1].values and not raw.columns[1].missing
    assert any(remark.startswith(f"y: '{word}' is a value, in 20 rows") for remark in profile.remarks)
    new = frame_inputs(pd.DataFrame({"x": [0.0], "f": [word]}), schema_of(raw))
    assert new[0, 1] == raw.columns[1].values.index(word)


@pytest.mark.parametrize(("carrier", "values"), [("csv", ("0.0", "1.0", "2.0")), ("parquet", (0.0, 1.0, 2.0))])
@pytest.mark.parametrize("task", [None, "classification"])
def test_whole_numbers_written_with_a_decimal_point_are_classes(
    tmp_path: Path, carrier: str, values: Any, task: Any
) -> None:
    path = stored(tmp_path, carrier, {"x": X.tolist(), "y": cycle(*values)})
    assert added(path, task=task)[0].classes == {"0": 20, "1": 20, "2": 20}


@pytest.mark.parametrize("values", [(0.5, 1.5), (1.0, 2.5)])
def test_fractions_are_refused_as_classes(tmp_path: Path, values: Any) -> None:
    path = stored(tmp_path, "csv", {"x": X.tolist(), "y": cycle(*values)})
    with pytest.raises(DataError, match=r"'y': labels must be whole numbers or texts, got .\.5 in row"):
        added(path, task="classification")
    assert not added(path)[0].classes


def test_rows_whose_target_is_a_word_are_left_out(tmp_path: Path) -> None:
    path = stored(tmp_path, "csv", {"x": X.tolist(), "y": ["?" if i < 5 else v for i, v in enumerate(Y.tolist())]})
    profile, raw = added(path)
    assert profile.without_target == 5 and len(raw.train) == 55
    assert Table(str(path), ("y",), "regression", skip_without_target=True).read().train.targets[0, 0] == Y[5]


# --- cells that are no numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1.0, 2.0]] * ROWS),
        pa.array([{"a": 1}] * ROWS),
        pa.array([[("k", 1)]] * ROWS, pa.map_(pa.string(), pa.int64())),
        pa.array([b"\xff"] * ROWS),
        pa.array(range(ROWS), pa.duration("us")),
        pa.array(range(ROWS), pa.time32("ms")),
    ],
    ids=lambda values: str(values.type)[:6],
)
def test_a_column_of_another_arrow_type_is_left_out_with_the_reason(tmp_path: Path, values: pa.Array) -> None:
    pq.write_table(pa.table({"x": X, "f": values, "y": Y}), tmp_path / "t.parquet")
    assert "which is neither numbers, texts nor dates" in added(tmp_path / "t.parquet")[0].left_out["f"]


@pytest.mark.parametrize("text", ["１２.５", "+12.5", " 12.5", "1.25e1", "12.50"])
def test_an_unusual_spelling_of_a_number_is_read_as_the_number(tmp_path: Path, text: str) -> None:
    profile, raw = feature(tmp_path, [text if i == 3 else -0.25 * i * i for i in range(ROWS)])
    assert profile.columns["f"] == "number" and raw.train.inputs[3, 1] == 12.5


def test_codes_that_begin_with_0_are_texts(tmp_path: Path) -> None:
    profile, raw = feature(tmp_path, cycle("00501", "90210", "10001"))
    assert profile.columns["f"] == "category" and raw.columns[1].values == ("00501", "10001", "90210")
    assert "f: codes such as '00501' begin with 0: they are texts, not numbers" in profile.remarks


# --- dates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_timestamp_has_the_same_value_in_every_unit(tmp_path: Path, unit: str) -> None:
    extra = 803 if unit == "ns" else 0  # pandas' nanoseconds are no whole microseconds
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    moments = pa.array([(1_600_000_000 + 7_000 * (i * i % 31)) * per + extra for i in range(ROWS)], pa.timestamp(unit))
    pq.write_table(pa.table({"x": X, "f": moments, "y": Y}), tmp_path / "t.parquet")
    profile, raw = added(tmp_path / "t.parquet")
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
    with pytest.raises(
        DataError, match="'f' must be dates without a zone, as in the file that was fitted, got dates with"
    ):
        frame_inputs(berlin, schema_of(naive))
    with pytest.raises(
        DataError, match="'f' must be dates with a zone, as in the file that was fitted, got dates without"
    ):
        frame_inputs(pd.DataFrame({"x": X, "f": NAIVE}), schema_of(zoned))


def test_a_moment_has_one_category_in_every_spelling(tmp_path: Path) -> None:
    path = stored(tmp_path, "csv", {"f": cycle("2024-01-02T12:00:00", "2024-01-03 00:00:00", "NA"), "y": Y.tolist()})
    raw = Table(str(path), ("y",), "regression", columns={"f": "category"}).read()
    assert raw.columns[0].values == ("2024-01-02 12:00:00", "2024-01-03") and raw.columns[0].missing
    np.testing.assert_array_equal(raw.train.inputs[:3, 0], [0.0, 1.0, np.nan])


# --- an index, and remarks on new rows -------------------------------------------------------------------------------


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


def test_an_unnamed_column_that_is_no_index_is_a_feature(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join([",y", *(f"{x},{y}" for x, y in zip(X, Y, strict=True))]))
    assert added(tmp_path / "t.csv")[1].features == ("",)


def test_an_unseen_category_is_reported_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = feature(tmp_path, cycle("red", "blue"))[1]
    inputs = frame_inputs(pd.DataFrame({"x": [0.0, 0.0], "f": ["red", "green"]}), schema_of(raw))
    assert inputs[:, 1].tolist() == [1.0, -1.0]
    (line,) = unseen(inputs, schema_of(raw))
    assert line.startswith(
        "f: a category that the fitted file did not have, in 1 rows, the first 2: taken as one of the"
    )
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


@pytest.mark.parametrize("text", ["Marker 12-34", "Setup 1-20", "Marker01", "Device12"])
def test_words_that_begin_like_a_month_are_no_dates(text: str) -> None:
    texts = pa.chunked_array([[text]])
    assert not are_all(texts, kinds._DATE) and not are_all(texts, kinds.PERIOD)
