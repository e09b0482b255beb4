"""Conformal intervals and sets: their definition by counting, and their coverage where the posterior is wrong.

Coverage is a mean over data sets, each of which gives one independent share. It must be within Student's t of a false
alarm of 1e-4 in all; the uncalibrated intervals and sets of the same fits are the wrong variant, and fail.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor

from bdl_pipe import BayesianClassifier, BayesianRegressor, recalibration
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError
from bdl_pipe.estimators import conformal, fitted
from bdl_pipe.predictive import Categorical, Gaussian, Predictive
from bdl_pipe.recalibration import Recalibration
from bdl_pipe.seeds import Seed

LEVEL = 0.8
UNCHANGED = Transform("table", torch.zeros(1), torch.ones(1), shift=torch.zeros(1), scale=torch.ones(1))


def test_conformal_intervals_equal_their_definition_by_counting() -> None:
    random = torch.Generator().manual_seed(0)
    many, rows, outputs = 3, 4, 2
    mean = torch.randn(many, 1, rows, outputs, generator=random, dtype=torch.float64)
    sd = torch.rand(many, 1, rows, outputs, generator=random, dtype=torch.float64) + 0.5
    scores = [torch.rand(count, generator=random, dtype=torch.float64).sort().values for count in (7, 5, 6)]
    transforms = [
        Transform(
            "table", torch.zeros(1), torch.ones(1), shift=torch.tensor([a, 0.0]), scale=torch.tensor([1.0, 2.0 + a])
        )
        for a in (0.0, 1.0, 2.0)
    ]
    predictives = [Gaussian(mean[k], sd[k] ** 2) for k in range(many)]
    learnt = [Recalibration((1.0,), (1.0,), each) for each in scores]
    low, high = conformal.intervals(predictives, learnt, transforms, LEVEL)
    n = sum(map(len, scores))
    for row in range(rows):
        for output in range(outputs):
            ends = [
                [
                    float(t.own_units(mean[k, 0, row] + sign * r * sd[k, 0, row])[output])
                    for k, t in enumerate(transforms)
                    for r in scores[k].tolist()
                ]
                for sign in (-1, 1)
            ]
            below = math.floor((n + 1) * (1 - LEVEL) + 1e-9)
            above = math.ceil((n + 1) * LEVEL - 1e-9)
            assert float(low[row, output]) == pytest.approx(sorted(ends[0])[below - 1], abs=1e-12)
            assert float(high[row, output]) == pytest.approx(sorted(ends[1])[above - 1], abs=1e-12)


def test_conformal_sets_equal_their_definition_by_counting() -> None:
    random = torch.Generator().manual_seed(0)
    log_probs = torch.randn(3, 1, 6, 4, generator=random, dtype=torch.float64).log_softmax(-1)
    scores = [torch.rand(count, generator=random, dtype=torch.float64).sort().values for count in (7, 5, 6)]
    found = conformal.class_sets(
        [Categorical(p) for p in log_probs], [Recalibration((1.0,), (1.0,), s) for s in scores], LEVEL
    )
    for row in range(6):
        for label in range(4):
            p = [1 - float(log_probs[k, 0, row, label].exp()) for k in range(3)]
            smaller = sum(r < p[k] for k in range(3) for r in scores[k].tolist())
            assert bool(found[row, label]) == (smaller < 19 * LEVEL)


def test_a_level_too_high_for_the_calibration_rows_is_refused() -> None:
    learnt = [Recalibration((1.0,), (1.0,), torch.arange(9.0))]
    with pytest.raises(ConfigError, match=r"level must be at most 0\.9 with 9 rows, got 0\.95"):
        conformal.class_sets([Categorical(torch.zeros(1, 1, 2).log_softmax(-1))], learnt, 0.95)


def test_the_likely_classes_are_the_fewest_that_reach_the_level() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.05, 0.05, 0.9], [0.4, 0.4, 0.2]])
    found = conformal.likely_classes(Categorical(probabilities.log()[None]), 0.75)
    assert found.tolist() == [[True, True, False], [False, False, True], [True, True, False]]


def test_the_parts_of_cross_conformal_hold_every_row_once() -> None:
    drawn = fitted.drawn(53, Seed(0))
    assert sorted(np.concatenate(drawn).tolist()) == list(range(53)) and {len(part) for part in drawn} == {10, 11}


GROUPED, OWN_ROWS = 0.9, 19  # with 19 rows of a group its coverage is 18/20, on average over calibration rows


def grouped(kind: str, count: int, random: np.random.Generator) -> tuple[Predictive, np.ndarray, np.ndarray]:
    """Three groups of ``count`` rows: one predictive for all, (its predictions, targets, groups).

    Regression: sd .3, 1 and 3 under a predictive of sd 1. Classes, which are the groups: one is predicted far better
    than the others.
    """
    groups = np.repeat(np.arange(3), count)
    if kind == "values":
        targets = np.array([0.3, 1.0, 3.0])[groups] * random.normal(size=3 * count)
        zeros = torch.zeros(1, 3 * count, 1, dtype=torch.float64)
        return Gaussian(zeros, zeros + 1), targets[:, None], groups
    logits = random.normal(size=(3 * count, 3)) + np.array([4.0, 1.0, 0.0])[groups, None] * np.eye(3)[groups]
    return Categorical(torch.tensor(logits).log_softmax(-1)[None]), groups, groups


def held(kind: str, predictive: Predictive, learnt: Recalibration, targets: np.ndarray, groups: np.ndarray) -> Any:
    """Whether each row's interval or set holds the target: [by its group's scores, by all scores; row]."""

    def answer(own: Any) -> Tensor:
        if kind == "values":
            return torch.stack(conformal.intervals([predictive], own, [UNCHANGED], GROUPED))
        return conformal.class_sets([predictive], own, GROUPED)

    shape = (2, len(groups), 1) if kind == "values" else (len(groups), 3)
    every = torch.zeros(shape, dtype=torch.float64 if kind == "values" else torch.bool)  # no group may need it
    places = groups[:, None] if kind == "values" else np.arange(3)[None]
    both = [conformal.by_group(answer, [learnt], places, every, GROUPED), answer([learnt])]
    if kind == "values":
        return [((one[0] <= torch.tensor(targets)) & (torch.tensor(targets) <= one[1]))[:, 0].numpy() for one in both]
    return [one.numpy()[np.arange(len(groups)), targets] for one in both]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["values", "classes"])
def test_each_group_has_the_coverage_of_the_level_by_its_own_scores(kind: str) -> None:
    """60 times 19 calibration and 25 new rows of each of three groups, at 90 %.

    The number of new rows held is beta-binomial. Means over 60 data sets lie within 5 standard errors: a false alarm in
    600,000 for three groups. The wrong variant has one threshold for all rows, which holds ⌈58 · 0.9⌉/58 of them: two
    groups have another coverage.
    """
    shares = np.empty((60, 2, 3))
    for repeat in range(60):
        random = np.random.default_rng([11, repeat])
        predictive, targets, groups = grouped(kind, OWN_ROWS, random)
        rows = Examples(np.zeros((len(groups), 1)), targets)
        learnt = recalibration.fit(iter([(slice(0, len(groups)), predictive)]), rows, UNCHANGED, groups)
        learnt = Recalibration.from_state(learnt.state())
        new, targets, groups = grouped(kind, 25, random)
        both = held(kind, new, learnt, targets, groups)
        shares[repeat] = [[one[groups == group].mean() for group in range(3)] for one in both]
    error = math.sqrt(stats.betabinom(25, 18, 2).var() / 25**2 / 60)
    off = np.abs(shares.mean(0) - GROUPED) / error
    assert (off[0] < 5).all()
    assert (off[1] > 5).sum() >= 2 and abs(shares[:, 1].mean() - 53 / 58) < 0.02


def test_a_group_with_too_few_rows_gets_everything() -> None:
    learnt = Recalibration((1.0,), (1.0,), torch.arange(28.0), torch.tensor([0.0] * 9 + [1.0] * 8 + [math.nan] * 11))
    assert [conformal.fewest_rows(level) for level in (0.5, 0.8, 0.9, 0.95, 0.99)] == [1, 4, 9, 19, 99]
    groups, every = np.array([[0.0], [1.0], [math.nan], [7.0]]), torch.full((4, 1), math.inf)
    found = conformal.by_group(lambda own: torch.full((4, 1), own[0].threshold(0.9)), [learnt], groups, every, 0.9)
    assert found[:, 0].tolist() == [8.0, math.inf, 27.0, math.inf]


def uneven(rows: int, random: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray]:
    """Targets around 0 whose noise differs 30-fold between two groups; 0.5 % of the rows are of a third group."""
    wild = random.random(rows) < 0.5
    names = np.where(random.random(rows) < 0.005, "rare", np.where(wild, "wild", "calm"))
    frame = pd.DataFrame({"other": random.normal(size=rows), "group": names})
    return frame, np.where(wild, 3.0, 0.1) * random.normal(size=rows)


@pytest.mark.parametrize("how", ["split", "cross"])
def test_a_regressor_calibrates_the_groups_of_a_column(how: str, tmp_path: Path) -> None:
    """Widths within a group are near those of its noise, 3.29 sd; one threshold for all gives both groups one width."""
    frame, y = uneven(400, np.random.default_rng(3))
    model = BayesianRegressor("constant", conformal=how, groups="group").fit(frame, y)
    new = pd.DataFrame({"other": [0.0, 0.0, 0.0], "group": ["calm", "wild", "rare"]})
    with pytest.warns(UserWarning, match="groups: rare: fewer than the 9 calibration rows of level 0.9"):
        low, high = model.predict_interval(new, 0.9, conformal=True)
    assert 0.2 < (high - low)[0] < 1 and 7 < (high - low)[1] < 13 and (low[2], high[2]) == (-math.inf, math.inf)
    model.save(tmp_path / "kept")
    again = BayesianRegressor.load(tmp_path / "kept")
    with pytest.warns(UserWarning, match="groups: rare"):
        np.testing.assert_array_equal(again.predict_interval(new, 0.9, conformal=True), (low, high))
    by_number = BayesianRegressor("constant", conformal=how, groups=1).fit(frame, y)
    two = new.iloc[:2]
    np.testing.assert_array_equal(by_number.predict_interval(two, 0.9, conformal=True), (low[:2], high[:2]))
    whole = BayesianRegressor("constant", conformal=how).fit(frame, y)
    low, high = whole.predict_interval(two, 0.9, conformal=True)
    assert (high - low)[0] == pytest.approx((high - low)[1])


@pytest.mark.parametrize("how", ["split", "cross"])
def test_a_classifier_calibrates_each_class_or_the_groups_of_a_column(how: str) -> None:
    """A constant classifier and classes of 85, 12 and 3 %: one threshold at 90 % leaves out the rarest class.

    Each class is in every set by its own rows, whose scores are all equal.
    """
    random = np.random.default_rng(5)
    x, y = random.normal(size=(600, 2)), np.repeat(["often", "seldom", "rarely"], [510, 72, 18])
    x[:, 1] = y == "often"
    rows = np.array([[0.0, 1.0], [0.0, 0.0]])

    def sets(groups: Any) -> np.ndarray:
        model = BayesianClassifier("constant", conformal=how, groups=groups).fit(x, y)
        found: np.ndarray = model.predict_set(rows, 0.9, conformal=True)[:, [model.classes_.tolist().index("rarely")]]
        return found[:, 0]

    assert sets(None).tolist() == [False, False]
    assert sets(1).tolist() == [False, True], "nine in ten of the rows without `often` need it"
    if how == "cross":
        assert sets("class").tolist() == [True, True]
    else:
        with pytest.warns(UserWarning, match="groups: rarely: fewer than the 9 .* so that its class is in every set"):
            assert sets("class").tolist() == [True, True]


REPEATS = {"split": 60, "cross": 50}


def outliers(rows: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A tenth of the targets far off, so that a Gaussian's intervals are too wide for the others."""
    x = random.normal(size=(rows, 1))
    return x, x[:, 0] + np.where(random.random(rows) < 0.1, 10, 0.2) * random.normal(size=rows)


