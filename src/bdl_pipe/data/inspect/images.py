"""Inspection of a user's images: their shape and classes, and problems that would spoil a fit."""

import hashlib
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from ...errors import DataError, brief, without_warnings
from ..examples import Examples
from ..raw import Raw
from ..sources.folders import beside_images, class_files, hidden_images, parts
from ..sources.images import ImageFolder, Npz, broken, unread_arrays
from ..tables.forms import listed
from ..tables.kinds import twins
from .profile import FEWEST, FEWEST_OF_CLASS, Profile

_LISTED: Final = 4
_JOINED: Final = {
    ".parquet": "python -c \"import pandas; pandas.read_parquet('{folder}').to_parquet('{file}')\"",
    ".csv": "awk 'NR == 1 || FNR > 1' {folder}/*.csv > {file}",
}


def is_images(path: Path) -> bool:
    """Return True if a path is read as images: a folder or an ``.npz``."""
    return path.is_dir() or path.suffix.lower() == ".npz"


def inspect_images(path: Path, size: int | None = None, skip_broken: bool = False) -> Profile:
    """Inspect a folder with a subfolder of images for each class, or an ``.npz``.

    Args:
        size: the images of a folder are scaled and cut to this many pixels per side.
        skip_broken: whether unreadable image files are skipped.

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
    if len(classes) < 2:
        raise DataError(f"{path}: must have at least 2 classes, got only {', '.join(classes)}")
    rare = [name for name, count in classes.items() if count < FEWEST_OF_CLASS]
    if rare:
        got = f"{len(rare)} with fewer: {brief(', '.join(rare[:_LISTED]))}"
        raise DataError(f"{path}: must have at least {FEWEST_OF_CLASS} images of each class, got {got}")
    if sum(classes.values()) < FEWEST:
        raise DataError(f"{path}: must have at least {FEWEST} images, got {sum(classes.values())}")
    if isinstance(source, Npz) and (unread := unread_arrays(path)):
        remarks.append(f"dropped arrays with names that add does not read: {listed(unread)}")
    remarks += _copies(raw)
    remarks += [f"{a!r} and {b!r} are two classes that differ only in case or blanks" for a, b in twins(raw.classes)]
    tests = 0 if raw.test is None else len(raw.test)
    return Profile(source, raw, len(raw.train), raw.train.inputs.shape[1:], classes, remarks, tests)


def _source(path: Path, size: int | None, skip_broken: bool) -> tuple[ImageFolder | Npz, list[str]]:
    """Return the source of the images, with remarks on skipped and hidden files."""
    if not path.is_dir():
        if size is not None:
            raise DataError(f"{path}: --size is for folders of images; leave it out for an .npz")
        return Npz(str(path)), []
    try:
        files = [file for root in _roots(path) for images in class_files(root).values() for file in images]
        errors = {file: error for file in files if (error := broken(file)) is not None}
        if errors and not skip_broken:
            first = next(iter(errors.values()))
            more = f", and {len(errors) - 1} more of {len(files):,} files cannot be read" if len(errors) > 1 else ""
            raise DataError(f"{first}{more}; leave such files out with --skip-broken")
    except DataError:
        for suffix, command in _JOINED.items():
            if any(path.rglob(f"*{suffix}")):
                named = path if path.name not in ("", "..") else path.resolve()  # "." has no name
                joined = command.format(folder=path, file=named.with_suffix(suffix))
                raise DataError(f"{path}: is a folder of {suffix} files, must be one file: {joined}") from None
        raise
    skipped, remarks = list(errors), list[str]()
    if skipped:
        remarks.append(
            f"{len(skipped)} files are left out, since they are not readable images; the first is {skipped[0]}"
        )
    reasons = {
        "hidden files and folders are left out": [file for root in _roots(path) for file in hidden_images(root)],
        "left out, because only images of a known kind directly in a class's folder are read": beside_images(path),
    }
    for reason, others in reasons.items():
        remarks += [f"{reason}: {listed([str(file.relative_to(path)) for file in others])}"] if others else []
    remarks += _layers([file for file in files if file not in errors], path)
    return ImageFolder(str(path), size, bool(skipped)), remarks


def _roots(path: Path) -> list[Path]:
    return parts(path) or [path]


def _layers(files: list[Path], root: Path) -> list[str]:
    """Return remarks on images with transparent pixels, and on animations, of which one frame is read."""
    transparent, films = list[Path](), list[Path]()
    for file in files:
        with without_warnings(), Image.open(file) as image:
            if _frames(image) > 1:
                films.append(file)
            if image.has_transparency_data and np.asarray(image.convert("RGBA"))[:, :, 3].min() < 255:
                transparent.append(file)
    kinds = (
        ("have transparent pixels, which are put on a white background", transparent),
        ("have several frames, of which only one is read", films),
    )
    return [f"{len(some):,} images {what}; the first is {some[0].relative_to(root)}" for what, some in kinds if some]


def _frames(image: Image.Image) -> int:
    """Return the number of frames; 2 if those after the first are damaged, which raises any exception."""
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:
        return 2


def _copies(raw: Raw) -> list[str]:
    """Return remarks on repeated images, on images in two classes, and on test images among the training images."""
    labels: dict[bytes, set[int]] = {}
    for digest, label in zip(_digests(raw.train), raw.train.targets.tolist(), strict=True):
        labels.setdefault(digest, set()).add(label)
    remarks, copies = [], len(raw.train) - len(labels)
    if copies:
        remarks.append(f"{copies:,} images are copies of others; training and test rows may share them")
    both = sum(len(classes) > 1 for classes in labels.values())
    if both:
        remarks.append(f"{both:,} images are in two classes or more")
    shared = sum(digest in labels for digest in _digests(raw.test)) if raw.test else 0
    if shared:
        remarks.append(f"{shared:,} test images are training images, too: scores are optimistic")
    return remarks


def _digests(rows: Examples) -> list[bytes]:
    return [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in rows.inputs]
