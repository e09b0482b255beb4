"""Images, arrays and requests of public reports, and folders as systems and cameras leave them: each is read right,
or a message of one line names it.

A case names its report, ``repository#number``; the inputs are our own.
"""

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from bdl_pipe.data.inspect.images import inspect_images
from bdl_pipe.data.new_inputs import given_inputs, image_inputs, left_out, new_inputs
from bdl_pipe.data.sources.images import ImageFolder, read_images
from bdl_pipe.errors import DataError
from tests.case_files import call, cases_of

from .pictures import two_classes as folder

cases = cases_of(__file__)
GREY = Image.new("L", (6, 6), 50)
SCHEMA = {"kind": "image", "features": [], "input_shape": [1, 6, 6]}
PIXELS = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
KINDS = np.arange(60) % 2


def ink(path: Path, mode: str, hidden: list[int]) -> None:
    """A black stroke on transparent pixels, which hide a colour."""
    image = Image.new(mode, (6, 6), tuple(hidden))
    image.paste((0,) * (len(hidden) - 1) + (255,), (2, 0, 4, 6))
    image.save(path)


def palette(path: Path, transparency: int | bytes) -> None:
    image = Image.new("P", (6, 6), 0)
    image.putpalette([200, 0, 0, 0, 0, 0])
    image.paste(1, (2, 0, 4, 6))
    image.save(path, transparency=transparency)


STROKE = np.full((6, 6), 255, np.uint8)
STROKE[:, 2:4] = 0


@cases("transparent pixels", "write")
def test_transparent_pixels_are_read_as_white_with_a_remark(write: list[Any], tmp_path: Path) -> None:
    call(globals(), write, folder(tmp_path) / "a/z.png")
    for image in read_images([tmp_path / "a/z.png"])[0]:
        np.testing.assert_array_equal(image, STROKE)
    line = "1 images have transparent pixels, which are put on a white background; the first is a/z.png"
    assert inspect_images(tmp_path).remarks == [line]
    np.testing.assert_array_equal(new_inputs(tmp_path / "a/z.png", SCHEMA)[0, 0], STROKE)


def test_half_transparent_pixels_mix_with_white_and_opaque_pixels_are_kept(tmp_path: Path) -> None:
    Image.new("RGBA", (6, 6), (201, 1, 3, 128)).save(tmp_path / "half.png")
    half = read_images([tmp_path / "half.png"])[0, :, 0, 0]
    np.testing.assert_allclose(half, 255 + (np.array([201, 1, 3]) - 255) * 128 / 255, atol=1)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 4), dtype=np.uint8)
    pixels[..., 3] = 255
    Image.fromarray(pixels).save(tmp_path / "opaque.png")
    np.testing.assert_array_equal(read_images([tmp_path / "opaque.png"])[0], pixels[..., :3].transpose(2, 0, 1))


def film(root: Path, name: str) -> None:
    GREY.save(root / name, save_all=True, append_images=[Image.new("L", (6, 6), 200)])


def grey(root: Path, name: str) -> None:
    GREY.save(root / name)


def file(root: Path, name: str, content: str) -> None:
    (root / name).write_text(content)


def dead_link(root: Path, name: str) -> None:
    (root / name).symlink_to(root / "gone.png")


def deep_folder(root: Path) -> None:
    folder(root / "a/deep")


def rename(root: Path, names: dict[str, str]) -> None:
    for name, other in names.items():
        (root / name).rename(root / other)


STARTS = {
    "frames": "1 images have several frames, of which only one is read; the first is ",
    "left out": "left out, because only images of a known kind directly in a class's folder are read: ",
    "classes": "'A' and 'a' are two classes",
}


@cases("remarks", "add remark end")
def test_unread_files_extra_frames_and_similar_classes_get_a_remark(
    add: str | list[Any], remark: str, end: str, tmp_path: Path
) -> None:
    call(globals(), add, folder(tmp_path))
    (line,) = inspect_images(tmp_path).remarks
    assert line.startswith(STARTS[remark] + end)


