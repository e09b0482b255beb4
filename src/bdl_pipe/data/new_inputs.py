"""New rows to predict: a table, an ``.npz``, an image or a folder of images, checked against the fitted data's schema.

:class:`.tables.cells.Cells` reads the cells of every table, from a file or from a request.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..errors import DataError, brief, short
from .sources.folders import SUFFIXES, class_folders, image_files, is_hidden
from .sources.images import image_array, open_npz, read_images
from .tables import columns as table_columns
from .tables.columns import Column, typed_cells
from .tables.forms import clean
from .tables.read import read_rows, rows_of

if TYPE_CHECKING:
    import pandas as pd

_ARRAYS: Final = ("x", "x_test")


def new_inputs(path: Path, schema: Mapping[str, Any]) -> np.ndarray:
    """Read raw inputs in file order (images: by name), in the fitted data's own units and shape.

    A table needs the fitted feature columns, by name and in any order; other columns are ignored. A category that the
    fitted file did not have counts as a rare category or, if there were none, as no category (:func:`unseen` lists such
    values). An ``.npz`` holds ``x`` (or ``x_test``). Images are converted to grey or colour like the fitted images and
    must have the same size; if the fitted images were resized, new images are resized, too.

    Args:
        schema: ``schema.json`` of the data: kind, features, input_shape.

    Returns:
        float64 [n, column] or uint8 [n, channel, height, width].

    Raises:
        DataError: the message names the file, the rule and the value.
    """
    if not path.exists():
        raise DataError(f"{path}: is missing")
    is_npz = path.suffix.lower() == ".npz"
    if schema["kind"] == "image":
        if is_npz and path.is_file():
            return _of_shape(image_array(_array(path), str(path), "x"), schema, str(path))
        return read_images(image_inputs(path), tuple(schema["input_shape"]), resize=schema.get("resize"))
    if not is_npz or "columns" in schema:
        return read_rows(path, schema)
    values, features = _array(path), tuple(schema["features"])
    if values.ndim != 2 or values.shape[1] != len(features) or values.dtype.kind not in "fiu":
        rule = f"must be numbers [n, {len(features)}]"
        raise DataError(f"{path}: array 'x' {rule}, got {values.dtype} {list(values.shape)}")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise DataError(f"{path}: column {features[bad[0][1]]!r} must be finite, but is not in row {bad[0][0] + 1}")
    return values.astype(np.float64)


def given_inputs(rows: "pd.DataFrame | np.ndarray | list[Any]", schema: Mapping[str, Any]) -> np.ndarray:
    """Convert rows or images in memory, such as a request to a served model, like :func:`new_inputs`.

    Args:
        rows: a table with the fitted columns by name, or images of whole numbers from 0 to 255.

    Raises:
        DataError: the message names the rule and the value.
    """
    if isinstance(rows, np.ndarray | list) == (schema["kind"] == "table"):
        rule = "images of whole numbers" if schema["kind"] == "image" else "rows with the fitted columns by name"
        raise DataError(f"the input: must be {rule}, got {brief(type(rows).__name__)}")
    if not isinstance(rows, np.ndarray | list):
        return frame_inputs(rows, schema)
    if np.ma.is_masked(rows):
        raise DataError("the input: must have a value in every pixel, got masked ones; pass images.filled(0)")
    try:
        values = np.asarray(rows)
    except ValueError:
        raise DataError("the input: must be images of one shape, got lists of several lengths") from None
    if values.dtype.kind in "iu" and values.size and values.min() >= 0 and values.max() <= 255:
        values = values.astype(np.uint8)
    return _of_shape(image_array(values, "the input", "images"), schema, "the input")


def frame_inputs(frame: "pd.DataFrame", schema: Mapping[str, Any]) -> np.ndarray:
    """Convert the fitted columns of a table in memory, like :func:`new_inputs`, to float64 [n, column].

    Lines of :func:`unseen` are logged as warnings.

    Raises:
        DataError: the message names the column, the rule and the value.
    """
    columns = {}
    for name in schema["features"]:
        places = [place for place, other in enumerate(frame.columns) if clean(str(other)) == clean(name)]
        if len(places) != 1:
            got = f"got it {len(places)} times" if places else f"got {brief(', '.join(map(str, frame.columns)))}"
            raise DataError(f"the input: must have the column {short(name)} once, {got}")
        columns[name] = typed_cells(frame.iloc[:, places[0]])
    inputs = rows_of(pa.table(columns), schema, "the input")
    for line in unseen(inputs, schema):
        logging.getLogger(__name__).warning(line)
    return inputs


def unseen(inputs: np.ndarray, schema: Mapping[str, Any]) -> list[str]:
    """Return a line for each column of ``inputs`` [n, column] with values unlike any in the fitted file."""
    return table_columns.unseen(inputs, tuple(map(Column.of, schema["columns"]))) if "columns" in schema else []


def image_inputs(path: Path) -> list[Path]:
    """List the input images in order: one image, or the images of a folder and then of its subfolders.

    Hidden files and folders are skipped.

    Raises:
        DataError: a folder holds no images.
    """
    if path.is_file():
        return [path]
    files = [file for folder in (path, *class_folders(path)) for file in image_files(folder)]
    if not files:
        raise DataError(f"{path}: must hold images ({' '.join(SUFFIXES)}), got none")
    return files


def left_out(path: Path) -> list[Path]:
    """List the files of a folder that are not predicted: other formats, and images in deeper folders."""
    read, hidden = {*image_inputs(path)}, {p for p in path.rglob("*") if is_hidden(p)}
    return sorted(p for p in path.rglob("*") if p.is_file() and p not in read and not hidden & {p, *p.parents})


def _of_shape(images: np.ndarray, schema: Mapping[str, Any], origin: str) -> np.ndarray:
    shape = list(schema["input_shape"])
    if list(images.shape[1:]) != shape:
        raise DataError(f"{origin}: images must have shape {shape}, got {list(images.shape[1:])}")
    if not len(images):
        raise DataError(f"{origin}: must have at least one image, got none")
    return images


def _array(path: Path) -> np.ndarray:
    arrays = open_npz(path)
    for name in _ARRAYS:
        if name in arrays:
            return arrays[name]
    raise DataError(f"{path}: must have the array 'x', got {', '.join(sorted(arrays)) or 'none'}")
