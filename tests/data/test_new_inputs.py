from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bdl_pipe.data.new_inputs import new_inputs
from bdl_pipe.errors import DataError
from tests.case_files import call, cases_of

cases = cases_of(__file__)

TABLE = {"kind": "table", "features": ["a", "b"], "input_shape": [2]}
GREY = {"kind": "image", "features": [], "input_shape": [1, 4, 5]}
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5), dtype=np.uint8)


def test_table_columns_are_read_by_name_from_a_csv_file_and_by_place_from_an_npz(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("extra,b,a\nx,1,2\ny,3,4.5\n")
    np.testing.assert_array_equal(new_inputs(tmp_path / "n.csv", TABLE), [[2, 1], [4.5, 3]])
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


def below(folder: Path, name: str = "") -> Path:
    return folder / name


def text(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content)
    return folder / name


def numbers(folder: Path, values: list[list[float]]) -> Path:
    np.savez(folder / "n.npz", x=np.array(values))
    return folder / "n.npz"


def pixels(folder: Path, name: str, images: int, height: int) -> Path:
    np.savez(folder / "n.npz", **{name: PIXELS[:images, :height]})
    return folder / "n.npz"


def wide_image(folder: Path) -> Path:
    Image.new("L", (7, 4)).save(folder / "0.png")
    return folder


@cases("refused", "write kind message")
def test_bad_new_rows_are_refused(write: str | list[Any], kind: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        new_inputs(call(globals(), write, tmp_path), {"table": TABLE, "image": GREY}[kind])
