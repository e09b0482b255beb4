"""Files of rows: large tables go through files instead of memory, with equal rows and fits; stored rows are views."""

import csv
import gc
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bdl_pipe.artifacts import State
from bdl_pipe.data import fitdata, scratch
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData, HeldRows, StreamedRows, rows_of
from bdl_pipe.data.tables import read
from bdl_pipe.data.tables.cells import Cells
from bdl_pipe.data.tables.read import open_table
from bdl_pipe.errors import ArtifactError
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from pipeline.prepared import arrow_rows, folders
from tests.cases import Case, config_of
from tests.conftest import make_tiny_images, make_tiny_table
from tests.preparing import dataset_of, prepare_at


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array counts as large, and is copied a few rows at a time."""
    monkeypatch.setattr(scratch, "LARGE", 1)
    monkeypatch.setattr(scratch, "_AT_ONCE", 1000)
    monkeypatch.setattr(fitdata, "HELD", {"table": 0, "image": 0})


def frame(count: int = 400) -> pd.DataFrame:
    g = np.random.default_rng(0)
    frame = pd.DataFrame(g.normal(5, 3, (count, 3)), columns=["a", "b", "c"])
    frame["kind"] = g.choice(["x", "y", "z"], count)
    frame["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(g.integers(0, 900, count), unit="D")
    frame.loc[::7, "b"] = np.nan
    frame["y"] = frame["a"] + (frame["kind"] == "x") + g.normal(size=count)
    return frame


COLUMNS = {"a": "number", "b": "number", "c": "number", "kind": "category", "day": "date"}


def prepared_at(folder: Path, path: str, normalise: str) -> list[FitData]:
    source = {"name": "table", "path": path, "target": ["y"], "task": "regression", "columns": COLUMNS}
    fit, _ = prepare_at(folder, dataset_of(source, normalise=normalise, splits=2))
    return folders.load_fits(fit, [0, 1], final=True)


@pytest.mark.parametrize("normalise", ["robust", "train", "none"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_large_table_gives_the_same_rows_and_constants_as_a_small_table(
    tmp_path: Path, request: pytest.FixtureRequest, normalise: str, kind: str
) -> None:
    path = str(tmp_path / f"t.{kind}")
    frame().to_csv(path, index=False) if kind == "csv" else frame().to_parquet(path, index=False)
    small = prepared_at(tmp_path / "small", path, normalise)
    request.getfixturevalue("large")
    for whole, parts in zip(small, prepared_at(tmp_path / "large", path, normalise), strict=True):
        np.testing.assert_array_equal(whole.train.inputs, parts.train.inputs)
        np.testing.assert_array_equal(whole.train.targets, parts.train.targets)
        for name in ("mean", "std"):
            np.testing.assert_allclose(getattr(whole.transform, name), getattr(parts.transform, name), rtol=1e-12)


def test_a_large_array_is_mapped_from_a_file_without_a_name(
    large: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    values = np.arange(600.0).reshape(100, 6)
    index = np.random.default_rng(0).permutation(100)[:70]
    rows = scratch.taken(values, index)
    assert isinstance(rows, np.memmap) and not any(tmp_path.iterdir()), "its file has no name"
    np.testing.assert_array_equal(rows, values[index])
    opened = len(os.listdir("/proc/self/fd"))
    del rows
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < opened, "its file is closed with it"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("pieces", [False, True])
def test_texts_of_several_lines_are_read_whole_across_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: bool, end: str
) -> None:
    """Arrow parses block by block, of a megabyte or of a piece, and a block may end within quotes.

    If a block ends between a text's carriage return and its line feed, Arrow leaves out the line feed.
    """
    if pieces:
        monkeypatch.setattr(scratch, "LARGE", 1)
        monkeypatch.setattr(read, "_PIECE", 200)
    path, count = tmp_path / "t.csv", 300 if pieces else 40_000
    texts = [f'first{end}{i % 7 * "x"} "second"{(i % 3) * (end + "third, ")}' for i in range(count)]
    with path.open("w", newline="") as file:
        lines = [("a", "text", "y"), *((i, text, i) for i, text in enumerate(texts))]
        csv.writer(file, lineterminator=end).writerows(lines)
    opened = open_table(path)
    assert opened["y"].to_pylist() == [str(i) for i in range(count)]
    assert Cells.of(opened, "text", "t.csv").texts().to_pylist() == [text.replace(end, "\n").strip() for text in texts]


def test_a_large_csv_file_is_read_in_pieces_with_the_types_of_all_rows(
    large: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_PIECE", 200)
    path = tmp_path / "t.csv"
    frame().to_csv(path, index=False)
    pieces = open_table(path)
    monkeypatch.setattr(scratch, "LARGE", 2**40)
    assert pieces.equals(open_table(path)) and pieces.column(0).num_chunks > 3
    monkeypatch.setattr(scratch, "LARGE", 1)
    pd.DataFrame({"a": [*range(200), 0.5], "y": 1.0}).to_csv(path, index=False)
    path.write_text(path.read_text().replace(".0,1.0", ",1.0"))  # whole numbers except in the last row
    assert Cells.of(open_table(path), "a", "t.csv").numbers().tolist() == [*range(200), 0.5]


def test_a_large_parquet_file_is_memory_mapped(large: None, tmp_path: Path) -> None:
    table = pa.Table.from_pandas(frame(), preserve_index=False)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=50)
    before = pa.total_allocated_bytes()
    mapped = open_table(tmp_path / "t.parquet")
    assert mapped.select(["a", "kind"]).equals(table.select(["a", "kind"]))
    assert pa.total_allocated_bytes() - before < table.nbytes / 4, "its buffers are the file's"


@pytest.mark.parametrize("data", [make_tiny_table(), make_tiny_images()], ids=["table", "images"])
def test_streamed_rows_equal_held_rows(data: FitData, monkeypatch: pytest.MonkeyPatch) -> None:
    held = data.rows("train")
    monkeypatch.setattr(fitdata, "HELD", {"table": 0, "image": 0})
    streamed = rows_of(data.train, data.transform, "cpu")
    assert isinstance(held, HeldRows) and isinstance(streamed, StreamedRows)
    assert (len(held), held.shape, held.device) == (len(streamed), streamed.shape, streamed.device)
    index = torch.randint(len(held), (20,), generator=torch.Generator().manual_seed(0))
    assert all(map(torch.equal, held.take(index), streamed.take(index)))
    for mine, other in zip(held.batches(33), streamed.batches(33), strict=True):
        assert all(map(torch.equal, mine, other))
    assert all(map(torch.equal, held.box, streamed.box))


STREAMED = [
    *(Case("sgd", "trajectory", task) for task in ("regression", "classification")),
    *(Case(method, "student", "regression") for method in ("vbll", "sngp", "ffg_u", "bnn", "dropout", "svgp")),
    *(Case(method, "student", "classification") for method in ("g_vbll", "d_vbll_bnn")),
    Case("sgmcmc", "teacher", "regression"),
]


def fitted(case: Case, data: FitData) -> list[State]:
    """Fit two seeds, together where the method does so."""
    config = config_of(case.method, case.task)
    rngs: list[Any] = [Seed(0).fold(case.method, seed) for seed in range(2)]
    if case.stage.fit_many is not None and case.task == "regression":
        return case.stage.fit_many([data] * 2, [{}, {}], config, rngs=rngs, report=Silent())
    return [case.stage.fit_one(data, {}, config, rng=rng, report=Silent()) for rng in rngs]


@pytest.mark.parametrize("case", STREAMED, ids=str)
def test_a_streamed_fit_is_bit_identical_to_a_fit_in_memory(case: Case, request: pytest.FixtureRequest) -> None:
    data = make_tiny_table() if case.task == "regression" else make_tiny_images()
    whole = fitted(case, data)
    request.getfixturevalue("large")
    for mine, other in zip(whole, fitted(case, data), strict=True):
        assert mine.tensors.keys() == other.tensors.keys()
        assert all(torch.equal(mine.tensors[name], other.tensors[name]) for name in mine.tensors)


IMAGES = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 4), dtype=np.uint8)
LABELS = np.arange(7, dtype=np.int64)


def test_images_are_read_back_as_a_view_of_the_file(tmp_path: Path) -> None:
    arrow_rows.write(tmp_path / "a.arrow", Examples(IMAGES, LABELS), about={"train": 5})
    rows = arrow_rows.read(tmp_path / "a.arrow")
    np.testing.assert_array_equal(rows.examples.inputs, IMAGES)
    np.testing.assert_array_equal(rows.examples.targets, LABELS)
    assert rows.about["train"] == 5
    assert not rows.examples.inputs.flags.owndata and not rows.examples.inputs.flags.writeable
    for strides in (IMAGES.transpose(0, 1, 3, 2), IMAGES[:, :1], IMAGES[::2], IMAGES[:0], IMAGES[:, 0][:, None]):
        arrow_rows.write(tmp_path / "b.arrow", Examples(strides, LABELS[: len(strides)]))
        np.testing.assert_array_equal(arrow_rows.read(tmp_path / "b.arrow").examples.inputs, strides)


def test_a_table_is_read_back_as_a_view_of_a_file_with_named_columns(tmp_path: Path) -> None:
    inputs, targets = np.random.default_rng(0).normal(size=(6, 2)), np.random.default_rng(1).normal(size=(6, 2))
    arrow_rows.write(tmp_path / "a.arrow", Examples(inputs, targets), features=("x", "y"), targets=("y", "z"))
    rows = arrow_rows.read(tmp_path / "a.arrow").examples
    np.testing.assert_array_equal(rows.inputs, inputs)
    np.testing.assert_array_equal(rows.targets, targets)
    table = pa.ipc.open_file(str(tmp_path / "a.arrow")).read_all()
    about = json.loads(table.schema.metadata[b"bdl_pipe"])
    assert (about["features"], about["targets"]) == (["x", "y"], ["y", "z"])
    assert table.schema.field("input").type == pa.fixed_shape_tensor(pa.float64(), [2])
    assert not rows.inputs.flags.owndata and not rows.inputs.flags.writeable
    assert rows.inputs.flags.c_contiguous and rows.targets.flags.c_contiguous


@pytest.mark.parametrize("keep", [0, 5, 100, 400, -1])
def test_a_truncated_file_is_refused(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    arrow_rows.write(path, Examples(IMAGES, LABELS))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ArtifactError, match=r"a\.arrow: is truncated"):
        arrow_rows.read(path)
