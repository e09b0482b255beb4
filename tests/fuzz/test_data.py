"""Damaged data files: each gives finite, labelled rows of the stated shape, or an error that names the file."""

import csv
import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from bdl_pipe.data import sources
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.new_inputs import frame_inputs, new_inputs
from bdl_pipe.data.raw import Raw, checked
from bdl_pipe.data.sources.images import ImageFolder, Npz
from bdl_pipe.data.sources.table import Table
from bdl_pipe.data.sources.uci import Uci
from tests.case_files import sections_of
from tests.data import archives

from .judge import Case, cases, judge

ROWS: Final = 14
VALUES: Final = list(map(eval, sections_of(__file__)["values"]))
ENCODINGS: Final = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "latin-1", "cp500", "utf-7")


def consistent(raw: Raw) -> None:
    """Check that every array has the stated type, shape and range."""
    for part in (raw.train, *([raw.test] if raw.test is not None else [])):
        assert len(part.inputs) == len(part.targets) > 0
        if raw.kind == "image":
            assert part.inputs.dtype == np.uint8 and part.inputs.ndim == 4 and part.inputs.shape[1] in (1, 3)
            assert min(part.inputs.shape) > 0 and part.inputs.shape[1:] == raw.train.inputs.shape[1:]
        else:
            assert part.inputs.dtype == np.float64 and part.inputs.shape[1:] == (len(raw.features),) != (0,)
            assert np.isfinite(part.inputs).all()
        if raw.task == "classification":
            assert part.targets.dtype == np.int64 and part.targets.ndim == 1
            assert part.targets.min() >= 0 and part.targets.max() < len(raw.classes) == len({*raw.classes})
        else:
            assert part.targets.dtype == np.float64 and part.targets.shape[1:] == (len(raw.targets),)
            assert np.isfinite(part.targets).all()
    assert len(raw.train) >= 10 and len({*raw.features}) == len(raw.features)


