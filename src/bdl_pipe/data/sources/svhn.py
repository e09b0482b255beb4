"""SVHN's cropped digits: MATLAB version 5 files, X [height, width, channel, n] and y [n, 1] in 1..10 (10 is 0)."""

from pathlib import Path
from typing import Final

import numpy as np

from ...errors import DataError
from ..examples import Examples
from ..raw import Raw
from .files import Archive, File


def read_svhn(folder: Path) -> Raw:
    """Read ``train_32x32.mat`` and ``test_32x32.mat``: images uint8 [n, 3, height, width], labels int64 [n] (0..9)."""
    train, test = (_read(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return Raw(str(folder), "classification", "image", train, test, tuple("0123456789"))


def _read(path: Path) -> Examples:
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


_STANFORD: Final = "http://ufldl.stanford.edu/housenumbers"

SVHN: Final = Archive(
    "svhn",
    (
        File(
            f"{_STANFORD}/train_32x32.mat",
            182040794,
            "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        ),
        File(
            f"{_STANFORD}/test_32x32.mat",
            64275384,
            "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        ),
    ),
    (3, 32, 32),
    read_svhn,
)
