"""Smaller variants of ImageNet, from their authors' archives or from a folder with an archive's content.

- ``tiny_imagenet``: ``tiny-imagenet-200.zip`` (Stanford's CS231n): 200 classes, 64×64, 500 training images per class;
  the 50 labelled validation images per class are the test rows, as in the literature.
- ``imagewoof``: ``imagewoof2*.tgz`` (fast.ai): 10 breeds of dogs, images of any size in ``train/`` and ``val/``.
- ``imagenet_npz``: the downsampled ImageNet of Chrabaszcz et al. 2017, ``train_data_batch_1.npz`` … and
  ``val_data.npz`` in a folder; the other release is pickled Python, which is not read.

You must download them yourself, since they may not be redistributed. There are no checksums; the content is checked.
"""

import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Final, Literal

import numpy as np
from PIL import Image

from ...errors import DataError, brief, require
from ..examples import Examples
from ..raw import Kind, OfPath, Raw, Task
from .folders import SUFFIXES, is_hidden
from .images import open_npz

_TINY_SIDE: Final = 64
_BATCH: Final = re.compile(r"train_data_batch_(\d+)\.npz")


@dataclass(frozen=True)
class TinyImageNet(OfPath):
    """Tiny-ImageNet: ``path`` is its zip file, or the folder ``tiny-imagenet-200`` in it."""

    path: str
    name: Literal["tiny_imagenet"] = "tiny_imagenet"
    kind: ClassVar[Kind] = "image"
    task: ClassVar[Task] = "classification"

    def read(self) -> Raw:
        """Read images uint8 [n, 3, 64, 64]; classes are the words of ``words.txt``, in the order of ``wnids.txt``."""
        with _unpacked(Path(self.path)) as root:
            ids, words = (_text(root, name, self.path) for name in ("wnids.txt", "words.txt"))
            classes = ids.split()
            if len({*classes}) < len(classes):
                twice = next(name for name in classes if classes.count(name) > 1)
                raise DataError(f"{self.path}: wnids.txt: must not name a class twice, got {twice}")
            titles = dict(line.split("\t", 1) for line in words.splitlines() if "\t" in line)
            annotations = _text(root, "val/val_annotations.txt", self.path).splitlines()
            lines = (line.split("\t") for line in annotations if "\t" in line)
            labels = {f"val/images/{line[0]}": line[1] for line in lines}
            train = {name: name.split("/")[1] for name in _images(root, "train", self.path) if "/images/" in name}
            test = {name: labels.get(name, "") for name in _images(root, "val", self.path)}
            for name, label in (train | test).items():
                if label not in classes:
                    raise DataError(f"{self.path}: {name}: must have a label of wnids.txt, got {label!r}")
            training, held = (_examples(root, part, classes, _TINY_SIDE, self.path) for part in (train, test))
        names = tuple(titles.get(name, name) for name in classes)
        return Raw(self.path, "classification", "image", training, held, names)


@dataclass(frozen=True)
class ImageWoof(OfPath):
    """ImageWoof, or ImageNette: ``path`` is its ``.tgz`` file, or the folder in it.

    Attributes:
        side: the side of the square images in pixels: an image is scaled so that its shorter side has this size, then
            cut to a square around the middle.
    """

    path: str
    side: int = 64
    name: Literal["imagewoof"] = "imagewoof"
    kind: ClassVar[Kind] = "image"
    task: ClassVar[Task] = "classification"

    def __post_init__(self) -> None:
        require(self.side > 0, "side", "must be > 0", self.side)

    def read(self) -> Raw:
        """Read images uint8 [n, 3, side, side]; classes are named after their folders; ``val/`` holds the test rows."""
        with _unpacked(Path(self.path)) as root:
            names = [[n for n in _images(root, part, self.path) if n.count("/") == 2] for part in ("train", "val")]
            train, test = ({name: name.split("/")[1] for name in part} for part in names)
            classes = sorted({*train.values()})
            for name, label in test.items():
                if label not in classes:
                    raise DataError(f"{self.path}: {name}: must be of a class that train/ has ({', '.join(classes)})")
            training, held = (
                _examples(root, part, classes, self.side, self.path, resize=True) for part in (train, test)
            )
        return Raw(self.path, "classification", "image", training, held, tuple(classes))


