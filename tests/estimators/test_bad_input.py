"""Bad input: the kind of error that scikit-learn's users expect, with the rule and the value."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

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


class ArrowColumn:
    """A column that other packages read by Arrow's interface alone, as a Series of polars is."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.chunked_array([[1.0, 2.0]]).__arrow_c_stream__(requested_schema)


class Query:
    """Rows that are not read yet, as a LazyFrame of polars is."""

    def collect(self) -> pd.DataFrame:
        return FRAME


ROWS: dict[str, Any] = {
    "x": X,
    "nine": X[:9],
    "a frame of nine": pd.DataFrame(X[:9]),
    "infinite": holed(X, 4, np.inf),
    "ones": np.ones((60, 2)),
    "a name twice": pd.DataFrame(X, columns=["a", "b", "a "]),
    "a name twice in pandas": pd.DataFrame(X, columns=["a", "b", "a"]),
    "a name twice in Arrow": pa.table(list(X.T), names=["a", "b", "a"]),
    "images": np.zeros((60, 8, 8), np.uint8),
    "images of two channels": np.zeros((60, 8, 8, 2), np.uint8),
    "images of float64": np.zeros((60, 8, 8)),
    "a series": pd.Series(Y),
    "a column of Arrow": ArrowColumn(),
    "a query": Query(),
    "complex": FRAME.assign(b=FRAME["b"] * 1j),
    "sparse": scipy.sparse.csr_matrix(X),
}
TARGETS: dict[str, Any] = {
    "y": Y,
    "labels": LABELS,
    "59": Y[:-1],
    "nan": holed(Y, 2, np.nan),
    "a label missing": holed(LABELS.astype(object), 2, None),
    "a text missing": pd.Series(LABELS, dtype="string").where(Y < 9).mask(np.arange(60) == 4),
    "one class": np.repeat("up", 60),
    "ones": np.ones(60),
    "none": None,
    "nine": Y[:9],
    "days": pd.Timestamp("2024-01-01") + pd.to_timedelta(Y, "D"),
    "beyond a float64": 2**60 + (9 * Y).astype(np.int64),
    "intervals": pd.cut(Y, 3),
    "years": np.where(Y > 0, np.datetime64("2024"), np.datetime64("2025")),
    "nanoseconds": np.where(Y > 0, np.datetime64("2024"), np.datetime64("2025")).astype("M8[ns]"),
    "truths": Y > 0,
    "masked": np.ma.masked_array(Y, np.arange(60) == 0),
    "a gap of Arrow": pa.array([None, *Y[1:]]),
}


@cases("rows and targets", "method task rows targets message")
def test_a_fit_refuses_invalid_rows_and_targets(method: str, task: str, rows: str, targets: str, message: str) -> None:
    model = {"regression": BayesianRegressor, "classification": BayesianClassifier}[task](method)
    with pytest.raises((ValueError, TypeError), match=message):  # TypeError: scikit-learn's for sparse rows
        model.fit(ROWS[rows], TARGETS[targets])


@cases("parameters", "parameters message")
def test_a_fit_refuses_invalid_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BayesianRegressor(**{"method": "linear", **parameters}).fit(X, Y)


@pytest.mark.parametrize(("conformal", "fewest"), [("split", 98), ("cross", 50)])
def test_conformal_is_none_with_few_rows(conformal: Any, fewest: int) -> None:
    with pytest.raises(ValueError, match=f"^conformal must be None with fewer than {fewest} rows, got '{conformal}'$"):
        BayesianRegressor("linear", conformal=conformal).fit(X[:12], Y[:12])


@pytest.mark.parametrize("model", [REGRESSOR, CLASSIFIER])
def test_an_estimator_that_is_not_fitted_raises_not_fitted_error(model: Any) -> None:
    asks = [model.predict, model.predict_dist, model.sample, model.joint, lambda x: model.log_prob(x, Y)]
    asks += [model.predict_proba, model.predict_set] if model is CLASSIFIER else [model.predict_interval]
    for ask in [*asks, lambda x: model.save("nowhere")]:
        with pytest.raises(NotFittedError):
            ask(X)