def wounded(blob: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Bytes as a bad disk, download or tool leaves them, and a description of the damage."""
    damage = rng.choice(
        ["flip", "flip", "flip", "many", "cut", "empty", "zeros", "insert", "drop", "tail", "twice", "text"]
    )
    spot = rng.randrange(len(blob)) if blob else 0
    end = min(len(blob), spot + rng.choice([1, 4, 50]))
    if damage in ("flip", "many"):
        damaged = bytearray(blob)
        for at in [spot] if damage == "flip" else [rng.randrange(len(blob)) for _ in range(40)]:
            damaged[at] ^= 1 << rng.randrange(8)
        return bytes(damaged), f"{damage} at {spot}"
    changed = {
        "cut": blob[:spot],
        "empty": b"",
        "zeros": blob[:spot] + bytes(end - spot) + blob[end:],
        "insert": blob[:spot] + bytes(rng.randrange(256) for _ in range(3)) + blob[spot:],
        "drop": blob[:spot] + blob[end:],
        "tail": blob + b"\n\0 more",
        "twice": blob + blob,
        "text": b"<html>404</html>",
    }
    return changed[damage], f"{damage} at {spot}"


def columns(rng: random.Random) -> dict[str, list[str]]:
    """The cells of a good table, in which up to two cells, columns or names are mostly replaced or removed."""
    cells = {
        "a": [repr(0.5 * i) for i in range(ROWS)],
        "b": [str(i) for i in range(ROWS)],
        "y": [repr(1.5 * i) for i in range(ROWS)],
        "kind": ["dog", "cat"] * (ROWS // 2),
    }
    for _ in range(rng.choice([0, 1, 1, 2])):
        name, value = rng.choice([*cells]), rng.choice(VALUES)
        damage = rng.choice(["cell", "cell", "column", "name", "gone"])
        if damage == "cell":
            cells[name][rng.randrange(ROWS)] = value
        elif damage == "column":
            cells[name] = [value] * ROWS
        else:
            values = cells.pop(name)
            cells |= {rng.choice([value, "a ", "A", "a", "input:a"]): values} if damage == "name" else {}
    return cells


def table_source(path: Path, rng: random.Random) -> Table | Uci:
    """A source that a user may write for the table."""
    if rng.random() < 0.1:
        return Uci("boston", str(path))
    target = rng.choice([("y",), ("y",), ("kind",), ("kind",), ("y", "b"), ("b",)])
    task = "classification" if target == ("kind",) else rng.choice(["regression", "classification"])
    features = rng.choice([(), ("a",), ("a", "b"), ("b", "a")])
    if len(target) > 1 or {*target} & {*features}:
        task, features = "regression", ("a",) if target != ("a",) else ()
    return Table(str(path), target, task, features)  # type: ignore[arg-type]


def csv_bytes(rng: random.Random) -> tuple[bytes, str]:
    cells = columns(rng)
    lines = [",".join(cells), *(",".join(row) for row in zip(*cells.values(), strict=True))]
    damage = rng.choice(["good", "good", "good", "ragged", "encoding", "separator", "ends", "no rows", "wounded"])
    text = "\n".join(lines) + "\n"
    if damage == "ragged":
        line = rng.randrange(len(lines))
        lines[line] += rng.choice([",1", ",", ";", '"'])
        text = "\n".join(lines)
    elif damage == "encoding":
        encoding = rng.choice(ENCODINGS)
        return text.encode(encoding, "replace"), f"CSV in {encoding}"
    elif damage == "separator":
        text = text.replace(",", rng.choice([";", "\t", " ", "|"]))
    elif damage == "ends":
        text = text.replace("\n", rng.choice(["\r\n", "\r", "\n\n"]))
    elif damage == "no rows":
        text = "\n".join(lines[: rng.randrange(3)])
    elif damage == "wounded":
        blob, about = wounded(text.encode(), rng)
        return blob, f"CSV, {about}"
    return text.encode(), f"CSV, {damage}"


def parquet_bytes(rng: random.Random) -> tuple[bytes, str]:
    cells = columns(rng)
    kinds: dict[str, Callable[[list[str]], pa.Array]] = {
        "number": lambda values: pa.array([float(v) if _is_number(v) else None for v in values]),
        "text": lambda values: pa.array(values),
        "large": lambda values: pa.array(values, pa.large_string()),
        "view": lambda values: pa.array(values, pa.string_view()),
        "int": lambda values: pa.array([2**63 - 1 - i for i in range(ROWS)]),
        "unsigned": lambda values: pa.array([2**64 - 1 - i for i in range(ROWS)], pa.uint64()),
        "decimal": lambda values: pa.array(list(range(ROWS)), pa.decimal128(9, 2)),
        "list": lambda values: pa.array([[1.0, 2.0]] * ROWS),
        "struct": lambda values: pa.array([{"x": 1}] * ROWS),
        "bytes": lambda values: pa.array([b"\xff\xfe"] * ROWS),
        "dictionary": lambda values: pa.array(values).dictionary_encode(),
        "time": lambda values: pa.array(list(range(ROWS)), pa.timestamp("us")),
        "half": lambda values: pa.array(np.arange(ROWS, dtype=np.float16)),
        "nothing": lambda values: pa.nulls(ROWS),
        "bool": lambda values: pa.array([i % 2 == 0 for i in range(ROWS)]),
    }
    arrays, about = list[pa.Array](), list[str]()
    for name, values in cells.items():
        usual = "text" if name == "kind" else "number"
        kind = usual if rng.random() < 0.65 else rng.choice([*kinds])
        arrays.append(kinds[kind](values))
        about.append(kind)
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_arrays(arrays, names=[*cells]), sink)
    blob, damage = (sink.getvalue(), "whole") if rng.random() < 0.6 else wounded(sink.getvalue(), rng)
    return blob, f"Parquet of {about}, {damage}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def text_bytes(rng: random.Random) -> tuple[bytes, str]:
    """Numbers separated by blanks, as in the published splits."""
    cells = columns(rng)
    text = "\n".join(" ".join(row) for row in zip(*cells.values(), strict=True))
    return wounded(text.encode(), rng) if rng.random() < 0.4 else (text.encode(), "blanks between")


def of_file(path: Path, blob: bytes, about: str, read: Callable[[], None]) -> Case:
    """A case that writes these bytes to a file, which ``read`` reads and checks."""

    def work() -> None:
        path.write_bytes(blob)
        read()

    return Case(f"{about}; {blob[:300]!r}", work, [str(path)])


def test_a_damaged_table_is_read_consistently_or_refused(tmp_path: Path) -> None:
    makers = {"t.csv": csv_bytes, "t.parquet": parquet_bytes, "t.txt": text_bytes}

    def make(rng: random.Random, number: int) -> Case:
        path = tmp_path / rng.choice(["t.csv", "t.csv", "t.csv", "t.parquet", "t.parquet", "t.txt"])
        blob, about = makers[path.name](rng)
        source = table_source(path, rng) if path.suffix != ".txt" else Uci("boston", str(path))
        return of_file(path, blob, f"{about}; {source}", lambda: consistent(sources.load(source)))

    judge("table", cases(700), make)


def test_a_damaged_new_table_is_read_as_finite_numbers_or_refused(tmp_path: Path) -> None:
    """Rows to predict."""
    makers = {"t.csv": csv_bytes, "t.parquet": parquet_bytes, "t.npz": npz_bytes}
    schema = {"kind": "table", "features": ["a", "b"], "input_shape": [2], "task": "regression"}

    def read(path: Path) -> None:
        values = new_inputs(path, schema)
        assert values.dtype == np.float64 and values.shape == (len(values), 2) and np.isfinite(values).all()

    def make(rng: random.Random, number: int) -> Case:
        path = tmp_path / rng.choice([*makers])
        return of_file(path, *makers[path.name](rng), lambda: read(path))

    judge("new table", cases(200), make)


CELLS: Final = [*VALUES, *map(eval, sections_of(__file__)["more cells"])]


def column_of(rng: random.Random, rows: int) -> list[str]:
    """Cells drawn from a small pool, with a few odd cells."""
    pool = rng.choice([rng.sample(CELLS, rng.choice([1, 2, 3])), ["1.5", "2", "7"], ["a", "b"], ["true", "false"]])
    odd = rng.sample(CELLS, rng.choice([0, 0, 1, 2]))
    return [rng.choice(odd) if odd and rng.random() < 0.1 else rng.choice(pool) for _ in range(rows)]


def test_inspection_preparation_and_prediction_agree_on_any_table(tmp_path: Path) -> None:
    """Any texts give equal kinds and numbers from CSV, Parquet and a frame, or one error."""
    rows = 60

    def make(rng: random.Random, number: int) -> Case:
        cells = {"f": column_of(rng, rows), "g": column_of(rng, rows), "x": [repr(rng.random()) for _ in range(rows)]}
        cells["y"] = column_of(rng, rows) if rng.random() < 0.3 else [repr(rng.random()) for _ in range(rows)]

        def work() -> None:
            frame = pd.DataFrame(cells)
            frame.to_csv(tmp_path / "t.csv", index=False, quoting=csv.QUOTE_ALL)
            frame.to_parquet(tmp_path / "t.parquet")
            faults = []
            for name in ("t.csv", "t.parquet"):
                profile = inspect_table(tmp_path / name, ["y"])
                raw = checked(profile.source.read())
                assert len(raw.train) == profile.rows
                assert sum(column.width for column in raw.columns) == profile.shape[0]
                columns = [column.mapping() for column in raw.columns]
                schema = {"kind": "table", "features": list(raw.features), "columns": columns, "input_shape": [9]}
                new = [new_inputs(tmp_path / other, schema) for other in ("t.csv", "t.parquet")]
                new.append(frame_inputs(frame, schema))
                np.testing.assert_array_equal(new[0], new[1])
                np.testing.assert_array_equal(new[0], new[2])
                if not profile.without_target:
                    np.testing.assert_array_equal(new[0], raw.train.inputs)
                faults.append((raw.columns, raw.classes, raw.train.targets.tolist()))
            assert faults[0] == faults[1]

        return Case(f"{cells}", work, [str(tmp_path), "the input"])

    judge("added", cases(250), make)


def npz_bytes(rng: random.Random) -> tuple[bytes, str]:
    """Images and labels, or a matrix of two columns, in which up to two arrays are replaced or removed."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3), dtype=np.uint8)
    labels = np.array(["b", "a", "c"] * 4)
    arrays = {"x": pixels, "y": labels}
    if rng.random() < 0.4:
        arrays = {"x_train": pixels, "y_train": labels, "x_test": pixels[:2], "y_test": labels[:2]}
    if rng.random() < 0.2:
        arrays = {"x": np.arange(24.0).reshape(12, 2)}
    odd = [
        *(pixels[..., 0], pixels.transpose(0, 3, 1, 2), pixels[..., :2], pixels[:0], pixels[:, :0], pixels / 255),
        *(pixels[:5], np.zeros(()), np.zeros((12, 0)), np.full((12, 2), np.nan), np.zeros((12, 2), complex)),
        *(labels[:5], np.arange(12), np.arange(12.0), np.full(12, 0.5), np.full(12, np.nan), np.full(12, 1e300)),
        *(np.full(12, 2**63, np.uint64), -np.arange(12), np.zeros(12, bool), np.array([{}] * 12, object)),
        *(labels[:, None], labels[None], np.array([b"\xff"] * 12), np.array(["a\nb"] * 6 + ["x" * 900] * 6)),
        *(np.zeros(12, "M8[s]"), np.array([1.0, 1e300, 2e300] * 4), np.array([2**60, 3, 2**60 + 1] * 4)),
        *(np.zeros((12, 2, 2)), np.zeros(12, [("a", "i4")]), np.arange(24).reshape(12, 2), np.float16([1, 2] * 6)),
    ]  # fmt: skip
    about = []
    for _ in range(rng.choice([0, 1, 1, 2])):
        name, value = rng.choice([*arrays]), rng.choice(odd)
        arrays[name] = value
        about.append(f"{name}: {value.dtype} {value.shape}")
        if rng.random() < 0.1:
            del arrays[name]
            break
    sink = io.BytesIO()
    np.savez(sink, **arrays)  # type: ignore[arg-type]
    if rng.random() < 0.1:
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w") as file:
            file.writestr(rng.choice(["x.npy", "x", "x.txt"]), rng.choice([b"", b"\x93NUMPY", b"no array"]))
    blob, damage = (sink.getvalue(), "whole") if rng.random() < 0.7 else wounded(sink.getvalue(), rng)
    return blob, f"npz of {'; '.join(about)}, {damage}"


def test_a_damaged_npz_is_read_consistently_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"

    def make(rng: random.Random, number: int) -> Case:
        return of_file(path, *npz_bytes(rng), lambda: consistent(sources.load(Npz(str(path)))))

    judge("npz", cases(250), make)


def picture(rng: random.Random) -> tuple[bytes, str]:
    """One image file of a random mode, size and format, sometimes damaged."""
    mode = rng.choice(["RGB", "RGB", "RGB", "L", "1", "P", "RGBA", "LA", "I", "I;16", "F", "CMYK"])
    size = rng.choice([(5, 4), (5, 4), (5, 4), (5, 4), (5, 4), (4, 5), (1, 1)])
    formats = [fmt for fmt in ("PNG", "TIFF", "JPEG", "GIF", "WEBP") if _writes(mode, fmt)]
    sink, fmt = io.BytesIO(), rng.choice(formats)
    Image.new(mode, size).save(sink, fmt)
    blob, damage = (sink.getvalue(), "whole") if rng.random() < 0.8 else wounded(sink.getvalue(), rng)
    return blob, f"{mode} {size} {fmt} {damage}"


def _writes(mode: str, fmt: str) -> bool:
    schemas = {
        "PNG": {"RGB", "L", "1", "P", "RGBA", "LA", "I;16"},
        "JPEG": {"RGB", "L", "CMYK"},
        "GIF": {"RGB", "L", "1", "P"},
        "WEBP": {"RGB", "RGBA", "L"},
    }
    return mode in schemas.get(fmt, {mode})


def image_folder(root: Path, rng: random.Random) -> str:
    """A folder per class, with up to three changes to its files and folders."""
    Image.new("RGB", (5, 4)).save(good := io.BytesIO(), "PNG")
    tops = rng.choice([[""], [""], ["train"], ["train", "test"]])
    about = [f"{tops}"]
    for top in tops:
        for kind in ("cat", "eel", "é\u3000"):
            (root / top / kind).mkdir(parents=True)
            for i in range(4):
                (root / top / kind / f"{i}.png").write_bytes(good.getvalue())
    files = sorted(path for path in root.rglob("*.png"))
    for _ in range(rng.choice([0, 1, 1, 3])):
        path = rng.choice(files)
        damage = rng.choice(["other", "other", "other", "gone", "folder", "loop", "class", "empty class", "file class"])
        about.append(f"{damage} at {path.relative_to(root)}")
        if damage == "other":
            blob, more = picture(rng)
            about.append(more)
            path.unlink(missing_ok=True) if not path.is_dir() else path.rmdir()
            path.write_bytes(blob)
        elif damage in ("gone", "folder", "loop") and path.is_file():
            path.unlink()
            if damage == "folder":
                path.mkdir()
            elif damage == "loop":
                path.symlink_to(path)
        elif damage == "class" and path.parent.is_dir() and not (other := path.parents[1] / "a\nb").exists():
            path.parent.rename(other)
            files = sorted(path for path in root.rglob("*.png"))
        elif damage == "empty class":
            (path.parents[1] / "none").mkdir(exist_ok=True)
        else:
            (path.parents[1] / "notes.txt").write_text("x")
    return "; ".join(about)


def test_a_damaged_image_folder_is_read_consistently_or_refused(tmp_path: Path) -> None:
    def make(rng: random.Random, number: int) -> Case:
        root = tmp_path / str(number)
        root.mkdir()
        about = image_folder(root, rng)
        schema = {"kind": "image", "input_shape": [3, 4, 5]}

        def work() -> None:
            consistent(sources.load(ImageFolder(str(root))))
            values = new_inputs(root / "train" if (root / "train").is_dir() else root, schema)
            assert values.shape[1:] == (3, 4, 5) and values.dtype == np.uint8

        return Case(about, work, [str(root)])

    judge("image folder", cases(120), make)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small archives in the published formats."""
    root = tmp_path_factory.mktemp("archives")
    for name in archives.WRITERS:
        archives.small(name, root / name)
    return {name: root / name for name in archives.WRITERS}


def test_a_damaged_archive_is_read_consistently_or_refused(originals: dict[str, Path], tmp_path: Path) -> None:
    """The parsers are called without the check of hashes, which would refuse every damaged file."""

    def make(rng: random.Random, number: int) -> Case:
        name = rng.choice([*originals])
        files = {path.name: path.read_bytes() for path in originals[name].iterdir()}
        hurt = rng.choice(sorted(files))
        files[hurt], about = archives.rewritten(files[hurt], hurt, lambda blob: wounded(blob, rng), rng.random() < 0.6)

        def work() -> None:
            for file, blob in files.items():
                (tmp_path / file).write_bytes(blob)
            raw = archives.ARCHIVES[name].parse(tmp_path)
            assert isinstance(raw.train, Examples)
            consistent(checked(raw))

        return Case(f"{name}/{hurt}: {about}", work, [str(tmp_path)])

    judge("archive", cases(150), make)
