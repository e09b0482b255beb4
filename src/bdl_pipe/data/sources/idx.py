"""The IDX format of MNIST and its relatives: big-endian header, then uint8 values."""

import gzip
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ...errors import DataError
from ..examples import Examples
from ..raw import Raw
from .archive import Archive, File

_UINT8: Final = 0x08


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


def _mnist(host: str, rows: Mapping[str, tuple[int, str, str]]) -> tuple[File, ...]:
    return tuple(File(f"{host}/{name}-ubyte.gz", *facts) for name, facts in rows.items())


_DIGITS: Final = tuple("0123456789")
_CLOTHES: Final = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

FASHION_MNIST: Final = Archive(
    "fashion_mnist",
    _mnist(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3": (
                26421880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            "train-labels-idx1": (
                29515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            "t10k-images-idx3": (
                4422102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            "t10k-labels-idx1": (
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
    _mnist(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        {
            "train-images-idx3": (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", ""),
            "train-labels-idx1": (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", ""),
            "t10k-images-idx3": (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", ""),
            "t10k-labels-idx1": (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", ""),
        },
    ),
    (1, 28, 28),
    lambda folder: read_idx(folder, _DIGITS),
)
