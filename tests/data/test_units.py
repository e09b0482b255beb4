"""No split divides a group or a date: test, calibration and validation rows, and the folds inside of methods."""

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import TimeSeriesSplit

from bdl_pipe import BayesianRegressor, compare
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.split_rows import uci_splits
from bdl_pipe.data.units import folds, held, left_out, most_splits, splits_of
from bdl_pipe.errors import DataError, UserError
from bdl_pipe.networks.mlp import MlpConfig
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.target import TargetConfig
from pipeline.prepared import folders
from tests.cases import fit
from tests.preparing import dataset_of, prepare_at, transform_of

RANDOM = np.random.default_rng(0)
VISITS = pd.DataFrame({"patient": [f"p{i}" for i in RANDOM.integers(0, 60, 400)], "x": RANDOM.normal(size=400)})
VISITS["day"] = [str(np.datetime64("2024-01-01") + int(i)) for i in RANDOM.integers(0, 200, 400)]
VISITS["y"] = RANDOM.normal(size=400)
COLUMNS = {"x": "number", "day": "date"}


def source(folder: Path, by: dict[str, str], columns: Any = COLUMNS, **changes: Any) -> dict[str, Any]:
    VISITS.assign(**changes).to_csv(folder / "visits.csv", index=False)
    about = {"name": "table", "path": str(folder / "visits.csv"), "target": ["y"], "task": "regression"}
    return {**about, "columns": columns, "split_by": by}


def test_windows_of_dates_are_those_of_scikit_learn_and_random_ones_are_not() -> None:
    dates = np.random.default_rng(1).permutation(100)
    ours = [tuple(map(set, pair)) for pair in splits_of(dates, 3, 0.1, "", ordered=True, rng=Seed(0))]
    order = np.argsort(dates)
    windows = TimeSeriesSplit(3, test_size=10).split(order)
    assert ours == [(set(order[train]), set(order[test])) for train, test in windows][::-1]
    assert ours != [tuple(map(set, pair)) for pair in uci_splits(100, 3)]
    assert [tuple(map(set, pair)) for pair in splits_of(dates, 1, 0.1, "", ordered=True, rng=Seed(1))] == ours[:1]


def test_equal_dates_stay_on_one_side_of_the_nearest_border() -> None:
    rest, late = held(np.array([0, 1, 1, 1, 1, 2, 2, 0]), 3, "", ordered=True, rng=Seed(0))
    assert rest.tolist() == [0, 1, 2, 3, 4, 7] and late.tolist() == [5, 6]


def test_each_group_is_tested_equally_often() -> None:
    """A chi-square test of 600 draws of 6 of 60 groups, false alarm 1e-6: without replacement it is conservative."""
    groups = np.repeat(np.arange(60), 5)
    draws = [np.unique(groups[test]) for _, test in splits_of(groups, 600, 0.1, "", ordered=False, rng=Seed(2))]
    assert {len(draw) for draw in draws} == {6}
    counts = np.bincount(np.concatenate(draws), minlength=60)
    assert ((counts - 60) ** 2 / 60).sum() < 125.7


def test_no_two_splits_test_the_same_groups_and_more_splits_are_refused() -> None:
    """Four groups of equal sizes have four tests; of unequal ones, the smallest is always nearest to the share."""
    groups = np.repeat(np.arange(4), 10)
    tests = [frozenset(groups[test]) for _, test in splits_of(groups, 4, 0.1, "f", ordered=False, rng=Seed(0))]
    assert len({*tests}) == 4
    message = r"^f: splits must be at most 4 \(--splits 4 of add\), .*, got 5 splits and 4 groups$"
    with pytest.raises(DataError, match=message):
        list(splits_of(groups, 5, 0.1, "f", ordered=False, rng=Seed(0)))
    assert most_splits(groups, 5, 0.1, rng=Seed(0)) == 4 and most_splits(groups, 3, 0.1, rng=Seed(0)) == 3
    assert most_splits(groups[1:], 5, 0.1, rng=Seed(0)) == 1


@pytest.mark.parametrize("ordered", [False, True])
def test_folds_divide_no_unit_and_predict_dates_from_earlier_ones(ordered: bool) -> None:
    units = np.random.default_rng(3).integers(0, 40, 300)
    parts = folds(units, 5, ordered=ordered, rng=Seed(0))
    assert np.bincount(parts).min() > 30 and parts.max() == (5 if ordered else 4)
    predicted = []
    for rest, out in left_out(parts, ordered=ordered):
        assert not {*units[rest]} & {*units[out]}
        assert not ordered or units[rest].max() < units[out].min()
        predicted += out.tolist()
    assert sorted(predicted) == np.flatnonzero(parts >= int(ordered)).tolist()


