"""SVHN's cropped digits: MATLAB version 5 files, X [height, width, channel, n] and y [n, 1] in 1..10 (10 is 0)."""

from pathlib import Path

import numpy as np

from ...errors import DataError
from ..fitdata import Split
from ..raw import Raw


def read_svhn(folder: Path) -> Raw:
    """``train_32x32.mat`` and ``test_32x32.mat``: images uint8 [n, 3, height, width], labels int64 [n] (0..9)."""
    train, test = (_read(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return Raw(str(folder), "classification", "image", train, test, tuple("0123456789"))


def _read(path: Path) -> Split:
    import scipy.io  # not needed for any other set

    try:
        arrays = scipy.io.loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # the reader raises whatever its parser stumbles over
        raise DataError(f"{path}: is truncated or not a MATLAB version 5 file ({error})") from None
    for name in ("X", "y"):
        if name not in arrays:
            raise DataError(f"{path}: must contain the array {name}")
    images, labels = arrays["X"], arrays["y"].reshape(-1).astype(np.int64)
    if images.ndim != 4 or images.shape[2] != 3 or images.dtype != np.uint8 or images.shape[3] != len(labels):
        found = f"{images.dtype} {list(images.shape)} and {len(labels)} labels"
        raise DataError(f"{path}: X must be uint8 [height, width, 3, n] with n labels, got {found}")
    if len(labels) and (labels.min() < 1 or labels.max() > 10):
        raise DataError(f"{path}: y must be in 1..10, got {labels.min()}..{labels.max()}")
    return Split(np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels % 10)
