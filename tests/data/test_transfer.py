"""Labelled test rows of another set: they get this set's shape and labels, and are in the holdout alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bdl_pipe import config
from bdl_pipe.data import sources
from bdl_pipe.data.catalog import CATALOG, Named
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.raw import Raw
from bdl_pipe.errors import ConfigError, DataError
from pipeline.prepared import folders
from pipeline.prepared.ood_sets import to_shape
from pipeline.prepared.transfer_sets import shared_rows
from tests.preparing import bytes_of, prepare_at

from . import archives as made

IMAGES = DatasetConfig(
    Named("cifar10"), "published", False, 4, "train_and_validation", 1, (), 0, "made", transfer=("stl10",)
)
PATH = "datasets.d.transfer[0]"


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
    _, holdout = prepare_at(folder, IMAGES)
    found = folders.load_holdout(holdout, 0).transfer()
    assert list(found) == ["stl10"] and found["stl10"].inputs.shape == (18, 3, 32, 32)
    once = [0, 2, 1, 3, 4, 5, 7, 8, 9]
    assert found["stl10"].targets.tolist() == once * 2
    pixels = made.images(20, (3, 96, 96), 1)[np.arange(20) % 10 != 7]
    np.testing.assert_array_equal(found["stl10"].inputs, to_shape(pixels, (3, 32, 32)))
    names = sources.load(Named("cifar10")).classes
    same = ["airplane", "bird", "automobile", "cat", "deer", "dog", "horse", "ship", "truck"]
    assert [names[label] for label in once] == same


def test_the_fit_artifact_does_not_depend_on_transfer_sets(folder: Path) -> None:
    with_them, without = prepare_at(folder / "a", IMAGES), prepare_at(folder / "b", replace(IMAGES, transfer=()))
    assert bytes_of(with_them[0]) == bytes_of(without[0])
    more = {*bytes_of(with_them[1])} - {*bytes_of(without[1])}
    assert more == {"transfer/stl10.arrow"}
    assert folders.load_holdout(without[1], 0).transfer() == {}


def test_a_set_without_transfer_sets_is_written_without_their_keys() -> None:
    assert not {"transfer", "transfer_names"} & {*config.to_mapping(replace(IMAGES, transfer=()))}
    named = replace(IMAGES, transfer_names={"monkey": "frog"})
    assert config.read(DatasetConfig, config.to_mapping(named), "d") == named


def test_transfer_names_give_monkeys_the_label_of_frogs_as_published(folder: Path) -> None:
    """Maddox et al.'s code counts monkeys as frogs."""
    _, holdout = prepare_at(folder, replace(IMAGES, transfer_names={"monkey": "frog"}))
    assert folders.load_holdout(holdout, 0).transfer()["stl10"].targets.tolist() == [0, 2, 1, 3, 4, 5, 7, 6, 8, 9] * 2


def test_held_out_classes_are_left_out_of_transfer_rows(folder: Path) -> None:
    """Airplane (0) and truck (9) are left out, and the other classes are renumbered."""
    _, holdout = prepare_at(folder, replace(IMAGES, held_out=(0, 9)))
    assert folders.load_holdout(holdout, 0).transfer()["stl10"].targets.tolist() == [1, 0, 2, 3, 4, 6, 7] * 2


def test_all_rows_of_digits_are_transfer_rows_of_mnist5k(tmp_path: Path) -> None:
    """A set without test rows gives all its rows, here enlarged to twelve times the pixels."""
    config = replace(IMAGES, source=Named("mnist5k"), normalise="train", validation=10, transfer=("small",))
    small = replace(config, source=Named("digits"), transfer=())
    fit, holdout = prepare_at(tmp_path, config, small=small)
    rows, held = sources.load(Named("digits")).train, folders.load_holdout(holdout, 0)
    np.testing.assert_array_equal(held.transfer()["small"].targets, rows.targets)
    assert held.transfer()["small"].inputs.shape == (1797, 1, 28, 28)
    seen = {row.tobytes() for row in folders.load_fit(fit, 0, final=True).train.inputs}
    assert not any(row.tobytes() in seen for row in held.transfer()["small"].inputs)


def test_synonyms_of_class_names_match_in_both_directions() -> None:
    cars, autos = raw(["car", "cat"], [0, 1, 1], seed=1), raw(["cat", "automobile", "dog"], [0, 1, 2], seed=2)
    assert shared_rows(cars, autos, {}, PATH).targets.tolist() == [1, 0, 0]
    assert shared_rows(autos, cars, {}, PATH).targets.tolist() == [1, 0]
    both = raw(["automobile", "car"], [0, 1], seed=3)
    assert shared_rows(cars, both, {}, PATH).targets.tolist() == [1]  # an equal name goes before a synonym
    assert shared_rows(cars, both, {"car": "automobile", "cat": "car"}, PATH).targets.tolist() == [0, 1, 1]


def test_the_error_without_a_shared_class_names_both_sets() -> None:
    with pytest.raises(ConfigError) as caught:
        shared_rows(raw(["a", "b"], [0, 1], seed=1), raw(["c", "d"], [0, 1], seed=2), {}, PATH)
    said = "datasets.d.transfer[0] must name a set that shares a class with set 2 (c, d), got 'set 1 (a, b)'"
    assert str(caught.value) == said


def test_shared_classes_without_test_rows_are_refused() -> None:
    with pytest.raises(DataError, match=r"set 1: must have test rows of a class of set 2 .*, got none"):
        shared_rows(raw(["a", "b"], [1, 1], seed=1), raw(["a", "d"], [0, 1], seed=2), {}, PATH)


def test_transfer_rows_that_the_fit_sees_are_refused() -> None:
    """MNIST and its copy mnist5k have such rows. Shapes may differ, because the predicted images are compared."""
    fitted = raw(["a", "b"], [0, 1], seed=1)
    other = replace(fitted, origin="copy", test=Examples(fitted.train.inputs[1:], np.array([1])))
    with pytest.raises(ConfigError, match=r"must name a set of other images than set 1, got 'copy: 1 of its 1 rows"):
        shared_rows(other, fitted, {}, PATH)
    colour = replace(other, test=Examples(np.repeat(fitted.train.inputs[1:], 3, axis=1), np.array([1])))
    with pytest.raises(ConfigError, match="must name a set of other images"):
        shared_rows(colour, fitted, {}, PATH)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"transfer": ("moon",)}, r"transfer\[0\] must name a data set .*, got 'moon'"),
        ({"transfer": ("noise",)}, r"transfer\[0\] must name a data set .*, got 'noise'"),
        ({"transfer": ("boston",)}, r"transfer\[0\] must name a set of images, got 'boston'"),
        ({"transfer": ("cifar10",)}, r"transfer\[0\] must name another set .*, got 'cifar10'"),
        ({"transfer_names": {"monkey": "ape"}}, r"transfer_names must give monkey a class of .*, got 'ape'"),
        ({"transfer_names": {"lion": "cat"}}, r"transfer_names must name classes of the transfer sets, got 'lion'"),
    ],
)
def test_an_invalid_transfer_set_is_refused_before_the_holdout_is_written(
    change: dict, rule: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^datasets\.d\.{rule}"):
        prepare_at(folder / "out", replace(IMAGES, **change))
    assert not (folder / "out/holdout").exists()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"transfer": ("stl10", "stl10")}, "transfer must not name a set twice"),
        ({"transfer": (), "transfer_names": {"monkey": "frog"}}, "transfer_names must be empty without transfer"),
    ],
)
def test_contradictory_keys_of_transfer_are_refused(change: dict, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        replace(IMAGES, **change)
