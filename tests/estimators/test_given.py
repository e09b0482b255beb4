"""Rows in memory are read in the same way as rows in a file that ``add`` takes."""

import os
import subprocess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from bdl_pipe import BayesianClassifier, BayesianRegressor, compare
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.estimators import given
from bdl_pipe.estimators.targets import Targets
from tests.tables import houses
from tests.torch_modes import float64_as_the_default

NUMBERS = np.random.default_rng(3).normal(size=(60, 3))
TARGETS = NUMBERS @ [1.0, 2.0, -1.0] + 0.1 * np.random.default_rng(4).normal(size=60)
HIGH = TARGETS > 0
FRAME = houses(120)
X, Y = FRAME.drop(columns="price"), FRAME["price"]


def arrow() -> pa.Table:
    return pa.Table.from_pandas(X, preserve_index=False)


def polars() -> Any:
    return pytest.importorskip("polars").from_arrow(arrow())


def test_a_frame_is_read_as_the_file_that_it_is_written_to(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "houses.csv", index=False)
    of_file = inspect_table(tmp_path / "houses.csv", ["price"])
    targets = Targets(Y.to_numpy()[:, None])
    of_frame = given.table_profile(given.table_of(X), targets, None, numbers=False)
    assert dict(of_frame.columns) == dict(of_file.columns)
    assert of_frame.raw.columns == of_file.raw.columns
    np.testing.assert_array_equal(of_frame.raw.train.inputs, of_file.raw.train.inputs)
    assert of_frame.shape == of_file.shape and of_frame.left_out == of_file.left_out
    assert of_frame.dataset() | {"source": 0} == of_file.dataset() | {"source": 0}


@pytest.mark.parametrize("make", [arrow, lambda: arrow().to_batches()[0], polars], ids=["table", "batch", "polars"])
def test_tables_of_arrow_and_polars_give_the_same_predictions_as_pandas(make: Any) -> None:
    expected = BayesianRegressor("linear").fit(X, Y)
    table = make()
    model = BayesianRegressor("linear").fit(table, pa.chunked_array([Y.to_numpy()]))
    assert model.feature_names_in_.tolist() == list(X.columns)
    np.testing.assert_array_equal(model.predict(table), expected.predict(X))
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))


@pytest.mark.parametrize(
    "change",
    [
        *(lambda x: x.astype(np.int64), lambda x: x.astype(">f4"), lambda x: x.astype(object), lambda x: x.astype(str)),
        *(np.asfortranarray, np.ndarray.tolist, np.ma.masked_array),
        *(
            lambda x: torch.tensor(x).requires_grad_(),
            lambda x: torch.tensor(x).bfloat16(),
            lambda x: torch.tensor(x).long(),
        ),
    ],
)
def test_arrays_and_tensors_of_any_type_and_memory_order_give_the_same_predictions(change: Any) -> None:
    """A tensor that needs a gradient, or of bfloat16, is no array for NumPy."""
    numbers = np.random.default_rng(0).integers(-9, 9, (60, 4)).astype(float)
    (rows, y), other = np.split(numbers, [3], 1), change(numbers[:, :3])
    targets = change(y) if isinstance(other, torch.Tensor) else y
    expected = BayesianRegressor("linear").fit(rows, y).predict(rows)
    np.testing.assert_array_equal(BayesianRegressor("linear").fit(other, targets).predict(other), expected)


def test_an_array_keeps_a_column_that_counts_the_rows_and_a_frame_does_not() -> None:
    counted = np.stack([np.arange(60.0), np.random.default_rng(0).normal(size=60)], axis=1)
    y = counted.sum(axis=1)
    assert BayesianRegressor("linear").fit(counted, y).left_out_ == {}
    with pytest.warns(UserWarning, match="dropped column a: it is a row number"):
        model = BayesianRegressor("linear").fit(pd.DataFrame(counted, columns=["a", "b"]), y)
    assert model.left_out_ == {"a": "it is a row number"} and model.n_features_in_ == 2
    forced = BayesianRegressor("linear", columns={"a": "number"})
    assert forced.fit(pd.DataFrame(counted, columns=["a", "b"]), y).left_out_ == {}


def test_the_kind_of_a_column_can_be_set() -> None:
    model = BayesianRegressor("linear", columns={"rooms": "category"}).fit(X, Y)
    (rooms,) = (column for column in model.fitted_.columns if column.name == "rooms")
    assert rooms.kind == "category" and rooms.values == ("1", "2", "3", "4", "5", "6") and rooms.missing


