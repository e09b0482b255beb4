"""Rivals without a network: boosting, linear models and the constant, against scikit-learn and formulas."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from torch.distributions import Normal

from bdl_pipe.baselines import boosting, linear_model, student_noise
from bdl_pipe.baselines.boosting import BoostingConfig, BoostingPosterior
from bdl_pipe.baselines.constant import ConstantPosterior
from bdl_pipe.baselines.trees import Trees, clear_of_rounding, of_boosting
from bdl_pipe.data.categories import Categories
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.tables.columns import Column
from bdl_pipe.data.transform import Encoding, Transform
from bdl_pipe.errors import DataError
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.student_t import StudentT

from ..cases import fit


def rows(count: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose noise grows along the first column."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + np.exp(x[:, 2]) * 0.3 * rng.normal(size=count)


def table(x: np.ndarray, y: np.ndarray, classes: tuple[str, ...] = ()) -> FitData:
    """Four fifths of the rows to train on, the last fifth to validate."""
    count = len(x) * 4 // 5
    targets = y.astype(np.int64) if classes else y[:, None]
    fitted_rows, held = torch.from_numpy(x[:count]), torch.from_numpy(targets[:count])
    of = {} if classes else {"shift": held.mean(0), "scale": held.std(0)}
    transform = Transform("table", fitted_rows.mean(0), fitted_rows.std(0), **of)
    train, validation = Examples(x[:count], targets[:count]), Examples(x[count:], targets[count:])
    return FitData("classification" if classes else "regression", train, validation, transform, classes)


@pytest.mark.parametrize("loss", ["squared_error", "gamma", "quantile"])
def test_trees_predict_as_scikit_learn(loss: str) -> None:
    x, y = rows()
    y = np.exp(y) if loss == "gamma" else y
    options = {"loss": loss, "early_stopping": False, "quantile": 0.9 if loss == "quantile" else None}
    model = HistGradientBoostingRegressor(max_iter=30, **options).fit(x, y)
    trees, inputs_of_trees = of_boosting(model, 30), torch.from_numpy(x)
    raw = trees(inputs_of_trees)[:, 0].numpy()
    np.testing.assert_allclose(np.exp(raw) if loss == "gamma" else raw, model.predict(x), rtol=1e-12)
    few = HistGradientBoostingRegressor(max_iter=7, **options).fit(x, y)
    np.testing.assert_allclose(of_boosting(model, 7)(inputs_of_trees), of_boosting(few, 7)(inputs_of_trees), rtol=1e-12)
    assert np.abs(of_boosting(model, 7)(inputs_of_trees)[:, 0].numpy() - raw).max() > 0.01


@pytest.mark.parametrize("classes", [2, 4])
def test_trees_of_classes_predict_as_scikit_learn(classes: int) -> None:
    x, y = rows()
    labels = np.digitize(y, np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1]))
    model = HistGradientBoostingClassifier(max_iter=20, early_stopping=False).fit(x, labels)
    sums = of_boosting(model, 20)(torch.from_numpy(x))
    logits = torch.nn.functional.pad(sums, (1, 0)) if classes == 2 else sums
    np.testing.assert_allclose(torch.softmax(logits, -1).numpy(), model.predict_proba(x), rtol=1e-10)


def test_trees_evaluated_in_parts_equal_trees_evaluated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows(50)
    trees = of_boosting(HistGradientBoostingRegressor(max_iter=5).fit(x, y), 5)
    whole = trees(torch.from_numpy(x))
    monkeypatch.setattr("bdl_pipe.baselines.trees._AT_ONCE", 15)
    assert torch.equal(trees(torch.from_numpy(x)), whole)
    assert Trees.constant([1.5, 2.0])(torch.zeros(3, 2)).tolist() == [[1.5, 2.0]] * 3


@pytest.mark.parametrize("step", [2.0, 0.01])
def test_rounding_the_rows_of_a_lattice_does_not_change_the_predictions(step: float) -> None:
    """scikit-learn's thresholds are values of rows, or midway between two values, where other whole numbers lie."""
    rng = np.random.default_rng(0)
    x = (step * rng.integers(0, round(20 / step), size=(600, 2))).astype(np.float32).astype(float)
    y = np.sin(x[:, 0]) + (x[:, 1] > 7) + 0.1 * rng.normal(size=600)
    plain = of_boosting(HistGradientBoostingRegressor(max_iter=40, early_stopping=False).fit(x, y), 40)
    cleared, rounded = clear_of_rounding(plain, x), torch.from_numpy(x).float()
    assert torch.equal(cleared(rounded), plain(rounded))
    new = rounded + step / 2 if step == 2.0 else rounded
    moved = [torch.nextafter(new, torch.full_like(new, sign * math.inf)) for sign in (-1, 1)]
    assert all(torch.equal(cleared(rows), cleared(new)) for rows in moved)
    assert max(float((plain(rows) - plain(new)).abs().max()) for rows in moved) > 0.01
    assert torch.equal(cleared(new), plain(new))


