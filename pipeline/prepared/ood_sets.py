"""Out-of-distribution sets, converted to the shape of the fitted set's inputs."""

from dataclasses import replace
from typing import Final

import numpy as np
from PIL import Image

from bdl_pipe.data.examples import Examples
from bdl_pipe.data.raw import Raw, checked
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.seeds import Seed

NOISE_IMAGES: Final = 1_000


def test_rows(raw: Raw) -> Examples:
    """Return a set's test rows, or all rows if it has no own test rows."""
    return raw.train if raw.test is None else raw.test


def noise(shape: tuple[int, ...], rng: Seed, count: int = NOISE_IMAGES) -> Examples:
    """Draw noise images uint8 [count, *shape]: values are independent and uniform on 0..255; all labels are 0."""
    return Examples(rng.numpy().integers(0, 256, (count, *shape), dtype=np.uint8), np.zeros(count, np.int64))


def without_classes(raw: Raw, held_out: tuple[int, ...], path: str) -> tuple[Raw, Examples]:
    """Remove some classes from ``raw``; return the rest, and the removed classes' test rows with their old labels.

    The remaining labels are renumbered without gaps, in their order.

    Args:
        held_out: the indices of the removed classes, at least one.
        path: the key of the indices in params.yaml.

    Raises:
        ConfigError: there is no such class, or fewer than two classes remain.
        DataError: the removed or the remaining classes have no test rows.
    """
    kept = [label for label in range(len(raw.classes)) if label not in held_out]
    if max(held_out) >= len(raw.classes) or len(kept) < 2:
        rule = f"must be indices < {len(raw.classes)} that leave at least 2 classes"
        raise ConfigError(path, rule, list(held_out))
    place = np.full(len(raw.classes), -1)  # old label -> new label; -1: removed
    place[kept] = np.arange(len(kept))
    held = test_rows(raw)
    out = np.isin(held.targets, held_out)
    if not out.any():
        raise DataError(f"{raw.origin}: must have test rows of the classes {list(held_out)} ({path}), got none")
    train, test = (_relabelled(rows, place) if rows is not None else None for rows in (raw.train, raw.test))
    assert train is not None
    classes = tuple(raw.classes[label] for label in kept)
    return checked(replace(raw, train=train, test=test, classes=classes)), Examples(held.inputs[out], held.targets[out])


def _relabelled(rows: Examples, place: np.ndarray) -> Examples:
    stays = place[rows.targets] >= 0
    return Examples(rows.inputs[stays], place[rows.targets[stays]])


def to_shape(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Convert uint8 [n, channel, height, width] to another shape.

    Channels: a grey channel is repeated; colour becomes luma (ITU-R 601). Size: bilinear, with a wider kernel for
    downscaling, to avoid aliasing.
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
