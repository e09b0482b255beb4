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

from bdl_pipe import ArtifactError, BayesianClassifier, BayesianRegressor, conformal, load_predictor, summary
from bdl_pipe import stored_address as address
from bdl_pipe.artifacts import State
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import DataError
from bdl_pipe.estimators import fitted
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.recalibration import Recalibration
from bdl_pipe.seeds import Seed

LEVEL = 0.8
RANDOM = torch.Generator().manual_seed(0)
SCORES = [
    torch.rand(count, generator=RANDOM, dtype=torch.float64).sort().values for count in (7, 5, 6)
]  # of three parts
LEARNT = [Recalibration((1.0,), (1.0,), scores) for scores in SCORES]


def units(shift: list[float], scale: list[float]) -> Transform:
    plain = torch.zeros(1), torch.ones(1)
    return Transform("table", *plain, shift=torch.tensor(shift), scale=torch.tensor(scale))


def test_conformal_intervals_equal_their_definition_by_counting() -> None:
    rows, outputs = 4, 2
    mean = torch.randn(3, 1, rows, outputs, generator=RANDOM, dtype=torch.float64)
    sd = torch.rand(3, 1, rows, outputs, generator=RANDOM, dtype=torch.float64) + 0.5
    own_units = [units([a, 0.0], [1.0, 2.0 + a]).own_units for a in (0.0, 1.0, 2.0)]
    predictives = [Gaussian(mean[k], sd[k] ** 2) for k in range(3)]
    low, high = conformal.intervals(predictives, LEARNT, own_units, LEVEL)
    below, above = math.floor(19 * (1 - LEVEL) + 1e-9), math.ceil(19 * LEVEL - 1e-9)
    for row in range(rows):
        pairs = [(k, r) for k in range(3) for r in SCORES[k]]
        at = [torch.stack([own_units[k](mean[k, 0, row] + s * r * sd[k, 0, row]) for k, r in pairs]) for s in (-1, 1)]
        for output in range(outputs):
            lower, upper = (sorted(ends[:, output].tolist()) for ends in at)
            assert float(low[row, output]) == pytest.approx(lower[below - 1], abs=1e-12)
            assert float(high[row, output]) == pytest.approx(upper[above - 1], abs=1e-12)


def test_conformal_sets_equal_their_definition_by_counting() -> None:
    log_probs = torch.randn(3, 1, 6, 4, generator=RANDOM, dtype=torch.float64).log_softmax(-1)
    sets = conformal.class_sets([Categorical(p) for p in log_probs], LEARNT, LEVEL)
    for row in range(6):
        for label in range(4):
            p = [1 - float(log_probs[k, 0, row, label].exp()) for k in range(3)]
            smaller = sum(r < p[k] for k in range(3) for r in SCORES[k].tolist())
            assert bool(sets[row, label]) == (smaller < 19 * LEVEL)


def test_the_likely_classes_are_the_fewest_that_reach_the_level() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.05, 0.05, 0.9], [0.4, 0.4, 0.2]])
    classes = conformal.likely_classes(Categorical(probabilities.log()[None]), 0.75)
    assert classes.tolist() == [[True, True, False], [False, False, True], [True, True, False]]


def test_the_parts_of_cross_conformal_hold_every_row_once() -> None:
    drawn = fitted.drawn(53, Seed(0))
    assert sorted(np.concatenate(drawn).tolist()) == list(range(53)) and {len(part) for part in drawn} == {10, 11}


GROUPS = torch.tensor([0.0] * 9 + [1.0] * 8 + [math.nan] * 11)


