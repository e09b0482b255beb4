"""Smaller variants of ImageNet, from their authors' archives or from a folder with an archive's content.

- ``tiny_imagenet``: ``tiny-imagenet-200.zip`` (Stanford's CS231n): 200 classes, 64×64, 500 training images per class;
  the 50 labelled validation images per class are the test rows, as in the literature.
- ``imagewoof``: ``imagewoof2*.tgz`` (fast.ai): 10 breeds of dogs, images of any size in ``train/`` and ``val/``.
- ``imagenet_npz``: the downsampled ImageNet of Chrabaszcz et al. 2017, ``train_data_batch_1.npz`` … and
  ``val_data.npz`` in a folder; the other release is pickled Python, which is not read.

You must download them yourself, since they may not be redistributed. There are no checksums; the content is checked.
"""

import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

import numpy as np
from PIL import Image

from ...errors import DataError, brief, require
from ..examples import Examples
from ..raw import Kind, OfPath, Raw, Task
from .folders import SUFFIXES
from .images import open_npz

_TINY_SIDE: Final = 64
_Contents = Callable[[Sequence[str]], Iterable[tuple[str, bytes]]]  # names -> (name, bytes), in any order
_BATCH: Final = re.compile(r"train_data_batch_(\d+)\.npz")


@dataclass(frozen=True)
class TinyImageNet(OfPath):
    """Tiny-ImageNet: ``path`` is its zip file, or the folder ``tiny-imagenet-200`` in it."""

    path: str
    name: Literal["tiny_imagenet"] = "tiny_imagenet"
    kind: ClassVar[Kind] = "image"
    task: ClassVar[Task] = "classification"

    def read(self) -> Raw:
        """Read images uint8 [n, 3, 64, 64]; classes are the words of ``words.txt``, in the order of ``wnids.txt``.

        Raises:
            DataError: a file is missing, unreadable or of another size, or an image has no label.
        """
        with _members(Path(self.path)) as members:
            ids = members.text("wnids.txt").split()
            numbers = {name: number for number, name in enumerate(ids)}
            if len(numbers) < len(ids):
                twice = next(name for name in ids if ids.count(name) > 1)
                raise DataError(f"{self.path}: wnids.txt: must not name a class twice, got {twice}")
            words = dict(line.split("\t", 1) for line in members.text("words.txt").splitlines() if "\t" in line)
            annotations = members.text("val/val_annotations.txt").splitlines()
            lines = (line.split("\t") for line in annotations if "\t" in line)
            labels = {f"val/images/{line[0]}": line[1] for line in lines}
            train = {name: name.split("/")[1] for name in members.images("train") if "/images/" in name}
            test = {name: labels.get(name, "") for name in members.images("val")}
            for name, label in (train | test).items():
                if label not in numbers:
                    raise DataError(f"{self.path}: {name}: must have a label of wnids.txt, got {label!r}")
            sets = [members.read(list(part), _TINY_SIDE, None) for part in (train, test)]
        targets = [np.array([numbers[label] for label in part.values()], np.int64) for part in (train, test)]
        training, held = (Examples(images, rows) for images, rows in zip(sets, targets, strict=True))
        return Raw(self.path, "classification", "image", training, held, tuple(words.get(i, i) for i in ids))


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
        """Read images uint8 [n, 3, side, side]; classes are named after their folders; ``val/`` holds the test rows.

        Raises:
            DataError: a folder is missing or an image is unreadable.
        """
        with _members(Path(self.path)) as members:
            parts = [[n for n in members.images(part) if n.count("/") == 2] for part in ("train", "val")]
            classes = sorted({name.split("/")[1] for name in parts[0]})
            numbers = {name: number for number, name in enumerate(classes)}
            for name in parts[1]:
                if name.split("/")[1] not in numbers:
                    raise DataError(f"{self.path}: {name}: must be of a class that train/ has ({', '.join(classes)})")
            training, held = (
                Examples(
                    members.read(part, self.side, self.side),
                    np.array([numbers[name.split("/")[1]] for name in part], np.int64),
                )
                for part in parts
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
        """Read images uint8 [n, 3, side, side]; labels 1 … 1000 become classes 0 … 999.

        Raises:
            DataError: a file is missing or damaged, or its arrays are of another type or shape.
        """
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


class _Members:
    """The files of an archive or a folder, by their path below its top folder."""

    def __init__(self, origin: Path, names: dict[str, str], contents: _Contents) -> None:
        self._origin, self._names, self._contents = origin, names, contents

    def text(self, name: str) -> str:
        """Read a text file."""
        if name not in self._names:
            raise DataError(f"{self._origin}: must have the file {name}")
        (blob,) = (blob for _, blob in self._contents([self._names[name]]))
        return blob.decode("utf-8", "replace")

    def images(self, part: str) -> list[str]:
        """List the images below the folder ``part``, by name."""
        below = f"{part}/"
        names = sorted(n for n in self._names if n.startswith(below) and n.lower().endswith(SUFFIXES))
        if not names:
            raise DataError(f"{self._origin}: must hold images in {below}, got none")
        return names

    def read(self, names: Sequence[str], side: int, resize: int | None) -> np.ndarray:
        """Read images as uint8 [n, 3, side, side], one after another; resized to ``resize`` if it is given."""
        place = {self._names[name]: number for number, name in enumerate(names)}
        images = np.empty((len(names), 3, side, side), np.uint8)
        for name, blob in self._contents(list(place)):
            origin = f"{self._origin}: {name}"
            try:
                with Image.open(io.BytesIO(blob)) as opened:
                    image = opened.convert("RGB")  # some images are grey, a few are CMYK
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise DataError(f"{origin}: is not a readable image ({brief(error)})") from None
            if resize is not None:
                shorter = min(image.size)
                wide, high = (max(resize, round(length * resize / shorter)) for length in image.size)
                left, top = (wide - resize) // 2, (high - resize) // 2
                whole = image.resize((wide, high), Image.Resampling.BICUBIC)
                image = whole.crop((left, top, left + resize, top + resize))
            if image.size != (side, side):
                raise DataError(f"{origin}: must be {side}×{side} pixels, got {image.size[0]}×{image.size[1]}")
            images[place[name]] = np.asarray(image).transpose(2, 0, 1)
        return images


@contextmanager
def _members(path: Path) -> Iterator[_Members]:
    """Open a zip, a tar or a folder; raise DataError for a damaged archive, also during reading."""
    try:
        if path.is_dir():
            names = [str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()]
            yield _Members(path, _below(names), lambda wanted: ((n, (path / n).read_bytes()) for n in wanted))
        elif not path.is_file():
            raise DataError(f"{path}: is missing; it must be an archive, or a folder of its contents")
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = [info.filename for info in archive.infolist() if not info.is_dir()]
                yield _Members(path, _below(names), lambda wanted: ((n, archive.read(n)) for n in wanted))
        else:
            with tarfile.open(path) as tar:
                names = [member.name for member in tar if member.isfile()]
            yield _Members(path, _below(names), lambda wanted: _of_tar(path, set(wanted)))
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise DataError(f"{path}: is truncated or not an archive ({brief(error)})") from None


def _of_tar(path: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """Read members in the archive's order, because going back would unpack the archive again."""
    with tarfile.open(path, "r|*") as tar:
        for member in tar:
            if member.name in wanted and (file := tar.extractfile(member)) is not None:
                yield member.name, file.read()


def _below(names: Sequence[str]) -> dict[str, str]:
    """Map paths below the top folder, if any, to the archive's own names, without the files that macOS adds."""
    plain = {name: name.removeprefix("./") for name in names}
    kept = {name: p for name, p in plain.items() if not p.startswith("__MACOSX/") and "/._" not in f"/{p}"}
    cut = len({p.split("/")[0] for p in kept.values()}) == 1
    return {(p.split("/", 1)[1] if cut and "/" in p else p): name for name, p in kept.items()}
