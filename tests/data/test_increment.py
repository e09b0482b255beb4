"""Class-incremental learning: the rows of each step, and one transform for all steps, which uses no test row."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bdl_pipe import config
from bdl_pipe.data.config import DatasetConfig, IncrementConfig
from bdl_pipe.data.sources.images import Npz
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError, DataError
from pipeline.prepared import folders
from tests.preparing import loaded, prepare_at

from . import archives as made

CLASSES = 6


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose brightness depends on their class, so that other rows have other constants."""
    labels = np.arange(count) % CLASSES
    return (made.images(count, (1, 8, 8), seed) // 8 + 30 * labels[:, None, None, None]).astype(np.uint8), labels


def npz(path: Path, *, other_test: bool = False) -> DatasetConfig:
    (x, y), (x_test, y_test) = rows(120, 0), rows(24, 1)
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


def test_the_orders_of_classes_equal_the_published_lists() -> None:
    """The first classes of the published lists for CIFAR-100."""
    assert IncrementConfig(0, 20, 0).new(100)[:10] == [26, 86, 2, 55, 75, 93, 16, 73, 54, 95]
    assert IncrementConfig(1, 20, 0).new(100)[:5] == [80, 84, 33, 81, 93]


def test_the_steps_partition_the_classes() -> None:
    steps = [IncrementConfig(7, 2, step) for step in range(5)]
    assert sorted(label for step in steps for label in step.new(10)) == list(range(10))
    for number, step in enumerate(steps):
        assert step.seen(10) == [label for before in steps[: number + 1] for label in before.new(10)]


def test_a_step_trains_on_its_new_classes_and_tests_on_all_classes_so_far(tmp_path: Path) -> None:
    whole = npz(tmp_path / "d.npz")
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
    whole = npz(tmp_path / "d.npz")
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
    changed, _ = prepare_at(tmp_path / "changed", at(npz(tmp_path / "other.npz", other_test=True), 1))
    mine, other = ({p.name: p.read_bytes() for p in sorted((f / "0").iterdir())} for f in (steps[1], changed))
    assert mine == other, "a test row is in it"


def test_transfer_rows_have_only_the_classes_so_far(tmp_path: Path) -> None:
    images, labels = rows(12, 2)
    np.savez(tmp_path / "other.npz", x_train=images + 1, y_train=labels, x_test=images, y_test=labels)
    whole = replace(npz(tmp_path / "d.npz"), transfer=("other",))
    other = replace(whole, source=Npz(str(tmp_path / "other.npz")), transfer=())
    for number in range(3):
        dataset = at(whole, number)
        rows_of_step = loaded(tmp_path / str(number), dataset, other=other)[2].transfer()["other"]
        assert sorted(rows_of_step.targets) == sorted(2 * dataset.increment.seen(CLASSES))
        assert as_bytes(rows_of_step.inputs) <= as_bytes(images)
    images, labels = rows(60, 2)
    late = np.isin(labels, IncrementConfig(3, 2, 2).new(CLASSES))
    x, y = images[late], labels[late]
    np.savez(tmp_path / "other.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert len(prepare_at(tmp_path / "last", at(whole, 2), other=other)) == 2
    with pytest.raises(ConfigError, match=r"^datasets\.d\.transfer\[0\] must have rows of a class up to this step"):
        prepare_at(tmp_path / "early", at(whole, 1), other=other)


def test_a_set_without_increments_is_written_without_their_key(tmp_path: Path) -> None:
    whole = npz(tmp_path / "d.npz")
    assert "increment" not in config.to_mapping(whole)
    step = config.to_mapping(at(whole, 1))
    assert step["increment"] == {"order": 3, "classes": 2, "step": 1}
    assert config.read(DatasetConfig, step, "d") == at(whole, 1)


def test_a_step_comes_only_after_the_preceding_step_of_the_same_set(tmp_path: Path) -> None:
    whole = npz(tmp_path / "d.npz")
    after = at(whole, 1)
    assert after.comes_after(at(whole, 0)) and after.comes_after(replace(at(whole, 0), ood=()))
    others = [whole, at(whole, 1), at(whole, 2), at(whole, 0, order=4), at(whole, 0, classes=1)]
    others += [replace(at(whole, 0), **change) for change in ({"whiten": False}, {"validation": 31}, {"splits": 2})]
    assert not any(after.comes_after(other) for other in others)
    assert not at(whole, 0).comes_after(at(whole, 0)) and not whole.comes_after(whole)


def test_increments_that_do_not_fit_the_set_are_refused(tmp_path: Path) -> None:
    whole = npz(tmp_path / "d.npz")
    rule = r"^datasets\.d\.increment\.step must be < 3: each adds 2 of 6 classes, got 3"
    with pytest.raises(ConfigError, match=rule):
        prepare_at(tmp_path, at(whole, 3))
    with pytest.raises(ConfigError, match=r"^datasets\.d\.increment\.classes must divide the 6 classes, got 4"):
        prepare_at(tmp_path, at(whole, 0, classes=4))
    images, labels = rows(120, 0)
    few = labels != IncrementConfig(3, 2, 0).new(CLASSES)[0]
    np.savez(tmp_path / "few.npz", x_train=images, y_train=labels, x_test=images[few], y_test=labels[few])
    with pytest.raises(DataError, match=r"must have test rows of the class . \(increment\), got none"):
        prepare_at(tmp_path, at(replace(whole, source=Npz(str(tmp_path / "few.npz"))), 0))
