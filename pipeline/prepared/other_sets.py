"""Rows of other sets, in the shape of the fitted set's inputs: out-of-distribution sets, and transfer.

Transfer scores labelled test rows of another set, with the labels of the set that a posterior is fitted to.

An example is CIFAR-10 to STL-10 (Maddox et al., 2019; Zeng & Van den Broeck, 2023, section 6.2). Deviations: rows of
classes that are not shared (STL-10's monkeys) are dropped; the published code of Maddox et al. counts them as frogs,
the only class of CIFAR-10 that STL-10 lacks (``transfer_names: {monkey: frog}`` has the same effect). Images of the
other set are used only for scores; their code computes SWAG's batch-normalisation statistics on STL-10's training
images.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from PIL import Image

from bdl_pipe.data.examples import Examples
from bdl_pipe.data.raw import Raw, checked
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.seeds import Seed

NOISE_IMAGES: Final = 1_000
SAME: Final[Mapping[str, str]] = {"car": "automobile"}  # STL-10's name -> CIFAR-10's name; the other names are equal
_SHOWN: Final = 10  # names in a message


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
    remaining = [label for label in range(len(raw.classes)) if label not in held_out]
    if max(held_out) >= len(raw.classes) or len(remaining) < 2:
        rule = f"must be indices < {len(raw.classes)} that leave at least 2 classes"
        raise ConfigError(path, rule, list(held_out))
    place = np.full(len(raw.classes), -1)  # old label -> new label; -1: removed
    place[remaining] = np.arange(len(remaining))
    held = test_rows(raw)
    out = np.isin(held.targets, held_out)
    if not out.any():
        raise DataError(f"{raw.origin}: must have test rows of the classes {list(held_out)} ({path}), got none")
    train, test = (_relabelled(rows, place) if rows is not None else None for rows in (raw.train, raw.test))
    assert train is not None
    classes = tuple(raw.classes[label] for label in remaining)
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


def shared_rows(other: Raw, fitted: Raw, names: Mapping[str, str], path: str) -> Examples:
    """Return the test rows of ``other`` in shared classes, with the image shape and labels of ``fitted``.

    Only the names of classes are compared, so two sets with classes 0, 1, … share them.

    Args:
        names: class of ``other`` -> class of ``fitted``, for names that differ.
        path: the key of params.yaml that names ``other``.

    Raises:
        ConfigError: no class is shared, ``names`` names a class that ``fitted`` lacks, or a row is also a
            training row of ``fitted``.
        DataError: the shared classes have no test rows.
    """
    assert other.kind == fitted.kind == "image"
    place = np.array([_place(name, fitted, names, path) for name in other.classes])  # -1: not shared
    if (place < 0).all():
        rule = f"must name a set that shares a class with {fitted.origin} ({_listed(fitted)})"
        raise ConfigError(path, rule, f"{other.origin} ({_listed(other)})")
    rows = test_rows(other)
    stays = place[rows.targets] >= 0
    if not stays.any():
        raise DataError(f"{other.origin}: must have test rows of a class of {fitted.origin} ({path}), got none")
    images = to_shape(np.ascontiguousarray(rows.inputs[stays]), fitted.train.inputs.shape[1:])
    _check_apart(images, other, fitted, path)
    return Examples(images, place[rows.targets[stays]])


def _place(name: str, fitted: Raw, names: Mapping[str, str], path: str) -> int:
    if name in names:
        if names[name] not in fitted.classes:
            rule = f"must give {name} a class of {fitted.origin} ({_listed(fitted)})"
            raise ConfigError(f"{path.rpartition('.')[0]}.transfer_names", rule, names[name])
        return fitted.classes.index(names[name])
    if name in fitted.classes:
        return fitted.classes.index(name)
    common = [SAME.get(label, label) for label in fitted.classes]
    return common.index(SAME.get(name, name)) if SAME.get(name, name) in common else -1


def _check_apart(images: np.ndarray, other: Raw, fitted: Raw, path: str) -> None:
    """Refuse rows that are also training rows; for example, MNIST's training rows include ``mnist5k``."""
    seen = {row.tobytes() for row in fitted.train.inputs}
    count = sum(row.tobytes() in seen for row in images)
    if count:
        rule = f"must name a set of other images than {fitted.origin}"
        raise ConfigError(path, rule, f"{other.origin}: {count} of its {len(images)} rows are training rows")


def _listed(raw: Raw) -> str:
    more = ", …" if len(raw.classes) > _SHOWN else ""
    return ", ".join(raw.classes[:_SHOWN]) + more
