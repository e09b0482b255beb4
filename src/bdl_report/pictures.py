"""Images of a coreset as PNG files, and a coreset as a folder that can be read without this library."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from PIL import Image
from safetensors.torch import save_file

from bdl_pipe.artifacts import MANIFEST, State, load
from bdl_pipe.coresets.shared.init import Coreset
from bdl_pipe.data.transform import Transform


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
    big: int = 4,
) -> bytes:
    """Draw images in [0, 1] as one PNG, a row for each of ``count`` classes, at most ``most`` in a row, magnified."""
    rows = [np.flatnonzero(classes == k)[:most] for k in range(count)]
    channels, height, width = images.shape[1:]
    whole = np.ones((channels, len(rows) * (height + 1), max(map(len, rows)) * (width + 1)), dtype=np.float32)
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            top, left = i * (height + 1), j * (width + 1)
            whole[:, top : top + height, left : left + width] = images[number]
    return png(whole.repeat(big, 1).repeat(big, 2))


def png(image: Float[np.ndarray, "channel height width"]) -> bytes:
    """Encode an image in [0, 1] (clipped) as PNG without scaling."""
    pixels = np.rint(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    shown = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels[:3], 0, -1)
    buffer = io.BytesIO()
    Image.fromarray(shown).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def write(folder: Path, state: State, transform: Transform, classes: Sequence[str]) -> None:
    """Write a coreset of images into an existing folder.

    ``coreset.safetensors`` has the exact tensors (``Coreset.TENSORS``). ``transform.json`` describes the images'
    transform, and ``whitening.safetensors`` has its matrices if they were whitened. ``images/<class>/<number>.png`` are
    the images before the transform, clipped to [0, 1], and ``sheet.png`` shows all images.

    Args:
        state: the state of a coreset of images, from ``Coreset.state``.
        transform: the transform of the coreset's data.
        classes: the classes' names, in the order of the labels.
    """
    tensors = {name: state.tensors[name].contiguous() for name in Coreset.TENSORS}
    save_file(tensors, folder / "coreset.safetensors")
    white = transform.whitening
    if white is not None:
        named = {"centre": white.centre, "matrix": white.matrix, "inverse": white.inverse}
        save_file({key: value.contiguous() for key, value in named.items()}, folder / "whitening.safetensors")
    forward, inverse = "x = (pixels - mean) / std for each channel", "pixels = x std + mean for each channel"
    if white is not None:
        forward += "; flat = x of one image as a row, channel by channel; x = (flat - centre) matrix"
        inverse = f"flat = x inverse + centre; {inverse}, with flat as x"
    about: dict[str, object] = {"classes": list(classes), "forward": forward, "inverse": inverse}
    about |= {"mean": transform.mean.tolist(), "std": transform.std.tolist(), "whitening": white is not None}
    (folder / "transform.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    raw, labels = tensors["raw"].float().numpy(), tensors["classes"].numpy()
    digits = len(str(len(raw) - 1))
    for number, (image, label) in enumerate(zip(raw, labels, strict=True)):
        place = folder / "images" / ("".join(c if c.isalnum() or c in "-_" else "_" for c in classes[label]) or "_")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:0{digits}}.png").write_bytes(png(image))
    (folder / "sheet.png").write_bytes(sheet(raw, labels, len(classes)))
