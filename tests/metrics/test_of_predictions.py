"""The table of metrics of stored predictions, on files as evaluation writes them and with a metric that is added."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
import torch

from bdl_pipe import metrics
from bdl_pipe.evaluation.gathered import Gathered
from bdl_pipe.metrics import METRICS, StoredMetric, calibration_tests, conformal, register_metric, stored
from bdl_pipe.metrics.calibration import MEASURES
from bdl_pipe.metrics.pit import THIRDS
from bdl_pipe.metrics.stored import QUANTILES, StoredClasses, StoredValues, of_table, read
from bdl_pipe.metrics.table import LIBRARY, OF_TEST_ROWS, metric_of, scores, stored_metrics
from bdl_pipe.plugins import PluginError
from bdl_pipe.predictive import Categorical, Gaussian, Predictive
from bdl_pipe.seeds import Seed


def table_of(predictive: Predictive, targets: torch.Tensor) -> pa.Table:
    """The table that evaluation stores."""
    gathered = Gathered()
    gathered.add_columns(predictive, targets)
    return gathered.table()


def classes(rows: int = 300, seed: int = 0) -> tuple[Categorical, torch.Tensor]:
    logits = 3 * torch.randn(2, rows, 12, generator=Seed(seed).generator(), dtype=torch.float64)
    predictive = Categorical(logits.log_softmax(-1).float())
    return predictive, torch.multinomial(predictive.mean, 1, generator=Seed(seed).generator())[:, 0]


def values(draws: int, outputs: int = 1, rows: int = 80) -> tuple[Gaussian, torch.Tensor]:
    random = Seed(1).generator()
    mean = torch.randn(draws, rows, outputs, generator=random, dtype=torch.float64)
    variance = 0.5 + torch.rand(draws, rows, outputs, generator=random, dtype=torch.float64)
    return Gaussian(mean, variance), mean[0] + torch.randn(rows, outputs, generator=random, dtype=torch.float64)


def test_predictions_are_read_by_split_and_seed_as_they_were_stored(tmp_path: Path) -> None:
    """Twelve classes: the column p_10 does not come before p_2."""
    parts = []
    for split, seed in ((1, 0), (0, 1), (0, 0)):
        table = table_of(*classes(seed=10 * split + seed))
        count = len(table)
        ids = {"split": pa.array([split] * count, pa.int32()), "seed": pa.array([seed] * count, pa.int32())}
        parts.append(pa.table({**ids, **{name: table[name] for name in table.column_names}}))
    pq.write_table(pa.concat_tables(parts), tmp_path / "predictions.parquet")
    fits = dict(read(tmp_path / "predictions.parquet"))
    assert list(fits) == [(0, 0), (0, 1), (1, 0)]
    for (split, seed), fit in fits.items():
        predictive, targets = classes(seed=10 * split + seed)
        assert isinstance(fit, StoredClasses)
        np.testing.assert_allclose(fit.probs, predictive.mean, rtol=2e-6)
        assert (fit.labels == targets.numpy()).all() and fit.rng == Seed(0).fold(split, seed)
        assert fit.losses.mean() == pytest.approx(1 - metrics.accuracy(predictive, targets).value)


@pytest.mark.parametrize("draws", [1, 3])
def test_a_mixture_has_its_own_quantiles_and_several_outputs_have_none(draws: int) -> None:
    predictive, targets = values(draws)
    fit = of_table(table_of(predictive, targets))
    mean, sd = (part[..., 0].numpy() for part in (predictive.draw_mean, predictive.draw_variance.sqrt()))
    below = scipy.stats.norm.cdf(targets[:, 0].numpy(), mean, sd).mean(0)  # of the mixture, not of its moments
    np.testing.assert_allclose(fit.pit, below, rtol=1e-9)
    for level, at in zip(QUANTILES.values(), fit.interval, strict=True):
        np.testing.assert_allclose(scipy.stats.norm.cdf(at, mean, sd).mean(0), level, rtol=1e-6)
    assert {"quantile_error", "pit_p", "width_at_90", "width_cqr_90"} <= scores(fit).keys()
    without = of_table(table_of(predictive, targets).drop_columns(["pit"]))
    assert without.pit is None and without.interval is None and "aurc" in scores(without)
    assert {"quantile_error", "pit_p", "width_at_90"} & scores(without).keys() == set()
    several = of_table(table_of(*values(draws, outputs=2)))
    assert several.pit is None and several.interval is None and several.below.shape == (80, 2)
    assert {"quantile_error", "pit_p", "width_at_90"} & scores(several).keys() == set()
    assert {"aurc", "augrc", "risk_at_80", "refusal_gain"} <= scores(several).keys()


def test_scores_of_classes_match_the_functions_of_their_metrics() -> None:
    fit = of_table(table_of(*classes()))
    values = scores(fit)
    assert list(values) == list(stored_metrics("classification"))
    assert {count for _, count in values.values()} == {300}
    for name, measure in MEASURES.items():
        checked = calibration_tests.check(measure, fit.probs, fit.labels, fit.rng, stored.DRAWS)
        assert values[f"ece_{name}"][0] == checked.value
        assert values[f"ece_{name}_expected"][0] == checked.expected
        assert values[f"ece_{name}_p"][0] == checked.p_value
    parts = [values[f"brier_{part}"][0] for part in ("reliability", "resolution", "uncertainty")]
    predictive, targets = classes()
    assert parts[0] - parts[1] + parts[2] == pytest.approx(metrics.brier(predictive, targets).value, abs=0.01)
    assert values["set_size_raps"][0] <= values["set_size_aps"][0] + 0.2
    assert scores(fit) == values  # all random numbers are drawn from fixed seeds


def test_widths_of_a_gaussian_match_intervals_calibrated_on_halves() -> None:
    predictive, targets = values(draws=1)
    fit = of_table(table_of(predictive, targets))
    mean, sd = fit.means[:, 0], np.sqrt(fit.variances[:, 0])
    z = scipy.stats.norm.ppf(0.95)
    expected = conformal.widened_by_halves(mean - z * sd, mean, mean + z * sd, fit.targets[:, 0], 0.9, fit.rng)
    assert scores(fit)["width_at_90"][0] == pytest.approx((expected[1] - expected[0]).mean(), rel=1e-9)
    moved = conformal.moved_by_halves(mean - z * sd, mean + z * sd, fit.targets[:, 0], 0.9, fit.rng)
    assert scores(fit)["width_cqr_90"][0] == pytest.approx((moved[1] - moved[0]).mean(), rel=1e-9)


def test_coverage_by_thirds_of_the_width_matches_pandas() -> None:
    predictive, targets = values(draws=1, rows=300)
    fit = of_table(table_of(predictive, targets))
    mean, sd = predictive.mean[:, 0].numpy(), predictive.variance[:, 0].sqrt().numpy()
    inside = abs(targets[:, 0].numpy() - mean) <= scipy.stats.norm.ppf(0.95) * sd
    expected = pd.Series(inside).groupby(pd.qcut(sd, 3, labels=False)).mean()
    assert [scores(fit)[name] for name in THIRDS] == [(share, 300) for share in expected]
    assert expected.nunique() == 3
    equal = of_table(table_of(Gaussian(predictive.draw_mean, torch.ones_like(predictive.draw_mean)), targets))
    assert THIRDS.keys() & scores(equal).keys() == set(), "intervals of one width have no thirds"


def test_one_row_and_one_class_have_only_the_scores_that_are_defined() -> None:
    one = scores(StoredClasses(np.array([[0.7, 0.3]]), np.array([0]), Seed(0)))
    assert {"brier_reliability", "set_size_lac", "worst_class_coverage", "refusal_gain"} & one.keys() == set()
    assert one["ece_adaptive"] == (pytest.approx(0.3), 1)
    assert one["aurc"] == (0, 1)
    certain = scores(StoredClasses(np.ones((5, 1)), np.zeros(5, int), Seed(0)))
    assert (certain["ece_smooth"][0], certain["ece_smooth_p"][0], certain["set_size_lac"][0]) == (0, 1, 1)
    point = scipy.stats.norm.cdf(-1), 1 + scipy.stats.norm.ppf([0.05, 0.5, 0.95])
    of_one = np.zeros((1, 1)), np.ones((1, 1)), np.ones((1, 1)), np.array([scipy.stats.norm.logpdf(1)])
    values = scores(StoredValues(*of_one, Seed(0), np.full((1, 1), point[0]), point[1].reshape(3, 1, 1)))
    assert {"width_at_90", "refusal_gain"} & values.keys() == set()
    assert values["quantile_error"][1] == 1 and values["risk_at_80"] == (1, 1)
    zeros = np.zeros((20, 1))  # a predictive of one point
    point = scores(StoredValues(zeros, zeros, zeros, np.zeros(20), Seed(0), zeros + 0.5, np.zeros((3, 20, 1))))
    assert "width_at_90" not in point and point["width_cqr_90"] == (0, 20)


def test_every_stored_metric_has_its_own_name_and_label_and_a_description() -> None:
    for name, metric in LIBRARY.items():
        assert metric.name == name and name not in METRICS and metric_of(name) is metric
        assert metric.label and metric.about and (not metric.beside or metric.beside in LIBRARY)
    labels = [metric.label for metric in LIBRARY.values()]
    assert len({*labels}) == len(labels)
    assert list(OF_TEST_ROWS) == [*METRICS, *LIBRARY]


@pytest.mark.parametrize("name", [name for name, metric in LIBRARY.items() if metric.rows is not None])
def test_contributions_of_rows_have_the_score_as_mean_and_the_bootstraps_error(name: str) -> None:
    """The bootstrap's own error is 3.5 % with 400 samples; its halves share rows."""
    predictive, targets = classes(rows=1500)
    probs, labels = predictive.mean.double().numpy(), targets.numpy()
    fit = StoredClasses(probs, labels, Seed(0))
    metric = LIBRARY[name]
    rows = metric.rows(fit)
    assert rows.mean() == pytest.approx(metric.function(fit), rel=1e-12)
    random = Seed(5).numpy()
    again = []
    for k in range(400):
        picked = random.integers(1500, size=1500)
        again.append(metric.function(StoredClasses(probs[picked], labels[picked], Seed(k))))
    close = pytest.approx(float(np.std(again)), rel=0.15 if name.startswith("set") else 0.08)
    assert rows.std() / np.sqrt(1500) == close
    wrong = {
        "set_size_lac": conformal.sets_by_halves(lambda probs, _: 1 - probs, probs, labels, 0.9, fit.rng).sum(1),
        "augrc": fit.losses * (fit.uncertainty[:, None] < fit.uncertainty).mean(1),
    }  # sizes without the error of the threshold, and pairs counted only by their first row
    assert name not in wrong or wrong[name].std() / np.sqrt(1500) != close


