"""STL-10 in the *binary* version: a file of pixels and a file of labels for each part (Coates, Lee & Ng, 2011).

An image is 3·96·96 bytes: red, green, blue, each column by column; a label is a byte 1..10. The 100,000
images without labels are not read.
"""

from pathlib import Path
from typing import Final

import numpy as np

from ...errors import DataError
from ..examples import Examples
from ..raw import Raw
from .archive import members
from .files import Archive, File

_FOLDER: Final = "stl10_binary"
_SIDE: Final = 96


def read_stl10(folder: Path) -> Raw:
    """Read ``stl10_binary.tar.gz`` in ``folder``: images uint8 [n, 3, 96, 96], labels int64 [n] (0..9)."""
    path = folder / "stl10_binary.tar.gz"
    names = f"{_FOLDER}/class_names.txt"
    wanted = [f"{_FOLDER}/{part}_{kind}.bin" for part in ("train", "test") for kind in "Xy"]
    contents = members(path, [*wanted, names])
    classes = tuple(contents[names].decode().split())
    train, test = (_rows(contents, f"{_FOLDER}/{part}", path, len(classes)) for part in ("train", "test"))
    return Raw(str(path), "classification", "image", train, test, classes)


def _rows(contents: dict[str, bytes], part: str, path: Path, classes: int) -> Examples:
    pixels, codes = contents[f"{part}_X.bin"], np.frombuffer(contents[f"{part}_y.bin"], np.uint8).astype(np.int64)
    size = 3 * _SIDE * _SIDE
    if len(pixels) == 0 or len(pixels) % size:
        raise DataError(f"{path}: {part}_X.bin: must be whole images of {size} bytes, got {len(pixels)} bytes")
    if len(pixels) // size != len(codes):
        rule = f"must be one label for each of {len(pixels) // size} images"
        raise DataError(f"{path}: {part}_y.bin: {rule}, got {len(codes)}")
    if codes.min() < 1 or codes.max() > classes:
        raise DataError(f"{path}: {part}_y.bin: labels must be in 1..{classes}, got {codes.min()}..{codes.max()}")
    columns = np.frombuffer(pixels, np.uint8).reshape(-1, 3, _SIDE, _SIDE)  # [n, channel, column, row]
    return Examples(np.ascontiguousarray(columns.swapaxes(2, 3)), codes - 1)


STL10: Final = Archive(
    "stl10",
    (
        File(
            "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
            2640397119,
            "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
        ),
    ),
    (3, 96, 96),
    read_stl10,
)
