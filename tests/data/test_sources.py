"""The published formats, and the set of pairs: they are parsed exactly and verified, and wrong files are refused."""

import gzip
import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bdl_pipe import load_dataset
from bdl_pipe.data import sources
from bdl_pipe.data.catalog import CATALOG, Named
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.raw import Raw
from bdl_pipe.data.sources import archive as archives
from bdl_pipe.data.sources.pairs import paired
from bdl_pipe.data.sources.published import STL10
from bdl_pipe.errors import DataError, UserError
from tests.case_files import cases_of

from . import archives as made

cases = cases_of(__file__)


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BDL_DATA_DIR", str(tmp_path))
    return tmp_path


@cases("archives", "name train test shape classes")
def test_an_archive_in_the_manual_folder_gives_the_rows_written_to_it(
    name: str, train: int, test: int, shape: list[int], classes: int, manual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG._values, name, made.small_entry(name, manual / name))
    raw = sources.load(Named(name))
    assert len(raw.classes) == classes
    for number, (rows, count) in enumerate(((raw.train, train), (raw.test, test))):
        np.testing.assert_array_equal(rows.inputs, made.images(count, tuple(shape), number))
        np.testing.assert_array_equal(rows.targets, made.labels(count, classes))
    assert raw.train.inputs.dtype == np.uint8 and raw.train.targets.dtype == np.int64


@pytest.mark.parametrize("name", sorted(made.WRITERS))
def test_files_that_differ_from_the_published_files_and_truncated_files_are_refused(name: str, manual: Path) -> None:
    small = made.small(name, manual / name)  # not the published archive, which the hash of its entry must tell
    with pytest.raises(DataError, match=r"SHA-256 must be [0-9a-f]{64}, got [0-9a-f]{64}"):
        sources.load(Named(name))
    path = manual / name / small.files[0].name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=f"{path.name}: is truncated"):
        small.parse(manual / name)


def test_a_file_with_another_gzip_header_is_accepted_by_its_content(tmp_path: Path) -> None:
    path, blob = tmp_path / "a-ubyte.gz", b"content"
    path.write_bytes(gzip.compress(blob, compresslevel=1, mtime=7))
    file = archives.File("http://x/a-ubyte.gz", 1, "0" * 64, hashlib.sha256(blob).hexdigest())
    archives.verify(path, file)
    with pytest.raises(DataError, match="decompressed SHA-256 must be"):
        archives.verify(path, replace(file, content="0" * 64))


def test_the_error_names_a_missing_file_and_its_address(manual: Path) -> None:
    made.small("svhn", manual / "svhn")
    (manual / "svhn" / "test_32x32.mat").unlink()
    with pytest.raises(DataError, match=r"svhn/test_32x32\.mat: is missing; svhn needs it from http"):
        sources.load(Named("svhn"))


def test_truncated_records_inside_a_whole_archive_are_refused(tmp_path: Path) -> None:
    small = made.small("cifar10", tmp_path)
    members = {f"cifar-10-batches-bin/data_batch_{i}.bin": b"\0" * 3073 for i in range(1, 6)}
    members["cifar-10-batches-bin/test_batch.bin"] = b"\0" * 3000
    members["cifar-10-batches-bin/batches.meta.txt"] = "\n".join(made.CIFAR10_NAMES).encode()
    made.tar(tmp_path / "cifar-10-binary.tar.gz", members)
    with pytest.raises(DataError, match=r"test_batch\.bin: must be whole records of 3073 bytes, got 3000"):
        small.parse(tmp_path)


def stl10_archive(folder: Path, **changed: bytes) -> Path:
    """A small archive; ``changed`` maps a member's name without its suffix to its other content."""
    members = {"train_X": bytes(2 * 27648), "train_y": b"\1\2", "test_X": bytes(27648), "test_y": b"\12", **changed}
    files = {f"stl10_binary/{name}.bin": blob for name, blob in members.items() if blob}
    files["stl10_binary/class_names.txt"] = "\n".join(made.STL10_NAMES).encode()
    made.tar(folder / "stl10_binary.tar.gz", files)
    return folder


@cases("malformed", "member content rule")
def test_malformed_files_of_stl10_are_refused(member: str, content: int | list[int], rule: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rule):
        STL10.parse(stl10_archive(tmp_path, **{member: bytes(content)}))


def test_the_copies_in_packages_have_the_published_shapes_and_values() -> None:
    boston, mnist5k, digits = map(load_dataset, ("boston", "mnist5k", "digits"))
    assert boston.train.inputs.shape == (506, 13) and boston.train.targets[:2, 0].tolist() == [24.0, 21.6]
    assert boston.features[5] == "RM" and boston.train.inputs[0, 5] == 6.575
    assert np.bincount(mnist5k.train.targets).tolist() == [500] * 10
    assert mnist5k.train.inputs.shape == (5000, 1, 28, 28) and mnist5k.train.inputs.max() == 255
    assert digits.train.inputs.shape == (1797, 1, 8, 8) and digits.train.inputs.max() == 255


def test_a_file_in_the_manual_folder_is_read_before_the_copy_in_a_package(manual: Path) -> None:
    (manual / "boston").mkdir()
    (manual / "boston" / "boston_housing.csv").write_text("1,2\n")
    with pytest.raises(DataError, match=r"boston_housing\.csv: SHA-256 of its content must be"):
        sources.load(Named("boston"))


