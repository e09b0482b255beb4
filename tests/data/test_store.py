import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bdl_pipe.data.examples import Examples
from bdl_pipe.errors import ArtifactError
from pipeline.prepared import arrow_rows

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 4), dtype=np.uint8)
LABELS = np.arange(7, dtype=np.int64)


def test_images_are_read_back_as_a_view_of_the_file(tmp_path: Path) -> None:
    arrow_rows.write(tmp_path / "a.arrow", Examples(IMAGES, LABELS), about={"train": 5})
    rows = arrow_rows.read(tmp_path / "a.arrow")
    np.testing.assert_array_equal(rows.examples.inputs, IMAGES)
    np.testing.assert_array_equal(rows.examples.targets, LABELS)
    assert rows.about["train"] == 5
    assert not rows.examples.inputs.flags.owndata and not rows.examples.inputs.flags.writeable


@pytest.mark.parametrize("images", [IMAGES.transpose(0, 1, 3, 2), IMAGES[:, :1], IMAGES[::2], IMAGES[:, 0][:, None]])
def test_arrays_of_any_strides_are_stored(images: np.ndarray, tmp_path: Path) -> None:
    arrow_rows.write(tmp_path / "a.arrow", Examples(images, LABELS[: len(images)]))
    np.testing.assert_array_equal(arrow_rows.read(tmp_path / "a.arrow").examples.inputs, images)


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


def test_an_array_without_rows_keeps_its_shape(tmp_path: Path) -> None:
    arrow_rows.write(tmp_path / "a.arrow", Examples(IMAGES[:0], LABELS[:0]))
    assert arrow_rows.read(tmp_path / "a.arrow").examples.inputs.shape == (0, 3, 5, 4)


@pytest.mark.parametrize("keep", [0, 5, 100, 400, -1])
def test_a_truncated_file_is_refused(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    arrow_rows.write(path, Examples(IMAGES, LABELS))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ArtifactError, match=r"a\.arrow: is truncated"):
        arrow_rows.read(path)
