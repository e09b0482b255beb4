"""Weights of rows: whole numbers equal repeated rows, in closed forms, trees, and a network's whole trajectory.

The oracle is the unweighted fit of repeated rows. Weights that the fit ignores are the wrong variant, which must fail.
"""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.validation import has_fit_parameter

from bdl_pipe import METHODS, BayesianRegressor, read_config
from bdl_pipe.artifacts import State
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.normalise import fit_transform
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed

RANDOM = np.random.default_rng(0)
ROWS = {"inputs", "targets", "weights"}  # tensors of a process's state
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
    """Return the largest difference between the states' numbers, or between the predictions of states with rows."""
    a, b = ({k: v for k, v in state.tensors.items() if k not in ROWS} for state in (one, other))
    if len(a) < len(one.tensors):
        drawn = [posterior_of(state).predict(torch.tensor(X).float()) for state in (one, other)]
        a, b = ({**of, "mean": p.mean, "variance": p.variance} for of, p in zip((a, b), drawn, strict=True))
    assert a.keys() == b.keys()
    return max(float((value.double() - b[name]).abs().max()) for name, value in a.items())


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


STUDENT = TRAINING | {"variance_floor": 0.01, "tails": "student"}
CASES = [("linear", {}, 1e-8), ("constant", {}, 1e-8), ("sgd", TRAINING, 2e-5), ("sgd", STUDENT, 2e-4)]
NETWORK = TRAINING["network"]
FIT: dict[str, Any] = {
    "network": NETWORK,
    "training": {k: v for k, v in TRAINING.items() if k not in ("network", "snapshots")}
    | {"optimiser": {"name": "sgd", "lr": 0.03}},
}
OF_CLASSES = FIT | {"training": FIT["training"] | {"noise": "training"}}
LAYER = {"covariance": "dense", "rank": None, "prior_variance": 1.0, "kl_weight": 0.5}
LAYER |= {"wishart_dof": 2.0, "wishart_scale": 1.0}
DENSITIES = {"dirichlet": 1.0, "prior_variance": 1.0, "wishart_dof": 8.0, "wishart_scale": 1.0, "kl_weight": 0.5}
EVIDENCE: dict[str, Any] = {
    "network": NETWORK,
    "epochs": 6,
    "optimiser": {"name": "adam", "lr": 0.03},
    "early_stopping": {"every": 2, "patience": None},
    "prior_variance": 1.0,
    "noise_variance": None,
}
LATENT = {"derivative_variance": None, "weight": 0.1, "derivative_rows": None}
LEAKY = {"network": NETWORK | {"activation": "leaky_relu"}}


def layer(**changes: object) -> dict[str, Any]:
    return {"layer": LAYER | changes}


OF_ONE_TASK: list[tuple[str, str, dict[str, Any], float]] = [
    ("regression", "gp", {"ard": True, "steps": 12, "lr": 0.1}, 1e-9),
    ("regression", "map_blr", FIT | {"noise_variance": 0.1}, 1e-5),
    ("regression", "ldgbll", EVIDENCE | LATENT | LEAKY | {"noise": "each input"}, 1e-5),
    ("regression", "vbll", FIT | layer(noise="each input", posterior="exact"), 1e-4),
    ("regression", "vbll", FIT | layer(noise_posterior="conjugate", posterior="exact"), 1e-5),
    ("classification", "d_vbll", OF_CLASSES | layer(covariance="diagonal"), 1e-5),
    ("classification", "d_vbll", OF_CLASSES | layer(covariance="full", predictive="sampled", bound="tilted"), 1e-5),
    ("classification", "g_vbll", OF_CLASSES | {"layer": DENSITIES | {"posterior": "exact", "refit": True}}, 1e-5),
]


@pytest.mark.parametrize(
    ("task", "method", "settings", "tolerance"), [*((task, *case) for task in TARGETS for case in CASES), *OF_ONE_TASK]
)
def test_whole_weights_equal_repeated_rows(method: str, settings: Any, tolerance: float, task: str) -> None:
    if task == "classification" and settings is STUDENT:
        settings = TRAINING | {"noise": "training", "epochs": 3}
    weighted, repeated, plain = (fit(task, method, how, settings) for how in ("weighted", "repeated", "plain"))
    assert weighted.config.get("epochs") == repeated.config.get("epochs")
    if method == "linear" and task == "classification":
        tolerance = 1e-4  # of scikit-learn's L-BFGS
    assert apart(weighted, repeated) < tolerance < 30 * tolerance < apart(weighted, plain)


