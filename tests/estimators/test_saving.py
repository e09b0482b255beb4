"""A saved estimator has the same bits; ``made_from_`` has the states that a posterior is made from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bdl_pipe import ArtifactError, BayesianClassifier, BayesianRegressor, load_predictor, stored_address
from bdl_pipe.fitting import FittedRuns
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
        np.testing.assert_array_equal(again.predict_interval(X), model.predict_interval(X, conformal=True))
        assert not np.array_equal(model.predict_interval(X), model.predict_interval(X, conformal=False))
    predictor = load_predictor(tmp_path / "kept")
    predictive = next(predictor.batches(model._rows(X), rng=stored_address(tmp_path / "kept")))[1]
    np.testing.assert_array_equal(predictive.mean[:, 0].numpy(), model.predict(X))
    assert (predictor.recalibration is not None) == (conformal == "split")


@pytest.mark.parametrize("labels", [["a", "b"], [3, -1], [True, False], np.array(["x", "y"], object)], ids=str)
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
    with pytest.raises(ArtifactError, match="must be of a BayesianClassifier, got 'BayesianRegressor'"):
        BayesianClassifier.load(tmp_path / "kept")
    (tmp_path / "kept" / "estimator.json").unlink()
    with pytest.raises(ArtifactError, match=r"estimator\.json: is missing"):
        BayesianRegressor.load(tmp_path / "kept")
    with pytest.raises(ArtifactError, match="there is no student artifact here"):
        BayesianRegressor.load(tmp_path / "nowhere")


def test_equal_fits_are_saved_as_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        BayesianRegressor("linear").fit(X, FRAME["price"]).save(tmp_path / name)
    files = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert files[0] == files[1]


RANDOM = np.random.default_rng(0)
NUMBERS = RANDOM.normal(size=(60, 3))
TARGETS = NUMBERS[:, 0] + 0.1 * RANDOM.normal(size=60)
PACE = 0.01


def test_made_from_holds_the_images_of_a_coreset() -> None:
    images = RANDOM.integers(0, 256, (40, 8, 8)).astype(np.uint8)
    model = BayesianClassifier("random_coreset", pace=PACE, upstream={"random_coreset": {"ipc": 2}})
    model.fit(images, np.arange(40) % 2)
    (state,) = model.made_from_["random_coreset"]
    raw = (255 * state.tensors["raw"][:, 0]).round().numpy().astype(np.uint8)
    assert raw.shape == (4, 8, 8)
    assert all((image == images).all((1, 2)).any() for image in raw)


def test_made_from_is_empty_for_a_method_of_the_data_alone_and_after_loading(tmp_path: Path) -> None:
    assert BayesianRegressor("linear").fit(NUMBERS, TARGETS).made_from_ == {}
    model = BayesianRegressor("deterministic", pace=PACE).fit(NUMBERS, TARGETS)
    assert model.made_from_.keys() == {"sgd"}
    model.save(tmp_path / "kept")
    assert BayesianRegressor.load(tmp_path / "kept").made_from_ == {}


def test_made_from_has_no_runs_of_other_methods_on_the_same_folds() -> None:
    """``compare`` hands one store of runs to all methods; each takes its own runs out of it."""
    fits: dict[int, FittedRuns] = {}
    for method, expected in (("deterministic", {"sgd"}), ("swa", {"iterates"}), ("linear", set())):
        model = BayesianRegressor(method, pace=PACE)
        model._fit(NUMBERS, np.asarray(TARGETS), fits)
        assert model.made_from_.keys() == expected
    assert len(fits[0]) == 5
