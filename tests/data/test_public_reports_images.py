"""Images, arrays and requests of public reports: each is read right, or a message of one line names it.

A case names its report, ``repository#number``; the inputs are our own.
"""

import unicodedata
from collections.abc import Callable
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

GREY = Image.new("L", (6, 6), 50)
SCHEMA = {"kind": "image", "features": [], "input_shape": [1, 6, 6]}


def folder(root: Path, rows: int = 30) -> Path:
    """Write two classes, a and b, of different grey images."""
    random = np.random.default_rng(0)
    for number in range(2 * rows):
        path = root / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (6, 6), dtype=np.uint8)).save(path)
    return root


# --- transparent pixels -----------------------------------------------------------------------------------------------


def ink(mode: str, hidden: tuple[int, ...]) -> Image.Image:
    """A black stroke on transparent pixels, which hide a colour."""
    image = Image.new(mode, (6, 6), hidden)
    image.paste((0,) * (len(hidden) - 1) + (255,), (2, 0, 4, 6))
    return image


def palette(transparency: Any, path: Path) -> None:
    image = Image.new("P", (6, 6), 0)
    image.putpalette([200, 0, 0, 0, 0, 0])
    image.paste(1, (2, 0, 4, 6))
    image.save(path, transparency=transparency)


STROKE = np.full((6, 6), 255, np.uint8)
STROKE[:, 2:4] = 0
TRANSPARENT: dict[str, Callable[[Path], None]] = {
    "kohya-ss/sd-scripts#1269 (RGBA)": lambda path: ink("RGBA", (200, 0, 0, 0)).save(path),
    "NVIDIA/DIGITS#85 (grey and alpha)": lambda path: ink("LA", (0, 0)).save(path),
    "MMMU-Benchmark/MMMU#17 (palette)": lambda path: palette(b"\x00\xff", path),
    "layumi/University1652-Baseline#17 (palette)": lambda path: palette(0, path),
}


@pytest.mark.parametrize("report", TRANSPARENT)
def test_transparent_pixels_are_read_as_white_with_a_remark(report: str, tmp_path: Path) -> None:
    folder(tmp_path)
    TRANSPARENT[report](tmp_path / "a/z.png")
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


# --- files that are left out, and images of several frames ------------------------------------------------------------


def film(path: Path) -> None:
    GREY.save(path, save_all=True, append_images=[Image.new("L", (6, 6), 200)])


def copied(root: Path, name: str) -> None:
    folder(root / name)


FILM = "1 images have several frames, and only one is read; the first is "
LEFT = "left out, because only images of a known kind directly in a class's folder are read: "
# report: (a function that adds a file to a folder of two classes, the start of the remark)
SAID: dict[str, tuple[Callable[[Path], Any], str]] = {
    "lstein/PhotoMapAI#364": (lambda root: (root / "a/z.avif").write_bytes(b"\0"), LEFT + "a/z.avif"),
    "photoprism/photoprism#3705": (lambda root: (root / "a/z.HEIC").write_bytes(b"\0"), LEFT + "a/z.HEIC"),
    "an image beside the classes": (lambda root: GREY.save(root / "z.png"), LEFT + "z.png"),
    "haesleinhuepf/apoc#37": (lambda root: folder(root / "a/deep"), LEFT + "a/deep"),
    "a dead link": (lambda root: (root / "a/z.png").symlink_to(root / "gone.png"), LEFT + "a/z.png"),
    "jimp-dev/jimp#816": (
        lambda root: film(root / "a/z.tif"),
        FILM + "a/z.tif",
    ),
    "wingman-jr-addon/wingman_jr#23": (
        lambda root: film(root / "a/z.gif"),
        FILM + "a/z.gif",
    ),
    "GreycLab/gmic-community#255": (
        lambda root: (root / "b").rename(root / "A"),
        "'A' and 'a' are two classes",
    ),
}


@pytest.mark.parametrize("report", SAID)
def test_unread_files_extra_frames_and_similar_classes_get_a_remark(report: str, tmp_path: Path) -> None:
    add, said = SAID[report]
    add(folder(tmp_path))
    (remark,) = inspect_images(tmp_path).remarks
    assert remark.startswith(said)


