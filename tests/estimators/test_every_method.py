"""Every method of the registry that has a posterior fits and predicts behind an estimator, on a table or on images.

To several threads at once it gives the answers of one thread, and so does a copy by pickle.
"""

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet

from bdl_pipe import METHODS, BayesianClassifier, BayesianRegressor
from bdl_pipe.data.size import Size
from tests.case_files import sections_of
from tests.threads import assert_same_wherever

PACE: Final = 0.01
SETTINGS: Final = sections_of(__file__)
STUDENTS: Final = [name for name in METHODS if "student" in METHODS[name].stages]


# tests/test_conformance.py fits every method. In make test a method of each kind of input runs behind an estimator:
# data alone, one trajectory, several trajectories, chains, a coreset, a teacher.
BOTH: Final = {"swag", "boosting", "linear", "constant", "dark_knowledge"}
IN_TEST: Final = {
    "regression": {*BOTH, "gp", "ciber_last"},
    "classification": {*BOTH, "ensemble", "sgmcmc", "vbpc", "coreset_vi"},
}
IN_THREADS: Final = {"linear"}  # in make test, where tests/test_conformance.py asks each posterior; all in make soak


def names(task: str, quick: Collection[str]) -> list[ParameterSet]:
    chosen = [name for name in STUDENTS if task in METHODS[name].tasks]
    return [pytest.param(name, marks=[pytest.mark.soak] * (name not in quick)) for name in chosen]


def regressor(name: str) -> tuple[BayesianRegressor, np.ndarray, np.ndarray]:
    """Return a fitted model, its rows and its targets."""
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 3))
    y = 20 + x[:, 0] + 0.3 * random.normal(size=60)
    return BayesianRegressor(name, override=SETTINGS["override"].get(name), pace=PACE).fit(x, y), x, y


@pytest.mark.slow
@pytest.mark.parametrize("name", names("regression", IN_TEST["regression"]))
def test_a_regressor_of_every_method_fits_and_predicts(name: str) -> None:
    model, x, y = regressor(name)
    x, y = x[:5], y[:5]
    means, (low, high) = model.predict(x), model.predict_interval(x)
    assert means.shape == low.shape == high.shape == (5,)
    assert np.isfinite([means, low, high, model.log_prob(x, y)]).all() and (low < high).all()
    assert np.isfinite(model.sample(x, 2)).all() and np.abs(means - 20).max() < 15


def classifier(name: str) -> tuple[BayesianClassifier, np.ndarray, np.ndarray]:
    """Return a fitted model, its rows or images, and its labels."""
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    x: np.ndarray = random.normal(size=(60, 3)) + labels[:, None]
    default = METHODS[name].default
    images = name.startswith("coreset") or (
        default and not default.suits(Size("classification", 2_000, 3, has_test=True))
    )
    if images:
        x = (random.integers(0, 100, (60, 8, 8)) + 100 * labels[:, None, None] * (np.arange(8) % 2)).astype(np.uint8)
    coreset = "vbpc" if name.startswith("coreset") else name
    upstream = {coreset: SETTINGS["upstream"][coreset]} if coreset in SETTINGS["upstream"] else None
    model = BayesianClassifier(name, override=SETTINGS["override"].get(name), upstream=upstream, pace=PACE)
    return model.fit(x, labels), x, labels


@pytest.mark.slow
@pytest.mark.parametrize("name", names("classification", IN_TEST["classification"]))
def test_a_classifier_of_every_method_fits_and_predicts(name: str) -> None:
    model, x, labels = classifier(name)
    probabilities = model.predict_proba(x)
    assert probabilities.shape == (60, 2) and np.isfinite(probabilities).all()
    assert probabilities.sum(1) == pytest.approx(1, abs=1e-5) and model.predict_set(x).any(1).all()
    of_labels = np.log(probabilities[np.arange(60), labels])
    assert model.log_prob(x, labels) == pytest.approx(of_labels, rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", names("regression", IN_THREADS))
def test_a_regressor_gives_eight_threads_and_a_copy_the_answers_of_one_thread(name: str) -> None:
    model, x, _ = regressor(name)

    def ask(model: BayesianRegressor, x: np.ndarray) -> list[Any]:
        predictive, joint = model.predict_dist(x), model.joint(x, draws=4)
        values = predictive.mean, predictive.variance, joint.log_prob(torch.full((1, len(x), 1), 20.0))
        return [model.predict(x), *model.predict_interval(x), model.sample(x, 2), *values]

    assert_same_wherever(model, ask, x)