def test_each_group_gets_the_answer_by_its_own_rows_and_a_group_with_too_few_rows_gets_everything() -> None:
    """Scores 0 … 27: of the first group the ninth is the largest of its nine; eight rows are too few for 90 %."""
    assert [conformal.fewest_rows(level) for level in (0.5, 0.8, 0.9, 0.95, 0.99)] == [1, 4, 9, 19, 99]
    learnt = Recalibration((1.0,), (1.0,), torch.arange(28.0).double(), GROUPS, grouped_by=1)
    rows = np.array([[5.0, 0.0], [5.0, 1.0], [5.0, math.nan], [5.0, 7.0]])
    unit = Gaussian(torch.zeros(1, 4, 1), torch.ones(1, 4, 1))
    low, high = learnt.interval(unit, units([0.0], [1.0]), 0.9, rows)
    assert high[:, 0].tolist() == (-low[:, 0]).tolist() == [8.0, math.inf, 27.0, math.inf]
    with pytest.raises(DataError, match="need the raw rows, whose groups are the values of a column"):
        learnt.interval(unit, units([0.0], [1.0]), 0.9)
    scores, groups = torch.linspace(0, 0.54, 28).double(), GROUPS.nan_to_num(2.0)
    of_classes = Recalibration((1.0,), (1.0,), scores, groups, conformal.OF_CLASSES)
    even = Categorical(torch.full((1, 1, 3), 1 / 2).log())  # scores of 0.5: above the ninth and below the largest
    for one in (of_classes, Recalibration.from_state(of_classes.state())):
        assert one.class_set(even, 0.9).tolist() == [[False, True, True]]
    state = of_classes.state()
    with pytest.raises(ArtifactError, match="must store what its groups are, and does not; fit it again"):
        Recalibration.from_state(State(state.tensors, {"factors": [1.0], "shares": [1.0]}))


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
        low, high = model.predict_interval(new, 0.9)
    assert 0.2 < (high - low)[0] < 1 and 7 < (high - low)[1] < 13 and (low[2], high[2]) == (-math.inf, math.inf)
    model.save(tmp_path / "kept")
    again = BayesianRegressor.load(tmp_path / "kept")
    with pytest.warns(UserWarning, match="groups: rare"):
        np.testing.assert_array_equal(again.predict_interval(new, 0.9, conformal=True), (low, high))
    if how == "split":  # the folder of a fit with all its groups answers by them, too
        kept = load_predictor(tmp_path / "kept")
        stored = summary.predictions(kept, model._rows(new), ("y",), rng=address(tmp_path / "kept"))
        np.testing.assert_array_equal((stored["conformal_lower"], stored["conformal_upper"]), (low, high))
    by_number = BayesianRegressor("constant", conformal=how, groups=1).fit(frame, y)
    two = new.iloc[:2]
    np.testing.assert_array_equal(by_number.predict_interval(two, 0.9, conformal=True), (low[:2], high[:2]))
    whole = BayesianRegressor("constant", conformal=how).fit(frame, y)
    low, high = whole.predict_interval(two, 0.9, conformal=True)
    assert (high - low)[0] == pytest.approx((high - low)[1])


@pytest.mark.parametrize("how", ["split", "cross"])
def test_a_classifier_calibrates_each_class_or_the_groups_of_a_column(how: str, tmp_path: Path) -> None:
    """A constant classifier and classes of 85, 12 and 3 %: one threshold at 90 % leaves out the rarest class.

    Each class is in every set by its own rows, whose scores are all equal.
    """
    random = np.random.default_rng(5)
    x, y = random.normal(size=(600, 2)), np.repeat(["often", "seldom", "rarely"], [510, 72, 18])
    x[:, 1] = y == "often"
    rows = np.array([[0.0, 1.0], [0.0, 0.0]])

    def sets(groups: Any) -> np.ndarray:
        model = BayesianClassifier("constant", conformal=how, groups=groups).fit(x, y)
        has_class: np.ndarray = model.predict_set(rows, 0.9)[:, model.classes_.tolist().index("rarely")]
        return has_class

    assert sets(None).tolist() == [False, False]
    assert sets(1).tolist() == [False, True], "nine in ten of the rows without `often` need it"
    if how == "cross":
        assert sets("class").tolist() == [True, True]
    else:
        with pytest.warns(UserWarning, match="groups: rarely: fewer than the 9 .* so that its class is in every set"):
            assert sets("class").tolist() == [True, True]
        model = BayesianClassifier("constant", conformal=how, groups="class").fit(x, y)
        model.save(tmp_path / "kept")
        kept, names = load_predictor(tmp_path / "kept"), [str(name) for name in model.classes_]
        stored = summary.predictions(kept, model._rows(rows), names, rng=address(tmp_path / "kept"))
        assert all("rarely" in members.split("|") for members in stored["set"])


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