@pytest.mark.parametrize("values", [np.arange(6), np.arange(6) / 2, list("123456")], ids=["whole", "halves", "digits"])
def test_numbers_of_the_type_of_categories_are_a_category_unless_they_have_an_order(values: Any) -> None:
    """They were read as numbers, and the R² of these effects was .16."""
    random = np.random.default_rng(0)
    code = random.integers(0, 6, 80)
    y = np.array([0, 5, -5, 3, -3, 10])[code] + 0.1 * random.normal(size=80)
    plain = pd.Series([values[place] for place in code])
    unordered, ordered = (plain.astype(pd.CategoricalDtype(values, ordered=order)) for order in (False, True))
    frames = [pd.DataFrame({"a": random.normal(size=80), "zip": column}) for column in (unordered, ordered)]
    model, of_order = (BayesianRegressor("linear").fit(frame, y) for frame in frames)
    assert [fit.fitted_.columns[1].kind for fit in (model, of_order)] == ["category", "number"]
    assert model.score(frames[0], y) > 0.99 > 0.5 > of_order.score(frames[1], y)
    np.testing.assert_array_equal(model.predict(frames[0].assign(zip=plain)), model.predict(frames[0]))


def test_categories_of_numbers_that_differ_in_each_row_are_left_out() -> None:
    frame = X.assign(code=pd.Series(np.arange(len(X))[::-1], index=X.index).astype("category"))
    with pytest.warns(UserWarning, match="dropped column code: it identifies rows"):
        assert list(BayesianRegressor("linear").fit(frame, Y).left_out_) == ["code"]


def test_a_gap_or_a_category_unseen_in_fit_is_accepted_with_a_warning() -> None:
    model = BayesianRegressor("linear").fit(X, Y)
    holed = X.astype({"area": float}).copy()
    holed.loc[3, "area"] = np.nan
    with pytest.warns(
        UserWarning, match="Column area: 1 row has a gap, but fit had none; a gap is treated as the median of fit"
    ):
        predictions = model.predict(holed)
    filled = holed.assign(area=holed["area"].fillna(float(model.fitted_.predictor().transform.encoding.medians[0])))
    np.testing.assert_array_equal(predictions, model.predict(filled))
    with pytest.warns(UserWarning, match="Column made_of: 120 rows have a category not seen in fit"):
        model.predict(X.assign(made_of="straw"))


def test_predictions_have_the_shape_of_the_targets_of_fit() -> None:
    numbers = NUMBERS[:, :2]
    y = numbers @ [[1.0, 0.0], [2.0, -1.0]] + 0.1 * np.random.default_rng(1).normal(size=(60, 2))
    model = BayesianRegressor("linear").fit(numbers, y)
    low, high = model.predict_interval(numbers)
    assert model.predict(numbers).shape == low.shape == high.shape == (60, 2) and (low < high).all()
    assert model.sample(numbers, 3).shape == (3, 60, 2) and model.log_prob(numbers, y).shape == (60,)
    flat = BayesianRegressor("linear").fit(numbers, y[:, 0])
    column = BayesianRegressor("linear").fit(numbers, y[:, :1])
    assert flat.predict(numbers).shape == (60,) and column.predict(numbers).shape == (60, 1)
    np.testing.assert_array_equal(flat.predict(numbers), column.predict(numbers)[:, 0])


@pytest.mark.parametrize("last", [False, True])
def test_images_may_have_their_channels_first_or_last(last: bool) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = (random.integers(0, 80, (60, 3, 8, 8)) + 100 * labels[:, None, None, None]).astype(np.uint8)
    model = BayesianClassifier("deterministic", pace=0.05).fit(images.transpose(0, 2, 3, 1) if last else images, labels)
    assert model.fitted_.schema["input_shape"] == [3, 8, 8]
    np.testing.assert_array_equal(model.predict_proba(images), model.predict_proba(images.transpose(0, 2, 3, 1)))
    assert model.score(images.astype(np.int64), labels) > 0.9


