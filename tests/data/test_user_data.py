"""Users' own files: good files are read, and each kind of wrong content is refused with one clear line."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from bdl_pipe.data import sources
from bdl_pipe.data.sources.images import ImageFolder, Npz
from bdl_pipe.data.sources.table import Table
from bdl_pipe.data.sources.uci import Uci
from bdl_pipe.errors import DataError
from tests.case_files import call, cases_of

cases = cases_of(__file__)
ROWS = 12
TABLE = {"name": "table", "path": "t.csv", "target": ["y"], "task": "regression"}
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3), dtype=np.uint8)
KINDS = np.array(["b", "a", "c"] * 4)


def text_of(columns: dict[str, list[object]]) -> str:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    return "\n".join(lines) + "\n"


def store(path: Path, columns: dict[str, list[object]]) -> Path:
    """Write columns as Parquet or, under another suffix, as CSV."""
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.table(columns), path)
    else:
        path.write_text(text_of(columns))
    return path


def good(**changes: list[object]) -> dict[str, list[object]]:
    numbers = {"a": [0.5 * i for i in range(ROWS)], "b": list(range(ROWS)), "y": [1.5 * i for i in range(ROWS)]}
    return {**numbers, "kind": ["dog", "cat", "eel"] * (ROWS // 3), **changes}


def table(path: Path, target: str = "y", task: str = "regression", features: tuple[str, ...] = ("a", "b")) -> Table:
    return Table(str(path), (target,), task, features)  # type: ignore[arg-type]


def test_a_regression_table_is_read_as_features_and_targets(tmp_path: Path) -> None:
    raw = sources.load(table(store(tmp_path / "t.csv", good())))
    assert raw.features == ("a", "b") and raw.targets == ("y",) and raw.task == "regression"
    np.testing.assert_array_equal(raw.train.inputs, [[0.5 * i, i] for i in range(ROWS)])
    np.testing.assert_array_equal(raw.train.targets, [[1.5 * i] for i in range(ROWS)])
    columns = {name: values for name, values in good().items() if name != "kind"}
    raw = sources.load(Table(str(store(tmp_path / "t.csv", columns)), ("y", "b"), "regression"))
    assert raw.features == ("a",) and raw.train.targets.shape == (ROWS, 2), "all columns but the targets"


def test_labels_become_class_names_that_are_sorted_as_texts_or_as_numbers(tmp_path: Path) -> None:
    for name in ("t.csv", "t.parquet"):
        raw = sources.load(table(store(tmp_path / name, good()), "kind", "classification"))
        assert raw.classes == ("cat", "dog", "eel") and raw.train.targets.tolist() == [1, 0, 2] * (ROWS // 3)
        np.testing.assert_array_equal(raw.train.inputs[:, 1], range(ROWS))
    for labels in ([10, 9, 2], [10.0, 9.0, 2.0]):
        raw = sources.load(table(store(tmp_path / "t.csv", good(kind=labels * (ROWS // 3))), "kind", "classification"))
        assert raw.classes == ("2", "9", "10") and raw.train.targets[:3].tolist() == [2, 1, 0]


def encoded(path: Path, encoding: str) -> Table:
    """A table with é in its header, written in the given encoding."""
    path.write_text(text_of({"é" if k == "b" else k: v for k, v in good().items()}), encoding=encoding)
    return table(path, features=("a", "é"))


def text(path: Path, content: str, suffix: str = ".csv") -> Table:
    path.with_suffix(suffix).write_text(content)
    return table(path.with_suffix(suffix))


def changed(
    path: Path,
    columns: dict[str, list[object]],
    target: str = "y",
    task: str = "regression",
    suffix: str = ".csv",
    encoding: str = "utf-8",
) -> Table:
    """The good table with other columns, whose values are repeated."""
    whole = good(**{name: [values[i % len(values)] for i in range(ROWS)] for name, values in columns.items()})
    if suffix == ".csv":
        path.write_text(text_of(whole), encoding=encoding)
    else:
        store(path.with_suffix(suffix), whole)
    return table(path.with_suffix(suffix), target, task)


def one(path: Path, value: object, row: int, column: str = "a", *of: str) -> Table:
    """The good table with another value in one row."""
    values = good()[column]
    return changed(path, {column: [*values[: row - 1], value, *values[row:]]}, *of)


def first_rows(path: Path, rows: int) -> Table:
    return table(store(path, {name: values[:rows] for name, values in good().items()}))


def long_text(path: Path) -> Table:
    return one(path, "x" * 600, 4)


def long_names(path: Path) -> Table:
    return table(store(path, {"y": [1], **{f"{i}" * 90: [1] for i in range(9)}}))


def a_folder(path: Path) -> Table:
    path.mkdir()
    return table(path)


def uci_folder(path: Path) -> Uci:
    path.with_suffix(".txt").mkdir()
    return Uci("boston", str(path.with_suffix(".txt")))


def below_a_file(path: Path) -> Table:
    text(path, "a,b,y\n1,2,3\n")
    return table(path / "t.csv")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_utf_8_is_read_with_and_without_a_byte_order_mark(encoding: str, tmp_path: Path) -> None:
    raw = sources.load(encoded(tmp_path / "t.csv", encoding))
    assert raw.features == ("a", "é") and raw.train.inputs[3].tolist() == [1.5, 3]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
@pytest.mark.parametrize("name", ["t.csv", "t.npz"])
def test_the_error_names_a_file_without_permission(name: str, tmp_path: Path) -> None:
    path = store(tmp_path / name, good())
    path.chmod(0)
    with pytest.raises(DataError, match=rf"{name}: cannot be read \(Permission denied\)"):
        sources.load(table(path) if name == "t.csv" else Npz(str(path)))


@cases("tables", "write message")
def test_a_bad_table_is_refused_in_one_short_line(write: str | list[Any], message: str, tmp_path: Path) -> None:
    source = call(globals(), write, tmp_path / "t.csv")
    with pytest.raises(DataError, match=message) as caught:
        sources.load(source)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def picture(
    path: Path, size: tuple[int, int] = (5, 4), mode: str = "RGB", value: int = 0, fmt: str | None = None
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fill = value if mode in ("L", "I;16") else (value, value // 2, 255 - value)
    Image.new(mode, size, fill).save(path, fmt)


def folder(root: Path, mode: str = "RGB", rows: int = 6) -> Path:
    for kind in ("eel", "cat"):
        for i in range(rows):
            picture(root / kind / f"{i}.png", mode=mode, value=10 * i)
    return root


def test_an_image_folder_has_its_subfolders_as_sorted_classes(tmp_path: Path) -> None:
    """Grey images have one channel, mixed images three, and the folder test has test rows."""
    raw = sources.load(ImageFolder(str(folder(tmp_path / "c"))))
    assert raw.classes == ("cat", "eel") and raw.test is None
    assert raw.train.inputs.shape == (12, 3, 4, 5)  # height 4, width 5
    assert raw.train.targets.tolist() == [0] * 6 + [1] * 6
    assert raw.train.inputs[1, :, 0, 0].tolist() == [10, 5, 245]
    folder(tmp_path / "a", mode="L")
    assert sources.load(ImageFolder(str(tmp_path / "a"))).train.inputs.shape == (12, 1, 4, 5)
    picture(tmp_path / "a" / "cat" / "9.png")
    assert sources.load(ImageFolder(str(tmp_path / "a"))).train.inputs.shape == (13, 3, 4, 5)
    folder(tmp_path / "b/train"), picture(tmp_path / "b/test/eel/x.png", value=7)
    test = sources.load(ImageFolder(str(tmp_path / "b"))).test
    assert test.targets.tolist() == [1] and test.inputs[0, 0, 0, 0] == 7


def nothing(root: Path) -> None:
    """Leave out the folder."""


def subfolder(root: Path, name: str = "") -> None:
    (folder(root) / name if name else root).mkdir()


def file(root: Path, name: str, content: str) -> None:
    (folder(root) / name if name else root).write_text(content)


def cut(root: Path, name: str, size: int) -> None:
    path = folder(root) / name
    path.write_bytes(path.read_bytes()[:size])


def lone_picture(root: Path, name: str) -> None:
    picture(root / name, fmt="PNG")


def other_picture(root: Path, name: str, size: list[int], mode: str = "RGB") -> None:
    picture(folder(root) / name, (size[0], size[1]), mode)


def one_class(root: Path) -> None:
    for i in range(12):
        picture(root / "cat" / f"{i}.png")


def unknown_class(root: Path) -> None:
    folder(root / "train")
    picture(root / "test/bat/1.png")


@cases("image folders", "fill message")
def test_a_bad_image_folder_is_refused_in_one_line(fill: str | list[Any], message: str, tmp_path: Path) -> None:
    call(globals(), fill, tmp_path / "images")
    with pytest.raises(DataError, match=message) as caught:
        sources.load(ImageFolder(str(tmp_path / "images")))
    assert "\n" not in str(caught.value)


def test_an_npz_may_have_its_channels_last_or_first_and_test_arrays(tmp_path: Path) -> None:
    for x in (PIXELS, PIXELS.transpose(0, 3, 1, 2)):
        np.savez(tmp_path / "d.npz", x=x, y=KINDS)
        raw = sources.load(Npz(str(tmp_path / "d.npz")))
        np.testing.assert_array_equal(raw.train.inputs, PIXELS.transpose(0, 3, 1, 2))
        assert raw.classes == ("a", "b", "c") and raw.train.targets[:3].tolist() == [1, 0, 2]
    np.savez(tmp_path / "d.npz", x_train=PIXELS[..., 0], y_train=KINDS, x_test=PIXELS[:2, ..., 1], y_test=["c", "c"])
    test = sources.load(Npz(str(tmp_path / "d.npz"))).test
    assert test.inputs.shape == (2, 1, 5, 4) and test.targets.tolist() == [2, 2]


def damaged(path: Path, at: int, value: int, size: int | None = None) -> None:
    """A good archive with one byte changed, in the first member's header and in its entry of the list at the end."""
    sink = io.BytesIO()
    np.savez(sink, x=PIXELS, y=KINDS)
    blob = bytearray(sink.getvalue())
    blob[at] = blob[blob.index(b"PK\1\2") + at + (2 if at else 0)] = value
    path.write_bytes(bytes(blob)[:size])


def no_array(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"no array")


ARRAYS = {
    "pixels": PIXELS,
    "floats": PIXELS / 255,
    "two channels": PIXELS[..., :2],
    "low pixels": PIXELS[:, :3],
    "no pixels": PIXELS[:, :0],
    "kinds": KINDS,
    "five kinds": KINDS[:5],
    "halves": np.full(12, 0.5),
    "zeros": np.zeros(12, int),
    "objects": np.array([{}] * 12, dtype=object),
}


@cases("arrays", "content message")
def test_a_bad_npz_is_refused(content: dict[str, str] | str | list[Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    if isinstance(content, dict):
        np.savez(path, **{name: ARRAYS[array] for name, array in content.items()})
    else:
        call(globals(), content, path)
    with pytest.raises(DataError, match=message):
        sources.load(Npz(str(path)))
