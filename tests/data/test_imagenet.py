"""Tiny-ImageNet, ImageWoof and the downsampled ImageNet: small archives of their formats, and damaged ones."""

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bdl_pipe.data.raw import checked
from bdl_pipe.data.sources.imagenet import ImageNetNpz, ImageWoof, TinyImageNet
from bdl_pipe.errors import ConfigError, DataError
from tests.case_files import cases_of

from . import archives as made

cases = cases_of(__file__)
IDS = ("n02124075", "n01443537")  # not in order: wnids.txt decides


def jpeg(colour: tuple[int, ...], size: tuple[int, int], mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, colour if len(colour) > 1 else colour[0]).save(file, "JPEG", quality=95)
    return file.getvalue()


def tiny(**changes: bytes | None) -> dict[str, bytes]:
    """Six training images of each class, one of them grey and one CMYK, and four validation images."""
    files = {"wnids.txt": "\n".join(IDS).encode(), "words.txt": b"n01443537\tgoldfish\nn02124075\tcat\nn9\tnone\n"}
    for number, name in enumerate(IDS):
        for i in range(6):
            colour = (40 * i, 100 * number, 30)
            files[f"train/{name}/images/{name}_{i}.JPEG"] = jpeg(colour, (64, 64))
        files[f"train/{name}/{name}_boxes.txt"] = b"ignored"
    files[f"train/{IDS[0]}/images/{IDS[0]}_1.JPEG"] = jpeg((77,), (64, 64), "L")
    files[f"train/{IDS[0]}/images/{IDS[0]}_2.JPEG"] = jpeg((0, 255, 255, 0), (64, 64), "CMYK")
    lines = [f"val_{i}.JPEG\t{IDS[i % 2]}\t0\t0\t9\t9" for i in range(4)]
    files["val/val_annotations.txt"] = "\n".join(lines).encode()
    files |= {f"val/images/val_{i}.JPEG": jpeg((200 + i, 0, 0), (64, 64)) for i in range(4)}
    files["test/images/test_0.JPEG"] = b"without labels, and not read"
    return {name: blob for name, blob in (files | changes).items() if blob is not None}


def woof() -> dict[str, bytes]:
    files = {}
    for number, name in enumerate(("n02086240", "n02087394")):
        for i in range(5):
            files[f"train/{name}/{name}_{i}.JPEG"] = jpeg((0, 90 * number, 10 * i), (40 + 7 * i, 33))
        files[f"val/{name}/{name}_9.JPEG"] = jpeg((0, 90 * number, 200), (20, 60))
    return files


def pack(place: Path, kind: str, files: Mapping[str, bytes], top: str) -> Path:
    """The files below the folder ``top``, as a zip, a tgz (in another order) or a folder."""
    if kind == "folder":
        for name, blob in files.items():
            (place / top / name).parent.mkdir(parents=True, exist_ok=True)
            (place / top / name).write_bytes(blob)
        return place / top
    path = place / f"{top}.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, blob in files.items():
                archive.writestr(f"{top}/{name}", blob)
        return path
    made.tar(path, {f"./{top}/{name}": blob for name, blob in reversed(files.items())})
    return path


def pixels_of(colours: np.ndarray) -> np.ndarray:
    return np.median(colours, (2, 3))


@pytest.mark.parametrize("kind", ["zip", "tgz", "folder"])
def test_tiny_imagenet_is_read_with_the_labels_of_wnids(tmp_path: Path, kind: str) -> None:
    raw = checked(TinyImageNet(str(pack(tmp_path, kind, tiny(), "tiny-imagenet-200"))).read())
    assert raw.classes == ("cat", "goldfish") and raw.test.targets.tolist() == [0, 1, 0, 1]
    assert raw.train.inputs.shape == (12, 3, 64, 64) and raw.train.inputs.dtype == np.uint8
    colours = pixels_of(raw.train.inputs)
    for number, name in enumerate(sorted(IDS)):  # images are sorted by name
        label = IDS.index(name)
        rows = slice(6 * number, 6 * number + 6)
        assert raw.train.targets[rows].tolist() == [label] * 6
        expected = np.array([(40 * i, 100 * label, 30) for i in range(6)])
        if label == 0:
            expected[1] = 77
            assert colours[rows][2, 0] > colours[rows][2, 1] + 100  # inks of magenta and yellow make red
            expected[2] = colours[rows][2]
        assert np.abs(colours[rows] - expected).max() <= 3
    assert np.abs(pixels_of(raw.test.inputs)[:, 0] - np.arange(200, 204)).max() <= 3


@pytest.mark.parametrize("kind", ["zip", "tgz", "folder"])
def test_images_of_imagewoof_are_resized_to_one_size(tmp_path: Path, kind: str) -> None:
    raw = checked(ImageWoof(str(pack(tmp_path, kind, woof(), "imagewoof2-160")), side=24).read())
    assert raw.classes == ("n02086240", "n02087394") and raw.train.inputs.shape == (10, 3, 24, 24)
    assert raw.train.targets.tolist() == [0] * 5 + [1] * 5 and raw.test.targets.tolist() == [0, 1]
    assert np.abs(pixels_of(raw.train.inputs)[:, 1] - 90 * raw.train.targets).max() <= 3