def test_a_folder_val_beside_train_is_left_out_with_a_remark(tmp_path: Path) -> None:
    """huggingface/datasets#4839."""
    folder(tmp_path / "train"), folder(tmp_path / "val")
    assert inspect_images(tmp_path).remarks == [LEFT + "val"]


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


def test_folders_train_and_test_without_class_folders_are_refused(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "a").rename(tmp_path / "train"), (tmp_path / "b").rename(tmp_path / "test")
    with pytest.raises(DataError, match="must have one subfolder of images per class, got images without such folders"):
        inspect_images(tmp_path)


def test_a_class_whose_name_is_blank_is_refused(tmp_path: Path) -> None:
    (folder(tmp_path) / "a").rename(tmp_path / " ")
    with pytest.raises(DataError, match="must have names of more than blanks, got ' '"):
        inspect_images(tmp_path)


def test_damaged_frames_after_the_first_get_a_remark(tmp_path: Path) -> None:
    """Pillow reads the first frame, and raises a SyntaxError, TypeError or KeyError when it counts the others."""
    path = folder(tmp_path) / "a/z.tif"
    film(path)
    start = bytearray(path.read_bytes())
    first = int.from_bytes(start[4:8], "little")  # the directory of the first frame
    entries = int.from_bytes(start[first : first + 2], "little")
    after = first + 2 + 12 * entries
    other = int.from_bytes(start[after : after + 4], "little")
    start[other + 2 : other + 2 + 24] = bytes(24)  # its width and height
    path.write_bytes(bytes(start))
    with pytest.raises(Exception), Image.open(path) as image:  # noqa: B017 — any
        assert image.n_frames
    assert inspect_images(tmp_path).remarks == [FILM + "a/z.tif"]


def test_arrays_that_are_not_read_get_a_remark(tmp_path: Path) -> None:
    parts = {
        "x_train": PIXELS,
        "y_train": KINDS,
        "x_test": 255 - PIXELS,
        "y_test": KINDS,
        "x_val": PIXELS,
        "y_val": KINDS,
    }
    np.savez(tmp_path / "t.npz", **parts)
    assert inspect_images(tmp_path / "t.npz").remarks == ["left out, as no array of a name that is read: x_val, y_val"]


def test_left_out_lists_the_files_of_a_folder_that_are_not_predicted(tmp_path: Path) -> None:
    folder(tmp_path), folder(tmp_path / "a/deep", rows=1)
    (tmp_path / "z.heic").write_bytes(b"\0"), (tmp_path / ".hidden").write_bytes(b"\0")
    assert [str(p.relative_to(tmp_path)) for p in left_out(tmp_path)] == [
        "a/deep/a/00.png",
        "a/deep/b/01.png",
        "z.heic",
    ]


# --- refusals ---------------------------------------------------------------------------------------------------------

BROKEN = {
    "alexeygrigorev/clothing-dataset#1": (b"", "it is empty"),
    "python-pillow/Pillow#4678": (b"no image", "its bytes are not an image format's"),
    "mozilla/mozjpeg#439": (
        b"\0\0\0\x18ftypheic" + bytes(99),
        "it is a film or a HEIC image; convert it to PNG",
    ),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS, .*: git lfs pull"),
    "a drawing": (b"<?xml version='1.0'?><svg/>", "it is SVG; convert it to PNG"),
}


@pytest.mark.parametrize("report", BROKEN)
def test_the_error_names_a_file_that_is_no_image_and_the_reason(report: str, tmp_path: Path) -> None:
    content, said = BROKEN[report]
    (folder(tmp_path) / "a/z.jpg").write_bytes(content)
    with pytest.raises(DataError, match=rf"a/z\.jpg: is not a readable image \({said}.*--skip-broken"):
        inspect_images(tmp_path)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        pytest.param(["p0.parquet", "p1.parquet"], "is a folder of .parquet files, .*read_parquet", id="ludwig#3396"),
        pytest.param(["k=a/p.parquet", "k=b/p.parquet"], "is a folder of .parquet files", id="pola-rs/polars#17362"),
        pytest.param(["a.csv", "b.csv"], "is a folder of .csv files, must be one file: awk ", id="parts of a CSV file"),
        pytest.param(
            ["Train/a/0.png"],
            r"Train: must hold images \(.*\), got a/; call the folder of training images train",
            id="images one folder too deep",
        ),
        pytest.param(["c/.keep"], r"c: must hold images \(.*\), got none", id="pytorch/vision#4925 (right before)"),
    ],
)
def test_the_error_of_a_folder_without_images_shows_its_contents(parts: list[str], said: str, tmp_path: Path) -> None:
    for part in parts:
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).touch()
    with pytest.raises(DataError, match=said):
        inspect_images(tmp_path)


