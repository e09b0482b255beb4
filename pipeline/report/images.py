"""The coresets' images, as they look to a person: in [0, 1], un-whitened, grouped by learned label."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError

SHOWN: Final = 10  # A row shows at most this many images of a class.


@dataclass(frozen=True)
class CoresetInfo:
    """An entry of ``coresets`` and the places of its artifact and its record.

    Attributes:
        classes: the classes' names, if known.
    """

    key: str
    dataset: str
    method: str
    path: Path
    classes: tuple[str, ...] = ()
    record: Path | None = None

    @property
    def is_absent(self) -> bool:
        """Say whether there is no such artifact."""
        return not (self.path / artifacts.MANIFEST).is_file()


def gallery(coreset: CoresetInfo) -> dict[str, Any] | None:
    """Return the first seed's images for the page; None for a coreset that is absent or not of images.

    ``rows`` has for each class its name, its first images as (data URI, value of the label's top entry), and how many
    more there are. ``flow``: no class has two images, so that one line shows them all.
    """
    first = None if coreset.is_absent else _first(coreset)
    if first is None:
        return None
    images, labels, seeds = first
    top, rows = labels.argmax(1), []
    for label in range(labels.shape[1]):
        own = np.flatnonzero(top == label)
        shown = [(_uri(images[i]), f"{labels[i].max():.2f}") for i in own[:SHOWN]]
        name = coreset.classes[label] if label < len(coreset.classes) else f"class {label}"
        rows.append((name, shown, len(own) - len(shown)))
    about = f"{len(images)} images" + (f", the first of {seeds} seeds" if seeds > 1 else "")
    return {"about": about, "rows": rows, "flow": np.bincount(top).max() == 1}


def per_class(coreset: CoresetInfo) -> int | None:
    """Count the rows of the first seed that started from one class, the most of any; None without the coreset."""
    if coreset.is_absent:
        return None
    folder = artifacts.load(coreset.path, "coreset")
    names = _members(folder)
    tensors = folder.open(names[0]).tensors if names else {}
    return int(tensors["classes"].bincount().max()) if "classes" in tensors else None


def picture(coreset: CoresetInfo) -> bytes:
    """Draw the first seed's images as one PNG, a row for each class, magnified; empty if there are none."""
    first = None if coreset.is_absent else _first(coreset)
    if first is None:
        return b""
    images, labels, _ = first
    return sheet(images, labels.argmax(1), labels.shape[1], SHOWN)


def sheet(images: np.ndarray, classes: np.ndarray, count: int, most: int | None = None) -> bytes:
    """Draw images [n, c, h, w] as one PNG, a row for each of ``count`` classes, ``most`` in a row, magnified."""
    rows = [np.flatnonzero(classes == k)[:most] for k in range(count)]
    channels, height, width = images.shape[1:]
    whole = np.ones((channels, len(rows) * (height + 1), max(map(len, rows)) * (width + 1)), dtype=np.float32)
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            top, left = i * (height + 1), j * (width + 1)
            whole[:, top : top + height, left : left + width] = images[number]
    return png(whole.repeat(4, 1).repeat(4, 2))


def png(image: np.ndarray) -> bytes:
    """Encode an image [c, h, w] in [0, 1] (cut off beyond) as PNG, one pixel a pixel."""
    pixels = np.rint(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    shown = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels[:3], 0, -1)
    buffer = io.BytesIO()
    Image.fromarray(shown).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _first(coreset: CoresetInfo) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Read images and labels of the first seed, and count the seeds that have images; None where none has."""
    folder = artifacts.load(coreset.path, "coreset")
    states = {name: folder.state(name).tensors for name in _members(folder)}
    found = [name for name, tensors in states.items() if {"raw", "labels"} <= tensors.keys()]
    if not found:
        return None
    images, labels = (states[found[0]][k].float().numpy() for k in ("raw", "labels"))
    if images.ndim != 4 or len(images) != len(labels):
        rule = "raw must be [n, c, h, w], labels [n, k]"
        raise ArtifactError(f"{coreset.path}/{found[0]}: {rule}; got {images.shape} and {labels.shape}")
    return images, labels, len(found)


def _members(folder: artifacts.Artifact) -> list[str]:
    """List the names ``<split>-<seed>`` of an artifact's states, in their order."""
    parts = {name: name.split("-") for name in folder.names()}
    members = [name for name, two in parts.items() if len(two) == 2 and all(part.isdigit() for part in two)]
    return sorted(members, key=lambda name: tuple(map(int, parts[name])))


def _uri(image: np.ndarray) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"