def test_a_fitted_posterior_does_not_depend_on_the_last_bit_of_its_inputs() -> None:
    x, y = rows(600)
    data = table(x.astype(np.float32).astype(float), y > 0, ("no", "yes"))
    posterior, (inputs, _) = fitted(data, rounds=40, folds=2), data.tensors("train")
    meant = posterior.predict(inputs).mean
    for sign in (-1, 1):
        moved = torch.nextafter(inputs, torch.full_like(inputs, sign * math.inf))
        torch.testing.assert_close(posterior.predict(moved).mean, meant, rtol=0, atol=1e-6)


def config(**changes: object) -> BoostingConfig:
    settings = {"rounds": 200, "learning_rate": 0.1, "leaves": 8, "folds": 5, "noise": "best"}
    return BoostingConfig(**(settings | changes))  # type: ignore[arg-type]


def fitted(data: FitData, **changes: object) -> BoostingPosterior:
    return BoostingPosterior(boosting.fit(data, {}, config(**changes), rng=Seed(0), report=Silent()))


def nll(posterior: BoostingPosterior, data: FitData) -> float:
    inputs, targets = data.tensors("validation")
    return -float(posterior.predict(inputs).log_prob(targets).mean())


def test_modelled_noise_is_chosen_only_if_the_noise_varies() -> None:
    """Noise by trees scores better than a constant at deviations .3 exp(x); at equal deviations the constant stays."""
    x, y = rows(3_000)
    varying = table(x, y)
    best, constant = fitted(varying), fitted(varying, noise="one")
    assert nll(best, varying) < nll(constant, varying) - 0.1
    rng = np.random.default_rng(1)
    still = table(x[:500], x[:500, 0] + rng.normal(size=500))
    assert torch.equal(
        fitted(still).predict(still.tensors("validation")[0]).variance,
        fitted(still, noise="one").predict(still.tensors("validation")[0]).variance,
    )


def test_the_noise_is_estimated_from_rows_left_out_of_the_trees() -> None:
    """Pure noise: left-out residuals have its variance; residuals of the fit itself (the wrong variant) have less."""
    rng = np.random.default_rng(2)
    data = table(rng.normal(size=(400, 5)), rng.normal(size=400))
    variance = float(fitted(data, noise="one").predict(data.tensors("validation")[0]).variance[0, 0])
    assert 0.85 < variance < 1.3  # transformed targets have variance 1; of 400 squares ± 7 %
    inputs, targets = (values.numpy() for values in data.tensors("train"))
    trees = HistGradientBoostingRegressor(max_iter=100).fit(inputs, targets[:, 0])
    assert np.mean((trees.predict(inputs) - targets[:, 0]) ** 2) < 0.6


def test_the_chosen_rounds_are_fewer_than_the_maximum() -> None:
    assert 5 < fitted(table(*rows(600))).state().tensors["sums.0.root"].shape[1] < 200


def test_a_class_of_one_row_is_accepted_and_an_empty_class_has_probability_near_zero() -> None:
    x, y = rows(200)
    labels = (y > 0).astype(np.int64)
    labels[0] = 2
    data = table(x, labels, classes=("a", "b", "c", "d"))
    probabilities = fitted(data).predict(data.tensors("validation")[0]).mean
    assert probabilities.shape[1] == 4 and probabilities[:, 3].max() < 1e-20
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(len(probabilities)))


def test_classes_that_no_fold_can_score_are_refused_by_the_rule_that_they_break() -> None:
    """Random rows fail only if each class has one row; by group, the other folds may have one class, too."""
    x, _ = rows(5)

    def trained(labels: list[int], units: np.ndarray | None = None) -> list[int]:
        data = table(x, np.array([0, 1, 2, 0, 0]), classes=("a", "b", "c"))
        train = Examples(x[: len(labels)], np.array(labels), units)
        return fitted(replace(data, train=train)).state().config["classes"]  # type: ignore[return-value]

    with pytest.raises(DataError, match=r"^boosting: some class must have two training rows, got one row of each of 3"):
        trained([0, 1, 2])
    assert trained([0, 1, 1]) == [0, 1]
    with pytest.raises(DataError, match=r"^split_by: no fold of the training rows can be scored"):
        trained([0, 0, 1, 1], np.array([0, 0, 1, 1]))