@dataclass(frozen=True)
class ImageNetNpz(OfPath):
    """The downsampled ImageNet as ``.npz`` files in the folder ``path``.

    Attributes:
        side: the side of the images, 8, 16, 32 or 64.
    """

    path: str
    side: int = 64
    name: Literal["imagenet_npz"] = "imagenet_npz"
    kind: ClassVar[Kind] = "image"
    task: ClassVar[Task] = "classification"

    def __post_init__(self) -> None:
        require(self.side in (8, 16, 32, 64), "side", "must be 8, 16, 32 or 64", self.side)

    def read(self) -> Raw:
        """Read images uint8 [n, 3, side, side]; labels 1 … 1000 become classes 0 … 999."""
        folder = Path(self.path)
        names = {int(match[1]): p for p in sorted(folder.glob("*.npz")) if (match := _BATCH.fullmatch(p.name))}
        if not names or sorted(names) != list(range(1, len(names) + 1)):
            raise DataError(f"{folder}: must hold train_data_batch_1.npz, …_2.npz, …, got {sorted(names)}")
        counts = [self._rows(names[number]) for number in sorted(names)]
        images = np.empty((sum(counts), 3, self.side, self.side), np.uint8)
        targets = np.empty(len(images), np.int64)
        begin = 0
        for number in sorted(names):  # one batch at a time, because all together are 16 GB
            batch = self._batch(names[number])
            images[begin : begin + len(batch)] = batch.inputs
            targets[begin : begin + len(batch)] = batch.targets
            begin += len(batch)
        train, test = Examples(images, targets), self._batch(folder / "val_data.npz")
        count = int(train.targets.max(initial=-1)) + 1
        if test.targets.max(initial=-1) >= count:
            got = int(test.targets.max()) + 1
            raise DataError(
                f"{folder / 'val_data.npz'}: labels must be among the training rows' 1 … {count}, got {got}"
            )
        return Raw(self.path, "classification", "image", train, test, tuple(str(number + 1) for number in range(count)))

    def _rows(self, path: Path) -> int:
        """Return the number of a batch's labels; an ``.npz`` reads only the accessed array."""
        try:
            with np.load(path, allow_pickle=False) as file:
                return len(file["labels"]) if "labels" in file.files else 0
        except Exception as error:  # archive and header readers raise any exception
            raise DataError(f"{path}: is not a readable .npz of plain arrays ({brief(error)})") from None

    def _batch(self, path: Path) -> Examples:
        arrays = open_npz(path)
        for name in ("data", "labels"):
            if name not in arrays:
                raise DataError(f"{path}: must have the array {name!r}, got {', '.join(sorted(arrays)) or 'none'}")
        data, labels = arrays["data"], arrays["labels"]
        if data.dtype != np.uint8 or data.shape != (len(labels), 3 * self.side**2):
            rule = f"uint8 [{len(labels)}, {3 * self.side**2}]"
            raise DataError(f"{path}: array 'data' must be {rule}, got {data.dtype} {list(data.shape)}")
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or (len(labels) and labels.min() < 1):
            raise DataError(f"{path}: array 'labels' must be whole numbers from 1 on, got {brief(labels[:5])}")
        return Examples(data.reshape(-1, 3, self.side, self.side), labels.astype(np.int64) - 1)


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Yield the top folder of a zip, a tar or a folder; an archive is unpacked into a temporary folder.

    Raises:
        DataError: there is no such file, or the archive is damaged.
    """
    with TemporaryDirectory(prefix="bdl-archive-") as place:
        root = path if path.is_dir() else Path(place)
        if root != path:
            _unpack(path, place)
        visible = [entry for entry in root.iterdir() if not is_hidden(entry)]
        yield visible[0] if len(visible) == 1 and visible[0].is_dir() else root


def _unpack(path: Path, place: str) -> None:
    if not path.is_file():
        raise DataError(f"{path}: is missing; it must be an archive, or a folder of its contents")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(place)
        else:
            with tarfile.open(path) as tar:
                _extract(tar, Path(place))
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise DataError(f"{path}: is truncated or not an archive ({brief(error)})") from None


def _extract(tar: tarfile.TarFile, place: Path) -> None:
    """Extract files and folders that end inside ``place``, by tarfile's own filter from Python 3.11.4 on."""
    if hasattr(tarfile, "data_filter"):
        tar.extractall(place, filter="data")
        return
    for member in tar.getmembers():
        inside = (place / member.name).resolve().is_relative_to(place.resolve())
        if not inside or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is no file below the archive's folder")
    tar.extractall(place)


def _text(root: Path, name: str, origin: str) -> str:
    if not (root / name).is_file():
        raise DataError(f"{origin}: must have the file {name}")
    return (root / name).read_text(encoding="utf-8", errors="replace")


def _images(root: Path, part: str, origin: str) -> list[str]:
    """List the images below the folder ``part`` of ``root``, by their names below ``root``."""
    files = (p for p in (root / part).rglob("*") if p.name.lower().endswith(SUFFIXES) and not is_hidden(p))
    names = sorted(file.relative_to(root).as_posix() for file in files)
    if not names:
        raise DataError(f"{origin}: must hold images in {part}/, got none")
    return names


def _examples(
    root: Path, labels: Mapping[str, str], classes: Sequence[str], side: int, origin: str, *, resize: bool = False
) -> Examples:
    """Read the images of ``labels`` (name -> class) as uint8 [n, 3, side, side]; of this size, or resized to it."""
    images = np.empty((len(labels), 3, side, side), np.uint8)
    for number, name in enumerate(labels):
        try:
            with Image.open(root / name) as opened:
                image = opened.convert("RGB")  # some images are grey, a few are CMYK
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{origin}: {name}: is not a readable image ({brief(error)})") from None
        if resize:
            shorter = min(image.size)
            wide, high = (max(side, round(length * side / shorter)) for length in image.size)
            left, top = (wide - side) // 2, (high - side) // 2
            whole = image.resize((wide, high), Image.Resampling.BICUBIC)
            image = whole.crop((left, top, left + side, top + side))
        if image.size != (side, side):
            raise DataError(f"{origin}: {name}: must be {side}×{side} pixels, got {image.size[0]}×{image.size[1]}")
        images[number] = np.asarray(image).transpose(2, 0, 1)
    numbers = {name: number for number, name in enumerate(classes)}
    return Examples(images, np.array([numbers[label] for label in labels.values()], np.int64))
