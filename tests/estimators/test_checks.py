"""scikit-learn's own checks of an estimator, and its tools: clone, searches, pipelines, cross-validation, pickles."""

import re
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bdl_pipe import BayesianClassifier, BayesianRegressor

FAST: Final = [BayesianRegressor("linear"), BayesianClassifier("linear")]
OF_NETWORKS: Final = r"check_((classifiers|regressors)_train|fit_idempotent|methods_(sample_order|subset)_invariance)"
BLIND: Final = [BayesianRegressor("constant"), BayesianClassifier("constant")]  # with the tag poor_score
SHORT: Final = {"training": {"epochs": 20, "early_stopping": None}}
NETWORKS: Final = [BayesianRegressor("map_blr", override=SHORT), BayesianClassifier("d_vbll", override=SHORT)]


def failing(estimator: Any) -> dict[str, str]:
    """The check that all fail, and why."""
    why = "has 9 rows of a weight above 0, and a fit needs 10; with 9, quartiles without weights scale the columns"
    return {"check_sample_weight_equivalence_on_dense_data": why}


def some(checks: pytest.MarkDecorator, in_test: str) -> pytest.MarkDecorator:
    """Run in soak all checks whose names do not match."""

    def marked(case: Any) -> ParameterSet:
        values, marks = (case.values, case.marks) if isinstance(case, ParameterSet) else (case, ())
        match = re.fullmatch(in_test, named(values[1]))
        return pytest.param(*values, marks=[*marks, *[pytest.mark.soak] * (match is None)])

    def named(check: Any) -> str:
        return str(checks.kwargs["ids"](check))

    arguments, cases = checks.args
    return pytest.mark.parametrize(arguments, list(map(marked, cases)), **checks.kwargs)


@some(
    parametrize_with_checks(FAST, expected_failed_checks=failing), "check_(?!array_api_input).*"
)  # it needs a setting
def test_a_linear_estimator_passes_a_check_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    run(estimator, check)


@pytest.mark.slow
@some(parametrize_with_checks([*NETWORKS, *BLIND], expected_failed_checks=failing), OF_NETWORKS)
def test_an_estimator_passes_a_check_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    run(estimator, check)


def run(estimator: Any, check: Callable[[Any], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def rows(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(count, 3))
    return x, x[:, 0] - 2 * x[:, 1] + 0.3 * random.normal(size=count)


def test_scikit_learns_tools_work_with_the_estimators() -> None:
    x, y = rows()
    assert cross_val_score(BayesianRegressor("linear"), x, y, cv=3).mean() > 0.9
    assert cross_val_score(BayesianClassifier("linear"), x, y > 0, cv=3, scoring="neg_log_loss").mean() > -0.6
    piped = make_pipeline(StandardScaler(), BayesianRegressor("linear")).fit(x, y)
    assert piped.score(x, y) > 0.9


def test_a_grid_search_sets_single_keys_of_override() -> None:
    x, y = rows()
    base = BayesianRegressor("map_blr", override={"training": {"epochs": 2, "early_stopping": None}})
    grid = {"override__training__epochs": [1, 40], "override__noise_variance": [0.1]}
    search = GridSearchCV(base, grid, cv=2).fit(x, y)
    assert search.best_params_["override__training__epochs"] == 40
    chosen = search.best_estimator_.override
    assert chosen == {"training": {"epochs": 40, "early_stopping": None}, "noise_variance": 0.1}
    assert base.override == {"training": {"epochs": 2, "early_stopping": None}}  # the search did not change it