def test_the_constant_predicts_the_distribution_of_the_targets() -> None:
    x, y = rows(100)
    data = table(x, y)
    targets = data.tensors("train")[1].double()
    predictive = ConstantPosterior(fit("constant", "student", data, rng=Seed(0))).predict(torch.zeros(2, 3))
    truth = Normal(targets.mean(), targets.std() * math.sqrt(1 + 1 / len(targets)))
    torch.testing.assert_close(
        predictive.log_prob(torch.tensor([[0.3], [-1.0]])), truth.log_prob(torch.tensor([0.3, -1.0])).float()
    )
    labels = table(x, np.arange(100) % 3 == 0, classes=("a", "b", "c"))
    counts = torch.bincount(labels.tensors("train")[1], minlength=3)
    predictive = ConstantPosterior(fit("constant", "student", labels, rng=Seed(0))).predict(torch.zeros(1, 3))
    torch.testing.assert_close(predictive.mean[0], ((counts + 1) / (counts.sum() + 3)).float())


def test_logistic_regression_equals_scikit_learn_at_the_chosen_strength() -> None:
    x, y = rows(300)
    for classes in (2, 3):
        labels = np.digitize(y, [0.0, 1.0][: classes - 1])
        data = table(x, labels, classes=("a", "b", "c")[:classes])
        state = linear_model.fit(data, {}, linear_model.LinearConfig(), rng=Seed(0), report=Silent())
        inputs, train_labels = data.tensors("train")
        predictive = linear_model.LogisticRegressionPosterior(state).predict(inputs)
        chosen = linear_model._strength(data.search or data)
        peer = LogisticRegression(C=chosen, max_iter=1_000).fit(inputs.double(), train_labels)
        np.testing.assert_allclose(predictive.mean.numpy(), peer.predict_proba(inputs.double()), atol=1e-5)
        strong = LogisticRegression(C=1e-4, max_iter=1_000).fit(inputs.double(), train_labels)
        assert chosen > 1e-3 and np.abs(predictive.mean.numpy() - strong.predict_proba(inputs.double())).max() > 0.1