def flipped(rows: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Three in ten labels are wrong, so that the fewest classes of probability .8 are both of them."""
    x = random.normal(size=(rows, 1))
    return x, np.where((x[:, 0] > 0) == (random.random(rows) < 0.7), "up", "down")


def share(model: Any, x: np.ndarray, y: np.ndarray, conformal: bool) -> float:
    """The share of rows whose interval or set holds the target."""
    if isinstance(model, BayesianRegressor):
        low, high = model.predict_interval(x, LEVEL, conformal=conformal)
        return float(((low <= y) & (y <= high)).mean())
    return float(model.predict_set(x, LEVEL, conformal=conformal)[np.arange(len(x)), model._places(y, len(x))].mean())


@pytest.mark.slow
@pytest.mark.parametrize("how", REPEATS)
@pytest.mark.parametrize(("kind", "drawn"), [(BayesianRegressor, outliers), (BayesianClassifier, flipped)])
def test_conformal_intervals_and_sets_have_their_coverage(kind: Any, drawn: Any, how: str) -> None:
    calibrated, plain = [], []
    for repeat in range(REPEATS[how]):
        random = np.random.default_rng([7, repeat])
        rows = drawn(100, random)
        model, bare = (kind("linear", conformal=each, random_state=repeat).fit(*rows) for each in (how, None))
        x, y = drawn(200, random)
        calibrated.append(share(model, x, y, conformal=True))
        plain.append(share(bare, x, y, conformal=False))
    error = float(stats.sem(calibrated))
    most = 1 / 21 if how == "split" else 0.08  # exact for 20 rows; cross-conformal sets may be wider
    far = stats.t.isf(1e-4 / 2, REPEATS[how] - 1) * error
    assert LEVEL - far < np.mean(calibrated) < LEVEL + most + far
    assert np.mean(plain) > LEVEL + most + far  # the wrong variant