def test_files_beside_the_class_folders_are_ignored(tmp_path: Path) -> None:
    """An image directly in train/, and the files that macOS adds to a zip."""
    beside = {"train/cover.jpg": jpeg((1, 2, 3), (30, 30)), "train/n02086240/._n02086240_0.JPEG": b"?"}
    path = pack(tmp_path, "zip", woof() | beside, "imagewoof2-160")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/imagewoof2-160/._train", b"?")
    raw = ImageWoof(str(path), side=8).read()
    assert raw.classes == ("n02086240", "n02087394") and len(raw.train) == 10


def test_a_wide_image_is_cropped_to_its_middle(tmp_path: Path) -> None:
    picture = np.zeros((20, 60, 3), np.uint8)
    picture[:, 20:40] = 255
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    files = woof() | {"train/n02086240/a.png": file.getvalue()}
    raw = ImageWoof(str(pack(tmp_path, "zip", files, "w")), side=10).read()
    assert raw.train.inputs[0][:, :, 2:8].min() > 250


@cases("archives", "name content message")
@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_the_error_names_the_wrong_file_of_an_archive(
    tmp_path: Path, kind: str, name: str, content: str | bytes | list[int] | None, message: str
) -> None:
    if isinstance(content, list):
        content = jpeg((1, 2, 3), (content[0], content[1]))
    blob = content.encode() if isinstance(content, str) else content
    with pytest.raises(DataError, match=message):
        TinyImageNet(str(pack(tmp_path, kind, tiny(**{name: blob}), "t"))).read()


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_truncated_missing_and_empty_archives_are_refused(tmp_path: Path, kind: str) -> None:
    path = pack(tmp_path, kind, tiny(), "t")
    whole = path.read_bytes()
    for share in (0.3, 0.6, 0.9):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DataError, match=r"t\.(zip|tgz): "):
            TinyImageNet(str(path)).read()
    with pytest.raises(DataError, match="is missing; it must be an archive"):
        ImageWoof(str(tmp_path / "none.tgz")).read()
    with pytest.raises(DataError, match=r"must hold images in train/, got none"):
        ImageWoof(str(pack(tmp_path, "folder", {"a/b.txt": b"", "c.txt": b""}, "e"))).read()
    with pytest.raises(ConfigError, match="side must be > 0, got 0"):
        ImageWoof("x", side=0)


@pytest.mark.parametrize("old", [False, True])
def test_a_tar_is_read_and_kept_in_its_folder_by_every_python(
    tmp_path: Path, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python before 3.11.4 has no filter, and would write the second archive's file beside the folder."""
    if old:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    assert len(TinyImageNet(str(pack(tmp_path, "tgz", tiny(), "t"))).read().train) == 12
    made.tar(tmp_path / "out.tgz", {"t/wnids.txt": b"", "../../bdl-out.txt": b"out"})
    with pytest.raises(DataError, match=r"out\.tgz: is truncated or not an archive .*bdl-out"):
        TinyImageNet(str(tmp_path / "out.tgz")).read()


def npz(folder: Path, **changes: np.ndarray) -> Path:
    generator = np.random.default_rng(0)
    folder.mkdir()
    for number, name in enumerate(("train_data_batch_1", "train_data_batch_2", "val_data")):
        data = generator.integers(0, 256, (8, 3 * 64)).astype(np.uint8)
        arrays = {"data": data, "labels": 1 + (np.arange(8) + number) % 4} | changes
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


def test_downsampled_imagenet_is_read_in_the_order_of_its_batches(tmp_path: Path) -> None:
    folder = npz(tmp_path / "a")
    raw = checked(ImageNetNpz(str(folder), side=8).read())
    assert raw.train.inputs.shape == (16, 3, 8, 8) and raw.classes == ("1", "2", "3", "4")
    assert raw.train.targets.tolist() == [0, 1, 2, 3] * 2 + [1, 2, 3, 0] * 2
    with np.load(folder / "train_data_batch_2.npz") as stored:
        assert np.array_equal(raw.train.inputs[8].reshape(-1), stored["data"][0])
    np.savez(folder / "val_data.npz", data=np.zeros((8, 192), np.uint8), labels=np.arange(1, 9))
    with pytest.raises(DataError, match=r"val_data.npz: labels must be among the training rows' 1 … 4, got 8"):
        ImageNetNpz(str(folder), side=8).read()
    (folder / "train_data_batch_1.npz").unlink()
    with pytest.raises(DataError, match=r"must hold train_data_batch_1\.npz, …_2\.npz, …, got \[2\]"):
        ImageNetNpz(str(folder), side=8).read()
    with pytest.raises(ConfigError, match="side must be 8, 16, 32 or 64, got 9"):
        ImageNetNpz(str(folder), side=9)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("data", np.zeros((8, 100), np.uint8), r"array 'data' must be uint8 \[8, 192\], got uint8 \[8, 100\]"),
        ("labels", np.zeros(8, int), "array 'labels' must be whole numbers from 1 on"),
        ("labels", np.array([object()] * 8), "is not a readable .npz of plain arrays"),
    ],
)
def test_downsampled_imagenet_with_invalid_arrays_is_refused(
    tmp_path: Path, name: str, values: np.ndarray, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        ImageNetNpz(str(npz(tmp_path / "a", **{name: values})), side=8).read()