def test_a_weak_prior_that_gives_probability_zero_is_not_chosen_and_does_not_warn() -> None:
    """Separable training rows, a validation row on the wrong side: with a weak prior its log-probability is -inf."""
    x = np.linspace(-1, 1, 100)[:, None] * [1.0, 0.5, -1.0]
    x = np.concatenate([x[::2], x[1::2]])
    y = (x[:, 0] > 0).astype(int)
    x[-1], y[-1] = 3 * x[-1], 1 - y[-1]
    data = table(x, y, ("a", "b"))
    with pytest.warns(RuntimeWarning, match="divide by zero"):  # these rows do give probability zero
        weakest = linear_model._logistic(data, 1e4).predict_log_proba(data.tensors("validation")[0].double().numpy())
    assert np.isneginf(weakest[-1, y[-1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert linear_model._strength(data) < 1e4


def test_trees_of_categories_predict_as_scikit_learn() -> None:
    """Codes that the fit lacks and empty cells go with scikit-learn's missing values; codes in another order do not."""
    rng = np.random.default_rng(3)
    x = np.stack([rng.integers(0, 6, 500), rng.integers(0, 3, 500), rng.normal(size=500)], 1).astype(float)
    x = x[x[:, 0] != 2]  # no row has the code 2
    x[rng.random(len(x)) < 0.1, 0] = np.nan
    y = np.isin(x[:, 0], [1, 4]) + 2 * np.isnan(x[:, 0]) + x[:, 2] * (x[:, 1] == 1) + 0.1 * rng.normal(size=len(x))
    options = {"max_iter": 30, "early_stopping": False, "categorical_features": [True, True, False]}
    model = HistGradientBoostingRegressor(**options).fit(x, y)
    trees, new = of_boosting(model, 30, 6), np.concatenate([x, [[2, 0, 0.5], [2, 1, 0.5], [np.nan, 2, 0.1]]])
    codes = torch.from_numpy(np.nan_to_num(new, nan=-1.0))
    np.testing.assert_allclose(trees(codes)[:, 0], model.predict(new), rtol=1e-12)
    assert (trees.tensors["subset"] >= 0).sum() > 20
    codes[:, 0] = (codes[:, 0] + 1) % 6
    assert np.abs(trees(codes)[:, 0].numpy() - model.predict(new)).max() > 0.5
    assert torch.equal(clear_of_rounding(trees, x).tensors["members"], trees.tensors["members"])


def with_categories(count: int = 600) -> FitData:
    """Rows of a category of 12 values, of which even and odd ones differ, and a number with a gap in some rows."""
    rng = np.random.default_rng(4)
    x = np.stack([rng.integers(0, 12, count), rng.normal(size=count)], 1).astype(float)
    y = 2.0 * (x[:, 0] % 2) + x[:, 1] + 0.2 * rng.normal(size=count)
    x[::7, 0], x[::5, 1] = np.nan, np.nan
    values = tuple(f"v{i:02d}" for i in range(12))
    columns = [Column("a", "category", values, missing=True), Column("b", "number", missing=True)]
    encoding = Encoding.fit(columns, x)
    encoded = encoding(torch.from_numpy(x))
    of = {"shift": torch.zeros(1), "scale": torch.ones(1), "encoding": encoding, "smooth": True}
    transform = Transform("table", encoded.mean(0), encoded.std(0), **of)
    halves = (slice(count // 2), slice(count // 2, None))
    train, validation = (Examples(x[half], y[half, None]) for half in halves)
    return FitData("regression", train, validation, transform)


def test_categories_are_the_codes_of_the_encoded_rows() -> None:
    data, numbers = with_categories(), rows(40)
    inputs = data.tensors("train")[0]
    categories = Categories.of(data.transform, inputs.shape[1])
    coded = categories(inputs)
    assert categories.mask.tolist() == [True, False, False, False] and coded.shape == (300, 4)
    expected = np.nan_to_num(np.asarray(data.train.inputs)[:, 0], nan=-1.0)
    np.testing.assert_array_equal(coded[:, 0], expected)
    np.testing.assert_array_equal(coded[:, 1:], inputs[:, 12:].double())  # is missing, the number, is missing
    assert len(Categories.of(table(*numbers).transform, 3)) == 0


def test_own_categories_need_fewer_leaves_than_columns_and_are_stored() -> None:
    data = with_categories()
    own, columns = (fitted(data, leaves=3, rounds=30, noise="one", categories=of) for of in ("own", "columns"))
    assert nll(own, data) < nll(columns, data) - 0.1
    again = BoostingPosterior(own.state())
    inputs = data.tensors("validation")[0]
    assert torch.equal(again.predict(inputs).mean, own.predict(inputs).mean)
    numbers = table(*rows(200))
    inputs, same = numbers.tensors("validation")[0], ("own", "columns")
    assert torch.equal(*(fitted(numbers, rounds=20, categories=of).predict(inputs).mean for of in same))


@pytest.mark.parametrize("degrees", [3.0, 12.0])
def test_degrees_of_freedom_are_the_maximum_of_scipy(degrees: float) -> None:
    """Of two outputs with scales 1 and 4; a Gaussian's scale, the wrong variant, is too large."""
    z = [scale * scipy.stats.t.rvs(degrees, size=3_000, random_state=7 + scale) for scale in (1, 4)]
    found = student_noise.fit(z)

    def loss(free: np.ndarray) -> float:
        parts = [
            scipy.stats.t.logpdf(each, np.exp(free[0]), scale=np.exp(c)).mean()
            for each, c in zip(z, free[1:], strict=True)
        ]
        return -float(np.mean(parts))

    best = scipy.optimize.minimize(loss, [1.0, 0.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
    np.testing.assert_allclose([found.degrees, *found.factors], np.exp(best.x), rtol=3e-3)
    assert found.density == pytest.approx(-best.fun, abs=1e-6)
    assert found.factors[0] < 0.95 * z[0].std()


def test_a_student_noise_is_better_for_heavy_tails_and_equal_for_gaussians() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(1_500, 2))
    noise = {"t": scipy.stats.t.rvs(2.5, size=1_500, random_state=9), "gaussian": rng.normal(size=1_500)}
    gain = {}
    for name, drawn in noise.items():
        data = table(x, 5 * x[:, 0] + drawn)
        student, best = fitted(data, noise="student", rounds=60), fitted(data, rounds=60)
        assert isinstance(student.predict(data.tensors("validation")[0]), StudentT)
        gain[name] = nll(best, data) - nll(student, data)
    assert gain["t"] > 0.1 and abs(gain["gaussian"]) < 0.02