def test_labels_keep_their_type() -> None:
    numbers = NUMBERS[:, :2]
    words, truths = np.where(HIGH, "b", "a"), HIGH
    for labels in (np.where(HIGH, 7, -3), words, truths, pd.Series(words, dtype="category"), words.astype(object)):
        model = BayesianClassifier("linear").fit(numbers, labels)
        assert model.classes_.tolist() == sorted(set(np.asarray(labels).tolist()))
        assert model.predict(numbers).dtype == model.classes_.dtype == np.asarray(labels).dtype
        assert set(model.sample(numbers, 2).ravel().tolist()) <= set(model.classes_.tolist())


def test_random_state_may_be_a_number_or_a_generator() -> None:
    numbers, y = NUMBERS, TARGETS

    def roots(state: Any) -> int:
        return int(BayesianRegressor("constant", random_state=state).fit(numbers, y).fitted_.about["seed"])

    assert roots(None) == roots(0) == 0 and roots(np.int64(5)) == 5
    assert roots(np.random.RandomState(1)) == roots(np.random.RandomState(1)) != roots(np.random.RandomState(2))
    assert roots(np.random.default_rng(1)) == roots(np.random.default_rng(1)) > 0


@pytest.mark.slow
def test_fits_and_predictions_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise AssertionError("a process")

    for owner, name in ((os, "fork"), (os, "posix_spawn"), (subprocess, "Popen"), (BaseProcess, "start")):
        monkeypatch.setattr(owner, name, refused)
    for method in ("vbll", "deterministic", "boosting"):
        BayesianRegressor(method, pace=0.01).fit(NUMBERS, TARGETS).predict(NUMBERS)


def test_a_masked_value_is_a_gap() -> None:
    mask = np.zeros((60, 3), bool)
    mask[::7, 0] = True
    masked = np.ma.masked_array(np.where(mask, -999.0, NUMBERS), mask)
    gaps = np.where(mask, np.nan, NUMBERS)
    expected = BayesianRegressor("linear").fit(gaps, TARGETS)
    model = BayesianRegressor("linear").fit(masked, TARGETS)
    assert model.fitted_.columns == expected.fitted_.columns and model.fitted_.columns[0].missing
    np.testing.assert_array_equal(model.predict(masked), expected.predict(gaps))


def test_an_array_with_named_fields_is_read_as_a_frame() -> None:
    frame = pd.DataFrame(NUMBERS, columns=list("abc"))
    expected = BayesianRegressor("linear").fit(frame, TARGETS)
    for records in (frame.to_records(index=False), np.array(list(map(tuple, NUMBERS)), [(n, ">f8") for n in "abc"])):
        model = BayesianRegressor("linear").fit(records, TARGETS)
        assert model.feature_names_in_.tolist() == list("abc")
        np.testing.assert_array_equal(model.predict(records), expected.predict(frame))


@pytest.mark.parametrize("columns", [range(3), pd.MultiIndex.from_tuples([("p", "a"), ("p", "b"), ("q", "a")])])
def test_columns_with_names_that_are_not_text_are_matched_by_name(columns: Any) -> None:
    """scikit-learn compares names of columns only if all are texts, and would take all others by their places."""
    frame = pd.DataFrame(NUMBERS, columns=columns)
    model = BayesianRegressor("linear").fit(frame, TARGETS)
    np.testing.assert_array_equal(model.predict(frame.iloc[:, ::-1]), model.predict(frame))
    with pytest.raises(ValueError, match=r"X: must have the columns of fit by name, .*, got '5, 6, 7'"):
        model.predict(pd.DataFrame(NUMBERS, columns=[5, 6, 7]))


def test_targets_with_the_index_of_the_rows_in_another_order_give_a_warning() -> None:
    frame, y = pd.DataFrame(NUMBERS, columns=list("abc")), pd.Series(TARGETS)
    model = BayesianRegressor("linear").fit(frame, y)
    calls: dict[str, Any] = {
        "fit": lambda: BayesianRegressor("linear").fit(frame, y[::-1]),
        "score": lambda: model.score(frame, y[::-1]),
        "log_prob": lambda: model.log_prob(frame, y[::-1]),
        "compare": lambda: compare(frame, y[::-1], ["linear", "constant"], cv=2),
    }
    for call in calls.values():
        with pytest.warns(UserWarning, match=r"y: its index is that of X in another order.*pass y.loc\[X.index\]"):
            call()


