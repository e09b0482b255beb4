"""Conformal intervals and sets: their definition by counting, and their coverage where the posterior is wrong.

Coverage is a mean over data sets, each of which gives one independent share. It must be within Student's t of a false
alarm of 1e-4 in all; the uncalibrated intervals and sets of the same fits are the wrong variant, and fail.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from bdl_pipe import BayesianClassifier, BayesianRegressor
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError
from bdl_pipe.estimators import conformal, parts
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.recalibration import Recalibration
from bdl_pipe.seeds import Seed

LEVEL = 0.8


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
    drawn = parts.drawn(53, Seed(0))
    assert sorted(np.concatenate(drawn).tolist()) == list(range(53)) and {len(part) for part in drawn} == {10, 11}


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
