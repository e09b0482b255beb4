"""``prepare`` on small sets: each file has its rows, and no test row reaches a fit."""

import pickle
import sys
import tarfile
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bdl_pipe.data.catalog import CATALOG
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.sources.images import Npz
from bdl_pipe.data.split_rows import hold_out, uci_splits
from bdl_pipe.errors import ArtifactError, ConfigError, DataError, UserError
from bdl_pipe.seeds import Seed
from pipeline.prepared import folders
from pipeline.prepared.corrupted_sets import corrupt_one, corruption_jobs
from pipeline.prepared.folders import Job
from pipeline.prepared.other_sets import to_shape
from tests.preparing import bytes_of, dataset_of, loaded, prepare_at

from . import archives as made

IMAGES, BOSTON = dataset_of({"name": "cifar10"}, validation=4), dataset_of({"name": "boston"})


@pytest.fixture(autouse=True)
def two_corruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the real corruptions: these tests check where corrupted rows are written, not how they look."""
    module = types.ModuleType("bdl_pipe.data.corrupt")
    module.NAMES = ("dark", "noise")  # type: ignore[attr-defined]
    module.corrupt = lambda images, name, severity, rng: (  # type: ignore[attr-defined]
        images // (severity + 1) if name == "dark" else images ^ np.uint8(rng.fold(name, severity).integer() % 256)
    )
    monkeypatch.setitem(sys.modules, "bdl_pipe.data.corrupt", module)
    monkeypatch.setattr("bdl_pipe.data.corrupt", module, raising=False)


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BDL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setitem(CATALOG._values, "cifar10", made.small_entry("cifar10", tmp_path / "data" / "cifar10"))
    return tmp_path / "data"


def test_a_search_partitions_the_rows_and_a_final_fit_joins_them(cifar: Path, tmp_path: Path) -> None:
    search, final, holdout = loaded(tmp_path, IMAGES)
    assert (len(search.train), len(search.validation)) == (16, 4)
    assert (len(final.train), len(final.validation)) == (20, 0)
    together = np.concatenate([search.train.inputs, search.validation.inputs])
    np.testing.assert_array_equal(final.train.inputs, together)
    pictures = made.images(20, (3, 32, 32))
    assert {row.tobytes() for row in together} == {row.tobytes() for row in pictures}
    for row, label in zip(final.train.inputs, final.train.targets, strict=True):
        assert label == next(i for i, w in enumerate(pictures) if (w == row).all()) % 10
    np.testing.assert_array_equal(holdout.test.inputs, made.images(10, (3, 32, 32), 1))
    assert final.classes == tuple(made.CIFAR10_NAMES) and final.input_shape == (3, 32, 32)
    for data in (search, final):  # each is normalised by its own training rows
        expected = (data.train.inputs.astype(np.float64) / 255).mean(axis=(0, 2, 3))
        np.testing.assert_allclose(data.transform.mean.numpy(), expected, rtol=1e-12)


def assert_equal_rows(one: FitData, other: FitData) -> None:
    for part in ("train", "validation"):
        assert all(map(torch.equal, one.tensors(part), other.tensors(part)))


def test_a_final_fit_contains_the_data_of_its_search_as_a_view(cifar: Path, tmp_path: Path) -> None:
    search, final, _ = loaded(tmp_path, IMAGES)
    assert search.search is None
    assert_equal_rows(final.search, search)
    assert not torch.equal(final.search.transform.mean, final.transform.mean)
    assert np.shares_memory(final.search.train.inputs, final.train.inputs)  # a view, not another copy
    moved = final.on("meta")
    assert (moved.device, moved.search.device) == ("meta", "meta")
    assert (final.device, final.search.device) == ("cpu", "cpu") and search.on("meta").search is None


@pytest.mark.parametrize("source", ["images", "table"])
def test_a_pickled_fit_holds_its_rows_once(source: str, cifar: Path, tmp_path: Path) -> None:
    final = loaded(tmp_path, IMAGES if source == "images" else BOSTON)[1].on("meta")
    blob = pickle.dumps(final, protocol=5)
    rows = final.train.inputs.nbytes
    assert rows < len(blob) < 1.5 * rows
    back = pickle.loads(blob)
    assert back.search.device == "meta"
    assert_equal_rows(back, final)
    assert_equal_rows(back.search, final.search)
    other = replace(final, search=replace(final.search, train=final.search.validation))
    sent = pickle.loads(pickle.dumps(other)).search  # its rows are no view of train, and are pickled whole
    np.testing.assert_array_equal(sent.train.inputs, final.search.validation.inputs)


@pytest.mark.parametrize(("change", "sizes"), [({"fit_rows": "train"}, (16, 4)), ({"validation": 0}, (20, 0))])
def test_a_final_fit_that_joins_no_validation_rows_contains_no_search(
    change: dict, sizes: tuple[int, int], cifar: Path, tmp_path: Path
) -> None:
    final = loaded(tmp_path, replace(IMAGES, **change))[1]
    assert final.search is None and (len(final.train), len(final.validation)) == sizes


def npz(path: Path, change_test: bool = False) -> None:
    train, test = made.images(30, (3, 4, 4)), made.images(6, (3, 4, 4), 2)
    test = 255 - test if change_test else test
    np.savez(path, x_train=train, y_train=made.labels(30, 3), x_test=test, y_test=made.labels(6, 3))


@pytest.mark.parametrize("whiten", [False, True])
def test_test_rows_of_images_never_reach_the_fit_folder(whiten: bool, tmp_path: Path) -> None:
    config = replace(IMAGES, source=Npz(str(tmp_path / "d.npz")), whiten=whiten, corrupted_images=2)
    npz(tmp_path / "d.npz")
    first = [bytes_of(p) for p in prepare_at(tmp_path, config)]
    npz(tmp_path / "d.npz", change_test=True)
    second = [bytes_of(p) for p in prepare_at(tmp_path, config)]
    assert first[0] == second[0]
    assert first[1] != second[1]  # the control: the change reaches the holdout


@pytest.mark.parametrize("targets", ["standardise", "centre", "none"])
def test_test_rows_of_a_table_never_reach_the_fit_folder(targets: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(40, 3))
    state = np.random.RandomState(1)
    held = state.choice(40, 40, replace=False)[36:]
    source = {"name": "table", "path": str(tmp_path / "t.csv"), "target": ["y"], "task": "regression"}
    config = dataset_of(source, targets=targets)

    def fitted(rows: np.ndarray) -> tuple[dict[str, bytes], dict[str, bytes]]:
        np.savetxt(tmp_path / "t.csv", rows, delimiter=",", header="a,b,y", comments="", fmt="%.17g")
        fit, holdout = prepare_at(tmp_path, config)
        return bytes_of(fit), bytes_of(holdout)

    changed, leaked = values.copy(), values.copy()
    changed[held] += 100
    leaked[next(i for i in range(40) if i not in held)] += 100
    base = fitted(values)
    assert fitted(changed)[0] == base[0] and fitted(changed)[1] != base[1]
    assert fitted(leaked)[0] != base[0]  # the control: a changed training row reaches the fit folder


@pytest.mark.parametrize("normalise", ["train", "none"])
def test_a_fit_and_its_search_each_centre_targets_by_their_own_training_rows(normalise: str, tmp_path: Path) -> None:
    """The targets are centred in original units."""
    source = dataset_of({"name": "boston"}, targets="centre", normalise=normalise)
    final = loaded(tmp_path, source)[1]
    for data in (final, final.search):
        y = data.train.targets
        np.testing.assert_allclose(data.tensors("train")[1].numpy(), y - y.mean(axis=0), atol=1e-5)
    assert not torch.equal(final.transform.shift, final.search.transform.shift)


def test_equal_runs_give_equal_bytes_and_the_seed_moves_validation_rows(cifar: Path, tmp_path: Path) -> None:
    fit, holdout = prepare_at(tmp_path / "a", IMAGES)
    again = prepare_at(tmp_path / "b", IMAGES)
    assert bytes_of(fit) == bytes_of(again[0]) and bytes_of(holdout) == bytes_of(again[1])
    other, _ = prepare_at(tmp_path / "c", IMAGES, seed=1)
    assert (other / "0" / "train.arrow").read_bytes() != (fit / "0" / "train.arrow").read_bytes()


def test_ood_sets_get_the_shape_of_the_prepared_set(cifar: Path, tmp_path: Path) -> None:
    digits = loaded(tmp_path, replace(IMAGES, ood=("digits",)))[2].ood()["digits"].inputs
    assert digits.shape == (1797, 3, 32, 32) and (digits[:, 0] == digits[:, 2]).all()


def test_wrong_ood_sets_and_splits_are_refused_before_anything_is_written(cifar: Path, tmp_path: Path) -> None:
    for change, rule in (
        ({"ood": ("digits", "moon")}, r"ood\[1\] must name a data set .*, got 'moon'"),
        ({"splits": 3}, "splits must be 1 for a set with its own test rows, got 3"),
    ):
        with pytest.raises(ConfigError, match=rf"datasets\.d\.{rule}"):
            prepare_at(tmp_path, replace(IMAGES, **change))
        assert not (tmp_path / "prepare").exists()


def test_to_shape_keeps_ramps_avoids_aliasing_and_weights_colours_by_luma() -> None:
    ramp = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (1, 1, 32, 1))
    half = to_shape(ramp, (1, 16, 16))
    np.testing.assert_allclose(np.diff(half[0, 0, 0].astype(int))[1:-1], 16, atol=1)  # a ramp stays a ramp
    checks = (np.indices((32, 32)).sum(axis=0) % 2 * 255).astype(np.uint8)[None, None]
    inner = to_shape(checks, (1, 16, 16))[0, 0, 2:-2, 2:-2]
    np.testing.assert_allclose(inner, 127.5, atol=4)  # aliasing would keep 0 or 255
    colour = np.zeros((1, 3, 2, 2), np.uint8)
    colour[:, 1] = 200
    assert (to_shape(colour, (1, 2, 2)) == round(0.587 * 200)).all()
    assert to_shape(ramp, (3, 32, 32)).shape == (1, 3, 32, 32)


def test_corruptions_do_not_depend_on_the_order_of_their_jobs(cifar: Path, tmp_path: Path) -> None:
    def backwards(work: Callable[[Job], np.ndarray], jobs: Sequence[Job]) -> Iterable[np.ndarray]:
        return reversed([work(job) for job in reversed(jobs)])

    config = replace(IMAGES, corrupted_images=5)
    _, one = prepare_at(tmp_path / "a", config)
    _, two = prepare_at(tmp_path / "b", config, fan_out=backwards)
    assert bytes_of(one) == bytes_of(two)
    rows = folders.load_holdout(one, 0)
    assert rows.corruptions() == [Job(n, s) for n in ("dark", "noise") for s in (1, 2, 3, 4, 5)]
    np.testing.assert_array_equal(rows.corrupted("dark", 3).inputs, rows.test.inputs[:5] // 4)
    np.testing.assert_array_equal(rows.corrupted("dark", 3).targets, rows.test.targets[:5])
    assert (rows.corrupted("noise", 1).inputs != rows.corrupted("noise", 2).inputs).any()
    assert len(corruption_jobs(config)) == 10 and corruption_jobs(IMAGES) == []


@pytest.mark.parametrize("packed", [False, True])
def test_published_corruptions_are_read_from_the_release(packed: bool, cifar: Path) -> None:
    place = cifar / "cifar10_corrupted"
    config = replace(IMAGES, corrupted_images=4, corruptions="published")
    job = {"config": config, "images": made.images(4, (3, 32, 32)), "rng": Seed(0)}
    with pytest.raises(UserError, match=r"cifar10_corrupted/: is missing; put the \.npy files of the -C release there"):
        corrupt_one(Job("dark", 3), **job)
    place.mkdir()
    release = made.images(50, (32, 32, 3), 5)  # 5 severities of the same 10 images
    np.save(place / "dark.npy", release)
    if packed:
        with tarfile.open(place / "CIFAR-10-C.tar", "w") as tar:
            tar.add(place / "dark.npy", "CIFAR-10-C/dark.npy")
        (place / "dark.npy").unlink()
    np.testing.assert_array_equal(corrupt_one(Job("dark", 3), **job), release[20:24].transpose(0, 3, 1, 2))


def test_missing_truncated_and_mistaken_artifacts_are_refused(cifar: Path, tmp_path: Path) -> None:
    fit, holdout = prepare_at(tmp_path, IMAGES)
    with pytest.raises(ArtifactError, match=r"3/train\.arrow: is missing"):
        folders.load_fit(fit, 3, final=True)
    path = holdout / "0" / "test.arrow"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ArtifactError, match=r"test\.arrow: is truncated"):
        folders.load_holdout(holdout, 0)
    with pytest.raises(ArtifactError, match="must be a holdout artifact, got 'prepare'"):
        folders.load_holdout(fit, 0)


def test_uci_splits_follow_the_published_procedure() -> None:
    np.random.seed(1)  # noqa: NPY002  (the published script used the global legacy generator)
    published = [np.random.choice(range(506), 506, replace=False) for _ in range(3)]  # noqa: NPY002
    for (train, test), order in zip(uci_splits(506, 3), published, strict=True):
        assert len(train) == 455
        np.testing.assert_array_equal(np.concatenate([train, test]), order)


@pytest.mark.parametrize(("validation", "expected"), [(7, 7), (0.2, 20), (0, 0), (0.0, 0)])
def test_hold_out_partitions_the_rows(validation: float, expected: int) -> None:
    train, held = hold_out(100, validation, "x", rng=Seed(0))
    assert len(held) == expected
    assert sorted([*train, *held]) == list(range(100))
    with pytest.raises(DataError, match="x: validation must leave at least 2 of 10 training rows, got 9"):
        hold_out(10, 9, "x", rng=Seed(0))
