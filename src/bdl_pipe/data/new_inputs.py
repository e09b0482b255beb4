"""New rows to predict: a table, an ``.npz``, an image or a folder of images, held to the fitted data's schema."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..errors import DataError
from .sources.columns import feature_matrix
from .sources.images import SUFFIXES, class_folders, image_array, image_files, open_npz, read_images
from .sources.table import coded_rows, open_table, sniffed

_ARRAYS: Final = ("x", "x_test")


def new_inputs(path: Path, schema: Mapping[str, Any]) -> np.ndarray:
    """Read raw inputs in file order (images: by name), in the fitted data's own units and shape.

    A table needs the fitted feature columns, by name and in any order; others are ignored. Where they are not all plain
    numbers, a category that the fitted file did not have is one of the rare ones or, where there were none, no category
    at all. An
    ``.npz`` holds ``x`` (or ``x_test``). Images are turned grey or colour like the fitted ones but
    must have their size, unless those were brought to one size: then these are, too.

    Args:
        schema: ``schema.json`` of the data: kind, features, input_shape.

    Returns:
        float64 [n, column] or uint8 [n, channel, height, width].

    Raises:
        DataError: the file, rule and value of whatever is wrong.
    """
    if not path.exists():
        raise DataError(f"{path}: is missing")
    if schema["kind"] == "table":
        return _table(path, schema)
    shape = tuple(schema["input_shape"])
    if path.is_file() and path.suffix.lower() == ".npz":
        return _npz(path, shape)
    return read_images(image_inputs(path), shape, resize=schema.get("resize"))


def image_inputs(path: Path) -> list[Path]:
    """List the images that are inputs, in order: one image, or the images of a folder and then of its subfolders.

    Hidden files and folders are left out.

    Raises:
        DataError: a folder holds none.
    """
    if path.is_file():
        return [path]
    files = [file for folder in (path, *class_folders(path)) for file in image_files(folder)]
    if not files:
        raise DataError(f"{path}: must hold images ({' '.join(SUFFIXES)}), got none")
    return files


def _table(path: Path, schema: Mapping[str, Any]) -> np.ndarray:
    features = tuple(schema["features"])
    if path.suffix.lower() == ".npz" and "columns" not in schema:
        values = _array(path)
        if values.ndim != 2 or values.shape[1] != len(features) or values.dtype.kind not in "fiu":
            rule = f"must be numbers [n, {len(features)}]"
            raise DataError(f"{path}: array 'x' {rule}, got {values.dtype} {list(values.shape)}")
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            raise DataError(f"{path}: column {features[bad[0][1]]!r} must be finite, not so in row {bad[0][0] + 1}")
        return values.astype(np.float64)
    if "columns" not in schema:
        return feature_matrix(open_table(path), features, str(path))
    texts = tuple(column["name"] for column in schema["columns"] if column["kind"] == "category")
    return coded_rows(open_table(path, sniffed(path), texts), schema, str(path))


def _npz(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    images = image_array(_array(path), str(path), "x")
    if images.shape[1:] != shape:
        raise DataError(f"{path}: images must have shape {list(shape)}, got {list(images.shape[1:])}")
    return images


def _array(path: Path) -> np.ndarray:
    arrays = open_npz(path)
    for name in _ARRAYS:
        if name in arrays:
            return arrays[name]
    raise DataError(f"{path}: must have the array 'x', got {', '.join(sorted(arrays)) or 'none'}")
