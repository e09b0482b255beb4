"""Weights of rows: whole numbers equal repeated rows, in closed forms and along a network's whole trajectory.

The oracle is the unweighted fit of repeated rows. Weights that the fit ignores are the wrong variant, which must fail.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.utils.validation import has_fit_parameter

from bdl_pipe import METHODS, BayesianRegressor, read_config
from bdl_pipe.artifacts import State
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.normalise import fit_transform
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 3))
TARGETS: dict[str, np.ndarray] = {
    "regression": X[:, :2] + 0.5 * RANDOM.normal(size=(40, 2)),
    "classification": (X[:, 0] + RANDOM.normal(size=40) > 0).astype(np.int64),
}
TIMES = RANDOM.integers(1, 4, 40)
TRAINING: dict[str, Any] = {
    "network": {"name": "mlp", "hidden": [4]},
    "epochs": 8,
    "snapshots": 1,
    "batch": 200,  # one step an epoch of all rows, so that the order of rows changes only roundings
    "optimiser": {"name": "sgd", "lr": 0.1},
    "early_stopping": {"every": 1, "patience": None},
    "noise": "validation",
}


def apart(one: State, other: State) -> float:
    """Return the largest difference between the states' numbers."""
    assert one.tensors.keys() == other.tensors.keys()
    return max(float((value.double() - other.tensors[name]).abs().max()) for name, value in one.tensors.items())


def fit(task: str, method: str, how: str, settings: dict[str, Any]) -> State:
    """Fit 30 training and 10 validation rows that are weighted, repeated, or neither."""
    y = TARGETS[task]

    def rows(part: slice) -> Examples:
        index = np.arange(40)[part]
        index = index.repeat(TIMES[index]) if how == "repeated" else index
        return Examples(X[index], y[index], weights=TIMES[index].astype(float) if how == "weighted" else None)

    transform = fit_transform(X, y, kind="table", normalise="train", whiten=False)
    classes = () if task == "regression" else ("no", "yes")
    search = FitData(task, rows(slice(30)), rows(slice(30, 40)), transform, classes)  # type: ignore[arg-type]
    data = replace(search, train=rows(slice(40)), validation=rows(slice(0)), search=search)
    (stage,) = METHODS[method].stages.values()
    config = read_config(METHODS[method].config, settings, "settings")
    return stage.fit_one(data, {}, config, rng=Seed(1), report=Silent())


CASES = [("linear", {}, 1e-8), ("constant", {}, 1e-8), ("sgd", TRAINING, 2e-5)]
STUDENT = TRAINING | {"variance_floor": 0.01, "tails": "student"}


@pytest.mark.parametrize("task", TARGETS)
@pytest.mark.parametrize(("method", "settings", "tolerance"), [*CASES, ("sgd", STUDENT, 2e-4)])
def test_whole_weights_equal_repeated_rows(method: str, settings: Any, tolerance: float, task: str) -> None:
    if task == "classification" and settings is STUDENT:
        settings = TRAINING | {"noise": "training", "epochs": 3}
    weighted, repeated, plain = (fit(task, method, how, settings) for how in ("weighted", "repeated", "plain"))
    assert weighted.config.get("epochs") == repeated.config.get("epochs")
    if method == "linear" and task == "classification":
        tolerance = 1e-4  # of scikit-learn's L-BFGS
    assert apart(weighted, repeated) < tolerance < 30 * tolerance < apart(weighted, plain)


def test_rows_of_weight_zero_are_left_out_and_only_methods_that_weigh_rows_have_the_parameter() -> None:
    y, weights = TARGETS["regression"][:, 0], np.where(np.arange(40) % 4 == 0, 0.0, 1.0)
    weighted = BayesianRegressor("linear").fit(X, y, sample_weight=weights)
    kept = BayesianRegressor("linear").fit(X[weights > 0], y[weights > 0])
    np.testing.assert_allclose(weighted.predict(X), kept.predict(X), rtol=1e-12)
    assert has_fit_parameter(BayesianRegressor("linear"), "sample_weight")
    assert not has_fit_parameter(BayesianRegressor("gp"), "sample_weight")


def test_an_estimator_passes_its_weights_on() -> None:
    """Its columns are scaled without weights, so that the fit of repeated rows is near and not equal."""
    y, model = TARGETS["regression"][:, 0], BayesianRegressor("linear")
    weighted, plain = model.fit(X, y, sample_weight=10.0 ** (TIMES - 1)).predict(X), model.fit(X, y).predict(X)
    index = np.arange(40).repeat(10 ** (TIMES - 1))
    repeated = model.fit(X[index], y[index]).predict(X)
    assert np.abs(weighted - repeated).max() < 0.3 * np.abs(plain - repeated).max()
