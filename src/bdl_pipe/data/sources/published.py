"""Published image sets in formats without pickles: MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100, STL-10 and SVHN.

IDX, of MNIST and its relatives: a big-endian header, then uint8 values; four ``*-ubyte.gz`` files.

CIFAR, binary version: a record is one label byte (CIFAR-100: a coarse, then a fine one) and 3,072 bytes: red, green,
blue, row by row.

STL-10, binary version (Coates, Lee & Ng, 2011): a file of pixels and a file of labels for each part. An image is
3·96·96 bytes: red, green, blue, each column by column; a label is a byte 1..10. The 100,000 images without labels are
not read.

SVHN, cropped digits: MATLAB version 5 files, X [height, width, channel, n] and y [n, 1] in 1..10 (10 is 0).
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ...errors import DataError
from ..examples import Examples
from ..raw import Raw
from .archive import Archive, File, members, unzipped

_UINT8: Final = 0x08
_PIXELS: Final = 3 * 32 * 32
_FOLDER: Final = "stl10_binary"
_SIDE: Final = 96


def read_idx(folder: Path, classes: tuple[str, ...]) -> Raw:
    """Read the four ``*-ubyte.gz`` files of ``folder``: images uint8 [n, 1, height, width], labels int64 [n]."""
    parts = list[Examples]()
    for part in ("train", "t10k"):
        images_path, labels_path = (folder / f"{part}-{n}-ubyte.gz" for n in ("images-idx3", "labels-idx1"))
        images, labels = read_array(images_path, 3), read_array(labels_path, 1)
        if len(images) != len(labels):
            raise DataError(f"{labels_path}: must have one label per image, got {len(labels)} for {len(images)}")
        if len(labels) and labels.max() >= len(classes):
            raise DataError(f"{labels_path}: labels must be < {len(classes)}, got {labels.max()}")
        parts.append(Examples(images[:, None], labels.astype(np.int64)))
    train, test = parts
    return Raw(str(folder), "classification", "image", train, test, classes)


def read_array(path: Path, dimensions: int) -> np.ndarray:
    """Read one gzipped IDX file of uint8.

    Raises:
        DataError: the file is truncated, not gzip, or not IDX with this number of dimensions.
    """
    blob, header = unzipped(path), 4 + 4 * dimensions
    if len(blob) < header or blob[:4] != bytes((0, 0, _UINT8, dimensions)):
        raise DataError(f"{path}: must be an IDX file of uint8 with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", blob[4:header])
    if len(blob) - header != int(np.prod(shape)):
        raise DataError(f"{path}: must hold {shape} values after its header, got {len(blob) - header} bytes")
    return np.frombuffer(blob, np.uint8, offset=header).reshape(shape)


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
    path, parts = folder / "stl10_binary.tar.gz", list[Examples]()
    stems, names = [f"{_FOLDER}/{part}" for part in ("train", "test")], f"{_FOLDER}/class_names.txt"
    contents = members(path, [*(f"{stem}_{kind}.bin" for stem in stems for kind in "Xy"), names])
    classes, size = tuple(contents[names].decode().split()), 3 * _SIDE * _SIDE
    for stem in stems:
        pixels, codes = contents[f"{stem}_X.bin"], np.frombuffer(contents[f"{stem}_y.bin"], np.uint8).astype(np.int64)
        if len(pixels) == 0 or len(pixels) % size:
            raise DataError(f"{path}: {stem}_X.bin: must be whole images of {size} bytes, got {len(pixels)} bytes")
        if len(pixels) // size != len(codes):
            rule = f"must be one label for each of {len(pixels) // size} images"
            raise DataError(f"{path}: {stem}_y.bin: {rule}, got {len(codes)}")
        if codes.min() < 1 or codes.max() > len(classes):
            got = f"{codes.min()}..{codes.max()}"
            raise DataError(f"{path}: {stem}_y.bin: labels must be in 1..{len(classes)}, got {got}")
        columns = np.frombuffer(pixels, np.uint8).reshape(-1, 3, _SIDE, _SIDE)  # [n, channel, column, row]
        parts.append(Examples(np.ascontiguousarray(columns.swapaxes(2, 3)), codes - 1))
    return Raw(str(path), "classification", "image", parts[0], parts[1], classes)


def read_svhn(folder: Path) -> Raw:
    """Read ``train_32x32.mat`` and ``test_32x32.mat``: images uint8 [n, 3, height, width], labels int64 [n] (0..9)."""
    import scipy.io  # imported here, because no other set needs it

    parts = list[Examples]()
    for path in (folder / f"{part}_32x32.mat" for part in ("train", "test")):
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
        parts.append(Examples(np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels % 10))
    return Raw(str(folder), "classification", "image", parts[0], parts[1], tuple("0123456789"))


def _files(host: str, facts: Mapping[str, tuple[int, str] | tuple[int, str, str]]) -> tuple[File, ...]:
    return tuple(File(f"{host}/{name}", *of_file) for name, of_file in facts.items())


_DIGITS: Final = tuple("0123456789")
_CLOTHES: Final = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

FASHION_MNIST: Final = Archive(
    "fashion_mnist",
    _files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": (
                26421880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            "train-labels-idx1-ubyte.gz": (
                29515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            "t10k-images-idx3-ubyte.gz": (
                4422102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                5148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        },
    ),
    (1, 28, 28),
    lambda folder: read_idx(folder, _CLOTHES),
    ("dataset-fashion-mnist", Path("/usr/share/datasets/fashion-mnist")),
)
MNIST: Final = Archive(
    "mnist",
    _files(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        {
            "train-images-idx3-ubyte.gz": (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            "train-labels-idx1-ubyte.gz": (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            "t10k-images-idx3-ubyte.gz": (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            "t10k-labels-idx1-ubyte.gz": (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        },
    ),
    (1, 28, 28),
    lambda folder: read_idx(folder, _DIGITS),
)
_TORONTO: Final = "https://www.cs.toronto.edu/~kriz"

CIFAR10: Final = Archive(
    "cifar10",
    _files(
        _TORONTO,
        {"cifar-10-binary.tar.gz": (170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")},
    ),
    (3, 32, 32),
    read_cifar10,
)
CIFAR100: Final = Archive(
    "cifar100",
    _files(
        _TORONTO,
        {"cifar-100-binary.tar.gz": (168513733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec")},
    ),
    (3, 32, 32),
    read_cifar100,
)
STL10: Final = Archive(
    "stl10",
    _files(
        "http://ai.stanford.edu/~acoates/stl10",
        {"stl10_binary.tar.gz": (2640397119, "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866")},
    ),
    (3, 96, 96),
    read_stl10,
)
SVHN: Final = Archive(
    "svhn",
    _files(
        "http://ufldl.stanford.edu/housenumbers",
        {
            "train_32x32.mat": (182040794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
            "test_32x32.mat": (64275384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
        },
    ),
    (3, 32, 32),
    read_svhn,
)