@pytest.mark.parametrize(("task", "noise"), [("regression", "student"), ("classification", "one")])
def test_whole_weights_of_trees_equal_repeated_rows_on_the_same_folds(task: str, noise: str) -> None:
    """Each value of the column has enough rows for a leaf, whose least number of rows does not count weights."""
    random, count = np.random.default_rng(1), 180
    x, times = random.integers(0, 3, (count, 1)).astype(float), random.integers(1, 4, count)
    y = x + 0.3 * (1 + x) * random.normal(size=(count, 1))
    y = y if task == "regression" else (y[:, 0] > 1).astype(np.int64)
    classes = () if task == "regression" else ("no", "yes")
    transform = fit_transform(x, y, kind="table", normalise="none", whiten=False)
    config = {"rounds": 12, "learning_rate": 0.3, "leaves": 3, "folds": 2, "noise": noise}
    predictions = []
    for index, weights in (
        (np.arange(count), times.astype(float)),
        (np.arange(count).repeat(times), None),
        (np.arange(count), None),
    ):
        rows = Examples(x[index], y[index], index % 2, weights)
        data = FitData(task, rows, Examples(x[:0], y[:0]), transform, classes)  # type: ignore[arg-type]
        (stage,) = METHODS["boosting"].stages.values()
        settings = read_config(METHODS["boosting"].config, config, "settings")
        state = stage.fit_one(data, {}, settings, rng=Seed(1), report=Silent())
        predictive = posterior_of(state).predict(torch.arange(3.0)[:, None])
        predictions.append(predictive.mean if classes else torch.cat([predictive.mean, predictive.variance]))
    weighted, repeated, plain = predictions
    assert (weighted - repeated).abs().max() < 1e-6 < 1e-2 < (weighted - plain).abs().max()


def test_rows_of_weight_zero_are_left_out_and_only_methods_that_weigh_rows_have_the_parameter() -> None:
    y, weights = TARGETS["regression"][:, 0], np.where(np.arange(40) % 4 == 0, 0.0, 1.0)
    weighted = BayesianRegressor("linear").fit(X, y, sample_weight=weights)
    kept = BayesianRegressor("linear").fit(X[weights > 0], y[weights > 0])
    np.testing.assert_allclose(weighted.predict(X), kept.predict(X), rtol=1e-12)
    assert has_fit_parameter(BayesianRegressor("linear"), "sample_weight")
    assert not has_fit_parameter(BayesianRegressor("svgp"), "sample_weight")


def test_an_estimator_passes_its_weights_on() -> None:
    """Its columns are scaled without weights, so that the fit of repeated rows is near and not equal."""
    y, model = TARGETS["regression"][:, 0], BayesianRegressor("linear")
    weighted, plain = model.fit(X, y, sample_weight=10.0 ** (TIMES - 1)).predict(X), model.fit(X, y).predict(X)
    index = np.arange(40).repeat(10 ** (TIMES - 1))
    repeated = model.fit(X[index], y[index]).predict(X)
    assert np.abs(weighted - repeated).max() < 0.3 * np.abs(plain - repeated).max()


def test_weights_that_count_fewer_rows_than_a_fit_needs_get_a_warning() -> None:
    y = TARGETS["regression"][:, 0]
    with pytest.warns(UserWarning, match=r"^sample_weight: all rows together count as 1 rows: .* by their mean$"):
        BayesianRegressor("linear").fit(X, y, sample_weight=np.full(40, 1 / 40))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BayesianRegressor("linear").fit(X, y, sample_weight=np.full(40, 0.25))
        heavy = BayesianRegressor("linear").fit(X, y, sample_weight=np.full(40, 1e30))
    with pytest.warns(UserWarning, match="^sample_weight: "):
        light = BayesianRegressor("linear").fit(X, y, sample_weight=np.full(40, 1e-30))
    for fitted in (heavy, light):
        mean, std = fitted.predict(X, return_std=True)
        assert np.isfinite(mean).all() and np.isfinite(std).all()