def test_the_error_of_a_missing_package_names_the_ways_to_get_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BDL_DATA_DIR", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"install the package mlxtend, or put boston_housing\.csv .*BDL_DATA_DIR"):
        sources.load(Named("boston"))


LEFT, RIGHT = ("shoe", "bag", "coat"), ("0", "1")


def numbered(count: int, classes: int, first: int) -> Examples:
    """Images of two equal pixels; each has its own number, from ``first`` on."""
    numbers = np.arange(first, first + count, dtype=np.uint8)
    return Examples(np.tile(numbers[:, None, None, None], (1, 1, 2, 1)), np.arange(count, dtype=np.int64) % classes)


def small(left: int = 24, right: int = 20) -> tuple[Raw, Raw]:
    clothes = Raw("clothes", "classification", "image", numbered(left, 3, 0), numbered(12, 3, 100), LEFT)
    return clothes, Raw("digits", "classification", "image", numbered(right, 2, 200), None, RIGHT)


def problems(raw: Raw, left: Raw, right: Raw, train: int, test: int) -> list[str]:
    """List the broken rules of a paired set, by a search of each half among the images of the two sets."""
    assert raw.test is not None and left.test is not None
    label_of = [{int(x[0, 0, 0]): int(y) for x, y in zip(p.inputs, p.targets, strict=True)}
                for p in (left.train, left.test, right.train)]  # fmt: skip
    found, used = [], list[set[int]]()
    for part, clothes, count in ((raw.train, label_of[0], train), (raw.test, label_of[1], test)):
        halves = [(int(x[0, 0, 0]), int(x[0, 0, 1])) for x in part.inputs]
        if any(garment not in clothes for garment, _ in halves):
            found.append("clothes of the other part")
        elif [len(RIGHT) * clothes[g] + label_of[2][d] for g, d in halves] != part.targets.tolist():
            found.append("labels")
        if Counter(part.targets.tolist()) != dict.fromkeys(range(6), count):
            found.append("counts")
        if len({garment for garment, _ in halves}) < len(halves):
            found.append("clothes used twice")
        used.append({digit for _, digit in halves})
    return found + (["digits of both parts"] if used[0] & used[1] else [])


def test_pairs_keep_labels_counts_and_parts() -> None:
    left, right = small()
    raw = paired(left, right, 4, 1)
    assert raw.test is not None and problems(raw, left, right, 4, 1) == []
    assert raw.train.inputs.shape == (24, 1, 2, 2) and raw.classes[3] == "bag, 1" and raw.classes[4] == "coat, 0"
    counts = Counter(raw.train.inputs[:, 0, 0, 1].tolist())  # 12 uses of 8 images of each digit
    assert set(counts.values()) == {1, 2} and len(counts) == 16
    assert not np.array_equal(raw.train.targets, np.sort(raw.train.targets))
    again = paired(left, right, 4, 1)
    np.testing.assert_array_equal(again.train.inputs, raw.train.inputs)
    np.testing.assert_array_equal(again.train.targets, raw.train.targets)


def test_the_check_of_pairs_sees_wrong_sets() -> None:
    left, right = small()
    raw = paired(left, right, 4, 1)
    assert raw.test is not None
    swapped = Raw(raw.origin, "classification", "image", raw.test, raw.train, raw.classes)
    assert "clothes of the other part" in problems(swapped, left, right, 4, 1)
    turned = Examples(raw.train.inputs, (raw.train.targets % 2) * 3 + raw.train.targets // 2)  # digit before clothes
    assert problems(Raw("", "classification", "image", turned, raw.test, raw.classes), left, right, 4, 1) == ["labels"]
    leaking = Examples(raw.test.inputs.copy(), raw.test.targets)
    leaking.inputs[0, 0, :, 1] = raw.train.inputs[raw.train.targets % 2 == leaking.targets[0] % 2][0, 0, :, 1]
    wrong = Raw("", "classification", "image", raw.train, leaking, raw.classes)
    assert problems(wrong, left, right, 4, 1) == ["digits of both parts"]


@pytest.mark.parametrize(
    ("left", "right", "rule"),
    [(23, 20, "clothes: class coat must have at least 8 images, got 7"), (24, 4, "digits: class 0 must have images")],
)
def test_sets_that_are_too_small_or_lack_test_rows_are_refused(left: int, right: int, rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        paired(*small(left, right), 4, 1)
    with pytest.raises(DataError, match="digits: must have test rows"):
        paired(*small()[::-1], 1, 1)


def test_the_built_in_set_has_two_hundred_and_twenty_pairs_of_each_class() -> None:
    raw = Named("fashion_digits").read()
    assert raw.test is not None and raw.train.inputs.dtype == np.uint8
    assert raw.train.inputs.shape == (20_000, 1, 28, 56) and raw.test.inputs.shape == (2_000, 1, 28, 56)
    assert np.bincount(raw.train.targets).tolist() == [200] * 100
    assert np.bincount(raw.test.targets).tolist() == [20] * 100
    assert raw.classes[93] == "Ankle boot, 3" and CATALOG["fashion_digits"].classes == len(raw.classes)
    digits = [{row.tobytes() for row in rows.inputs[..., 28:]} for rows in (raw.train, raw.test)]
    assert len(digits[0]) == 4_000 and len(digits[1]) == 1_000 and not digits[0] & digits[1]
