"""Bad input: the kind of error that scikit-learn's users expect, with the rule and the value."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from bdl_pipe import BayesianClassifier, BayesianRegressor, compare
from bdl_pipe.errors import ArtifactError

X = np.random.default_rng(0).normal(size=(60, 3))
Y = X[:, 0] + 0.1 * X[:, 1] ** 2
LABELS = np.where(Y > 0, "up", "down")
REGRESSOR, CLASSIFIER = BayesianRegressor("linear"), BayesianClassifier("linear")


def holed(values: Any, row: int, value: Any) -> Any:
    found = np.array(values)
    found[row] = value
    return found


@pytest.mark.parametrize(
    ("model", "x", "y", "said"),
    [
        (REGRESSOR, X, Y[:-1], r"y: must have as many rows as X \(60\), got 59"),
        (CLASSIFIER, X, LABELS[:-1], r"y: must have as many rows as X \(60\), got 59"),
        (REGRESSOR, X, holed(Y, 2, np.nan), "y: must be finite in every row, got nan in row 3"),
        (REGRESSOR, X, holed(Y, 2, np.inf), "y: must be finite in every row, got inf in row 3"),
        (CLASSIFIER, X, holed(LABELS.astype(object), 2, None), "y: must have a class in every row, got None in row 3"),
        (CLASSIFIER, X, pd.Series(LABELS, dtype="string").where(Y < 9).mask(np.arange(60) == 4), "in row 5"),
        (CLASSIFIER, X, np.repeat("up", 60), "y: must have at least 2 classes, got 1 class: 'up'"),
        (CLASSIFIER, X, Y, "Unknown label type: continuous"),
        (REGRESSOR, X, LABELS, "y: must be numbers; use BayesianClassifier for classes, got '(up|down)' in row 1"),
        (REGRESSOR, X, np.ones(60), "column 'y' must vary, got 1 in every row"),
        (REGRESSOR, X, None, "requires y to be passed, but the target y is None"),
        (REGRESSOR, X[:9], Y[:9], r"Found array with 9 sample\(s\).*minimum of 10"),
        (REGRESSOR, pd.DataFrame(X[:9]), Y[:9], "must have at least 10 samples, got 9"),
        (REGRESSOR, holed(X, 4, np.inf), Y, "X: column 'x0' must be finite, got inf in row 5"),
        (REGRESSOR, np.ones((60, 2)), Y, "X: must have a column to predict from, got x0, x1"),
        (REGRESSOR, pd.DataFrame(X, columns=["a", "b", "a "]), Y, "X: column names must differ, got 'a' twice"),
        (REGRESSOR, np.zeros((60, 8, 8), np.uint8), Y, "images have classes, for BayesianClassifier"),
        (CLASSIFIER, np.zeros((60, 8, 8, 2), np.uint8), LABELS, r"must have shape.*got \[60, 8, 8, 2\]"),
        (CLASSIFIER, np.zeros((60, 8, 8)), LABELS, "must be uint8 images, got float64"),
        (REGRESSOR, pd.Series(Y), Y, r"X: must be a frame of columns, got one column \('Series'\); pass X.to_frame"),
        (REGRESSOR, X, pd.Timestamp("2024-01-01") + pd.to_timedelta(Y, "D"), "y: must be numbers, got dates; write"),
        (REGRESSOR, X, 2**60 + (9 * Y).astype(np.int64), r"y: must be numbers that a float64 holds .*2\^53.*in row 1"),
        (CLASSIFIER, X, pd.cut(Y, 3), r"labels must be all texts, .*got Interval\(.*in row 1; write them as texts"),
        (CLASSIFIER, X, np.where(Y > 0, np.datetime64("2024"), np.datetime64("2025")), "labels must be all texts"),
    ],
)
def test_a_fit_refuses_invalid_rows_and_targets(model: Any, x: Any, y: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        model.fit(x, y)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"method": "vbl"}, r"method must be a name of bdl_pipe.METHODS \(did you mean vbll\?\), got 'vbl'"),
        ({"method": 3}, "method must be a name of bdl_pipe.METHODS, got 3"),
        ({"device": 0}, "device must be a device of torch, got 0"),
        ({"method": "d_vbll"}, r"method must support regression \(did you mean vbll.*\), got d_vbll"),
        ({"method": "sgd"}, "method must have a posterior, got sgd, which makes a trajectory for other methods"),
        (
            {"method": "vbll", "override": {"layr": {}}},
            r"methods\.vbll\.layr is not a known key \(did you mean layer\?\)",
        ),
        ({"method": "vbll", "override": {"layer": {"rank": 1}}}, r"methods\.vbll\.layer\.rank must be null for dense"),
        ({"override": "epochs"}, "override must be a mapping or None, got 'epochs'"),
        ({"method": "swag", "made_from": "data"}, "made_from must be a trajectory, got 'data'"),
        (
            {"method": "swag", "made_from": "sgmcmc"},
            "made_from must make a trajectory, got 'sgmcmc, which makes a teacher'",
        ),
        (
            {"method": "swag", "made_from": "there"},
            "made_from must be data, a run .*iterates.* or a method, got 'there'",
        ),
        (
            {"method": "linear", "upstream": {"sgd": {}}},
            "upstream must name runs that the method is made from, got 'sgd'",
        ),
        ({"conformal": True}, "conformal must be split, cross or None, got True"),
        ({"conformal": "split"}, "calibration must be 0 or at least 20 rows, got 12"),
        ({"groups": "x0"}, "groups must be None, or conformal split or cross, got 'x0'"),
        (
            {"groups": "class", "conformal": "split"},
            r"groups must be a column of X that the fit uses \(x0, x1, x2\), or class with B.*, got 'class'",
        ),
        ({"groups": 3, "conformal": "split"}, r"groups must be a column of X .*, got 3"),
        ({"groups": True, "conformal": "split"}, r"groups must be a column of X .*, got True"),
        ({"pace": 0}, "pace must be > 0, got 0"),
        ({"minutes": -1}, "minutes must be > 0 or None, got -1"),
        ({"threads": 0}, "threads must be > 0 or None, got 0"),
        ({"random_state": -1}, "random_state must be a whole number >= 0, a generator of NumPy or None, got -1"),
        ({"random_state": "a"}, "random_state must be a whole number"),
        ({"columns": {"x9": "number"}}, r"columns: must name columns of X, got 'x9' \(it has x0, x1, x2\)"),
        ({"columns": {"x0": "text"}}, "columns.x0 must be one of number, category, date, got 'text'"),
    ],
)
def test_a_fit_refuses_invalid_parameters(params: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BayesianRegressor(**{"method": "linear", **params}).fit(X, Y)


def test_a_fit_refuses_a_sparse_matrix() -> None:
    with pytest.raises(TypeError, match="Sparse data was passed"):
        REGRESSOR.fit(scipy.sparse.csr_matrix(X), Y)


@pytest.mark.parametrize("model", [REGRESSOR, CLASSIFIER])
def test_an_estimator_that_is_not_fitted_raises_not_fitted_error(model: Any) -> None:
    asks = [model.predict, model.predict_dist, model.sample, model.joint, lambda x: model.log_prob(x, Y)]
    asks += [model.predict_proba, model.predict_set] if model is CLASSIFIER else [model.predict_interval]
    for ask in [*asks, lambda x: model.save("nowhere")]:
        with pytest.raises(NotFittedError):
            ask(X)


def test_a_fitted_estimator_refuses_other_columns_shapes_and_invalid_arguments(tmp_path: Any) -> None:
    frame = pd.DataFrame(X, columns=list("abc"))
    model = BayesianRegressor("linear").fit(frame, Y)
    for other, said in (
        (frame.assign(d=1.0), "Feature names unseen at fit time:\n- d"),
        (frame.drop(columns="b"), "now missing:\n- b"),
        (X[:, :2], "X has 2 features, but BayesianRegressor is expecting 3 features"),
        (np.zeros((3, 8, 8), np.uint8), "X has 8 features, but"),
        (np.zeros((2, 3, 8, 8), np.uint8), "X: must be rows of columns, as in fit"),
        (frame.assign(b="x"), "X: column 'b' must be numeric, got 'x' in row 1"),
        (frame.iloc[0], r"X: must be a frame of columns, .*X.to_frame\(\).T for one row"),
        (frame[:0], "X: must have at least 1 row, got 0"),
    ):
        with pytest.raises(ValueError, match=said), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an array after a frame: scikit-learn warns first
            model.predict(other)
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\), got 90"):
        model.predict_interval(frame, 90)
    with pytest.raises(ValueError, match="conformal must be set before fit: BayesianRegressor"):
        model.predict_interval(frame, conformal=True)
    with pytest.raises(ValueError, match="rows must divide the 60 rows of X, got 7"):
        model.joint(frame, 7)
    with pytest.raises(ValueError, match="draws must be > 0, got 0"):
        model.sample(frame, 0)
    with pytest.raises(ValueError, match="y must have 1 outputs, as in fit, got 2"):
        model.log_prob(frame, np.stack([Y, Y], 1))
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)
    of_images = BayesianClassifier("boosting", override={"rounds": 2}).fit(images, LABELS)
    with pytest.raises(ValueError, match=r"images must have shape \[1, 8, 8\], as in fit, got \[1, 9, 8\]"):
        of_images.predict(np.zeros((2, 9, 8), np.uint8))
    with pytest.raises(ValueError, match="X: must be images, as in fit"):
        of_images.predict(X)
    classes = BayesianClassifier("linear").fit(X, LABELS)
    with pytest.raises(ValueError, match="y: must be classes of fit, got 'left' in row 1"):
        classes.log_prob(X, np.repeat("left", 60))
    classes.save(tmp_path / "kept")
    with pytest.raises(ArtifactError, match="must be of a BayesianRegressor, got 'BayesianClassifier'"):
        BayesianRegressor.load(tmp_path / "kept")


def test_a_comparison_refuses_invalid_methods_folds_and_tasks() -> None:
    for methods, params, said in (
        (["linear"], {}, r"methods must be at least 2, got \['linear'\]"),
        (["linear", "linear"], {}, "methods must not have a method twice"),
        ("linear", {}, "methods must be names of methods or estimators, got 'linear'"),
        (["linear", CLASSIFIER], {}, "twice"),
        ({"a": "linear", "b": CLASSIFIER}, {}, "methods.b must be a name or a BayesianRegressor"),
        (["linear", "constant"], {"cv": 1}, "cv must be at least 2 folds, got 1"),
        (["linear", "constant"], {"task": "ranks"}, "task must be classification, regression or None, got 'ranks'"),
        (["linear", "constnt"], {}, r"did you mean constant\?"),
    ):
        with pytest.raises(ValueError, match=said):
            compare(X, Y, methods, **params)
