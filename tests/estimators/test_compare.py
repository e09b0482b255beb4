"""A comparison's figures equal its estimators' figures on its folds; its errors are Nadeau and Bengio's."""

import builtins
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.model_selection import KFold, StratifiedKFold

from bdl_pipe import BayesianRegressor, Comparison, compare, fitting
from bdl_pipe.drawing import Drawing

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(90, 2))
Y = X[:, 0] + 0.3 * RANDOM.normal(size=90)
NAMES = ["constant", "linear"]


@pytest.fixture(scope="module")
def regression() -> Comparison:
    return compare(X, Y, NAMES, cv=KFold(3))


@pytest.fixture(scope="module")
def classes() -> Comparison:
    return compare(pd.DataFrame(X, columns=["a", "b"]), np.where(Y > 0, "up", "down"), NAMES, cv=3)


def test_figures_are_means_over_folds_and_differences_have_corrected_errors(regression: Comparison) -> None:
    nll, rmse = {name: [] for name in NAMES}, {name: [] for name in NAMES}
    for train, test in KFold(3).split(X):
        for name in NAMES:
            model = BayesianRegressor(name).fit(X[train], Y[train])
            nll[name].append(-model.log_prob(X[test], Y[test]).mean())
            rmse[name].append(math.sqrt(((model.predict(X[test]) - Y[test]) ** 2).mean()))
    assert regression.table.index.tolist() == ["linear", "constant"]  # the lowest NLL first
    for name in NAMES:
        assert regression.table.loc[name, "nll"] == pytest.approx(np.mean(nll[name]), rel=1e-6)
        assert regression.table.loc[name, "rmse"] == pytest.approx(np.mean(rmse[name]), rel=1e-6)
        assert regression.errors.loc[name, "nll"] == pytest.approx(np.std(nll[name], ddof=1) / math.sqrt(3), rel=1e-5)
    gap = np.subtract(nll["constant"], nll["linear"])
    row = regression.differences.query("metric == 'nll'").iloc[0]
    error = math.sqrt((1 / 3 + 30 / 60) * np.var(gap, ddof=1))  # of 30 test rows and 60 training rows
    assert (row["method"], row["to"]) == ("constant", "linear")
    assert row["mean"] == pytest.approx(gap.mean(), rel=1e-6) and row["error"] == pytest.approx(error, rel=1e-5)
    assert row["high"] - row["mean"] == pytest.approx(stats.t.ppf(0.975, 2) * error, rel=1e-5)
    assert row["apart"] == (row["low"] > 0)
    assert {"fit_seconds", "seconds_per_1000", "coverage_90", "crps", "augrc", "pit_p"} <= {*regression.table.columns}
    assert regression.verdict.startswith("linear has the lowest NLL.")
    assert ("3 folds are too few" in regression.verdict) == (not row["apart"])


def test_folds_of_masks_have_the_errors_of_folds_of_row_numbers(regression: Comparison) -> None:
    masks = [tuple(np.isin(np.arange(90), rows) for rows in pair) for pair in KFold(3).split(X)]
    pd.testing.assert_frame_equal(compare(X, Y, NAMES, cv=masks).differences, regression.differences)


def test_reliability_of_regression_is_the_share_of_targets_in_intervals(regression: Comparison) -> None:
    inside = {level: [] for level in (0.5, 0.9)}
    for train, test in KFold(3).split(X):
        model = BayesianRegressor("linear").fit(X[train], Y[train])
        for level, scores in inside.items():
            low, high = model.predict_interval(X[test], level)
            scores += ((low <= Y[test]) & (Y[test] <= high)).tolist()
    line = regression.reliability["linear"]
    for level, scores in inside.items():
        assert line.seen[np.isclose(line.said, level)] == pytest.approx(np.mean(scores), abs=1e-9)


def test_a_comparison_of_classes_has_the_scores_of_classification(classes: Comparison) -> None:
    assert classes.task == "classification" and classes.folds == 3
    assert {"accuracy", "nll", "ece", "brier"} <= {*classes.table.columns}
    assert classes.differences["metric"].unique().tolist() == ["nll", "accuracy"]
    line = classes.reliability["linear"]
    assert ((line.seen >= 0) & (line.seen <= 1)).all() and (np.diff(line.said) > 0).all()
    rows = compare(X, np.where(Y > 0, 1, 0), NAMES, cv=StratifiedKFold(3))
    assert rows.task == "classification"  # whole numbers of few values are classes, as for ``add``


@pytest.mark.slow
def test_a_trajectory_of_two_methods_is_fitted_once_per_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, grouped = [], fitting.grouped

    def counted(stage: Any, config: Any, *rest: Any) -> Any:
        fitted.append(type(config).__name__)
        return grouped(stage, config, *rest)

    monkeypatch.setattr(fitting, "grouped", counted)
    comparison = compare(X, Y, ["swa", "swag"], cv=2, pace=0.01)
    assert sorted(fitted) == ["SgdConfig"] * 2 + ["SwaConfig"] * 2 + ["SwagConfig"] * 2
    assert (comparison.table["fit_seconds"] > 0).all()


@pytest.mark.slow
def test_methods_of_one_and_of_all_seeds_of_a_trajectory_equal_their_separate_fits() -> None:
    names = ["swag", "multi_swag"]  # in either order, the second must not take the trajectories of the first
    for order in (names, names[::-1]):
        comparison = compare(X, Y, order, cv=2, pace=0.01)
        for name in names:
            alone = compare(X, Y, {name: BayesianRegressor(name, pace=0.01), "constant": "constant"}, cv=2)
            assert comparison.table.loc[name, "nll"] == alone.table.loc[name, "nll"]
    fitted = [BayesianRegressor(name, pace=0.01).fit(X, Y).fitted_.parts[0].posterior for name in names]
    assert [len(posterior.tensors["head.bias"]) for posterior in fitted] == [20, 3 * 7]


@pytest.mark.slow
def test_one_method_of_two_trajectories_has_the_figures_of_each() -> None:
    other = BayesianRegressor("swa", pace=0.01, upstream={"iterates": {"batch": 8}})
    both = compare(X, Y, {"usual": BayesianRegressor("swa", pace=0.01), "other": other}, cv=2)
    alone = compare(X, Y, {"other": other, "constant": "constant"}, cv=2)
    assert both.table.loc["other", "nll"] == alone.table.loc["other", "nll"] != both.table.loc["usual", "nll"]


@pytest.mark.parametrize("which", ["regression", "classes"])
def test_a_comparison_draws_its_figures_and_shows_its_table(which: str, request: pytest.FixtureRequest) -> None:
    comparison = request.getfixturevalue(which)
    for drawing in (comparison.plot_reliability(), comparison.plot_cost()):
        assert isinstance(drawing, Drawing) and "linear" in drawing.alt
        assert drawing._repr_html_().startswith("<svg")
    html = comparison._repr_html_()
    assert html.count("<tr") == 4 and "±" in html and comparison.verdict in html and "NLL" in html
    assert "linear" in repr(comparison)


def test_a_class_without_training_rows_is_refused_before_a_fit() -> None:
    labels = np.repeat(["a", "b", "c"], 30)
    with pytest.raises(ValueError, match=r"cv must leave rows of each class.*got 'fold 0 without class a'"):
        compare(X, labels, NAMES, cv=KFold(3))


def test_without_matplotlib_the_error_names_what_to_install(
    regression: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def without(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level and "figures" in (fromlist or ()):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real_import(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"plots need matplotlib: pip install 'bdl-pipe\[figures\]'"):
        regression.plot_cost()
