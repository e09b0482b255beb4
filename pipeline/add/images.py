"""What ``add`` finds in a user's images: their shape and classes, and warnings before anything is fitted."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bdl_pipe.data.examples import Examples
from bdl_pipe.data.raw import Raw, Task
from bdl_pipe.data.sources.images import ImageFolder, Npz, broken, class_files
from bdl_pipe.errors import DataError, brief

from .size import Size
from .table import FEWEST, FEWEST_OF_CLASS

_LISTED: Final = 4


@dataclass(frozen=True)
class Images:
    """A user's images.

    Attributes:
        source: the section ``source`` of the data set.
        shape: (channel, height, width).
        rows: training images.
        test_rows: test images that the data set brings itself; 0: none.
        classes: class -> training images.
        remarks: warnings for the reader, a line each.
    """

    path: Path
    source: Mapping[str, Any]
    shape: tuple[int, int, int]
    rows: int
    test_rows: int
    classes: Mapping[str, int]
    remarks: Sequence[str]
    task: Task = "classification"

    def size(self, calibration: float) -> Size:
        """Return the size from which hyperparameters follow."""
        return Size(
            self.task,
            self.rows,
            math.prod(self.shape),
            calibration=calibration,
            image=self.shape,
            fewest=min(self.classes.values()),
            has_test=self.test_rows > 0,
        )

    def dataset(self, log: bool | None) -> dict[str, Any]:
        """Return the keys of the data set's entry that depend on the images; classes have no logarithms."""
        return {"source": dict(self.source), "normalise": "train", "targets": "none"}

    def describe(self, is_log: bool) -> list[str]:
        """Describe the images, a line for each finding."""
        channels, height, width = self.shape
        colour = "grey" if channels == 1 else "colour"
        tests = f" and {self.test_rows:,} test images" if self.test_rows else ""
        lines = [f"{self.path}: {self.rows:,} {colour} images of {height}×{width} pixels{tests}"]
        return lines + [f"  note: {remark}" for remark in self.remarks]


def is_images(path: Path) -> bool:
    """Return True if a path is read as images: a folder or an ``.npz``."""
    return path.is_dir() or path.suffix.lower() == ".npz"


def look(path: Path, size: int | None, skip_broken: bool) -> Images:
    """Read a folder with a subfolder of images for each class, or an ``.npz``.

    Args:
        size: the images of a folder are scaled and cut to this many pixels a side.
        skip_broken: leave out files that are no readable images.

    Raises:
        DataError: the images cannot be used; the message names the cure.
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
    return Images(path, source, (channels, height, width), len(raw.train), tests, classes, remarks)


def _broken(path: Path, skip: bool) -> list[Path]:
    """List the files that are no readable images.

    Raises:
        DataError: there is one, and ``skip`` is False.
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