def test_a_folder_val_beside_train_is_left_out_with_a_remark(tmp_path: Path) -> None:
    """huggingface/datasets#4839."""
    folder(tmp_path / "train"), folder(tmp_path / "val")
    assert inspect_images(tmp_path).remarks == [STARTS["left out"] + "val"]


@pytest.mark.parametrize("name", ["z.jfif", "z.jpe", "z.JPG", "z.PNG"])
def test_images_with_rare_or_capital_extensions_are_read(name: str, tmp_path: Path) -> None:
    """thumbsup/thumbsup#368 (.jfif, .jpe); pytorch/vision#552 (capitals; right before)."""
    GREY.save(folder(tmp_path) / "a" / name, format="PNG" if name.endswith("PNG") else "JPEG")
    profile = inspect_images(tmp_path)
    assert profile.rows == 61 and profile.remarks == []


def test_two_unicode_forms_of_a_name_are_one_class(tmp_path: Path) -> None:
    """semantic-reasoning/verinote#161: macOS writes NFD, so training and test rows had different classes."""
    composed, apart = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    for part, name in (("train", composed), ("test", apart)):
        (folder(tmp_path / part) / "a").rename(tmp_path / part / name)
    profile = inspect_images(tmp_path)
    assert sorted(profile.classes) == ["b", "é"] and profile.test_rows == 60
    (folder(tmp_path / "train") / "a").rename(tmp_path / "train" / apart)
    with pytest.raises(DataError, match="must differ in more than blanks and forms of Unicode, got 'é' twice"):
        inspect_images(tmp_path)


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_class_may_be_called_train_or_test(name: str, tmp_path: Path) -> None:
    (folder(tmp_path) / "a").rename(tmp_path / name)
    profile = inspect_images(tmp_path)
    assert sorted(profile.classes) == ["b", name] and profile.test_rows == 0 and profile.remarks == []


def test_damaged_frames_after_the_first_get_a_remark(tmp_path: Path) -> None:
    """Pillow reads the first frame, and raises a SyntaxError, TypeError or KeyError when it counts the others."""
    path = folder(tmp_path) / "a/z.tif"
    film(tmp_path, "a/z.tif")
    start = bytearray(path.read_bytes())
    first = int.from_bytes(start[4:8], "little")  # the directory of the first frame
    entries = int.from_bytes(start[first : first + 2], "little")
    after = first + 2 + 12 * entries
    other = int.from_bytes(start[after : after + 4], "little")
    start[other + 2 : other + 2 + 24] = bytes(24)  # its width and height
    path.write_bytes(bytes(start))
    with pytest.raises(Exception), Image.open(path) as image:  # noqa: B017 — any
        assert image.n_frames
    assert inspect_images(tmp_path).remarks == [STARTS["frames"] + "a/z.tif"]


def test_arrays_that_are_not_read_get_a_remark(tmp_path: Path) -> None:
    test, more = {"x_test": 255 - PIXELS, "y_test": KINDS}, {"x_val": PIXELS, "y_val": KINDS}
    np.savez(tmp_path / "t.npz", x_train=PIXELS, y_train=KINDS, **test, **more)
    assert inspect_images(tmp_path / "t.npz").remarks == [
        "dropped arrays with names that add does not read: x_val, y_val"
    ]


def test_left_out_lists_the_files_of_a_folder_that_are_not_predicted(tmp_path: Path) -> None:
    folder(tmp_path), folder(tmp_path / "a/deep", rows=1)
    (tmp_path / "z.heic").write_bytes(b"\0"), (tmp_path / ".hidden").write_bytes(b"\0")
    names = [str(path.relative_to(tmp_path)) for path in left_out(tmp_path)]
    assert names == ["a/deep/a/00.png", "a/deep/b/01.png", "z.heic"]


@cases("refused folders", "change message")
def test_a_folder_with_a_wrong_file_or_class_is_refused(change: list[Any], message: str, tmp_path: Path) -> None:
    call(globals(), change, folder(tmp_path))
    with pytest.raises(DataError, match=message):
        inspect_images(tmp_path)


