"""Rows in memory mean what they mean in a file that ``add`` takes."""

import os
import subprocess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bdl_pipe import BayesianClassifier, BayesianRegressor
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.estimators import given
from tests.tables import houses

FRAME = houses(120)
X, Y = FRAME.drop(columns="price"), FRAME["price"]


def arrow() -> pa.Table:
    return pa.Table.from_pandas(X, preserve_index=False)


def polars() -> Any:
    return pytest.importorskip("polars").from_arrow(arrow())


def test_a_frame_is_read_as_the_file_that_it_is_written_to(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "houses.csv", index=False)
    of_file = inspect_table(tmp_path / "houses.csv", ["price"])
    targets = given.Targets(Y.to_numpy()[:, None])
    of_frame = given.table_profile(given.table_of(X), targets, None, numbers=False)
    assert dict(of_frame.columns) == dict(of_file.columns)
    assert of_frame.raw.columns == of_file.raw.columns
    np.testing.assert_array_equal(of_frame.raw.train.inputs, of_file.raw.train.inputs)
    assert of_frame.shape == of_file.shape and of_frame.left_out == of_file.left_out
    assert of_frame.dataset() | {"source": 0} == of_file.dataset() | {"source": 0}


@pytest.mark.parametrize("make", [arrow, lambda: arrow().to_batches()[0], polars], ids=["table", "batch", "polars"])
def test_tables_of_other_libraries_are_those_of_pandas(make: Any) -> None:
    expected = BayesianRegressor("linear").fit(X, Y)
    table = make()
    model = BayesianRegressor("linear").fit(table, pa.array(Y))
    assert model.feature_names_in_.tolist() == list(X.columns)
    np.testing.assert_array_equal(model.predict(table), expected.predict(X))
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))


def test_arrays_of_any_type_and_order_are_numbers() -> None:
    numbers = np.random.default_rng(0).integers(-9, 9, (60, 3)).astype(float)
    y = numbers @ [1.0, 2.0, 3.0] + np.random.default_rng(1).normal(size=60)
    expected = BayesianRegressor("linear").fit(numbers, y).predict(numbers)
    for other in (
        numbers.astype(np.int64),
        numbers.astype(">f4"),
        np.asfortranarray(numbers),
        numbers.tolist(),
        numbers.astype(object),
        numbers.astype(str),
    ):
        np.testing.assert_array_equal(BayesianRegressor("linear").fit(other, y).predict(other), expected)


def test_an_array_keeps_a_column_that_counts_the_rows_and_a_frame_does_not() -> None:
    counted = np.stack([np.arange(60.0), np.random.default_rng(0).normal(size=60)], axis=1)
    y = counted.sum(axis=1)
    assert BayesianRegressor("linear").fit(counted, y).left_out_ == {}
    with pytest.warns(UserWarning, match="left out: column a: it counts the rows"):
        model = BayesianRegressor("linear").fit(pd.DataFrame(counted, columns=["a", "b"]), y)
    assert model.left_out_ == {"a": "it counts the rows"} and model.n_features_in_ == 2
    said = BayesianRegressor("linear", columns={"a": "number"})
    assert said.fit(pd.DataFrame(counted, columns=["a", "b"]), y).left_out_ == {}


def test_what_a_column_is_can_be_said() -> None:
    model = BayesianRegressor("linear", columns={"rooms": "category"}).fit(X, Y)
    (rooms,) = (column for column in model.fitted_.columns if column.name == "rooms")
    assert rooms.kind == "category" and rooms.values == ("1", "2", "3", "4", "5", "6") and rooms.missing


def test_a_gap_and_a_category_that_fit_did_not_have_are_taken_with_a_warning() -> None:
    model = BayesianRegressor("linear").fit(X, Y)
    holed = X.astype({"area": float}).copy()
    holed.loc[3, "area"] = np.nan
    with pytest.warns(UserWarning, match="area: a gap in 1 rows, but fit had no gaps: taken as the median of fit"):
        found = model.predict(holed)
    filled = holed.assign(area=holed["area"].fillna(float(model.fitted_.predictor().transform.encoding.medians[0])))
    np.testing.assert_array_equal(found, model.predict(filled))
    with pytest.warns(UserWarning, match="made_of: a category that the fitted file did not have, in 120 rows"):
        model.predict(X.assign(made_of="straw"))


def test_several_outputs_and_both_shapes_of_one() -> None:
    numbers = np.random.default_rng(0).normal(size=(60, 2))
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
def test_images_have_their_channels_anywhere(last: bool) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = (random.integers(0, 80, (60, 3, 8, 8)) + 100 * labels[:, None, None, None]).astype(np.uint8)
    model = BayesianClassifier("ensemble", pace=0.05).fit(images.transpose(0, 2, 3, 1) if last else images, labels)
    assert model.fitted_.schema["input_shape"] == [3, 8, 8]
    np.testing.assert_array_equal(model.predict_proba(images), model.predict_proba(images.transpose(0, 2, 3, 1)))
    assert model.score(images.astype(np.int64), labels) > 0.9


def test_labels_keep_their_type() -> None:
    numbers = np.random.default_rng(0).normal(size=(60, 2))
    for labels in (
        np.where(numbers[:, 0] > 0, 7, -3),
        np.where(numbers[:, 0] > 0, "b", "a"),
        numbers[:, 0] > 0,
        pd.Series(np.where(numbers[:, 0] > 0, "b", "a"), dtype="category"),
        np.where(numbers[:, 0] > 0, "b", "a").astype(object),
    ):
        model = BayesianClassifier("linear").fit(numbers, labels)
        assert model.classes_.tolist() == sorted(set(np.asarray(labels).tolist()))
        assert model.predict(numbers).dtype == model.classes_.dtype == np.asarray(labels).dtype
        assert set(model.sample(numbers, 2).ravel().tolist()) <= set(model.classes_.tolist())


def test_generators_and_numbers_are_addresses() -> None:
    numbers = np.random.default_rng(0).normal(size=(60, 2))
    y = numbers[:, 0] ** 2

    def roots(state: Any) -> int:
        return int(BayesianRegressor("constant", random_state=state).fit(numbers, y).fitted_.about["seed"])

    assert roots(None) == roots(0) == 0 and roots(np.int64(5)) == 5
    assert roots(np.random.RandomState(1)) == roots(np.random.RandomState(1)) != roots(np.random.RandomState(2))
    assert roots(np.random.default_rng(1)) == roots(np.random.default_rng(1)) > 0


@pytest.mark.slow
def test_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise AssertionError("a process")

    for owner, name in ((os, "fork"), (os, "posix_spawn"), (subprocess, "Popen"), (BaseProcess, "start")):
        monkeypatch.setattr(owner, name, refused)
    numbers = np.random.default_rng(0).normal(size=(60, 2))
    for method in ("vbll", "ensemble", "boosting"):
        BayesianRegressor(method, pace=0.01).fit(numbers, numbers[:, 0]).predict(numbers)
