"""Far and near out-of-distribution sets: uniform noise, and classes that no fit ever sees."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bdl_pipe.data.catalog import Named
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.sources.images import Npz
from bdl_pipe.data.sources.table import Table
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.seeds import Seed
from pipeline.prepared import folders
from pipeline.prepared.ood_sets import noise
from tests.preparing import prepare_at

from . import archives as made

DIGITS = DatasetConfig(Named("digits"), "train", False, 100, "train_and_validation", 1, (), 0, "made", "none")


def npz(path: Path, classes: int = 4, test_classes: int = 4) -> Npz:
    train, test = made.images(40, (3, 4, 4)), made.images(12, (3, 4, 4), 1)
    np.savez(path, x_train=train, y_train=made.labels(40, classes), x_test=test, y_test=made.labels(12, test_classes))
    return Npz(str(path))


def test_noise_is_uniform() -> None:
    """Chi-squared over the 256 values; false alarm once in 10^6, and a normal imitation must fail."""
    pixels = noise((1, 20, 20), Seed(0)).inputs
    assert pixels.shape == (1000, 1, 20, 20) and pixels.dtype == np.uint8

    def p_value(values: np.ndarray) -> float:
        return float(stats.chisquare(np.bincount(values.ravel(), minlength=256)).pvalue)

    assert p_value(pixels) > 1e-6
    clipped = np.clip(np.random.default_rng(0).normal(127.5, 60, pixels.size), 0, 255).astype(np.uint8)
    assert p_value(clipped) < 1e-6
    assert p_value(np.minimum(pixels, 254)) < 1e-6  # a range that stops one short
    flat = pixels.reshape(1000, -1).astype(float)
    assert abs(np.corrcoef(flat[:, 0], flat[:, 1])[0, 1]) < 5 / np.sqrt(1000)  # five deviations: once in 10^6


def test_noise_has_the_shape_of_the_set_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    config = replace(DIGITS, ood=("noise", "digits"))
    sets = [
        folders.load_holdout(prepare_at(tmp_path / str(i), config, seed=seed)[1], 0).ood()
        for i, seed in enumerate((0, 0, 1))
    ]
    assert list(sets[0]) == ["digits", "noise"] and sets[0]["noise"].inputs.shape == (1000, 1, 8, 8)
    np.testing.assert_array_equal(sets[0]["noise"].inputs, sets[1]["noise"].inputs)
    assert (sets[0]["noise"].inputs != sets[2]["noise"].inputs).mean() > 0.9
    wide = replace(DIGITS, source=npz(tmp_path / "d.npz"), validation=4, ood=("noise",))
    assert folders.load_holdout(prepare_at(tmp_path / "n", wide)[1], 0).ood()["noise"].inputs.shape == (1000, 3, 4, 4)


def test_held_out_classes_occur_only_in_their_own_ood_set(tmp_path: Path) -> None:
    source = npz(tmp_path / "d.npz")
    fit, holdout = prepare_at(
        tmp_path, replace(DIGITS, source=source, validation=4, held_out=(2, 0), corrupted_images=0)
    )
    final, test = folders.load_fit(fit, 0, final=True), folders.load_holdout(holdout, 0)
    assert final.classes == ("1", "3") and final.outputs == 2 and final.search is not None
    assert (len(final.train), len(final.search.train), len(final.search.validation)) == (20, 16, 4)
    train, tests = made.images(40, (3, 4, 4)), made.images(12, (3, 4, 4), 1)
    old = {row.tobytes(): i % 4 for i, row in enumerate(train)} | {row.tobytes(): i % 4 for i, row in enumerate(tests)}
    for rows in (final.train, final.search.train, final.search.validation, test.test):
        assert [old[row.tobytes()] for row in rows.inputs] == [(1, 3)[label] for label in rows.targets]
    held = test.ood()["held_out"]
    np.testing.assert_array_equal(held.inputs, tests[np.arange(12) % 2 == 0])
    assert held.targets.tolist() == [0, 2, 0, 2, 0, 2]  # the labels that the set itself has
    assert len(held) + len(test.test) == 12


def test_a_set_without_test_rows_holds_out_all_rows_of_the_classes(tmp_path: Path) -> None:
    fit, holdout = prepare_at(tmp_path, replace(DIGITS, held_out=(9,), ood=("noise",), splits=2))
    ood = folders.load_holdout(holdout, 1).ood()
    assert {name: len(rows) for name, rows in ood.items()} == {"held_out": 180, "noise": 1000}
    assert set(ood["held_out"].targets) == {9}
    for split in (0, 1):
        train, test = folders.load_fit(fit, split, final=True).train, folders.load_holdout(holdout, split).test
        assert len(train) + len(test) == 1797 - 180 and set(train.targets) == set(range(9))
    assert folders.load_schema(fit)["classes"] == list("012345678")


@pytest.mark.parametrize(("held", "rule"), [((10,), "< 10"), (tuple(range(9)), "leave at least 2 classes")])
def test_impossible_held_out_classes_are_refused(held: tuple[int, ...], rule: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"datasets\.d\.held_out must be .*{rule}"):
        prepare_at(tmp_path, replace(DIGITS, held_out=held))


def test_a_held_out_class_without_test_rows_is_refused(tmp_path: Path) -> None:
    source = npz(tmp_path / "d.npz", test_classes=3)
    with pytest.raises(DataError, match=r"d\.npz: must have test rows of the classes \[3\] .*, got none"):
        prepare_at(tmp_path, replace(DIGITS, source=source, validation=4, held_out=(3,)))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"held_out": (1, 1)}, "held_out must be different"),
        ({"held_out": (-1,)}, "held_out must be different"),
        ({"held_out": (1,), "ood": ("held_out",)}, "ood must not name held_out"),
        ({"held_out": (1,), "corrupted_images": 5, "corruptions": "published"}, "corruptions must be made"),
        ({"held_out": (1,), "source": Table("t.csv", ("y",), "classification")}, "held_out must be empty for a table"),
        ({"ood": ("noise",), "source": Table("t.csv", ("y",), "classification")}, "ood must be empty for a table"),
    ],
)
def test_contradictory_keys_of_held_out_and_ood_are_refused(change: dict, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        replace(DIGITS, **change)
