"""The plugins of docs/rivals.md against their packages where these are installed; TabPFN has random weights or none.

A test that needs a package is skipped with its name and the way to install it where the package is absent.
"""

import math
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from bdl_pipe import artifacts, plugins, registry
from bdl_pipe.artifacts import State
from bdl_pipe.baselines.quantiles import levels
from bdl_pipe.data.categories import Categories
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.metrics.regression import crps
from bdl_pipe.networks import MlpConfig
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.student_t import StudentT
from bdl_pipe.training.learner import EarlyStopping, TrainingConfig
from bdl_pipe.training.loop import OptimiserConfig
from tests.baselines.test_quantiles import check_integrals
from tests.baselines.test_rivals import rows, table, with_categories
from tests.test_docs import plugin_files

ROOT = Path(__file__).resolve().parents[1]
TRANSFORMER = "pip install 'bdl-pipe[tabpfn]'"
TREES = "pip install 'bdl-pipe[rivals]'"
CONFIGS: dict[str, dict[str, Any]] = {
    "ngboost": {"rounds": 40, "learning_rate": 0.1, "patience": 5},
    "catboost": {"rounds": 60, "learning_rate": 0.1, "depth": 3, "patience": 5, "draws": 4},
    "dkl": {
        "network": MlpConfig("mlp", (8,)),
        "features": 2,
        "inducing": 12,
        "training": TrainingConfig(
            epochs=6, batch=64, optimiser=OptimiserConfig("adam", 1e-2), early_stopping=EarlyStopping(1, 3)
        ),
    },
    "tabpfn": {"weights": "here.ckpt", "estimators": 2},
}
RANDOM = np.random.default_rng(0)
Load = Callable[[str], types.ModuleType]


