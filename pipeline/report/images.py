"""The coresets' images, as they look to a person: in [0, 1], un-whitened, grouped by learned label."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError

SHOWN: Final = 10  # images of a class


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


def section(coreset: CoresetInfo) -> str:
    """Show the first seed's images, one row a class, each under its top label's value."""
    if not (coreset.path / artifacts.MANIFEST).is_file():
        return f'<h4>{escape(coreset.key)}</h4><p class="note">— no result: this coreset is absent</p>'
    first = _first(coreset)
    if first is None:
        return ""  # rows of features: nothing to look at
    images, labels, seeds = first
    total = f"{len(images)} images" + (f", the first of {seeds} seeds" if seeds > 1 else "")
    return f"<h4>{escape(coreset.key)} <small>{total}</small></h4>{_rows(images, labels, coreset)}"


def per_class(coreset: CoresetInfo) -> int | None:
    """Count the rows of the first seed that started from one class, the most of any; None without the coreset."""
    if not (coreset.path / artifacts.MANIFEST).is_file():
        return None
    folder = artifacts.load(coreset.path, "coreset")
    names = sorted((n for n in folder.names() if _member(n)), key=_member)
    tensors = folder.open(names[0]).tensors if names else {}
    return int(tensors["classes"].bincount().max()) if "classes" in tensors else None


def picture(coreset: CoresetInfo) -> bytes:
    """Draw the first seed's images side by side as PNG, a row for each class, magnified; empty where there are none."""
    first = _first(coreset) if (coreset.path / artifacts.MANIFEST).is_file() else None
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


def _first(coreset: CoresetInfo) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Read images and labels of the first seed, and count the seeds that have images; None where none has."""
    folder = artifacts.load(coreset.path, "coreset")
    names = sorted((n for n in folder.names() if _member(n)), key=_member)
    states = {name: folder.state(name).tensors for name in names}
    found = [n for n in names if {"raw", "labels"} <= states[n].keys()]
    if not found:
        return None
    images, labels = (states[found[0]][k].float().numpy() for k in ("raw", "labels"))
    if images.ndim != 4 or len(images) != len(labels):
        rule = "raw must be [n, c, h, w], labels [n, k]"
        raise ArtifactError(f"{coreset.path}/{found[0]}: {rule}; got {images.shape} and {labels.shape}")
    return images, labels, len(found)


def _member(name: str) -> tuple[int, ...]:
    parts = name.split("-")
    return tuple(map(int, parts)) if len(parts) == 2 and all(p.isdigit() for p in parts) else ()


def _rows(images: np.ndarray, labels: np.ndarray, coreset: CoresetInfo) -> str:
    top = labels.argmax(1)
    if np.bincount(top).max() == 1:  # a row a class would be mostly empty
        order = np.argsort(top, kind="stable")
        flow = (_image(images[i], labels[i], _name(coreset, top[i]), titled=True) for i in order)
        return f'<div class="scroll images flow">{"".join(flow)}</div>'
    rows = []
    for k in range(labels.shape[1]):
        which = np.flatnonzero(top == k)
        name = _name(coreset, k)
        cells = "".join(_image(images[i], labels[i], name) for i in which[:SHOWN])
        rest = f'<span class="rest">+ {len(which) - SHOWN}</span>' if len(which) > SHOWN else ""
        rows.append(f'<tr><th scope="row">{escape(name)}</th><td>{cells or "—"}{rest}</td></tr>')
    return f'<div class="scroll"><table class="images">{"".join(rows)}</table></div>'


def _name(coreset: CoresetInfo, k: int) -> str:
    return coreset.classes[k] if k < len(coreset.classes) else f"class {k}"


def _image(image: np.ndarray, label: np.ndarray, name: str, *, titled: bool = False) -> str:
    value = f"{label.max():.2f}"
    source = base64.b64encode(png(image)).decode()
    alt = escape(f"coreset image, top label {name} at {value}", quote=True)
    below = f"{escape(name)} {value}" if titled else value
    return f'<figure><img src="data:image/png;base64,{source}" alt="{alt}"><figcaption>{below}</figcaption></figure>'


def png(image: np.ndarray) -> bytes:
    """Encode an image [c, h, w] in [0, 1] (cut off beyond) as PNG, one pixel a pixel."""
    pixels = np.rint(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    shown = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels[:3], 0, -1)
    buffer = io.BytesIO()
    Image.fromarray(shown).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def of(coresets: Sequence[CoresetInfo], dataset: str) -> list[str]:
    """Return the sections of the coresets of a data set, without those that have nothing to show."""
    return [html for c in coresets if c.dataset == dataset and (html := section(c))]
