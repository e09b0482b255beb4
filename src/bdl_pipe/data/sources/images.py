"""A user's images: a folder for each class, or an ``.npz`` with arrays."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ...config import LATER
from ...errors import DataError, brief, require
from ...files import require_file
from ..examples import Examples
from ..raw import Kind, OfPath, Raw, Task, encode_labels, relabel
from ..tables.formats import beginning, other_kind
from ..tables.forms import clean
from .folders import class_files, parts

_GREY: Final = ("1", "L")
_DEEP: Final = ("I", "F")  # prefixes of image modes with more than 8 bits


@dataclass(frozen=True)
class ImageFolder(OfPath):
    """A folder with one subfolder of images for each class, or with ``train/`` and ``test/`` that have such subfolders.

    Attributes:
        path: the folder.
        size: the side of the images in pixels: an image is scaled so that its shorter side has this size, then cut to a
            square around the middle. null: all images already have the same size.
        skip_broken: whether unreadable image files are skipped.
    """

    path: str
    size: int | None = field(default=None, metadata=LATER)
    skip_broken: bool = field(default=False, metadata=LATER)
    name: Literal["image_folder"] = "image_folder"
    kind: ClassVar[Kind] = "image"
    task: ClassVar[Task] = "classification"

    def __post_init__(self) -> None:
        require(self.size is None or self.size > 0, "size", "must be > 0 or null", self.size)

    def read(self) -> Raw:
        """Read images uint8 [n, channel, height, width]: one channel if every file is grey, else three."""
        root = Path(self.path)
        if not root.is_dir():
            actual = "a file, must be a folder with a subfolder of images per class" if root.exists() else "missing"
            raise DataError(f"{root}: is {actual}")
        if not (split := parts(root)):
            examples, classes = self._class_folders(root)
            return Raw(self.path, "classification", "image", examples, None, classes)
        train, classes = self._class_folders(root / "train")
        if len(split) == 1:
            return Raw(self.path, "classification", "image", train, None, classes)
        test, names = self._class_folders(root / "test", train.inputs.shape[1:])
        return Raw(self.path, "classification", "image", train, relabel(test, names, classes, self.path), classes)

    def _class_folders(self, root: Path, shape: tuple[int, ...] | None = None) -> tuple[Examples, tuple[str, ...]]:
        files = class_files(root)
        if self.skip_broken:
            files = {folder: [path for path in paths if broken(path) is None] for folder, paths in files.items()}
            for folder, paths in files.items():
                if not paths:
                    raise DataError(f"{folder}: must hold a readable image, got none")
        labels = np.repeat(np.arange(len(files)), [len(f) for f in files.values()]).astype(np.int64)
        images = read_images([path for paths in files.values() for path in paths], shape, resize=self.size)
        return Examples(images, labels), tuple(clean(f.name) for f in files)


@dataclass(frozen=True)
class Npz(OfPath):
    """An ``.npz`` with uint8 images and labels: x, y, or x_train, y_train, x_test, y_test."""

    path: str
    name: Literal["npz"] = "npz"
    kind: ClassVar[Kind] = "image"
    task: ClassVar[Task] = "classification"

    def read(self) -> Raw:
        """Read ``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test``; x as in :func:`image_array`."""
        arrays = open_npz(Path(self.path))
        if "x_train" not in arrays:
            examples, classes = _labelled(arrays, "x", "y", self.path)
            return Raw(self.path, "classification", "image", examples, None, classes, (), ("y",))
        train, classes = _labelled(arrays, "x_train", "y_train", self.path)
        test, names = _labelled(arrays, "x_test", "y_test", self.path)
        if test.inputs.shape[1:] != train.inputs.shape[1:]:
            shapes = f"{list(test.inputs.shape[1:])} and {list(train.inputs.shape[1:])}"
            raise DataError(f"{self.path}: x_test and x_train must have images of one shape, got {shapes}")
        test = relabel(test, names, classes, self.path)
        return Raw(self.path, "classification", "image", train, test, classes, (), ("y_train",))


def open_npz(path: Path) -> Mapping[str, np.ndarray]:
    """Read all arrays of an ``.npz``; pickled objects are refused."""
    require_file(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # archive and header readers raise any exception
        if "allow_pickle" in str(error):
            cure = "save texts with .astype(str), and images of one shape in one array"
            raise DataError(f"{path}: holds Python objects, which are never unpickled; {cure}") from None
        raise DataError(f"{path}: is not a readable .npz of plain arrays ({brief(error)})") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # a member without an array header
            raise DataError(f"{path}: is not a readable .npz of plain arrays ({brief(name)} is none)")
    return arrays


def image_array(values: np.ndarray, origin: str, name: str) -> np.ndarray:
    """Convert uint8 [n, h, w], [n, h, w, c] or [n, c, h, w], c 1 or 3, to [n, c, h, w]; [n, h, w, c] is tried first."""
    if values.dtype != np.uint8:
        advice = ""
        if values.dtype.kind in "buif" and values.size:
            low, high = float(values.min()), float(values.max())
            scaled = f"(255 * {name}).round()" if high <= 1 else f"{name}.round()" if values.dtype.kind == "f" else name
            cure = f"save {scaled}.astype(np.uint8)" if low >= 0 and high <= 255 else "scale it to 0…255"  # or NaN
            advice = f" from {low:g} to {high:g}; {cure}"
        raise DataError(f"{origin}: array {name!r} must be uint8 images, got {values.dtype}{advice}")
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[3] in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    elif values.ndim != 4 or values.shape[1] not in (1, 3):
        rule = "must have shape [n, height, width], [n, height, width, 1 or 3] or [n, 1 or 3, height, width]"
        cure = f"; drop the fourth channel: {name}[..., :3]" if values.ndim == 4 and values.shape[3] == 4 else ""
        raise DataError(f"{origin}: array {name!r} {rule}, got {list(values.shape)}{cure}")
    if 0 in values.shape[1:]:
        raise DataError(f"{origin}: array {name!r} must have images of at least one pixel, got {list(values.shape)}")
    return np.ascontiguousarray(values)


def broken(path: Path) -> DataError | None:
    """Return the error of an unreadable image file; None for a readable image."""
    try:
        _open(path)
    except DataError as error:
        return error
    return None


def read_images(files: list[Path], shape: tuple[int, ...] | None = None, *, resize: int | None = None) -> np.ndarray:
    """Read images as uint8 [n, channel, height, width]; photographs are turned upright (:func:`_upright`).

    Args:
        shape: the required (channel, height, width). None: the size of the first image, with one channel if every file
            is grey, else three.
        resize: the side in pixels to which images are resized first. None: they are not resized.

    Raises:
        DataError: a file is unreadable or has another size.
    """
    opened = [_open(path, resize) for path in files]
    grey = shape[0] == 1 if shape else all(image.mode in _GREY for image in opened)
    size = (shape[2], shape[1]) if shape else opened[0].size
    for path, image in zip(files, opened, strict=True):
        if image.mode.startswith(_DEEP):
            raise DataError(f"{path}: every image must have 8 bits a channel, got mode {image.mode}; write it with 8")
        if image.size != size:
            got = f"{image.size[0]}×{image.size[1]}"
            raise DataError(f"{path}: every image must be {size[0]}×{size[1]} pixels, got {got}")
    arrays = np.stack([np.asarray(image.convert("L" if grey else "RGB")) for image in opened])
    return np.ascontiguousarray(arrays[:, None] if grey else arrays.transpose(0, 3, 1, 2))


def _open(path: Path, resize: int | None = None) -> Image.Image:
    try:
        # opened as a file, because Pillow 13 garbles a rotated uncompressed TIFF that it memory-maps from a path
        with Image.open(io.BytesIO(path.read_bytes())) as opened:
            opened.load()
            image = on_white(_upright(opened))
            if resize is None or image.mode.startswith(_DEEP):
                return image.copy()
            plain = image.convert("L" if image.mode in _GREY else "RGB")
            return ImageOps.fit(plain, (resize, resize), Image.Resampling.BICUBIC)
    except UnidentifiedImageError:
        raise DataError(f"{path}: is not a readable image ({_what(path)})") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: is not a readable image ({brief(error)})") from None


def on_white(image: Image.Image) -> Image.Image:
    """Return an image on a white background, as viewers show it; the colours of transparent pixels are arbitrary."""
    if not image.has_transparency_data or image.mode.startswith(_DEEP):
        return image
    layers = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return layers.convert("L" if image.mode in ("1", "L", "LA", "La") else "RGB")


def _what(path: Path) -> str:
    """Describe a file that Pillow cannot open."""
    start = beginning(path)
    if not start:
        return "it is empty"
    if start[4:8] == b"ftyp":
        return f"it is a film or a {start[8:12].decode('latin-1').upper()} image; convert it to PNG or JPEG"
    if b"<svg" in start:
        return "it is SVG; convert it to PNG"
    kind = other_kind(start, path.name)
    return f"it {kind}" if kind else "its bytes are not an image format's"


def _upright(image: Image.Image) -> Image.Image:
    """Return an image rotated and mirrored by its EXIF orientation tag, if it has one, as viewers show it."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a damaged tag, which viewers ignore; its reader raises any exception
        return image