def package(name: str, install: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed: {install}")


@pytest.fixture
def plugin(forgotten_plugins: None, tmp_path: Any) -> Load:
    """Import a plugin of the page as a user's file."""

    def load(name: str) -> types.ModuleType:
        path = f"plugins/{name}.py"
        (tmp_path / "plugins").mkdir()
        (tmp_path / path).write_text(plugin_files()[path])
        plugins.load([path])
        return plugins.module_of_file(path)

    return load


def two_outputs(count: int = 240) -> FitData:
    """Rows of two targets; a fifth of them to validate."""
    x, y = rows(count)
    data = table(x, y)
    parts = (data.train, data.validation)
    train, validation = (Examples(p.inputs, np.hstack([p.targets, p.inputs[:, :1] ** 2])) for p in parts)
    labels = torch.from_numpy(train.targets)
    transform = replace(data.transform, shift=labels.mean(0), scale=labels.std(0))
    return FitData("regression", train, validation, transform)


def of_classes(count: int = 240) -> FitData:
    """Rows of classes 0 and 2 of four."""
    x, y = rows(count)
    return table(x, 2 * (y > 0), ("a", "b", "c", "d"))


def fitted(name: str, data: FitData, seed: int = 0, **changes: Any) -> State:
    method = registry.METHODS[name]
    config = method.config(**(CONFIGS[name] | changes))
    return method.stages["student"].fit_one(data, {}, config, rng=Seed(seed), report=Silent())


def predicted(state: State, data: FitData, dtype: torch.dtype = torch.float64) -> Any:
    """Predict the validation rows by a posterior that is read from the bytes of its state."""
    stored = artifacts.from_bytes(artifacts.to_bytes(state))
    return registry.posterior_of(stored).predict(data.tensors("validation")[0].to(dtype), rng=Seed(0))


@pytest.mark.parametrize(
    ("name", "key"), [("ngboost", "rounds"), ("catboost", "draws"), ("dkl", "inducing"), ("tabpfn", "estimators")]
)
def test_a_config_with_a_count_of_zero_is_refused(plugin: Load, name: str, key: str) -> None:
    plugin(name)
    with pytest.raises(ConfigError, match=key):
        registry.METHODS[name].config(**(CONFIGS[name] | {key: 0}))


@pytest.mark.slow
def test_the_ngboost_plugin_and_its_package_predict_the_same(plugin: Load) -> None:
    """To 1e-6, from tensors, with the number of rounds at which the validation rows have the least score."""
    package("ngboost", TREES)
    module, data = plugin("ngboost"), two_outputs()
    predictive = predicted(fitted("ngboost", data), data)
    assert isinstance(predictive, Gaussian) and predictive.mean.shape == (48, 2)
    config = registry.METHODS["ngboost"].config(**CONFIGS["ngboost"])
    for output in (0, 1):
        seed = Seed(0).fold("output", output).integer() % 2**32
        x, y = module.numbers(data, "train", output)
        held, truth = module.numbers(data, "validation", output)
        every = module.regressor(config, 40, seed).fit(x, y)
        scores = [-dist.logpdf(truth).mean() for dist in every.staged_pred_dist(held)]
        rounds = module.chosen_rounds(data, output, config, seed)
        stop = next(i for i in range(6, 41) if min(scores[:i]) < min(scores[i - config.patience : i]))
        assert rounds == int(np.argmin(scores[:stop])) + 1 < 35
        expected = module.regressor(config, rounds, seed).fit(x, y).pred_dist(held)
        np.testing.assert_allclose(predictive.mean[:, output], expected.loc, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(predictive.variance[:, output].sqrt(), expected.scale, rtol=1e-6)
        assert np.abs(every.pred_dist(held).loc - expected.loc).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("draws", [1, 4])
def test_the_catboost_plugin_and_its_package_predict_the_same(plugin: Load, draws: int) -> None:
    """To 1e-6, from the bytes of its models; the last draw is the whole model."""
    package("catboost", TREES)
    module, data = plugin("catboost"), two_outputs()
    predictive = predicted(fitted("catboost", data, draws=draws), data)
    assert isinstance(predictive, Gaussian) and predictive.draw_mean.shape == (draws, 48, 2)
    config = registry.METHODS["catboost"].config(**(CONFIGS["catboost"] | {"draws": draws}))
    for output in (0, 1):
        seed = Seed(0).fold("output", output).integer() % 2**31
        rounds = module.chosen_rounds(data, output, config, seed)
        model = module.booster("regression", config, rounds, seed).fit(*module.numbers(data, "train", output))
        held = module.numbers(data, "validation", output)[0]
        whole = model.predict(held, prediction_type="RMSEWithUncertainty")
        np.testing.assert_allclose(predictive.draw_mean[-1, :, output], whole[:, 0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(predictive.draw_variance[-1, :, output], whole[:, 1], rtol=1e-6)
    assert (predictive.epistemic_variance.max() > 1e-6) == (draws > 1)


@pytest.mark.slow
def test_catboost_classes_equal_the_package_and_an_absent_class_has_no_share(plugin: Load) -> None:
    package("catboost", TREES)
    module, data = plugin("catboost"), of_classes()
    predictive = predicted(fitted("catboost", data), data)
    assert isinstance(predictive, Categorical) and predictive.draw_log_probs.shape == (4, 48, 4)
    config = registry.METHODS["catboost"].config(**CONFIGS["catboost"])
    seed = Seed(0).fold("output", 0).integer() % 2**31
    rounds = module.chosen_rounds(data, 0, config, seed)
    model = module.booster("classification", config, rounds, seed).fit(*module.numbers(data, "train", 0))
    expected = model.predict_proba(module.numbers(data, "validation", 0)[0])
    np.testing.assert_allclose(predictive.draw_log_probs[-1].exp()[:, [0, 2]], expected, rtol=1e-6)
    assert predictive.mean[:, [1, 3]].max() < 1e-20
    of_one_class = (Examples(rows(count)[0], np.ones(count, dtype=np.int64)) for count in (20, 4))
    with pytest.raises(DataError, match="of two classes at least, all are of 1"):
        fitted("catboost", FitData("classification", *of_one_class, data.transform, ("a", "b")))


LIGHTGBM = {"rounds": 40, "learning_rate": 0.1, "leaves": 8, "leaf_rows": 5, "patience": 5, "folds": 3}


@pytest.fixture
def own(forgotten_plugins: None, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a plugin of benchmarks/rivals."""
    monkeypatch.chdir(ROOT)

    def load(name: str) -> types.ModuleType:
        path = f"benchmarks/rivals/{name}.py"
        plugins.load([path])
        return plugins.module_of_file(path)

    return load


@pytest.mark.slow
@pytest.mark.parametrize("head", ["t", "quantiles"])
def test_the_lightgbm_plugin_predicts_as_its_package_from_its_own_categories(own: Load, head: str) -> None:
    """The model that a state's bytes hold predicts the same from codes, and its first tree splits by the category."""
    lightgbm = package("lightgbm", TREES)
    module, data = own("lightgbm"), with_categories()
    config = module.LightGBMConfig(**LIGHTGBM, row_share=0.8, column_share=1.0)
    fit = module.fit_t if head == "t" else module.fit_quantiles
    state = fit(data, {}, config, rng=Seed(0), report=Silent())
    predictive = predicted(state, data)
    codes = np.asarray(data.validation.inputs)[:, :1]
    name = "0.mean" if head == "t" else "0.2"
    model = lightgbm.Booster(model_str=state.tensors[name].numpy().tobytes().decode())
    inputs = data.tensors("validation")[0].double()
    expected = model.predict(np.hstack([codes, inputs[:, 12:].numpy()]), raw_score=True)
    if head == "t":
        assert isinstance(predictive, StudentT) and 2.1 <= float(predictive.degrees) <= 100
        np.testing.assert_allclose(predictive.mean[:, 0], expected, rtol=1e-12)
        narrow = predicted(State(state.tensors | {"0.range": torch.tensor([-0.1, 0.0])}, state.config), data)
        logs = narrow.squared_scale.log() - state.tensors["log_scale"]
        assert -0.1 - 1e-6 <= float(logs.min()) < float(logs.max()) <= 1e-6
    else:
        median = expected + float(state.tensors["shift"][0, 2])
        equal = np.isclose(predictive.quantile(0.5)[:, 0], median, rtol=1e-6)
        assert equal.mean() > 0.9  # all but the rows whose quantiles cross
    assert model.dump_model()["tree_info"][0]["tree_structure"]["decision_type"] == "=="
    again = fit(data, {}, config, rng=Seed(0), report=Silent())
    assert all(torch.equal(values, again.tensors[key]) for key, values in state.tensors.items())
    truth = data.tensors("validation")[1]
    assert float(predictive.log_prob(truth).mean()) > -1.4  # of a constant Gaussian -1.77


@pytest.mark.slow
@pytest.mark.parametrize("draws", [1, 4])
def test_catboost_with_its_own_categories_predicts_as_its_package(own: Load, draws: int) -> None:
    catboost = package("catboost", TREES)
    module, data = own("catboost_own"), with_categories()
    config = module.CatBoostOwnConfig(60, 0.1, 4, 3.0, 5, draws)
    state = module.fit(data, {}, config, rng=Seed(0), report=Silent())
    predictive = predicted(state, data)
    model = catboost.CatBoost().load_model(blob=state.tensors["model.0"].numpy().tobytes())
    codes = np.nan_to_num(np.asarray(data.validation.inputs)[:, :1], nan=-1.0)
    rows = np.hstack([codes, data.tensors("validation")[0][:, 12:].double().numpy()]).astype(object)
    rows[:, 0] = rows[:, 0].astype(int)
    whole = model.predict(rows, prediction_type="RMSEWithUncertainty")
    np.testing.assert_allclose(predictive.draw_mean[-1, :, 0], whole[:, 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(predictive.draw_variance[-1, :, 0], whole[:, 1], rtol=1e-6)
    assert model.get_cat_feature_indices() == [0] and len(predictive.draw_mean) == draws
    other = rows.copy()
    other[:, 0] = (other[:, 0] + 1) % 12
    assert np.abs(model.predict(other, prediction_type="RMSEWithUncertainty")[:, 0] - whole[:, 0]).max() > 0.5


@pytest.mark.slow
def test_catboost_with_a_student_t_predicts_as_its_package_and_finds_the_noise(own: Load) -> None:
    catboost = package("catboost", TREES)
    module, data = own("catboost_own"), with_categories()
    state = module.fit_t(data, {}, module.CatBoostTConfig(60, 0.1, 4, 3.0, 5, 3), rng=Seed(0), report=Silent())
    predictive = predicted(state, data)
    assert isinstance(predictive, StudentT)
    inputs, truth = data.tensors("validation")
    rows = module.given(Categories.of(data.transform, inputs.shape[1]), inputs)
    log_square = (predictive.squared_scale[0] / state.tensors["factor"]).log()
    for part, of in (("mean", predictive.mean), ("log_square", log_square)):
        model = catboost.CatBoost().load_model(blob=state.tensors[f"0.{part}"].numpy().tobytes())
        np.testing.assert_allclose(of[:, 0], model.predict(rows), rtol=1e-9, atol=1e-9)
    assert float(predictive.log_prob(truth).mean()) > -1.4  # of a constant Gaussian -1.77


@pytest.mark.slow
def test_realmlp_quantiles_are_shifted_and_fitted_again_from_the_stored_rows(own: Load) -> None:
    package("pytabkit", TREES)
    module, data = own("pytabkit_quantiles"), with_categories(200)
    method = registry.METHODS["realmlp"]
    state = method.stages["student"].fit_one(data, {}, method.config(None, 8), rng=Seed(0), report=Silent())
    first = predicted(state, data)
    module.fitted.cache_clear()
    again = predicted(state, data)
    torch.testing.assert_close(first.mean, again.mean, rtol=1e-5, atol=1e-5)
    truth = data.tensors("validation")[1]
    for level in levels():
        below = float((truth <= first.quantile(level)).double().mean())
        assert abs(below - level) < 0.03  # of the rows that shifted it
    assert state.tensors["train"].shape == (100, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ngboost", "catboost"])
def test_equal_seeds_give_equal_predictions_and_another_seed_changes_catboost(plugin: Load, name: str) -> None:
    package(name, TREES)
    plugin(name)
    data = table(*rows(200))
    first, again = (predicted(fitted(name, data), data).mean for _ in range(2))
    assert torch.equal(first, again)
    if name == "catboost":
        assert not torch.equal(first, predicted(fitted(name, data, seed=1), data).mean)


class DenseProcess:
    """The sparse process of one output of a stored ``dkl``, by inverses in NumPy (Hensman et al. 2013)."""

    def __init__(self, state: State, output: int) -> None:
        parts = {name: values.double().numpy() for name, values in state.tensors.items()}
        place = "process.variational_strategy"
        self.z = parts[f"{place}.inducing_points"][output]
        self.m = parts[f"{place}._variational_distribution.variational_mean"][output]
        root = np.tril(parts[f"{place}._variational_distribution.chol_variational_covar"][output])
        self.s = root @ root.T
        self.centre = parts["process.mean.raw_constant"][output]
        self.amplitude = np.log1p(np.exp(parts["process.kernel.raw_outputscale"][output]))
        self.length = np.log1p(np.exp(parts["process.kernel.base_kernel.raw_lengthscale"][output]))
        self.noise = np.log1p(np.exp(parts["likelihood.noise_covar.raw_noise"][output][0])) + 1e-4  # gpytorch's bound

    def kernel(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self.amplitude * np.exp(-0.5 * (((a[:, None] - b[None]) / self.length) ** 2).sum(-1))

    def moments(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of f: with u = L v and q(v) = N(m, S), f = c + k L⁻ᵀ v + the rest of the prior."""
        root = np.linalg.cholesky(self.kernel(self.z, self.z) + 1e-6 * np.eye(len(self.z)))  # gpytorch's jitter
        white = np.linalg.solve(root, self.kernel(self.z, features))
        spread = (white * ((self.s - np.eye(len(self.s))) @ white)).sum(0)
        return self.centre + white.T @ self.m, self.amplitude + spread

    def loss(self, features: np.ndarray, targets: np.ndarray) -> float:
        mean, variance = self.moments(features)
        fit = scipy.stats.norm.logpdf(targets, mean, np.sqrt(self.noise)) - 0.5 * variance / self.noise
        kl = 0.5 * (np.trace(self.s) + self.m @ self.m - len(self.m) - np.linalg.slogdet(self.s)[1])
        return -float(fit.mean()) + kl / len(targets)


@pytest.mark.slow
def test_the_dkl_plugin_predicts_and_bounds_the_evidence_as_dense_formulas_do(plugin: Load) -> None:
    """To 1e-4 in float32, with two outputs; at the prior's covariance, a wrong variant, the variances differ by far."""
    package("gpytorch", TREES)
    module, data = plugin("dkl"), two_outputs(150)
    state = fitted("dkl", data)
    posterior = registry.posterior_of(state)
    assert isinstance(posterior, module.DklPosterior)
    predictive, learner = predicted(state, data, torch.float32), posterior.learner.double().train()
    rows, targets = (values.double() for values in data.tensors("train"))
    held = data.tensors("validation")[0].double()
    with torch.no_grad():
        features, held_features = learner.network(rows).numpy(), learner.network(held).numpy()
        loss = float(learner(rows, targets, len(rows), {}))
    dense = [DenseProcess(state, output).loss(features, targets[:, output].numpy()) for output in (0, 1)]
    assert loss == pytest.approx(sum(dense), rel=1e-6)
    for output in (0, 1):
        process = DenseProcess(state, output)
        mean, variance = process.moments(held_features)
        np.testing.assert_allclose(predictive.mean[:, output], mean, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(predictive.variance[:, output], variance + process.noise, rtol=1e-4)
        process.s = np.eye(len(process.s))
        assert np.abs(process.moments(held_features)[1] / variance - 1).max() > 0.1


@pytest.mark.slow
def test_dkl_trains_its_network_and_depends_on_its_seed_alone(plugin: Load) -> None:
    package("gpytorch", TREES)
    module, data = plugin("dkl"), two_outputs(150)
    first, again, other = (fitted("dkl", data, seed) for seed in (0, 0, 1))
    assert all(torch.equal(values, again.tensors[name]) for name, values in first.tensors.items())
    assert not torch.equal(*(predicted(state, data, torch.float32).mean for state in (first, other)))
    spec = module.DklPosterior.spec(registry.METHODS["dkl"].config(**CONFIGS["dkl"]), data)
    start = module.Dkl(spec, Seed(0)).network.state_dict()
    assert all(not torch.equal(values, first.tensors[f"network.{name}"]) for name, values in start.items())
    with pytest.raises(ConfigError, match="inducing must be at most the 120 training rows, got 200"):
        fitted("dkl", data, inducing=200)


class _Criterion:
    """A stand-in for TabPFN's distribution, of which the plugin reads only the borders."""

    def __init__(self, borders: torch.Tensor) -> None:
        self.borders = borders


class _StandIn:
    """A stand-in for TabPFN's estimators, with their calls and without weights: it knows only the training rows."""

    def __init__(self, *, device: str, model_path: str, n_estimators: int, random_state: int) -> None:
        assert (device, model_path, n_estimators) == ("cpu", "here.ckpt", 2) and 0 <= random_state < 2**32

    def fit(self, X: np.ndarray, y: np.ndarray) -> "_StandIn":
        self.classes_, self._known = np.unique(y), (X, y)
        return self

    def predict(self, X: np.ndarray, output_type: str) -> dict[str, Any]:
        assert output_type == "full"
        borders = torch.linspace(-1, 1, 8) * float(np.abs(self._known[1]).max())
        return {"criterion": _Criterion(borders), "logits": torch.from_numpy(X[:, :1] * np.arange(7.0)).float()}

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        share = 1 / (1 + np.exp(-X[:, 0]))
        return np.stack([1 - share, share], 1)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module ``tabpfn`` with nothing but the stand-in."""
    module = types.ModuleType("tabpfn")
    module.TabPFNRegressor = module.TabPFNClassifier = _StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "tabpfn", module)


def test_tabpfn_stores_the_training_rows_and_reads_borders_and_shares(plugin: Load, stand_in: None) -> None:
    """On a stand-in: the training rows are the state, each output has its borders, an absent class has no share."""
    plugin("tabpfn")
    data = two_outputs()
    state = fitted("tabpfn", data)
    rows, targets = data.tensors("train")
    assert torch.equal(state.tensors["inputs"], rows) and torch.equal(state.tensors["targets"], targets)
    predictive, inputs = predicted(state, data), data.tensors("validation")[0]
    assert predictive.mean.shape == (48, 2)
    torch.testing.assert_close(
        predictive.log_shares[:, 1], (inputs[:, :1] * torch.arange(7.0)).double().log_softmax(-1)
    )
    torch.testing.assert_close(predictive.borders[:, -1], targets.abs().amax(0).double())
    data = of_classes()
    predictive = predicted(fitted("tabpfn", data), data)
    assert isinstance(predictive, Categorical) and predictive.mean[:, [1, 3]].max() < 1e-20
    torch.testing.assert_close(predictive.mean[:, 2], data.tensors("validation")[0][:, 0].double().sigmoid())


def bars(module: types.ModuleType) -> Any:
    """Return bars for 4 rows and 2 outputs, whose widths differ by factors."""
    borders = torch.from_numpy((0.2 + RANDOM.exponential(size=(2, 8))).cumsum(-1) - 3)
    return module.Bars(borders, torch.from_numpy(RANDOM.normal(size=(4, 2, 7))).log_softmax(-1))


def test_bars_are_a_distribution(plugin: Load) -> None:
    """Against integrals of the density, and the tails against SciPy's half-normal."""
    module = plugin("tabpfn")
    both = bars(module)
    for row, output in ((0, 0), (3, 1)):
        one = module.Bars(both.borders[[output]], both.log_shares[row : row + 1, [output]])
        inner = one.borders[0, 1:-1].tolist()
        check_integrals(one, inner)
        width = float(one.borders[0, 1] - one.borders[0, 0])
        tail = scipy.stats.halfnorm(scale=width / scipy.stats.halfnorm.ppf(0.5))
        expected = math.log(float(one.log_shares[0, 0, 0].exp())) + tail.logpdf(2.0)
        assert float(one.log_prob(torch.tensor([[inner[0] - 2.0]]).double())) == pytest.approx(expected)
    for level in (1e-6, 0.1, 0.5, 0.9, 1 - 1e-6):
        levels = both.cdf(both.quantile(level))
        torch.testing.assert_close(levels, torch.full_like(levels, level), rtol=1e-7, atol=1e-12)
    targets, shift, scale = torch.randn(4, 2).double(), torch.tensor([2.0, 3.0]), torch.tensor([4.0, 0.5])
    moved = both.rescale(shift, scale)
    expected = both.log_prob(targets) - float(scale.log().sum())
    torch.testing.assert_close(moved.log_prob(shift + scale * targets), expected)
    torch.testing.assert_close(moved.mean, shift + scale * both.mean)
    assert crps(both, targets).value > 0


def test_bars_equal_tabpfns_bar_distribution(plugin: Load) -> None:
    package("tabpfn", TRANSFORMER)
    from tabpfn.architectures.shared.bar_distribution import FullSupportBarDistribution

    compare_bars(bars(plugin("tabpfn")), FullSupportBarDistribution)


def compare_bars(both: Any, distribution: Any) -> None:
    """Compare density, distribution function, quantiles and moments with the package, to 1e-6."""
    targets = torch.from_numpy(RANDOM.normal(scale=4, size=(4, 2)))
    total = torch.zeros(4).double()
    for output in (0, 1):
        theirs, logits = distribution(both.borders[output]), both.log_shares[:, output]
        total -= theirs(logits, targets[:, output])
        for ours, expected in (
            (both.cdf(targets), theirs.cdf(logits, targets[:, [output]])[:, 0]),
            (both.quantile(0.03), theirs.icdf(logits, 0.03)),
            (both.quantile(0.6), theirs.icdf(logits, 0.6)),
            (both.quantile(0.98), theirs.icdf(logits, 0.98)),
            (both.mean, theirs.mean(logits)),
            (both.variance, theirs.variance(logits)),
        ):
            torch.testing.assert_close(ours[:, output], expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(both.log_prob(targets), total, rtol=1e-6, atol=1e-6)


def random_weights(path: str, task: str) -> None:
    """Write a file of weights as TabPFN's are, of a small transformer whose weights are random."""
    from tabpfn import ModelSpecs, TabPFNClassifier, TabPFNRegressor
    from tabpfn.architectures import tabpfn_v2
    from tabpfn.architectures.shared.bar_distribution import FullSupportBarDistribution
    from tabpfn.constants import ModelVersion
    from tabpfn.inference_config import InferenceConfig
    from tabpfn.model_loading import save_tabpfn_model

    buckets, classes = (40, 0) if task == "regression" else (0, 10)
    ends = {"num_buckets": buckets, "max_num_classes": classes}
    config = tabpfn_v2.TabPFNV2Config(emsize=24, nlayers=2, nhead=2, **ends)
    network = tabpfn_v2.get_architecture(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    about = InferenceConfig.get_default("regression" if task == "regression" else "multiclass", ModelVersion.V2)
    bars = FullSupportBarDistribution(torch.linspace(-3, 3, 41)) if task == "regression" else None
    estimator = TabPFNRegressor if task == "regression" else TabPFNClassifier
    x, y = rows(40)
    model = estimator(model_path=ModelSpecs(network, config, about, bars), device="cpu", n_estimators=1)
    save_tabpfn_model(model.fit(x, y if task == "regression" else 1 * (y > 0)), path)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_tabpfn_plugin_and_its_package_predict_the_same_with_random_weights(
    plugin: Load, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """To 1e-6: the mean and a quantile of each output, which the package computes itself; the classes' shares."""
    monkeypatch.setenv("TABPFN_DISABLE_TELEMETRY", "1")
    tabpfn = package("tabpfn", TRANSFORMER)
    plugin("tabpfn")
    random_weights("random.ckpt", task)
    data = two_outputs(100) if task == "regression" else of_classes(100)
    state = fitted("tabpfn", data, weights="random.ckpt")
    predictive, held = predicted(state, data), data.tensors("validation")[0].double().numpy()
    rows, targets = (values.numpy() for values in data.tensors("train"))
    options = {"model_path": "random.ckpt", "n_estimators": 2, "random_state": state.config["seed"], "device": "cpu"}
    if task == "classification":
        expected = tabpfn.TabPFNClassifier(**options).fit(rows, targets).predict_proba(held)
        np.testing.assert_allclose(predictive.mean[:, [0, 2]], expected, rtol=1e-6)
        return
    for output in (0, 1):
        model = tabpfn.TabPFNRegressor(**options).fit(rows, targets[:, output])
        np.testing.assert_allclose(predictive.mean[:, output], model.predict(held), rtol=1e-6, atol=1e-6)
        (quantile,) = model.predict(held, output_type="quantiles", quantiles=[0.9])
        np.testing.assert_allclose(predictive.quantile(0.9)[:, output], quantile, rtol=1e-6, atol=1e-6)