@pytest.mark.parametrize("by", [{"group": "patient"}, {"date": "day"}], ids=str)
def test_the_parts_of_each_split_share_no_group_and_later_parts_have_later_dates(by: Any, tmp_path: Path) -> None:
    kept, apart = prepare_at(tmp_path, dataset_of(source(tmp_path, by), splits=2, calibration=0.1))
    for split in range(2):
        data, calibration = folders.load_fit(kept, split, final=True), folders.load_calibration(kept, split)
        test = folders.load_holdout(apart, split).test
        assert data.search is not None and calibration is not None and data.ordered == ("date" in by)
        parts: list[Any] = [one.units for one in (data.search.train, data.search.validation, calibration, test)]
        assert not any({*one} & {*other} for one, other in combinations(parts, 2))
        assert not data.ordered or all(one.max() < other.min() for one, other in pairwise(parts))
        assert len(test) == pytest.approx(40, abs=5) and len(parts[1]) == pytest.approx(60, abs=12)


def test_a_column_of_groups_is_a_feature_only_if_it_is_named(tmp_path: Path) -> None:
    plain = dataset_of(source(tmp_path, {"group": "patient"}, None, patient=VISITS.index % 9, day=1.0))
    assert plain.source.read().features == ("x", "day")
    named = dataset_of(source(tmp_path, {"group": "patient"}, {"x": "number", "patient": "category"}))
    assert named.source.read().features == ("x", "patient")


@pytest.mark.parametrize(
    ("by", "changes", "message"),
    [
        ({"group": "doctor"}, {}, "must have the column 'doctor'"),
        ({"group": "patient"}, {"patient": "p"}, "split_by must have more groups: "),
        ({"date": "day"}, {"day": "2024-01-01"}, "split_by must have more dates: "),
        ({"date": "patient"}, {}, "column 'patient' must be dates, got 'p"),
        ({"group": "patient"}, {"patient": [None, *["p"] * 399]}, "must have a value in every row, since split_by"),
        ({"group": "patient", "date": "day"}, {}, "split_by.date must be given, or group, and not both"),
        ({"date": "y"}, {}, "split_by must not name a target"),
    ],
)
def test_a_column_that_cannot_split_is_one_line(by: Any, changes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        prepare_at(tmp_path, dataset_of(source(tmp_path, by, {"x": "number"}, **changes)))
    assert message in str(error.value) and "\n" not in str(error.value)


def units_data(kind: str | None) -> FitData:
    """Rows whose groups have one input and one target each, up to noise of sd .1; the targets of groups vary by 1."""
    random = np.random.default_rng(4)
    groups = np.repeat(np.arange(20), 20)
    inputs = random.normal(size=(20, 2))[groups]
    targets = (random.normal(size=20)[groups] + 0.1 * random.normal(size=400))[:, None]
    order = random.permutation(400)
    rows = Examples(inputs[order], targets[order], None if kind is None else groups[order])
    transform = transform_of(rows.inputs, rows.targets, normalise="train")
    return FitData("regression", rows, rows.cut(0)[0], transform, ordered=kind == "date")


def noise(kind: str | None) -> tuple[float, float]:
    """Return the variance that boosting predicts, and the one that chains take, in units of the targets' variance."""
    data = units_data(kind)
    state = fit("boosting", "student", data, rounds=20, noise="one", folds=3)
    chains = TargetConfig(MlpConfig("mlp", (4,)), 1.0, None)
    return float(np.exp(state.tensors["variance.0.start"].item())), 1 / chains.precision(data)


def test_left_out_noise_is_that_of_new_groups_and_later_dates() -> None:
    """A model cannot predict a new group better than by the mean, with variance 1 after standardising."""
    assert all(0.8 < variance < 2.5 for kind in ("group", "date") for variance in noise(kind))
    assert all(variance < 0.6 for variance in noise(None))  # the wrong variant: random folds


def test_estimators_take_groups_or_dates_of_rows() -> None:
    visits = VISITS[:100]
    x, y = visits[["x"]].assign(z=visits["y"] ** 2), visits["y"]
    model = BayesianRegressor("constant", conformal="cross").fit(x, y, groups=visits["patient"])
    assert len(model.fitted_.parts) == 6
    dates = pd.to_datetime(visits["day"])
    with pytest.raises(ValueError, match="conformal must be split or None with dates"):
        BayesianRegressor("constant", conformal="cross").fit(x, y, dates=dates)
    for wrong, message in (
        ({"groups": [1, 2]}, "groups: must have a value for each of the 100 rows, got 2"),
        ({"dates": pd.DataFrame({"day": range(100)})}, r"dates: must be one column .*, got an array \[100, 1\]"),
        ({"groups": visits["patient"], "dates": dates}, "groups: must not be given together with dates"),
    ):
        with pytest.raises(ValueError, match=message):
            BayesianRegressor("constant").fit(x, y, **wrong)
    assert compare(x, y, ["constant", "linear"], cv=3, dates=visits["day"].to_numpy()).folds == 3
