"""A saved estimator is a student artifact: read back with the same bits, and read by the library's own reader."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bdl_pipe import ArtifactError, BayesianClassifier, BayesianRegressor, load_predictor, stored_address
from tests.tables import houses

FRAME = houses(120)
X = FRAME.drop(columns="price")


@pytest.mark.parametrize("conformal", [None, "split", "cross"])
def test_a_saved_regressor_is_read_back_with_the_same_predictions(conformal: str | None, tmp_path: Path) -> None:
    model = BayesianRegressor("linear", conformal=conformal, random_state=np.random.RandomState(0))
    model.fit(X, FRAME["price"]).save(tmp_path / "kept")
    again = BayesianRegressor.load(tmp_path / "kept")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.sample(X, 2), model.sample(X, 2))
    assert again.feature_names_in_.tolist() == model.feature_names_in_.tolist() == list(X.columns)
    assert again.get_params() == {**model.get_params(), "random_state": model.fitted_.about["seed"]}
    if conformal is not None:
        for ends in zip(
            again.predict_interval(X, conformal=True), model.predict_interval(X, conformal=True), strict=True
        ):
            np.testing.assert_array_equal(*ends)
    predictor = load_predictor(tmp_path / "kept")
    found = next(predictor.batches(model._rows(X), rng=stored_address(tmp_path / "kept")))[1]
    np.testing.assert_array_equal(found.mean[:, 0].numpy(), model.predict(X))
    assert (predictor.recalibration is not None) == (conformal == "split")


@pytest.mark.parametrize(
    "labels",
    [["a", "b"], [3, -1], [True, False], np.array(["x", "y"], object)],
    ids=["text", "whole", "truth", "object"],
)
def test_a_saved_classifier_is_read_back_with_the_same_predictions(labels: Any, tmp_path: Path) -> None:
    y = np.array(labels)[np.arange(120) % 2]
    model = BayesianClassifier("linear").fit(X, y)
    model.save(tmp_path / "kept")
    again = BayesianClassifier.load(tmp_path / "kept")
    assert again.classes_.dtype == model.classes_.dtype and again.classes_.tolist() == model.classes_.tolist()
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == {".json", ".safetensors"}  # nothing to unpickle


def test_an_incomplete_or_absent_folder_is_refused(tmp_path: Path) -> None:
    model = BayesianRegressor("linear").fit(X, FRAME["price"])
    model.save(tmp_path / "kept")
    (tmp_path / "kept" / "estimator.json").unlink()
    with pytest.raises(ArtifactError, match=r"estimator\.json: is missing"):
        BayesianRegressor.load(tmp_path / "kept")
    with pytest.raises(ArtifactError, match="there is no student artifact here"):
        BayesianRegressor.load(tmp_path / "nowhere")


@pytest.mark.slow
def test_equal_fits_are_saved_as_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        BayesianRegressor("map_blr", pace=0.05).fit(X, FRAME["price"]).save(tmp_path / name)
    files = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert files[0] == files[1]
