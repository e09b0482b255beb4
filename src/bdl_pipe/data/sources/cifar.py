"""CIFAR-10 and CIFAR-100 in the *binary* version: plain records without pickles.

A record is one label byte (CIFAR-100: a coarse, then a fine one) and 3,072 bytes: red, green, blue, row by row.
"""

from pathlib import Path
from typing import Final

import numpy as np

from ...errors import DataError
from ..examples import Examples
from ..raw import Raw
from .archive import members
from .files import Archive, File

_PIXELS: Final = 3 * 32 * 32


def read_cifar10(folder: Path) -> Raw:
    """Read ``cifar-10-binary.tar.gz`` in ``folder``: images uint8 [n, 3, 32, 32], labels int64 [n]."""
    path, prefix = folder / "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
    batches = [f"{prefix}/data_batch_{i}.bin" for i in range(1, 6)]
    return _read(path, batches, f"{prefix}/test_batch.bin", f"{prefix}/batches.meta.txt", label_bytes=1)


def read_cifar100(folder: Path) -> Raw:
    """Read ``cifar-100-binary.tar.gz`` in ``folder``, with the 100 fine labels."""
    path, prefix = folder / "cifar-100-binary.tar.gz", "cifar-100-binary"
    return _read(path, [f"{prefix}/train.bin"], f"{prefix}/test.bin", f"{prefix}/fine_label_names.txt", label_bytes=2)


def _read(path: Path, train: list[str], test: str, names: str, *, label_bytes: int) -> Raw:
    contents = members(path, [*train, test, names])
    classes = tuple(contents[names].decode().split())
    train_rows, test_rows = (
        _records(b"".join(contents[m] for m in group), f"{path}: {group[0]}", label_bytes, len(classes))
        for group in (train, [test])
    )
    return Raw(str(path), "classification", "image", train_rows, test_rows, classes)


def _records(blob: bytes, origin: str, label_bytes: int, classes: int) -> Examples:
    size = label_bytes + _PIXELS
    if len(blob) == 0 or len(blob) % size:
        raise DataError(f"{origin}: must be whole records of {size} bytes, got {len(blob)} bytes")
    rows = np.frombuffer(blob, np.uint8).reshape(-1, size)
    labels = rows[:, label_bytes - 1].astype(np.int64)
    if labels.max() >= classes:
        raise DataError(f"{origin}: labels must be < {classes}, got {labels.max()}")
    return Examples(rows[:, label_bytes:].reshape(-1, 3, 32, 32), labels)


_TORONTO: Final = "https://www.cs.toronto.edu/~kriz"

CIFAR10: Final = Archive(
    "cifar10",
    (
        File(
            f"{_TORONTO}/cifar-10-binary.tar.gz",
            170052171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    (3, 32, 32),
    read_cifar10,
)
CIFAR100: Final = Archive(
    "cifar100",
    (
        File(
            f"{_TORONTO}/cifar-100-binary.tar.gz",
            168513733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    (3, 32, 32),
    read_cifar100,
)
