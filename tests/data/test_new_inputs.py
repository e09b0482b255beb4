from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bdl_pipe.data.new_inputs import given_inputs, new_inputs
from bdl_pipe.errors import DataError

TABLE = {"kind": "table", "features": ["a", "b"], "input_shape": [2]}
GREY = {"kind": "image", "features": [], "input_shape": [1, 4, 5]}
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5), dtype=np.uint8)


def test_table_columns_are_read_by_name_in_the_fitted_order(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("extra,b,a\nx,1,2\ny,3,4.5\n")
    np.testing.assert_array_equal(new_inputs(tmp_path / "n.csv", TABLE), [[2, 1], [4.5, 3]])


def test_the_rows_of_a_table_are_read_from_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "n.npz", x=np.array([[1, 2], [3, 4]]))
    rows = new_inputs(tmp_path / "n.npz", TABLE)
    assert rows.dtype == np.float64 and rows.tolist() == [[1, 2], [3, 4]]


def test_images_are_read_from_an_npz_a_folder_subfolders_or_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "n.npz", x=PIXELS)
    (tmp_path / "flat").mkdir()
    (tmp_path / "deep" / "z").mkdir(parents=True)
    for i, image in enumerate(PIXELS):
        Image.fromarray(image).save(tmp_path / "flat" / f"{i}.png")
        Image.fromarray(image).save(tmp_path / "deep" / "z" / f"{i}.png")
    for place in ("n.npz", "flat", "deep"):
        np.testing.assert_array_equal(new_inputs(tmp_path / place, GREY), PIXELS[:, None])
    np.testing.assert_array_equal(new_inputs(tmp_path / "flat" / "1.png", GREY), PIXELS[1:2, None])


def test_grey_files_get_three_equal_channels_for_a_colour_posterior(tmp_path: Path) -> None:
    Image.fromarray(PIXELS[0]).save(tmp_path / "0.png")
    images = new_inputs(tmp_path, GREY | {"input_shape": [3, 4, 5]})
    np.testing.assert_array_equal(images, np.repeat(PIXELS[:1, None], 3, axis=1))


def text(name: str, content: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_text(content)
        return folder / name

    return make


def arrays(**named: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.savez(folder / "n.npz", **named)
        return folder / "n.npz"

    return make


def image(folder: Path) -> Path:
    Image.new("L", (7, 4)).save(folder / "0.png")
    return folder


BAD: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str]] = {
    "no file": (lambda f: f / "n.csv", TABLE, r"n\.csv: is missing"),
    "no column": (text("n.csv", "a,c\n1,2\n"), TABLE, r"n\.csv: must have the column 'b', got a, c"),
    "text": (text("n.csv", "a,b\n1,2\n1,red\n"), TABLE, r"n\.csv: column 'b' must be numeric, got 'red' in row 2"),
    "inf": (text("n.csv", "a,b\n1,2\ninf,3\n"), TABLE, r"n\.csv: column 'a' must be finite, got inf in row 2"),
    "table npz shape": (arrays(x=np.ones((2, 3))), TABLE, r"n\.npz: array 'x' must be numbers \[n, 2\], got"),
    "table npz NaN": (arrays(x=[[1, np.nan]]), TABLE, r"n\.npz: column 'b' must be finite, but is not in row 1"),
    "npz size": (arrays(x=PIXELS[:, :2]), GREY, r"n\.npz: images must have shape \[1, 4, 5\], got \[1, 2, 5\]"),
    "npz name": (arrays(z=PIXELS), GREY, r"n\.npz: must have the array 'x', got z"),
    "image size": (image, GREY, r"0\.png: every image must be 5×4 pixels, got 7×4"),
    "no images": (lambda f: f, GREY, r"must hold images \(.*\), got none"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_new_rows_are_refused(case: str, tmp_path: Path) -> None:
    make, schema, message = BAD[case]
    with pytest.raises(DataError, match=message):
        new_inputs(make(tmp_path), schema)


def test_images_without_a_row_are_refused(tmp_path: Path) -> None:
    schema = {"kind": "image", "input_shape": [1, 4, 4]}
    np.savez(tmp_path / "new.npz", x=np.zeros((0, 1, 4, 4), np.uint8))
    with pytest.raises(DataError, match=r"new\.npz: must have at least one image, got none"):
        new_inputs(tmp_path / "new.npz", schema)
    with pytest.raises(DataError, match="the input: must have at least one image, got none"):
        given_inputs(np.zeros((0, 1, 4, 4), np.uint8), schema)