def test_an_estimator_whose_fit_fails_stays_as_it_was() -> None:
    bad = np.full((60, 2), np.inf)
    for model, y, others in (
        (BayesianClassifier("linear"), np.where(HIGH, "high", "low"), np.array(["a", "b"] * 30)),
        (BayesianRegressor("linear"), TARGETS, np.stack([TARGETS, TARGETS], 1)),
    ):
        with pytest.raises(ValueError, match="X"):
            model.fit(bad, others)
        assert not hasattr(model, "n_features_in_")
        before = model.fit(NUMBERS, y).predict(NUMBERS)
        with pytest.raises(ValueError, match="X"):
            model.fit(bad, others)
        assert model.n_features_in_ == 3 and (model.predict(NUMBERS) == before).all()


@pytest.mark.parametrize(
    ("method", "override"),
    [("vbll", {}), pytest.param("bnn", {"draws": 3, "validation_draws": 2}, marks=pytest.mark.soak)],
)
def test_torchs_settings_of_the_users_code_do_not_reach_a_fit(method: str, override: dict[str, int]) -> None:
    def made() -> np.ndarray:
        return BayesianRegressor(method, override=override, pace=0.01).fit(NUMBERS, TARGETS).predict(NUMBERS)

    expected, mixed = made(), torch.autocast("cpu", dtype=torch.bfloat16)
    for mode in (mixed, torch.inference_mode(), float64_as_the_default()):
        with mode:
            before = torch.get_default_dtype()
            np.testing.assert_array_equal(made(), expected)
            assert torch.get_default_dtype() == before


def test_categories_of_polars_are_read_as_texts() -> None:
    """Their Arrow type is a dictionary of string views."""
    texts = ["u", "v", "w"] * 20
    views = pa.array(["u", "v", "w"]).cast(pa.string_view())
    views = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2] * 20, pa.uint32()), views)
    tables = [pa.table({"a": NUMBERS[:, 0], "c": column}) for column in (pa.array(texts), views)]
    plain, viewed = (BayesianRegressor("linear").fit(table, TARGETS).predict(table) for table in tables)
    np.testing.assert_array_equal(viewed, plain)


UNUSUAL_ARRAYS: dict[str, tuple[np.ndarray, str]] = {  # name -> values, kind of their column
    "months": (np.datetime64("2024-01") + np.arange(60) * 7 % 50, "date"),
    "hours": (np.datetime64("2024-01-01T07") + np.arange(60) * 7 % 50, "date"),
    "long doubles": (NUMBERS[:, 0].astype(np.longdouble), "number"),
    "texts of NumPy 2": (NUMBERS[:, 0].astype(str).astype(np.dtypes.StringDType()), "number"),
    "bytes of UTF-8": (np.array([text.encode() for text in ("é", "b", "c")] * 20), "category"),
}


@pytest.mark.parametrize(("values", "kind"), UNUSUAL_ARRAYS.values(), ids=UNUSUAL_ARRAYS)
def test_arrays_of_types_that_arrow_does_not_know_are_read(values: np.ndarray, kind: str) -> None:
    model = BayesianRegressor("linear").fit(values[:, None], TARGETS)
    assert [column.kind for column in model.fitted_.columns] == [kind]
    assert kind != "category" or "é" in model.fitted_.columns[0].values
    assert np.isfinite(model.predict(values[:, None])).all()


@pytest.mark.parametrize(
    "labels",
    [
        pa.array(HIGH.astype(int).astype(str)),
        pa.array(HIGH),
        pa.array(HIGH.astype(str)).dictionary_encode(),
        pa.chunked_array([pa.array(HIGH.astype(str))]),
        HIGH.astype(object),
        HIGH.astype(int).astype(object),
        pd.Series(HIGH.astype(int), dtype="Int64"),
        pd.Series(HIGH, dtype="boolean"),
        HIGH.astype(str).astype(np.dtypes.StringDType()),
    ],
)
def test_labels_of_other_types_and_libraries_give_the_same_classifier(labels: Any) -> None:
    expected = BayesianClassifier("linear").fit(NUMBERS, HIGH)
    model = BayesianClassifier("linear").fit(NUMBERS, labels)
    np.testing.assert_array_equal(model.predict_proba(NUMBERS), expected.predict_proba(NUMBERS))
    np.testing.assert_array_equal(model.log_prob(NUMBERS, labels), expected.log_prob(NUMBERS, HIGH))
    if not isinstance(labels, np.ndarray) or labels.dtype.kind != "T":  # scikit-learn's score takes no StringDType
        assert model.score(NUMBERS, labels) > 0.9
