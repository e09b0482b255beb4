"""Images of a coreset as PNG files."""

import io
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from ...artifacts import MANIFEST, load


def of_artifact(folder: Path, most: int | None = None) -> bytes | None:
    """Draw a stored coreset's first seed as one PNG: the first ``most`` images of each class by learned label.

    Return None if the folder holds no artifact or no coreset of images.

    Raises:
        ArtifactError: the coreset is altered or truncated.
    """
    if not (folder / MANIFEST).is_file():
        return None
    artifact = load(folder, "coreset")
    tensors = artifact.state("0-0").tensors if "0-0" in artifact.names() else {}
    if "labels" not in tensors or "raw" not in tensors or tensors["raw"].ndim != 4:
        return None
    labels = tensors["labels"].float()
    return sheet(tensors["raw"].float().numpy(), labels.argmax(1).numpy(), labels.shape[1], most)


def sheet(
    images: Float[np.ndarray, "n channel height width"],
    classes: Int[np.ndarray, " n"],
    count: int,
    most: int | None = None,
) -> bytes:
    """Draw images in [0, 1] as one PNG, a row for each of ``count`` classes, at most ``most`` in a row, magnified."""
    rows = [np.flatnonzero(classes == k)[:most] for k in range(count)]
    channels, height, width = images.shape[1:]
    whole = np.ones((channels, len(rows) * (height + 1), max(map(len, rows)) * (width + 1)), dtype=np.float32)
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            top, left = i * (height + 1), j * (width + 1)
            whole[:, top : top + height, left : left + width] = images[number]
    return png(whole.repeat(4, 1).repeat(4, 2))


def png(image: Float[np.ndarray, "channel height width"]) -> bytes:
    """Encode an image in [0, 1] (clipped) as PNG without scaling."""
    pixels = np.rint(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    shown = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels[:3], 0, -1)
    buffer = io.BytesIO()
    Image.fromarray(shown).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
