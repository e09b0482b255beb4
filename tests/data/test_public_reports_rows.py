"""Numbers, rows, targets and new rows of public reports: each is read right, or a message of one line names it.

A case names its report, ``repository#number``; the inputs are our own.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bdl_pipe.data import sources
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.new_inputs import frame_inputs, unseen
from bdl_pipe.data.normalise import fit_transform
from bdl_pipe.errors import DataError
from tests.data.reported import DAYS, EPOCH, PLAIN, SQUARES
from tests.data.test_cells import X, Y, added, cycle, feature, schema_of, stored

# --- numbers that a float64 cannot work with --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        pytest.param("inf", "'f' must be finite, got inf in row 60", id="omossad/cmpt980#8 (right before)"),
        pytest.param("1e400", "'f' must be finite, got inf in row 60", id="rqt_common_plugins#240 (right before)"),
        pytest.param("-1e300", r"'f' must be below 1e150, got -1e\+300 in row 60; write it in", id="shawshany/IMDB#1"),
    ],
)
def test_an_infinite_or_too_large_number_is_refused(cell: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        feature(tmp_path, [*SQUARES[:-1], cell])
    raw = feature(tmp_path, SQUARES)[1]
    with pytest.raises(DataError, match=said.replace("row 60", "row 1")):
        frame_inputs(pd.DataFrame({"x": [0.0], "f": [cell]}), schema_of(raw))


@pytest.mark.parametrize("scale", [1.6e-19, 1e-150, 1.0, 1e100])
def test_a_column_is_scaled_equally_in_every_unit(scale: float, tmp_path: Path) -> None:
    """scikit-learn/scikit-learn#19726, #19898: a width below 10 ε was taken for none, and the column became 0."""
    raw = feature(tmp_path, [scale * value for value in SQUARES])[1]
    plain = feature(tmp_path, SQUARES)[1]
    made, expected = (
        fit_transform(
            r.train.inputs, r.train.targets, kind="table", normalise="robust", whiten=False, columns=r.columns
        )
        for r in (raw, plain)
    )
    seen = made.inputs(raw.train.inputs)
    np.testing.assert_allclose(seen, expected.inputs(plain.train.inputs), rtol=1e-5, atol=1e-6)
    assert seen[:, 1].std() > 0.3


def test_a_target_whose_squares_underflow_is_refused(tmp_path: Path) -> None:
    """scikit-learn/scikit-learn#19726, of a target: its deviation was 0."""
    path = stored(tmp_path, "csv", {"x": X.tolist(), "y": (1e-200 * Y).tolist()})
    with pytest.raises(DataError, match=r"'y' must vary by more than 1e-150 .*; write it in other units, got"):
        inspect_table(path, ["y"])


def test_a_target_whose_squares_fit_a_float64_is_accepted(tmp_path: Path) -> None:
    path = stored(tmp_path, "csv", {"x": X.tolist(), "y": (1e149 * Y).tolist()})
    assert sources.load(added(path)[0].source).train.targets.std() > 0


# --- rows and targets -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("lines", "word", "row"),
    [
        pytest.param(["m,kg", *PLAIN.split()[1:]], "kg", 1, id="OPM/ResInsight#9611 (a row of units)"),
        pytest.param([*PLAIN.split()[1:], *PLAIN.split()], "y", 61, id="two files in one, each with its names"),
    ],
)
def test_a_target_of_numbers_and_a_word_is_refused(lines: list[str], word: str, row: int, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *lines]))
    said = f"'y' must be numbers or classes, got numbers and texts such as '{word}' in row {row}; leave such rows"
    with pytest.raises(DataError, match=said):
        added(tmp_path / "t.csv")


def test_the_error_shows_the_cell_that_is_no_number(tmp_path: Path) -> None:
    raw = feature(tmp_path, SQUARES)[1]
    with pytest.raises(DataError, match="'f' must be numeric, got '2,5' in row 2; write numbers without"):
        frame_inputs(pd.DataFrame({"x": [0.0, 0.0], "f": ["1.5", "2,5"]}), schema_of(raw))


