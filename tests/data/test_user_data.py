"""Users' own files: good files are read, and each kind of wrong content is refused with one clear line."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from bdl_pipe.data import sources
from bdl_pipe.data.sources.images import ImageFolder, Npz
from bdl_pipe.data.sources.table import Table
from bdl_pipe.data.sources.uci import Uci
from bdl_pipe.errors import ConfigError, DataError
from tests.preparing import dataset_of

ROWS = 12


def store(path: Path, columns: dict[str, list[object]]) -> Path:
    """Write columns as Parquet or, under another suffix, as CSV."""
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.table(columns), path)
        return path
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


def good(**changes: list[object]) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {
        "a": [0.5 * i for i in range(ROWS)],
        "b": list(range(ROWS)),
        "y": [1.5 * i for i in range(ROWS)],
        "kind": ["dog", "cat", "eel"] * (ROWS // 3),
    }
    return columns | changes


def with_one(value: object, row: int, column: str = "a") -> dict[str, list[object]]:
    columns = good()
    columns[column] = [value if i == row - 1 else v for i, v in enumerate(columns[column])]
    return columns


def table(path: Path, target: str = "y", task: str = "regression", features: tuple[str, ...] = ("a", "b")) -> Table:
    return Table(str(path), (target,), task, features)  # type: ignore[arg-type]


def test_a_regression_table_is_read_as_features_and_targets(tmp_path: Path) -> None:
    raw = sources.load(table(store(tmp_path / "t.csv", good())))
    assert raw.features == ("a", "b") and raw.targets == ("y",) and raw.task == "regression"
    np.testing.assert_array_equal(raw.train.inputs, [[0.5 * i, i] for i in range(ROWS)])
    np.testing.assert_array_equal(raw.train.targets, [[1.5 * i] for i in range(ROWS)])


def test_every_column_except_the_targets_is_a_feature_by_default(tmp_path: Path) -> None:
    columns = good()
    del columns["kind"]
    raw = sources.load(Table(str(store(tmp_path / "t.csv", columns)), ("y", "b"), "regression"))
    assert raw.features == ("a",) and raw.train.targets.shape == (ROWS, 2)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_text_labels_become_sorted_class_names(name: str, tmp_path: Path) -> None:
    raw = sources.load(table(store(tmp_path / name, good()), "kind", "classification"))
    assert raw.classes == ("cat", "dog", "eel")
    assert raw.train.targets.tolist() == [1, 0, 2] * (ROWS // 3)
    np.testing.assert_array_equal(raw.train.inputs[:, 1], range(ROWS))


@pytest.mark.parametrize("labels", [[10, 9, 2], [10.0, 9.0, 2.0]])
def test_number_labels_are_sorted_as_numbers(labels: list[float], tmp_path: Path) -> None:
    path = store(tmp_path / "t.csv", good(kind=labels * (ROWS // 3)))
    raw = sources.load(table(path, "kind", "classification"))
    assert raw.classes == ("2", "9", "10") and raw.train.targets[:3].tolist() == [2, 1, 0]


def written(content: str) -> Callable[[Path], Table]:
    return lambda path: (path.write_text(content), table(path))[1]


def of(
    columns: dict[str, list[object]], target: str = "y", task: str = "regression", suffix: str = ".csv"
) -> Callable[[Path], Table]:
    return lambda path: table(store(path.with_suffix(suffix), columns), target, task)


def no_parquet(path: Path) -> Table:
    path.with_suffix(".parquet").write_bytes(b"PAR1 but no more")
    return table(path.with_suffix(".parquet"))


def encoded(encoding: str) -> Callable[[Path], Table]:
    """A table with é in its header, written in the given encoding."""

    def make(path: Path) -> Table:
        text = store(path, {"é" if k == "b" else k: v for k, v in good().items()}).read_text()
        path.write_bytes(text.encode(encoding))
        return table(path, features=("a", "é"))

    return make


def latin_labels(path: Path) -> Table:
    path.write_bytes(store(path, good()).read_text().replace("eel", "él").encode("latin-1"))
    return table(path, "kind", "classification")


def a_folder(path: Path) -> Table:
    path.mkdir()
    return table(path)


def a_uci_folder(path: Path) -> Uci:
    path.with_suffix(".txt").mkdir()
    return Uci("boston", str(path.with_suffix(".txt")))


def below_a_file(path: Path) -> Table:
    path.write_text("a,b,y\n1,2,3\n")
    return table(path / "t.csv")


BAD_TABLES: dict[str, tuple[Callable[[Path], Table], str]] = {
    "no file": (table, r"t\.csv: is missing"),
    "a folder": (a_folder, r"t\.csv: is a folder, must be a file"),
    "a folder of a UCI set": (a_uci_folder, r"t\.txt: is a folder, must be a file"),
    "below a file": (below_a_file, r"t\.csv/t\.csv: is missing"),
    "UTF-16": (encoded("utf-16"), r"t\.csv: must be UTF-8 text, got UTF-16; save it as UTF-8 \(iconv -f UTF-16 "),
    "UTF-16 without a mark": (encoded("utf-16-le"), r"t\.csv: must be UTF-8 text, got byte 0x00 in line 1; save it"),
    "UTF-32": (encoded("utf-32"), r"t\.csv: must be UTF-8 text, got UTF-32; save it as UTF-8 \(iconv -f UTF-32 "),
    "Latin-1 header": (encoded("latin-1"), r"t\.csv: must be UTF-8 text, got byte 0xE9 in line 1; .*iconv -f LATIN1 "),
    "Latin-1 labels": (latin_labels, r"t\.csv: must be UTF-8 text, got byte 0xE9 in line 4; .*iconv -f LATIN1 "),
    "empty file": (written(""), r"t\.csv: is empty"),
    "no rows": (written("a,b,y\n"), r"t\.csv: must have rows below its header, got none"),
    "ragged rows": (
        written("a,b,y\n1,2,3\n4,5\n"),
        r"t\.csv: is not a readable CSV or Parquet file \(.*Expected 3 columns, got 2",
    ),
    "broken Parquet": (no_parquet, r"t\.parquet: is not a readable CSV or Parquet file"),
    "doubled column": (written("a,b,b,y\n1,2,3,4\n"), r"t\.csv: column names must differ, got 'b' twice"),
    "missing target": (of(good(), "price"), r"t\.csv: must have the column 'price', got a, b, y, kind"),
    "missing feature": (of({"a": [1], "y": [2]}), r"t\.csv: must have the column 'b', got a, y"),
    "NaN": (of(with_one("nan", 7)), r"t\.csv: column 'a' must have a value in every row, got 'nan' in row 7"),
    "inf": (of(with_one("-inf", 3)), r"t\.csv: column 'a' must be finite, got -inf in row 3"),
    "NaN target": (
        of(with_one("nan", 2, "y")),
        r"t\.csv: column 'y' must have a value in every row, got 'nan' in row 2",
    ),
    "missing value": (
        of(with_one("", 5)),
        r"t\.csv: column 'a' must have a value in every row, got none or NaN in row 5",
    ),
    "NaN in Parquet": (
        of(with_one(float("nan"), 7), suffix=".parquet"),
        r"t\.parquet: column 'a' must have a value in every row, got none or NaN in row 7",
    ),
    "NaN label in Parquet": (
        of(with_one(float("nan"), 1, "y"), "y", "classification", ".parquet"),
        r"t\.parquet: column 'y' must have a value in every row, got none or NaN in row 1",
    ),
    "text feature": (
        of(with_one("red", 4)),
        r"t\.csv: column 'a' must be numeric, got 'red' in row 4; say what it is with `columns`, or leave it out",
    ),
    "a long text": (of(with_one("x" * 600, 4)), r"t\.csv: column 'a' must be numeric, got 'x+\.\.\.x+' in row 4;"),
    "long names": (of({"y": [1], **{f"{i}" * 90: [1] for i in range(9)}}), r"must have the column 'a', got y, 0{90}, "),
    "beyond a float64": (
        of(good(a=[2**62 + i for i in range(ROWS)]), suffix=".parquet"),
        r"t\.parquet: column 'a' must be numbers that a float64 holds \(whole ones up to 2\^53\), got 46116",
    ),
    "other separator": (
        written("a\tb\ty\n1\t2\t3\n"),
        r"t\.csv: must have the column 'y', got a\\tb\\ty$",
    ),
    "date feature": (of(good(a=["2024-01-01"] * ROWS)), r"t\.csv: column 'a' must be numeric, got .*2024"),
    "constant target": (of(good(y=[2.5] * ROWS)), r"t\.csv: column 'y' must vary, got 2\.5 in every row"),
    "labels beyond whole numbers": (
        of(good(kind=[1.0, 1e300, 2e300] * (ROWS // 3)), "kind", "classification"),
        r"t\.csv: column 'kind' must be below 1e150, got 1e\+300 in row 2",
    ),
    "one class": (
        of(good(kind=["cat"] * ROWS), "kind", "classification"),
        r"t\.csv: column 'kind' must have at least 2 classes, got only 'cat'",
    ),
    "labels not whole": (
        of(good(), "y", "classification"),
        r"t\.csv: column 'y': labels must be whole numbers or texts, got 1\.5 in row 2",
    ),
    "labels are lists": (
        of(good(kind=[[1.0, 2.0]] * ROWS), "kind", "classification", ".parquet"),
        r"column 'kind': labels must be whole numbers or texts, got list<element: double>$",
    ),
    "label missing": (
        of(with_one("", 6, "kind"), "kind", "classification"),
        r"t\.csv: column 'kind' must have a value in every row, got none or NaN in row 6",
    ),
    "too few rows": (
        of({k: v[:9] for k, v in good().items()}),
        r"t\.csv: must have at least 10 rows, got 9",
    ),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_utf_8_is_read_with_and_without_a_byte_order_mark(encoding: str, tmp_path: Path) -> None:
    raw = sources.load(encoded(encoding)(tmp_path / "t.csv"))
    assert raw.features == ("a", "é") and raw.train.inputs[3].tolist() == [1.5, 3]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
@pytest.mark.parametrize("name", ["t.csv", "t.npz"])
def test_the_error_names_a_file_without_permission(name: str, tmp_path: Path) -> None:
    path = store(tmp_path / name, good())
    path.chmod(0)
    with pytest.raises(DataError, match=rf"{name}: cannot be read \(Permission denied\)"):
        sources.load(table(path) if name == "t.csv" else Npz(str(path)))


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_refused_in_one_short_line(case: str, tmp_path: Path) -> None:
    make, message = BAD_TABLES[case]
    source = make(tmp_path / "t.csv")
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


def test_the_subfolders_of_an_image_folder_are_its_sorted_classes(tmp_path: Path) -> None:
    raw = sources.load(ImageFolder(str(folder(tmp_path))))
    assert raw.classes == ("cat", "eel") and raw.test is None
    assert raw.train.inputs.shape == (12, 3, 4, 5)  # height 4, width 5
    assert raw.train.targets.tolist() == [0] * 6 + [1] * 6
    assert raw.train.inputs[1, :, 0, 0].tolist() == [10, 5, 245]


def test_grey_images_have_one_channel_and_mixed_images_have_three(tmp_path: Path) -> None:
    folder(tmp_path / "a", mode="L")
    assert sources.load(ImageFolder(str(tmp_path / "a"))).train.inputs.shape == (12, 1, 4, 5)
    picture(tmp_path / "a" / "cat" / "9.png")
    assert sources.load(ImageFolder(str(tmp_path / "a"))).train.inputs.shape == (13, 3, 4, 5)


def test_the_folder_test_gives_the_test_rows_of_an_image_folder(tmp_path: Path) -> None:
    folder(tmp_path / "train")
    picture(tmp_path / "test" / "eel" / "x.png", value=7)
    raw = sources.load(ImageFolder(str(tmp_path)))
    assert raw.test is not None and raw.test.targets.tolist() == [1] and raw.test.inputs[0, 0, 0, 0] == 7


def unreadable(root: Path) -> None:
    (folder(root) / "cat" / "3.png").write_bytes(b"no image")


def cut(root: Path) -> None:
    path = folder(root) / "cat" / "3.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:60])


def another_class_in_test(root: Path) -> None:
    folder(root / "train")
    picture(root / "test" / "bat" / "1.png")


BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda root: None, "images: is missing"),
    "a file": (lambda root: root.write_bytes(b"x"), "images: is a file, must be a folder with a subfolder of images"),
    "a file as train": (lambda root: picture(root / "train", fmt="PNG"), "images: must have one subfolder of images"),
    "no classes": (lambda root: root.mkdir(), "images: must have one subfolder of images per class, got none"),
    "empty class": (lambda root: (folder(root) / "bat").mkdir(), r"bat: must hold images \(.*\), got none"),
    "unreadable": (unreadable, r"cat/3\.png: is not a readable image"),
    "truncated": (cut, r"cat/3\.png: is not a readable image"),
    "another size": (
        lambda root: picture(folder(root) / "eel" / "2.png", (6, 4)),
        r"eel/2\.png: every image must be 5×4 pixels, got 6×4",
    ),
    "16 bits": (
        lambda root: picture(folder(root) / "eel" / "2.png", mode="I;16"),
        r"eel/2\.png: every image must have 8 bits a channel, got mode I;16",
    ),
    "one class": (lambda root: [picture(root / "cat" / f"{i}.png") for i in range(12)], "got only 'cat'"),
    "too few": (lambda root: folder(root, rows=4), "must have at least 10 rows, got 8"),
    "unknown test class": (another_class_in_test, "every class of the test rows must have training rows, got 'bat'"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_a_bad_image_folder_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    make, message = BAD_FOLDERS[case]
    make(tmp_path / "images")
    with pytest.raises(DataError, match=message) as caught:
        sources.load(ImageFolder(str(tmp_path / "images")))
    assert "\n" not in str(caught.value)


PIXELS = np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3), dtype=np.uint8)
KINDS = np.array(["b", "a", "c"] * 4)


@pytest.mark.parametrize("x", [PIXELS, PIXELS.transpose(0, 3, 1, 2)])
def test_an_npz_may_have_its_channels_last_or_first(x: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=x, y=KINDS)
    raw = sources.load(Npz(str(tmp_path / "d.npz")))
    np.testing.assert_array_equal(raw.train.inputs, PIXELS.transpose(0, 3, 1, 2))
    assert raw.classes == ("a", "b", "c") and raw.train.targets[:3].tolist() == [1, 0, 2]


def test_the_test_arrays_of_an_npz_give_its_test_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x_train=PIXELS[..., 0], y_train=KINDS, x_test=PIXELS[:2, ..., 1], y_test=["c", "c"])
    raw = sources.load(Npz(str(tmp_path / "d.npz")))
    assert raw.test is not None and raw.test.inputs.shape == (2, 1, 5, 4) and raw.test.targets.tolist() == [2, 2]


BAD_NPZ: dict[str, tuple[dict[str, object], str]] = {
    "no x": ({"images": PIXELS, "y": KINDS}, r"d\.npz: must have the array 'x', got images, y"),
    "no y_test": (
        {"x_train": PIXELS, "y_train": KINDS, "x_test": PIXELS},
        r"d\.npz: must have the array 'y_test', got x_test, x_train, y_train",
    ),
    "floats": ({"x": PIXELS / 255, "y": KINDS}, r"d\.npz: array 'x' must be uint8 images, got float64"),
    "channels": ({"x": PIXELS[..., :2], "y": KINDS}, r"d\.npz: array 'x' must have shape .*, got \[12, 5, 4, 2\]"),
    "lengths": ({"x": PIXELS, "y": KINDS[:5]}, r"d\.npz: array 'y' must have shape \[12\], got \[5\]"),
    "labels": ({"x": PIXELS, "y": np.full(12, 0.5)}, r"labels must be whole numbers or texts, got 0\.5 in row 1"),
    "pickled": (
        {"x": PIXELS, "y": np.array([{}] * 12, dtype=object)},
        r"d\.npz: holds Python objects, which are ne",
    ),
    "no pixels": ({"x": PIXELS[:, :0], "y": KINDS}, r"d\.npz: array 'x' must have images of at least one pixel, got"),
    "one class": ({"x": PIXELS, "y": np.zeros(12, int)}, r"column 'y' must have at least 2 classes, got only '0'"),
    "sizes": (
        {"x_train": PIXELS, "y_train": KINDS, "x_test": PIXELS[:, :3], "y_test": KINDS},
        r"x_test and x_train must have images of one shape, got \[3, 3, 4\] and \[3, 5, 4\]",
    ),
}


def bytes_of(at: int = 0, value: int = ord("P")) -> bytes:
    """A good archive with one byte changed, in the first member's header and in its entry of the list at the end."""
    sink = io.BytesIO()
    np.savez(sink, x=PIXELS, y=KINDS)
    blob = bytearray(sink.getvalue())
    blob[at] = blob[blob.index(b"PK\1\2") + at + (2 if at else 0)] = value
    return bytes(blob)


