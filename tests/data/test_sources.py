"""The published formats: they are parsed exactly and verified, and wrong files are refused with a clear line."""

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bdl_pipe.data import sources
from bdl_pipe.data.catalog import CATALOG, Named
from bdl_pipe.data.sources import archive as archives
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


def test_images_of_stl10_are_read_column_by_column(tmp_path: Path) -> None:
    """One red pixel in the second row and third column of the second image: byte 2·96 + 1 of its red plane."""
    pixels = bytearray(2 * 27648)
    pixels[27648 + 2 * 96 + 1] = 200
    raw = STL10.parse(stl10_archive(tmp_path, train_X=bytes(pixels)))
    assert np.argwhere(raw.train.inputs).tolist() == [[1, 0, 1, 2]] and raw.train.inputs[1, 0, 1, 2] == 200
    assert raw.train.targets.tolist() == [0, 1] and raw.test.targets.tolist() == [9]
    assert raw.classes == tuple(made.STL10_NAMES)


@cases("malformed", "member content rule")
def test_malformed_files_of_stl10_are_refused(member: str, content: int | list[int], rule: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rule):
        STL10.parse(stl10_archive(tmp_path, **{member: bytes(content)}))


def test_the_copies_in_packages_have_the_published_shapes_and_values() -> None:
    boston, mnist5k, digits = (sources.load(Named(n)) for n in ("boston", "mnist5k", "digits"))
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