@cases("folders without images", "parts message")
def test_the_error_of_a_folder_without_images_shows_its_contents(
    parts: list[str], message: str, tmp_path: Path
) -> None:
    for part in parts:
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).touch()
    with pytest.raises(DataError, match=message):
        inspect_images(tmp_path)


def test_the_folder_that_one_is_in_has_a_file_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=rf"must be one file: awk .* > {tmp_path}\.csv$"):
        inspect_images(Path())


ARRAYS = {
    "pixels": PIXELS,
    "shares": PIXELS / 255,
    "64 bits": PIXELS.astype(int),
    "16 bits": PIXELS.astype(np.uint16) * 256,
    "four channels": np.stack([PIXELS] * 4, 3),
    "labels": KINDS,
    "objects": KINDS.astype(object),
    "columns": np.eye(2)[KINDS],
    "gaps": np.array(["", "dog"])[KINDS],
    "bytes": np.array([b"cat", b"dog"])[KINDS],
}


@cases("arrays", "names pixels labels message")
def test_bad_arrays_are_refused_with_a_cure(
    names: list[str], pixels: str, labels: str, message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "t.npz", **{names[0]: ARRAYS[pixels], names[1]: ARRAYS[labels]})
    with pytest.raises(DataError, match=message):
        inspect_images(tmp_path / "t.npz")


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(np.array(["cat", "cat ", "dog"])[np.arange(60) % 3], id="blanks after a text"),
        pytest.param(np.array(["cat", "dog"])[KINDS][:, None], id="udacity/cn-deep-learning#5 ([n, 1]; right before)"),
    ],
)
def test_labels_with_blanks_or_in_one_column_are_read(labels: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=PIXELS, y=labels)
    assert sorted(inspect_images(tmp_path / "t.npz").classes) == ["cat", "dog"]


def test_images_of_a_request_are_read_in_every_accepted_shape() -> None:
    """SeldonIO/MLServer#811: [n, height, width]."""
    for rows in (PIXELS[:, None].astype(int), PIXELS.astype(int), PIXELS[..., None]):
        np.testing.assert_array_equal(given_inputs(rows, SCHEMA), PIXELS[:, None])


REQUESTS: dict[str, tuple[Any, str]] = {
    "epigramai/tfserving-python-predict-client#2": (PIXELS / 255, "got float64 from 0 to 1; save"),
    "beyond 255": (PIXELS.astype(int) + 300, "scale it to 0…255"),
    "nulls": (np.array([[None] * 6] * 6), "must be uint8 images, got object"),
    "an empty list": ([], "must be uint8 images, got float64"),
    "no image": (PIXELS[:0], "must have at least one image, got none"),
    "ragged lists": ([[[1, 2], [3]]], "must be images of one shape, got lists of several lengths"),
    "masked pixels": (np.ma.array(PIXELS, mask=PIXELS > 9), "got masked ones; pass images.filled"),
    "another size": (PIXELS[:, :4], r"must have shape \[1, 6, 6\], got \[1, 4, 6\]"),
    "a table": (pd.DataFrame({"x": [1]}), "must be images of whole numbers, got DataFrame"),
}


@pytest.mark.parametrize(("rows", "message"), REQUESTS.values(), ids=REQUESTS)
def test_invalid_images_of_a_request_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"the input: .*{message}"):
        given_inputs(rows, SCHEMA)


def test_a_table_of_a_request_must_name_its_columns() -> None:
    schema = {"kind": "table", "features": ["a", "b"], "input_shape": [2]}
    with pytest.raises(DataError, match="must be rows with the fitted columns by name, got ndarray"):
        given_inputs(np.ones((1, 2)), schema)
    assert given_inputs(pd.DataFrame({"b": [2], "a": ["1"]}), schema).tolist() == [[1, 2]]


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
        folder(tmp_path / part)
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


@pytest.mark.parametrize(("how", "orientation"), [("jpg", n) for n in SEEN] + [(how, 6) for how in HOW if how != "jpg"])
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
