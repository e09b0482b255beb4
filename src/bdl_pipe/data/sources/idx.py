"""The IDX format of MNIST and its relatives: big-endian header, then uint8 values."""

import gzip
import struct
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from ...errors import DataError
from ..fitdata import Split
from ..raw import Raw

_UINT8: Final = 0x08


def read_idx(folder: Path, classes: tuple[str, ...]) -> Raw:
    """The four ``*-ubyte.gz`` files of ``folder``: images uint8 [n, 1, height, width], labels int64 [n]."""
    train, test = (_pair(folder, part, len(classes)) for part in ("train", "t10k"))
    return Raw(str(folder), "classification", "image", train, test, classes)


def _pair(folder: Path, part: str, classes: int) -> Split:
    images_path, labels_path = (folder / f"{part}-{n}-ubyte.gz" for n in ("images-idx3", "labels-idx1"))
    images, labels = read_array(images_path, 3), read_array(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(f"{labels_path}: must have one label per image, got {len(labels)} for {len(images)}")
    if len(labels) and labels.max() >= classes:
        raise DataError(f"{labels_path}: labels must be < {classes}, got {labels.max()}")
    return Split(images[:, None], labels.astype(np.int64))


def read_array(path: Path, dimensions: int) -> np.ndarray:
    """One gzipped IDX file of uint8.

    Raises:
        DataError: it is truncated, not gzip, or not IDX of that many dimensions.
    """
    try:
        with gzip.open(path, "rb") as stream:
            blob = stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is truncated or not a gzip file ({error})") from None
    header = 4 + 4 * dimensions
    if len(blob) < header or blob[:4] != bytes((0, 0, _UINT8, dimensions)):
        raise DataError(f"{path}: must be an IDX file of uint8 with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", blob[4:header])
    if len(blob) - header != int(np.prod(shape)):
        raise DataError(f"{path}: must hold {shape} values after its header, got {len(blob) - header} bytes")
    return np.frombuffer(blob, np.uint8, offset=header).reshape(shape)