# --- new rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fitted", "new", "said"),
    [
        pytest.param(EPOCH, 1.7e12, "f: 1.7e+12 is far from 1.68e+09 to ", id="moment/luxon#345"),
        pytest.param(SQUARES, 1e4, "f: 10000 is far from", id="koaning/scikit-lego#361"),
        pytest.param(DAYS, "1970-01-20", "f: 1970-01-20 is far from 2023-01-01 to 2024-02-04", id="a day of 1970"),
    ],
)
def test_a_new_value_far_from_the_fitted_values_is_reported(
    fitted: list[Any], new: Any, said: str, tmp_path: Path
) -> None:
    raw = feature(tmp_path, fitted)[1]
    inputs = frame_inputs(pd.DataFrame({"x": [0.0, 0.0], "f": [fitted[0], new]}), schema_of(raw))
    (line,) = unseen(inputs, schema_of(raw))
    assert line.startswith(said) and line.endswith("of the fitted file, in 1 rows, the first 2: do the units differ?")
    assert unseen(inputs[:1], schema_of(raw)) == unseen(raw.train.inputs, schema_of(raw)) == []
    older = [{k: v for k, v in column.items() if k != "ends"} for column in schema_of(raw)["columns"]]
    assert unseen(inputs, {**schema_of(raw), "columns": older}) == [], "data prepared earlier have no ends"


@pytest.mark.parametrize(
    ("cells", "read"),
    [
        pytest.param(pd.arrays.SparseArray([1.0, 2.0]), [1.0, 2.0], id="pandas-dev/pandas#20692"),
        pytest.param(np.array([1, 2], np.longdouble), [1.0, 2.0], id="long doubles"),
        pytest.param(
            np.array([1 + 2j, 2]), "'f' must be numeric, got '\\(1\\+2j\\)' in row 1", id="adamreeve/npTDMS#315"
        ),
        pytest.param(
            pd.array([1, None], "Int64"), "must have a value in every row", id="mlflow/mlflow#25593 (right before)"
        ),
        pytest.param([[1.0], [2.0]], "'f' must be numeric, got '\\[1.0\\]'", id="lists of one (right before)"),
    ],
)
def test_unusual_pandas_columns_are_read_or_refused(cells: Any, read: Any, tmp_path: Path) -> None:
    raw = feature(tmp_path, SQUARES)[1]
    frame = pd.DataFrame({"x": [0.0, 0.0], "f": cells})
    if isinstance(read, str):
        with pytest.raises(DataError, match=read):
            frame_inputs(frame, schema_of(raw))
    else:
        assert frame_inputs(frame, schema_of(raw))[:, 1].tolist() == read


# --- own inputs of the same kinds -------------------------------------------------------------------------------------


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
        new = frame_inputs(pd.DataFrame({"x": X, "f": cells}), schema_of(ranges))
        np.testing.assert_array_equal(new, ranges.train.inputs)


def test_a_column_of_dates_with_and_without_a_zone_is_refused(tmp_path: Path) -> None:
    moments = [pd.Timestamp(DAYS[0]), pd.Timestamp(DAYS[1], tz="UTC")]
    with pytest.raises(DataError, match=r"'f' must be dates, .*either all with a zone or none"):
        frame_inputs(
            pd.DataFrame({"x": [0.0, 0.0], "f": pd.Series(moments, dtype=object)}),
            schema_of(feature(tmp_path, DAYS)[1]),
        )


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        pytest.param(
            pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1] * 30, pa.int8())), "category", id="bool8"
        ),
        pytest.param(
            pa.array(pd.Series(pd.period_range("2024-01", periods=60, freq="M"))), "it holds extension", id="periods"
        ),
        pytest.param(
            pa.array([2147483647, *range(59)], pa.int32()).cast(pa.date32()),
            "'f' must hold moments that 64 bits of microseconds hold",
            id="an infinite day",
        ),
        pytest.param(
            pa.Array.from_buffers(pa.string(), 60, pa.array([b"\xff", b"ok"] * 30).buffers()),
            "'f' must be texts in UTF-8",
            id="no UTF-8",
        ),
    ],
)
def test_unusual_arrow_types_are_read_left_out_or_refused(cells: pa.Array, found: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": X, "f": cells, "y": Y}), tmp_path / "t.parquet")
    try:
        profile, raw = added(tmp_path / "t.parquet")
        said = profile.left_out.get("f") or next(column.kind for column in raw.columns if column.name == "f")
    except DataError as error:
        said = str(error)
    assert found in said
