"""Bad input: the kind of error that scikit-learn's users expect, with the rule and the value."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from bdl_pipe import BayesianClassifier, BayesianRegressor, compare
from tests.case_files import cases_of

cases = cases_of(__file__)

X = np.random.default_rng(0).normal(size=(60, 3))
Y = X[:, 0] + 0.1 * X[:, 1] ** 2
LABELS = np.where(Y > 0, "up", "down")
REGRESSOR, CLASSIFIER = BayesianRegressor("linear"), BayesianClassifier("linear")


FRAME = pd.DataFrame(X, columns=list("abc"))


def holed(values: Any, row: int, value: Any) -> Any:
    changed = np.array(values)
    changed[row] = value
    return changed


def value_of(text: str, **names: Any) -> Any:
    """Evaluate an expression of the file of cases."""
    return eval(text, {**globals(), "scipy": scipy, **names})


class ArrowColumn:
    """A column that other packages read by Arrow's interface alone, as a Series of polars is."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.chunked_array([[1.0, 2.0]]).__arrow_c_stream__(requested_schema)


@cases("rows and targets", "model x y message")
def test_a_fit_refuses_invalid_rows_and_targets(model: str, x: str, y: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):  # TypeError: scikit-learn's for sparse rows
        value_of(model).fit(value_of(x), value_of(y))


@cases("parameters", "parameters message")
def test_a_fit_refuses_invalid_parameters(parameters: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BayesianRegressor(**{"method": "linear", **value_of(parameters)}).fit(X, Y)


@pytest.mark.parametrize("model", [REGRESSOR, CLASSIFIER])
def test_an_estimator_that_is_not_fitted_raises_not_fitted_error(model: Any) -> None:
    asks = [model.predict, model.predict_dist, model.sample, model.joint, lambda x: model.log_prob(x, Y)]
    asks += [model.predict_proba, model.predict_set] if model is CLASSIFIER else [model.predict_interval]
    for ask in [*asks, lambda x: model.save("nowhere")]:
        with pytest.raises(NotFittedError):
            ask(X)


@pytest.fixture(scope="module")
def fitted() -> dict[str, Any]:
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)
    return {
        "model": BayesianRegressor("linear").fit(FRAME, Y),
        "of_images": BayesianClassifier("boosting", override={"rounds": 2}).fit(images, LABELS),
        "of_classes": BayesianClassifier("linear").fit(X, LABELS),
    }


@cases("calls", "call message")
def test_a_fitted_estimator_refuses_other_columns_shapes_and_invalid_arguments(
    call: str, message: str, fitted: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=message), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an array after a frame: scikit-learn warns first
        value_of(call, **fitted)


@cases("comparisons", "methods options message")
def test_a_comparison_refuses_invalid_methods_folds_and_tasks(methods: str, options: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(X, Y, value_of(methods), **value_of(options))