def _labelled(arrays: Mapping[str, np.ndarray], x: str, y: str, origin: str) -> tuple[Examples, tuple[str, ...]]:
    for name in (x, y):
        if name not in arrays:
            names = ", ".join(sorted(arrays)) or "none"
            usual = "x and y, or x_train, y_train, x_test and y_test"
            raise DataError(f"{origin}: must have the array {name!r}, got {names}; save the arrays as {usual}")
    images, labels = image_array(arrays[x], origin, x), arrays[y]
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.shape != (len(images),):
        cure = f"; of one column a class: {y}.argmax(1)" if labels.ndim == 2 and len(labels) == len(images) else ""
        raise DataError(f"{origin}: array {y!r} must have shape [{len(images)}], got {list(labels.shape)}{cure}")
    if labels.dtype.kind == "U":
        labels = np.array([clean(label) for label in labels.tolist()])
        if not all(labels):
            row = int(np.argmax(labels == "")) + 1
            raise DataError(f"{origin}: array {y!r} must have a text in every row, got none in row {row}")
    codes, classes = encode_labels(labels, origin, y)
    return Examples(images, codes), classes


def unread_arrays(path: Path) -> list[str]:
    """List the arrays of an ``.npz`` that :class:`Npz` does not read."""
    with np.load(path, allow_pickle=False) as file:
        read = ("x_train", "y_train", "x_test", "y_test") if "x_train" in file.files else ("x", "y")
        return sorted({*file.files} - {*read})