def test_an_added_metric_is_scored_and_a_bad_metric_is_refused(forgotten_plugins: None) -> None:
    register_metric("spread", lambda fit: float(fit.uncertainty.std()), label="Spread", better=0)
    register_metric("none", lambda fit: None, label="None", better=0)
    fit = of_table(table_of(*classes()))
    assert scores(fit)["spread"] == (pytest.approx(fit.uncertainty.std()), 300)
    assert "none" not in scores(fit)
    assert isinstance(metric_of("spread"), StoredMetric) and "spread" in OF_TEST_ROWS
    assert not any(metric.name == "spread" for metric in metrics.registered())  # only evaluation's metrics
    register: Any = inspect.unwrap(register_metric)  # without the tests' own checks of types
    for name, function, more, rule in BAD_METRICS:
        with pytest.raises(PluginError, match=rule):
            register(name, function, label="x", better=0, **more)
    register_metric("bad", lambda fit: float("nan"), label="Bad", better=0)
    with pytest.raises(PluginError, match="the metric bad must be a finite number or None, got nan"):
        scores(fit)


def zero(fit: object) -> float:
    return 0.0


BAD_METRICS: list[tuple[str, Any, dict[str, str], str]] = [
    ("nll", zero, {}, "nll is taken"),
    ("aurc", zero, {}, "aurc is taken: the library"),
    ("number", 3, {}, "must be a function of stored predictions, got 3"),
    ("task", zero, {"task": "images"}, "the task of the metric task must be one of class.*'images'"),
    ("page", zero, {"question": "why"}, "the question of the metric page must be one of .*'why'"),
    ("kind", zero, {"of": "draws"}, "the of of the metric kind must be one of .*'draws'"),
]
