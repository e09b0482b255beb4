"""Folders of images as systems and cameras leave them: hidden files, and photographs with an orientation tag."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bdl_pipe.data.inspect.images import inspect_images
from bdl_pipe.data.new_inputs import image_inputs, new_inputs
from bdl_pipe.data.sources.images import ImageFolder, read_images
from bdl_pipe.errors import DataError

from .pictures import two_classes as images

ORIENTATION = 0x0112  # the tag's number
# stored pixels -> seen pixels, by the place of the stored row 0 and column 0 (EXIF 2.3, section 4.6.4, Orientation)
SEEN = {
    1: lambda stored: stored,  # top, left
    2: lambda stored: stored[:, ::-1],  # top, right
    3: lambda stored: stored[::-1, ::-1],  # bottom, right
    4: lambda stored: stored[::-1],  # bottom, left
    5: lambda stored: stored.T,  # left, top
    6: lambda stored: stored.T[:, ::-1],  # right, top
    7: lambda stored: stored.T[::-1, ::-1],  # right, bottom
    8: lambda stored: stored.T[::-1],  # left, bottom
}
# flat squares of 16 pixels, which JPEG keeps
STORED = np.kron(np.array([[20, 90, 160], [60, 200, 120]], np.uint8), np.ones((16, 16), np.uint8))


def litter(classes: Path) -> None:
    """Write the files that notebooks, macOS, Windows and a file server leave."""
    for name in (".ipynb_checkpoints", "__MACOSX", "@eaDir", "lost+found", "$RECYCLE.BIN", "System Volume Information"):
        (classes / name).mkdir()
        Image.new("L", (9, 9)).save(classes / name / "00-checkpoint.png")
    (classes / ".empty").mkdir()
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (classes / name).write_bytes(b"\0\1")
    (classes / "a" / "._00.png").write_bytes(b"\0\5\x16\7")  # AppleDouble
    (classes / "b" / ".ipynb_checkpoints").mkdir()
    Image.new("L", (9, 9)).save(classes / "b" / ".ipynb_checkpoints" / "01-checkpoint.png")
    (classes / "b" / "Thumbs.db").write_bytes(b"\0")


@pytest.mark.parametrize("parts", [(), ("train",), ("train", "test")])
def test_hidden_files_and_folders_are_neither_classes_nor_images(parts: tuple[str, ...], tmp_path: Path) -> None:
    for part in parts or (".",):
        images(tmp_path / part)
    plain, about = ImageFolder(str(tmp_path)).read(), inspect_images(tmp_path)
    inputs = image_inputs(tmp_path / parts[0] if parts else tmp_path)
    for part in parts or (".",):
        litter(tmp_path / part)
    raw = ImageFolder(str(tmp_path)).read()
    assert raw.classes == plain.classes == ("a", "b")
    np.testing.assert_array_equal(raw.train.inputs, plain.train.inputs)
    np.testing.assert_array_equal(raw.train.targets, plain.train.targets)
    profile = inspect_images(tmp_path)
    assert (profile.rows, profile.classes, profile.test_rows) == (about.rows, about.classes, about.test_rows)
    hidden = [remark for remark in profile.remarks if "hidden" in remark]
    assert len(hidden) == 1 and ".empty" in hidden[0] and "__MACOSX" in hidden[0] and "\n" not in hidden[0]
    assert not any("hidden" in remark for remark in about.remarks)
    assert image_inputs(tmp_path / parts[0] if parts else tmp_path) == inputs and len(inputs) == 60


def test_a_folder_with_only_hidden_folders_is_refused_and_a_hidden_image_is_read_by_its_path(tmp_path: Path) -> None:
    Image.new("L", (6, 6), 7).save(tmp_path / ".own.png")
    assert new_inputs(tmp_path / ".own.png", {"kind": "image", "input_shape": [1, 6, 6]}).max() == 7
    (tmp_path / ".ipynb_checkpoints").mkdir()
    with pytest.raises(DataError, match="must have one subfolder of images per class, got none"):
        ImageFolder(str(tmp_path)).read()


HOW = {"jpg": {"quality": 100}, "png": {}, "webp": {"lossless": True}, "tiff": {}}
HOW["lzw.tiff"] = {"compression": "tiff_lzw"}


@pytest.mark.parametrize("orientation", SEEN)
@pytest.mark.parametrize("how", HOW)
def test_photographs_are_turned_by_their_orientation_tag(how: str, orientation: int, tmp_path: Path) -> None:
    """At a fit, where the first image gives the shape of the folder, and at a prediction, which requires a shape."""
    seen = SEEN[orientation](STORED)
    path, exif = tmp_path / f"0.{how}", Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(STORED).convert("RGB").save(path, exif=exif, **HOW[how])
    with Image.open(path) as image:
        assert image.getexif()[ORIENTATION] == orientation, "the file must have the tag"
    grey = read_images([path], (1, *seen.shape))
    assert np.abs(grey[0, 0].astype(int) - seen).max() <= (2 if how == "jpg" else 0)
    assert read_images([path]).shape[2:] == seen.shape
    square = read_images([path], (1, 32, 32), resize=32)[0, 0].astype(int)
    Image.fromarray(np.ascontiguousarray(seen)).save(tmp_path / "seen.png")
    upright = read_images([tmp_path / "seen.png"], (1, 32, 32), resize=32)[0, 0].astype(int)
    assert np.abs(square - upright).max() <= 3


def test_a_damaged_orientation_tag_is_ignored(tmp_path: Path) -> None:
    Image.fromarray(STORED).save(tmp_path / "0.png", exif=b"Exif\0\0II*\0\xff\xff\xff\xff no directory")
    np.testing.assert_array_equal(read_images([tmp_path / "0.png"])[0, 0], STORED)
