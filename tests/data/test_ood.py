"""Noise, held-out classes, labelled rows of other sets, and steps of classes: test rows are in the holdout alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bdl_pipe.data import sources
from bdl_pipe.data.catalog import CATALOG, Named
from bdl_pipe.data.config import DatasetConfig, IncrementConfig
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.raw import Raw
from bdl_pipe.data.sources.images import Npz
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.seeds import Seed
from pipeline.prepared import folders
from pipeline.prepared.other_sets import noise, shared_rows, to_shape
from tests.case_files import cases_of, tupled
from tests.preparing import bytes_of, loaded, prepare_at

from . import archives as made

cases = cases_of(__file__)
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
    sets = [loaded(tmp_path / str(i), config, seed=seed)[2].ood() for i, seed in enumerate((0, 0, 1))]
    assert list(sets[0]) == ["digits", "noise"] and sets[0]["noise"].inputs.shape == (1000, 1, 8, 8)
    np.testing.assert_array_equal(sets[0]["noise"].inputs, sets[1]["noise"].inputs)
    assert (sets[0]["noise"].inputs != sets[2]["noise"].inputs).mean() > 0.9
    wide = replace(DIGITS, source=npz(tmp_path / "d.npz"), validation=4, ood=("noise",))
    assert loaded(tmp_path / "n", wide)[2].ood()["noise"].inputs.shape == (1000, 3, 4, 4)


def test_held_out_classes_occur_only_in_their_own_ood_set(tmp_path: Path) -> None:
    source = npz(tmp_path / "d.npz")
    config = replace(DIGITS, source=source, validation=4, held_out=(2, 0), corrupted_images=0)
    _, final, test = loaded(tmp_path, config)
    assert final.classes == ("1", "3") and final.outputs == 2
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
    lacks = replace(DIGITS, source=npz(tmp_path / "d.npz", test_classes=3), validation=4, held_out=(3,))
    with pytest.raises(DataError, match=r"d\.npz: must have test rows of the classes \[3\] .*, got none"):
        prepare_at(tmp_path, lacks)


IMAGES = DatasetConfig(
    Named("cifar10"), "published", False, 4, "train_and_validation", 1, (), 0, "made", transfer=("stl10",)
)
PATH = "datasets.d.transfer[0]"
NO_ROWS = r"set 1: must have test rows of a class of set 2 .*, got none"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BDL_DATA_DIR", str(tmp_path))
    for name in ("cifar10", "stl10"):
        monkeypatch.setitem(CATALOG._values, name, made.small_entry(name, tmp_path / name))
    return tmp_path


def raw(classes: Sequence[str], targets: Sequence[int], *, seed: int, shape: tuple[int, ...] = (1, 4, 4)) -> Raw:
    rows = Examples(made.images(len(targets), shape, seed), np.array(targets, dtype=np.int64))
    return Raw(f"set {seed}", "classification", "image", rows, rows, tuple(classes))


def test_rows_of_stl10_get_the_labels_and_the_shape_of_cifar10(folder: Path) -> None:
    """The labels by hand: bird, car and horse have other labels in CIFAR-10, and the monkeys are left out."""
    transferred = loaded(folder, IMAGES)[2].transfer()
    assert list(transferred) == ["stl10"] and transferred["stl10"].inputs.shape == (18, 3, 32, 32)
    once = [0, 2, 1, 3, 4, 5, 7, 8, 9]
    assert transferred["stl10"].targets.tolist() == once * 2
    pixels = made.images(20, (3, 96, 96), 1)[np.arange(20) % 10 != 7]
    np.testing.assert_array_equal(transferred["stl10"].inputs, to_shape(pixels, (3, 32, 32)))
    names = sources.load(Named("cifar10")).classes
    same = ["airplane", "bird", "automobile", "cat", "deer", "dog", "horse", "ship", "truck"]
    assert [names[label] for label in once] == same


def test_the_fit_artifact_does_not_depend_on_transfer_sets(folder: Path) -> None:
    with_them, without = prepare_at(folder / "a", IMAGES), prepare_at(folder / "b", replace(IMAGES, transfer=()))
    assert bytes_of(with_them[0]) == bytes_of(without[0])
    more = {*bytes_of(with_them[1])} - {*bytes_of(without[1])}
    assert more == {"transfer/stl10.arrow"}
    assert folders.load_holdout(without[1], 0).transfer() == {}


@pytest.mark.parametrize(
    ("change", "labels"),
    [
        ({"transfer_names": {"monkey": "frog"}}, [0, 2, 1, 3, 4, 5, 7, 6, 8, 9]),  # as in Maddox et al.'s code
        ({"held_out": (0, 9)}, [1, 0, 2, 3, 4, 6, 7]),  # no airplane and no truck; the other classes are renumbered
    ],
)
def test_transfer_names_and_held_out_classes_change_the_labels(change: dict, labels: list[int], folder: Path) -> None:
    assert loaded(folder, replace(IMAGES, **change))[2].transfer()["stl10"].targets.tolist() == labels * 2


def test_all_rows_of_digits_are_transfer_rows_of_mnist5k(tmp_path: Path) -> None:
    """A set without test rows gives all its rows, here enlarged to twelve times the pixels."""
    config = replace(IMAGES, source=Named("mnist5k"), normalise="train", validation=10, transfer=("small",))
    small = replace(config, source=Named("digits"), transfer=())
    _, final, held = loaded(tmp_path, config, small=small)
    rows, transferred = sources.load(Named("digits")).train, held.transfer()["small"]
    np.testing.assert_array_equal(transferred.targets, rows.targets)
    assert transferred.inputs.shape == (1797, 1, 28, 28)
    seen = {row.tobytes() for row in final.train.inputs}
    assert not any(row.tobytes() in seen for row in transferred.inputs)


def test_synonyms_of_class_names_match_in_both_directions() -> None:
    cars, autos = raw(["car", "cat"], [0, 1, 1], seed=1), raw(["cat", "automobile", "dog"], [0, 1, 2], seed=2)
    assert shared_rows(cars, autos, {}, PATH).targets.tolist() == [1, 0, 0]
    assert shared_rows(autos, cars, {}, PATH).targets.tolist() == [1, 0]
    both = raw(["automobile", "car"], [0, 1], seed=3)
    assert shared_rows(cars, both, {}, PATH).targets.tolist() == [1]  # an equal name goes before a synonym
    assert shared_rows(cars, both, {"car": "automobile", "cat": "car"}, PATH).targets.tolist() == [0, 1, 1]


def test_sets_without_a_shared_class_or_rows_of_it_or_with_rows_of_the_fit_are_refused() -> None:
    """MNIST and its copy mnist5k have such rows. Shapes may differ, because the predicted images are compared."""
    fitted = raw(["a", "b"], [0, 1], seed=1)
    copy = replace(fitted, origin="copy", test=Examples(fitted.train.inputs[1:], np.array([1])))
    colour = replace(copy, test=Examples(np.repeat(fitted.train.inputs[1:], 3, axis=1), np.array([1])))
    shares = r"must name a set that shares a class with set 2 \(c, d\), got 'set 1 \(a, b\)'$"
    for one, other, error, rule in (
        (fitted, raw(["c", "d"], [0, 1], seed=2), ConfigError, rf"^datasets\.d\.transfer\[0\] {shares}"),
        (raw(["a", "b"], [1, 1], seed=1), raw(["a", "d"], [0, 1], seed=2), DataError, NO_ROWS),
        (copy, fitted, ConfigError, r"must name a set of other images than set 1, got 'copy: 1 of its 1 rows"),
        (colour, fitted, ConfigError, "must name a set of other images"),
    ):
        with pytest.raises(error, match=rule):
            shared_rows(one, other, {}, PATH)


@cases("transfer sets", "change rule")
def test_a_wrong_transfer_set_is_refused_before_the_holdout_is_written(
    change: dict[str, Any], rule: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^datasets\.d\.{rule}"):
        prepare_at(folder / "out", replace(IMAGES, **tupled(change)))
    assert not (folder / "out/holdout").exists()


CLASSES = 6


def bright_rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose brightness depends on their class, so that other rows have other constants."""
    labels = np.arange(count) % CLASSES
    return (made.images(count, (1, 8, 8), seed) // 8 + 30 * labels[:, None, None, None]).astype(np.uint8), labels


def classes_of_npz(path: Path, *, other_test: bool = False) -> DatasetConfig:
    (x, y), (x_test, y_test) = bright_rows(120, 0), bright_rows(24, 1)
    np.savez(path, x_train=x, y_train=y, x_test=255 - x_test if other_test else x_test, y_test=y_test)
    source = Npz(str(path))
    return DatasetConfig(source, "train", True, 30, "train_and_validation", 1, ("noise",), 0, "made")


def at(dataset: DatasetConfig, step: int, classes: int = 2, order: int = 3) -> DatasetConfig:
    return replace(dataset, increment=IncrementConfig(order, classes, step))


def as_bytes(rows: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in rows}


def same(a: Transform, b: Transform) -> bool:
    mine, theirs = a.state().tensors, b.state().tensors
    return mine.keys() == theirs.keys() and all(bool((mine[k] == theirs[k]).all()) for k in mine)


def test_the_steps_partition_the_classes_in_the_published_orders() -> None:
    """The first classes of the published lists for CIFAR-100."""
    assert IncrementConfig(0, 20, 0).new(100)[:10] == [26, 86, 2, 55, 75, 93, 16, 73, 54, 95]
    assert IncrementConfig(1, 20, 0).new(100)[:5] == [80, 84, 33, 81, 93]
    steps = [IncrementConfig(7, 2, step) for step in range(5)]
    assert sorted(label for step in steps for label in step.new(10)) == list(range(10))
    for number, step in enumerate(steps):
        assert step.seen(10) == [label for before in steps[: number + 1] for label in before.new(10)]


def test_a_step_trains_on_its_new_classes_and_tests_on_all_classes_so_far(tmp_path: Path) -> None:
    whole = classes_of_npz(tmp_path / "d.npz")
    search, _, held = loaded(tmp_path / "whole", whole)
    test = held.test
    for number in range(3):
        dataset = at(whole, number)
        part, final, held = loaded(tmp_path / str(number), dataset)
        new, seen = dataset.increment.new(CLASSES), dataset.increment.seen(CLASSES)
        for mine, all_rows in ((part.train, search.train), (part.validation, search.validation)):
            of_new = np.isin(all_rows.targets, new)
            np.testing.assert_array_equal(mine.inputs, all_rows.inputs[of_new])
            np.testing.assert_array_equal(mine.targets, all_rows.targets[of_new])
        assert len(final.train) == 40 and set(final.train.targets) == {*new} and final.outputs == CLASSES
        np.testing.assert_array_equal(held.test.inputs, test.inputs[np.isin(test.targets, seen)])
        assert set(held.test.targets) == {*seen} and len(held.ood()["noise"]) == 1000


def test_all_steps_share_one_transform_fitted_to_the_training_rows_alone(tmp_path: Path) -> None:
    """A search's transform is fitted to the training rows of all steps: not to one step's nor to validation rows."""
    whole = classes_of_npz(tmp_path / "d.npz")
    steps = [prepare_at(tmp_path / str(number), at(whole, number))[0] for number in range(3)]
    everything, _ = prepare_at(tmp_path / "whole", whole)
    for final in (False, True):
        fits = [folders.load_fit(fit, 0, final=final) for fit in (everything, *steps)]
        assert all(same(fits[0].transform, other.transform) for other in fits[1:])
    parts = [folders.load_fit(fit, 0, final=False) for fit in steps]
    mean = float(parts[0].transform.mean[0])

    def brightness(*images: np.ndarray) -> float:
        return float(np.concatenate(images).astype(np.float64).mean() / 255)

    train, validation = [part.train.inputs for part in parts], [part.validation.inputs for part in parts]
    assert mean == pytest.approx(brightness(*train), rel=1e-12)
    assert mean != pytest.approx(brightness(*train, *validation), rel=1e-6)
    assert all(mean != pytest.approx(brightness(images), rel=1e-3) for images in train)
    changed, _ = prepare_at(tmp_path / "changed", at(classes_of_npz(tmp_path / "other.npz", other_test=True), 1))
    mine, other = ({p.name: p.read_bytes() for p in sorted((f / "0").iterdir())} for f in (steps[1], changed))
    assert mine == other, "a test row is in it"


def test_transfer_rows_have_only_the_classes_so_far(tmp_path: Path) -> None:
    images, labels = bright_rows(12, 2)
    np.savez(tmp_path / "other.npz", x_train=images + 1, y_train=labels, x_test=images, y_test=labels)
    whole = replace(classes_of_npz(tmp_path / "d.npz"), transfer=("other",))
    other = replace(whole, source=Npz(str(tmp_path / "other.npz")), transfer=())
    for number in range(3):
        dataset = at(whole, number)
        rows_of_step = loaded(tmp_path / str(number), dataset, other=other)[2].transfer()["other"]
        assert sorted(rows_of_step.targets) == sorted(2 * dataset.increment.seen(CLASSES))
        assert as_bytes(rows_of_step.inputs) <= as_bytes(images)
    images, labels = bright_rows(60, 2)
    late = np.isin(labels, IncrementConfig(3, 2, 2).new(CLASSES))
    x, y = images[late], labels[late]
    np.savez(tmp_path / "other.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert len(prepare_at(tmp_path / "last", at(whole, 2), other=other)) == 2
    with pytest.raises(ConfigError, match=r"^datasets\.d\.transfer\[0\] must have rows of a class up to this step"):
        prepare_at(tmp_path / "early", at(whole, 1), other=other)


def test_a_step_comes_only_after_the_preceding_step_of_the_same_set(tmp_path: Path) -> None:
    whole = classes_of_npz(tmp_path / "d.npz")
    after = at(whole, 1)
    assert after.comes_after(at(whole, 0)) and after.comes_after(replace(at(whole, 0), ood=()))
    others = [whole, at(whole, 1), at(whole, 2), at(whole, 0, order=4), at(whole, 0, classes=1)]
    others += [replace(at(whole, 0), **change) for change in ({"whiten": False}, {"validation": 31}, {"splits": 2})]
    assert not any(after.comes_after(other) for other in others)
    assert not at(whole, 0).comes_after(at(whole, 0)) and not whole.comes_after(whole)


def test_increments_that_do_not_fit_the_set_are_refused(tmp_path: Path) -> None:
    whole = classes_of_npz(tmp_path / "d.npz")
    rule = r"^datasets\.d\.increment\.step must be < 3: each adds 2 of 6 classes, got 3"
    with pytest.raises(ConfigError, match=rule):
        prepare_at(tmp_path, at(whole, 3))
    with pytest.raises(ConfigError, match=r"^datasets\.d\.increment\.classes must divide the 6 classes, got 4"):
        prepare_at(tmp_path, at(whole, 0, classes=4))
    images, labels = bright_rows(120, 0)
    few = labels != IncrementConfig(3, 2, 0).new(CLASSES)[0]
    np.savez(tmp_path / "few.npz", x_train=images, y_train=labels, x_test=images[few], y_test=labels[few])
    with pytest.raises(DataError, match=r"must have test rows of the class . \(increment\), got none"):
        prepare_at(tmp_path, at(replace(whole, source=Npz(str(tmp_path / "few.npz"))), 0))
