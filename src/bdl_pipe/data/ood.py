"""Out-of-distribution sets, brought to the shape of the set that they are compared with."""

import numpy as np
from PIL import Image

from .fitdata import Split
from .raw import Raw


def test_rows(raw: Raw) -> Split:
    """A set's test rows; all rows of a set that has none of its own."""
    return raw.train if raw.test is None else raw.test


def to_shape(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 [n, channel, height, width] in another shape.

    Channels: grey is repeated, colour is weighted to luma (ITU-R 601). Size: bilinear, with the
    kernel widened on the way down, so that nothing aliases.
    """
    channels, height, width = shape
    if images.shape[1] != channels:
        images = _grey(images) if channels == 1 else np.repeat(images[:, :1], channels, axis=1)
    if images.shape[2:] == (height, width):
        return np.ascontiguousarray(images)
    resized = np.empty((len(images), channels, height, width), np.uint8)
    for i, image in enumerate(images):
        for c, plane in enumerate(image):
            picture = Image.fromarray(np.ascontiguousarray(plane))
            resized[i, c] = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
    return resized


def _grey(images: np.ndarray) -> np.ndarray:
    luma = np.tensordot(images.astype(np.float64), np.array([0.299, 0.587, 0.114]), axes=(1, 0))
    return np.round(luma).astype(np.uint8)[:, None]
