"""``made_from_`` has the states that a posterior is made from, as the pipeline would store them."""

from pathlib import Path

import numpy as np
import torch

from bdl_pipe import BayesianClassifier, BayesianRegressor, compare
from bdl_pipe.fitting import FittedRuns

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 3))
Y = X[:, 0] + 0.1 * RANDOM.normal(size=60)
PACE = 0.01


def test_an_ensemble_is_made_from_its_networks() -> None:
    model = BayesianRegressor("ensemble", pace=PACE).fit(X, Y)
    assert {run: len(states) for run, states in model.made_from_.items()} == {"sgd": 3}
    ensemble = model.fitted_.parts[0].posterior.tensors
    for number, state in enumerate(model.made_from_["sgd"]):
        for name, weight in state.tensors.items():
            torch.testing.assert_close(ensemble[name][number], weight[-1])


def test_made_from_holds_the_images_of_a_coreset() -> None:
    images = RANDOM.integers(0, 256, (40, 8, 8)).astype(np.uint8)
    model = BayesianClassifier("random_coreset", pace=PACE, upstream={"random_coreset": {"ipc": 2}})
    model.fit(images, np.arange(40) % 2)
    (state,) = model.made_from_["random_coreset"]
    raw = (255 * state.tensors["raw"][:, 0]).round().numpy().astype(np.uint8)
    assert raw.shape == (4, 8, 8)
    assert all((image == images).all((1, 2)).any() for image in raw)


def test_made_from_is_empty_for_a_method_of_the_data_alone_and_after_loading(tmp_path: Path) -> None:
    assert BayesianRegressor("linear").fit(X, Y).made_from_ == {}
    model = BayesianRegressor("deterministic", pace=PACE).fit(X, Y)
    assert model.made_from_.keys() == {"sgd"}
    model.save(tmp_path / "kept")
    assert BayesianRegressor.load(tmp_path / "kept").made_from_ == {}


def test_made_from_has_no_runs_of_other_methods_on_the_same_folds() -> None:
    """``compare`` hands one store of runs to all methods; each takes its own runs out of it."""
    made: dict[int, FittedRuns] = {}
    for method, expected in (("deterministic", {"sgd"}), ("swa", {"iterates"}), ("linear", set())):
        model = BayesianRegressor(method, pace=PACE)
        model._fit(X, np.asarray(Y), made)
        assert model.made_from_.keys() == expected
    assert len(made[0]) == 5
    assert compare(X, Y, ["deterministic", "linear"], cv=2, pace=PACE).verdict
