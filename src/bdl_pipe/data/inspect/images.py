"""Inspect a user's images: their shape and classes, and what would spoil a fit."""

import hashlib
from pathlib import Path
from typing import Final

import numpy as np

from ...errors import DataError, brief
from ..examples import Examples
from ..raw import Raw
from ..sources.images import ImageFolder, Npz, broken, class_files, hidden_images
from .profile import FEWEST, FEWEST_OF_CLASS, Profile, listed

_LISTED: Final = 4


def is_images(path: Path) -> bool:
    """Return True if a path is read as images: a folder or an ``.npz``."""
    return path.is_dir() or path.suffix.lower() == ".npz"


def inspect_images(path: Path, size: int | None = None, skip_broken: bool = False) -> Profile:
    """Inspect a folder with a subfolder of images for each class, or an ``.npz``.

    Args:
        size: the images of a folder are scaled and cut to this many pixels a side.
        skip_broken: leave out files that are no readable images.

    Raises:
        DataError: the images cannot be used; the message names the cure.
    """
    source, remarks = _source(path, size, skip_broken)
    try:
        raw = source.read()
    except DataError as error:
        if "every image must be" not in str(error) or size is not None:
            raise
        raise DataError(f"{error}; bring all to one size with --size 64") from None
    counts = np.bincount(raw.train.targets, minlength=len(raw.classes))
    classes = {raw.classes[i]: int(counts[i]) for i in np.argsort(-counts, kind="stable")}
    _require_enough(path, classes)
    remarks += _copies(raw)
    tests = 0 if raw.test is None else len(raw.test)
    return Profile(source, raw, len(raw.train), raw.train.inputs.shape[1:], classes, remarks, tests)


def _source(path: Path, size: int | None, skip_broken: bool) -> tuple[ImageFolder | Npz, list[str]]:
    """Return what reads the images, and a remark if files are left out, and one if hidden ones are."""
    if not path.is_dir():
        if size is not None:
            raise DataError(f"{path}: --size is for folders of images; those of an .npz have one size")
        return Npz(str(path)), []
    skipped, hidden = _broken(path, skip_broken), [found for root in _roots(path) for found in hidden_images(root)]
    remarks = []
    if skipped:
        remarks.append(f"{len(skipped)} files are no readable images and are left out, the first {skipped[0]}")
    if hidden:
        names = listed([str(found.relative_to(path)) for found in hidden])
        remarks.append(f"hidden files and folders are no images and no classes and are left out: {names}")
    return ImageFolder(str(path), size, bool(skipped)), remarks


def _roots(path: Path) -> list[Path]:
    """List the folders of classes' folders."""
    return [path / part for part in ("train", "test") if (path / part).is_dir()] or [path]


def _broken(path: Path, skip: bool) -> list[Path]:
    """List the files that are no readable images.

    Raises:
        DataError: there is one, and ``skip`` is False.
    """
    paths = [file for root in _roots(path) for files in class_files(root).values() for file in files]
    errors = {file: error for file in paths if (error := broken(file)) is not None}
    if errors and not skip:
        first = next(iter(errors.values()))
        more = f", and {len(errors) - 1} more of {len(paths):,} files are not" if len(errors) > 1 else ""
        raise DataError(f"{first}{more}; leave such files out with --skip-broken")
    return list(errors)


def _require_enough(path: Path, classes: dict[str, int]) -> None:
    """Raise DataError for one class alone, a class of few images, or few images in all."""
    if len(classes) < 2:
        raise DataError(f"{path}: must have at least 2 classes, got only {', '.join(classes)}")
    rare = [name for name, count in classes.items() if count < FEWEST_OF_CLASS]
    if rare:
        got = f"{len(rare)} with fewer: {brief(', '.join(rare[:_LISTED]))}"
        raise DataError(f"{path}: must have at least {FEWEST_OF_CLASS} images of each class, got {got}")
    if sum(classes.values()) < FEWEST:
        raise DataError(f"{path}: must have at least {FEWEST} images, got {sum(classes.values())}")


def _copies(raw: Raw) -> list[str]:
    """Return a remark on images that occur twice, one on those in two classes, and one on test images that train."""
    labels: dict[bytes, set[int]] = {}
    for digest, label in zip(_digests(raw.train), raw.train.targets.tolist(), strict=True):
        labels.setdefault(digest, set()).add(label)
    remarks, copies = [], len(raw.train) - len(labels)
    if copies:
        remarks.append(f"{copies:,} images stand there more than once; copies may be in training and test rows")
    both = sum(len(classes) > 1 for classes in labels.values())
    if both:
        remarks.append(f"{both:,} images are in two classes or more")
    shared = sum(digest in labels for digest in _digests(raw.test)) if raw.test else 0
    if shared:
        remarks.append(f"{shared:,} test images are training images, too: scores are too good")
    return remarks


def _digests(rows: Examples) -> list[bytes]:
    return [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in rows.inputs]