class Fitted(NamedTuple):
    table: BayesianRegressor
    images: BayesianClassifier
    classes: BayesianClassifier


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)
    return Fitted(
        table=BayesianRegressor("linear").fit(FRAME, Y),
        images=BayesianClassifier("boosting", override={"rounds": 2}).fit(images, LABELS),
        classes=BayesianClassifier("linear").fit(X, LABELS),
    )


CALLS: list[tuple[Callable[[Fitted], Any], str]] = [
    (lambda fitted: fitted.table.predict(FRAME.assign(d=1.0)), "Feature names unseen at fit time:\n- d"),
    (lambda fitted: fitted.table.predict(FRAME.drop(columns="b")), "now missing:\n- b"),
    (lambda fitted: fitted.table.predict(X[:, :2]), "X has 2 features, but BayesianRegressor is expecting 3 features"),
    (lambda fitted: fitted.table.predict(np.zeros((3, 8, 8), np.uint8)), "X has 8 features, but"),
    (lambda fitted: fitted.table.predict(np.zeros((2, 3, 8, 8), np.uint8)), "X: must be rows of columns, as in fit"),
    (lambda fitted: fitted.table.predict(FRAME.assign(b="x")), "X: column 'b' must be numeric, got 'x' in row 1"),
    (
        lambda fitted: fitted.table.predict(FRAME.iloc[0]),
        r"X: must be a frame of columns, .*X.to_frame\(\).T for one row",
    ),
    (lambda fitted: fitted.table.predict(FRAME[:0]), "X: must have at least 1 row, got 0"),
    (lambda fitted: fitted.table.predict_interval(FRAME, [0.5, 90]), r"level must be in \(0, 1\), got 90"),
    (
        lambda fitted: fitted.table.predict_quantile(FRAME, "half"),
        "must be a number .*, got 'half'",
    ),
    (
        lambda fitted: fitted.table.predict_dist(FRAME).cdf([1, 2]),
        r"broadcast with the mean's shape \[60\], got \[2\]",
    ),
    (
        lambda fitted: fitted.table.predict_interval(FRAME, conformal=True),
        "conformal intervals and sets need calibration data: create BayesianRegressor",
    ),
    (lambda fitted: fitted.table.joint(FRAME, 7), "rows must divide the 60 rows of X, got 7"),
    (lambda fitted: fitted.table.sample(FRAME, 0), "draws must be > 0, got 0"),
    (lambda fitted: fitted.table.log_prob(FRAME, np.stack([Y, Y], 1)), "y must have 1 outputs, as in fit, got 2"),
    (
        lambda fitted: fitted.images.predict(np.zeros((2, 9, 8), np.uint8)),
        r"images must have shape \[1, 8, 8\], as in fit, got \[1, 9, 8\]",
    ),
    (lambda fitted: fitted.images.predict(X), "X: must be images, as in fit"),
    (
        lambda fitted: fitted.classes.log_prob(X, np.repeat("left", 60)),
        "y: must be classes of fit, got 'left' in row 1",
    ),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_a_fitted_estimator_refuses_other_columns_shapes_and_invalid_arguments(
    call: Callable[[Fitted], Any], message: str, fitted: Fitted
) -> None:
    with pytest.raises(ValueError, match=message), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an array after a frame: scikit-learn warns first
        call(fitted)


@cases("weights", "method weights message")
def test_weights_are_refused_in_one_line(method: str, weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BayesianRegressor(method).fit(X, Y, sample_weight=weights)


ESTIMATORS = {"a classifier": CLASSIFIER}


@cases("comparisons", "methods options message")
def test_a_comparison_refuses_invalid_methods_folds_and_tasks(
    methods: str | list[str] | dict[str, str], options: dict[str, Any], message: str
) -> None:
    chosen: Any = methods
    if isinstance(methods, list):
        chosen = [ESTIMATORS.get(name, name) for name in methods]
    if isinstance(methods, dict):
        chosen = {key: ESTIMATORS.get(name, name) for key, name in methods.items()}
    with pytest.raises(ValueError, match=message):
        compare(X, Y, chosen, **options)
