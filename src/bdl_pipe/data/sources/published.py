"""Published image sets in formats without pickles: CIFAR-10, CIFAR-100, STL-10 and SVHN.

CIFAR, binary version: a record is one label byte (CIFAR-100: a coarse, then a fine one) and 3,072 bytes: red, green,
blue, row by row.

STL-10, binary version (Coates, Lee & Ng, 2011): a file of pixels and a file of labels for each part. An image is
3·96·96 bytes: red, green, blue, each column by column; a label is a byte 1..10. The 100,000 images without labels are
not read.

SVHN, cropped digits: MATLAB version 5 files, X [height, width, channel, n] and y [n, 1] in 1..10 (10 is 0).
"""

from pathlib import Path
from typing import Final

import numpy as np

from ...errors import DataError
from ..examples import Examples
from ..raw import Raw
from .archive import Archive, File, members

_PIXELS: Final = 3 * 32 * 32
_FOLDER: Final = "stl10_binary"
_SIDE: Final = 96


def read_cifar10(folder: Path) -> Raw:
    """Read ``cifar-10-binary.tar.gz`` in ``folder``: images uint8 [n, 3, 32, 32], labels int64 [n]."""
    path, prefix = folder / "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
    batches = [f"{prefix}/data_batch_{i}.bin" for i in range(1, 6)]
    return _cifar(path, batches, f"{prefix}/test_batch.bin", f"{prefix}/batches.meta.txt", label_bytes=1)


def read_cifar100(folder: Path) -> Raw:
    """Read ``cifar-100-binary.tar.gz`` in ``folder``, with the 100 fine labels."""
    path, prefix = folder / "cifar-100-binary.tar.gz", "cifar-100-binary"
    return _cifar(path, [f"{prefix}/train.bin"], f"{prefix}/test.bin", f"{prefix}/fine_label_names.txt", label_bytes=2)


def _cifar(path: Path, train: list[str], test: str, names: str, *, label_bytes: int) -> Raw:
    contents = members(path, [*train, test, names])
    classes = tuple(contents[names].decode().split())
    size, parts = label_bytes + _PIXELS, list[Examples]()
    for group in (train, [test]):
        blob, origin = b"".join(contents[m] for m in group), f"{path}: {group[0]}"
        if len(blob) == 0 or len(blob) % size:
            raise DataError(f"{origin}: must be whole records of {size} bytes, got {len(blob)} bytes")
        rows = np.frombuffer(blob, np.uint8).reshape(-1, size)
        labels = rows[:, label_bytes - 1].astype(np.int64)
        if labels.max() >= len(classes):
            raise DataError(f"{origin}: labels must be < {len(classes)}, got {labels.max()}")
        parts.append(Examples(rows[:, label_bytes:].reshape(-1, 3, 32, 32), labels))
    return Raw(str(path), "classification", "image", parts[0], parts[1], classes)


def read_stl10(folder: Path) -> Raw:
    """Read ``stl10_binary.tar.gz`` in ``folder``: images uint8 [n, 3, 96, 96], labels int64 [n] (0..9)."""
    path = folder / "stl10_binary.tar.gz"
    names = f"{_FOLDER}/class_names.txt"
    wanted = [f"{_FOLDER}/{part}_{kind}.bin" for part in ("train", "test") for kind in "Xy"]
    contents = members(path, [*wanted, names])
    classes = tuple(contents[names].decode().split())
    train, test = (_stl10(contents, f"{_FOLDER}/{part}", path, len(classes)) for part in ("train", "test"))
    return Raw(str(path), "classification", "image", train, test, classes)


def _stl10(contents: dict[str, bytes], part: str, path: Path, classes: int) -> Examples:
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


def read_svhn(folder: Path) -> Raw:
    """Read ``train_32x32.mat`` and ``test_32x32.mat``: images uint8 [n, 3, height, width], labels int64 [n] (0..9)."""
    train, test = (_svhn(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return Raw(str(folder), "classification", "image", train, test, tuple("0123456789"))


def _svhn(path: Path) -> Examples:
    import scipy.io  # imported here, because no other set needs it

    try:
        arrays = scipy.io.loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # the reader raises any exception
        raise DataError(f"{path}: is truncated or not a MATLAB version 5 file ({error})") from None
    for name in ("X", "y"):
        if name not in arrays:
            raise DataError(f"{path}: must contain the array {name}")
    images, labels = arrays["X"], arrays["y"].reshape(-1).astype(np.int64)
    if images.ndim != 4 or images.shape[2] != 3 or images.dtype != np.uint8 or images.shape[3] != len(labels):
        actual = f"{images.dtype} {list(images.shape)} and {len(labels)} labels"
        raise DataError(f"{path}: X must be uint8 [height, width, 3, n] with n labels, got {actual}")
    if len(labels) and (labels.min() < 1 or labels.max() > 10):
        raise DataError(f"{path}: y must be in 1..10, got {labels.min()}..{labels.max()}")
    return Examples(np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels % 10)


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
SVHN: Final = Archive(
    "svhn",
    (
        File(
            "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            182040794,
            "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        ),
        File(
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            64275384,
            "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        ),
    ),
    (3, 32, 32),
    read_svhn,
)
