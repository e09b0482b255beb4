"""Images, arrays and requests of public reports: each is read right, or a message of one line names it.

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
from bdl_pipe.data.new_inputs import given_inputs, left_out, new_inputs
from bdl_pipe.data.sources.images import read_images
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
    line = "1 images have transparent pixels, which are laid on white; the first is a/z.png"
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
    "frames": "1 images have several frames, and only one is read; the first is ",
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
