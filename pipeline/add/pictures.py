"""What a set of images is, and what a reader should know before anything is fitted to it."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from bdl_pipe.data.fitdata import Examples
from bdl_pipe.data.raw import Raw
from bdl_pipe.data.sources.images import ImageFolder, Npz, broken, class_files
from bdl_pipe.errors import DataError, brief

from .look import FEWEST, FEWEST_OF_CLASS

_LISTED: Final = 4


@dataclass(frozen=True)
class Pictures:
    """What was found.

    Attributes:
        source: the section ``source`` of the data set.
        shape: (channel, height, width).
        rows: training rows; test_rows: those that the set brings itself, 0 for none.
        classes: class -> training rows.
        remarks: what else a reader should know, a line each.
    """

    path: Path
    source: dict[str, Any]
    shape: tuple[int, int, int]
    rows: int
    test_rows: int
    classes: dict[str, int]
    remarks: list[str] = field(default_factory=list)


def is_pictures(path: Path) -> bool:
    """Tell whether a path is one that images are read from."""
    return path.is_dir() or path.suffix.lower() == ".npz"


def look(path: Path, size: int | None, skip_broken: bool) -> Pictures:
    """Look at a folder with a subfolder of images per class, or at an ``.npz``.

    Args:
        size: pixels a side that images of a folder are brought to.
        skip_broken: leave out files that are no readable images.

    Raises:
        DataError: it cannot be used, with the cure.
    """
    remarks = list[str]()
    if path.is_dir():
        skipped = _broken(path, skip_broken)
        if skipped:
            remarks.append(f"{len(skipped)} files are no readable images and are left out, the first {skipped[0]}")
        folder = ImageFolder(str(path), size, bool(skipped))
        source: dict[str, Any] = {"name": "image_folder", "path": str(path)}
        source |= {"size": size} if size is not None else {}
        source |= {"skip_broken": True} if skipped else {}
        try:
            raw = folder.read()
        except DataError as error:
            if "every image must be" not in str(error) or size is not None:
                raise
            raise DataError(f"{error}; bring all to one size with --size 64") from None
    else:
        if size is not None:
            raise DataError(f"{path}: --size is for folders of images; those of an .npz have one size")
        source, raw = {"name": "npz", "path": str(path)}, Npz(str(path)).read()
    counts = np.bincount(raw.train.targets, minlength=len(raw.classes))
    classes = {raw.classes[i]: int(counts[i]) for i in np.argsort(-counts, kind="stable")}
    _require_enough(path, classes)
    remarks += _copies(raw)
    channels, height, width = raw.train.inputs.shape[1:]
    tests = 0 if raw.test is None else len(raw.test)
    return Pictures(path, source, (channels, height, width), len(raw.train), tests, classes, remarks)


def _broken(path: Path, skip: bool) -> list[Path]:
    """List the files that are no readable images.

    Raises:
        DataError: there are some, and they are not to be skipped.
    """
    roots = [path / part for part in ("train", "test") if (path / part).is_dir()] or [path]
    paths = [file for root in roots for files in class_files(root).values() for file in files]
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
    """Name images that stand there twice, under two classes, or in training and test rows."""
    train = _marks(raw.train)
    labels: dict[bytes, set[int]] = {}
    for mark, label in zip(train, raw.train.targets.tolist(), strict=True):
        labels.setdefault(mark, set()).add(label)
    said, twice = [], len(train) - len(labels)
    if twice:
        said.append(f"{twice:,} images stand there more than once; copies may be in training and test rows")
    both = sum(len(found) > 1 for found in labels.values())
    if both:
        said.append(f"{both:,} images are in two classes or more")
    shared = sum(count for mark, count in Counter(_marks(raw.test)).items() if mark in labels) if raw.test else 0
    if shared:
        said.append(f"{shared:,} test images are training images, too: scores are too good")
    return said


def _marks(rows: Examples) -> list[bytes]:
    return [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in rows.inputs]