PIXELS = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
KINDS = np.arange(60) % 2
NPZ: dict[str, tuple[dict[str, Any], str]] = {
    "databio/pepatac#125": (
        {"x": PIXELS, "y": KINDS.astype(object)},
        r"never unpickled; save texts with .astype\(",
    ),
    "juglab/n2v#57": ({"x": PIXELS / 255, "y": KINDS}, r"got float64 from 0 to 1; save \(255 \* x\).round\(\).astype"),
    "whole numbers of 64 bits": ({"x": PIXELS.astype(int), "y": KINDS}, r"from 0 to 255; save x.astype\(np.uint8\)"),
    "16 bits": ({"x": PIXELS.astype(np.uint16) * 256, "y": KINDS}, "got uint16 from 0 to 65280; scale it to 0…255"),
    "keras-team/autokeras#23": (
        {"x": PIXELS, "y": np.eye(2)[KINDS]},
        r"\[60, 2\]; of one column a class: y.argmax\(",
    ),
    "other names": ({"train_images": PIXELS, "train_labels": KINDS}, "save the arrays as x and y, or x_train"),
    "four channels": ({"x": np.stack([PIXELS] * 4, 3), "y": KINDS}, r"drop the fourth channel: x\[..., :3\]"),
    "an empty label": (
        {"x": PIXELS, "y": np.array(["", "dog"])[KINDS]},
        "must have a text in every row, got none in row 1",
    ),
    "bytes": ({"x": PIXELS, "y": np.array([b"cat", b"dog"])[KINDS]}, r"got \|S3; save y.astype\(str\)"),
}


@pytest.mark.parametrize("report", NPZ)
def test_bad_arrays_are_refused_with_a_cure(report: str, tmp_path: Path) -> None:
    arrays, said = NPZ[report]
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(DataError, match=said):
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


# --- a request --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(PIXELS[:, None].astype(int), id="[n, channel, height, width]"),
        pytest.param(PIXELS.astype(int), id="SeldonIO/MLServer#811 ([n, height, width])"),
        pytest.param(PIXELS[..., None], id="channels last"),
    ],
)
def test_images_of_a_request_are_read_in_every_accepted_shape(sent: np.ndarray) -> None:
    np.testing.assert_array_equal(given_inputs(sent, SCHEMA), PIXELS[:, None])


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        pytest.param(PIXELS / 255, "got float64 from 0 to 1; save", id="epigramai/tfserving-python-predict-client#2"),
        pytest.param(PIXELS.astype(int) + 300, "scale it to 0…255", id="beyond 255"),
        pytest.param(np.array([[None] * 6] * 6), "must be uint8 images, got object", id="nulls"),
        pytest.param([], "must be uint8 images, got float64", id="an empty list"),
        pytest.param([[[1, 2], [3]]], "must be images of one shape, got lists of several lengths", id="ragged lists"),
        pytest.param(np.ma.array(PIXELS, mask=PIXELS > 9), r"got masked ones; pass images.filled", id="masked pixels"),
        pytest.param(PIXELS[:, :4], r"must have shape \[1, 6, 6\], got \[1, 4, 6\]", id="another size"),
        pytest.param(pd.DataFrame({"x": [1]}), "must be images of whole numbers, got DataFrame", id="a table"),
    ],
)
def test_invalid_images_of_a_request_are_refused(sent: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"the input: .*{said}"):
        given_inputs(sent, SCHEMA)


def test_a_table_of_a_request_must_name_its_columns() -> None:
    schema = {"kind": "table", "features": ["a", "b"], "input_shape": [2]}
    with pytest.raises(DataError, match="must be rows with the fitted columns by name, got ndarray"):
        given_inputs(np.ones((1, 2)), schema)
    assert given_inputs(pd.DataFrame({"b": [2], "a": ["1"]}), schema).tolist() == [[1, 2]]