def no_array(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x", b"no array")


NO_NPZ: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (Path.mkdir, r"d\.npz: is a folder, must be a file$"),
    "truncated": (lambda path: path.write_bytes(bytes_of()[:300]), r"d\.npz: is not a readable \.npz"),
    "compression": (lambda path: path.write_bytes(bytes_of(8, 99)), r"is not a readable \.npz of plain arrays \("),
    "encrypted": (lambda path: path.write_bytes(bytes_of(6, 1)), r"is not a readable \.npz of plain arrays \("),
    "no array": (no_array, r"d\.npz: is not a readable \.npz of plain arrays \(x is none\)"),
}


@pytest.mark.parametrize("case", [*BAD_NPZ, *NO_NPZ])
def test_a_bad_npz_is_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    if case in BAD_NPZ:
        arrays, message = BAD_NPZ[case]
        np.savez(path, **arrays)  # type: ignore[arg-type]
    else:
        write, message = NO_NPZ[case]
        write(path)
    with pytest.raises(DataError, match=message):
        sources.load(Npz(str(path)))


TABLE = {"name": "table", "path": "t.csv", "target": ["y"], "task": "regression"}
BAD_ROWS: dict[str, tuple[dict[str, object], str]] = {
    "share": ({"validation": 1.5}, r"datasets\.d\.validation must be .*, got 1\.5"),
    "negative": ({"validation": -1}, r"datasets\.d\.validation must be .*, got -1"),
    "splits": ({"splits": 0}, r"datasets\.d\.splits must be >= 1, got 0"),
    "target": (
        {"source": {"name": "table", "path": "t", "target": ["a", "b"], "task": "classification"}},
        r"datasets\.d\.source\.target must be one column for classification",
    ),
    "doubled feature": (
        {"source": {"name": "table", "path": "t", "target": ["y"], "task": "regression", "features": ["a", "a"]}},
        r"source\.features must not name a column twice, got \['a', 'a'\]",
    ),
    "doubled target": (
        {"source": {"name": "uci", "set": "boston", "path": "t", "target": ["y", "y"]}},
        r"source\.target must not name a column twice, got \['y', 'y'\]",
    ),
    "no target": ({"source": {"name": "table", "path": "t", "task": "regression"}}, r"source\.target is missing"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_keys_of_params_are_refused(case: str) -> None:
    dataset_of(TABLE)
    change, message = BAD_ROWS[case]
    with pytest.raises(ConfigError, match=message):
        dataset_of(**{"source": TABLE} | change)
