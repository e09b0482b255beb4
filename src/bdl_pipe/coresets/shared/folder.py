"""Export of a coreset as a folder that can be read without this library: tensors, images and the transform."""

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file

from ...artifacts import State
from ...data.transform import Transform
from .init import Coreset
from .pictures import png, sheet


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
    about = {"classes": list(classes), **_described(transform)}
    (folder / "transform.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    raw, labels = tensors["raw"].float().numpy(), tensors["classes"].numpy()
    digits = len(str(len(raw) - 1))
    for number, (image, label) in enumerate(zip(raw, labels, strict=True)):
        place = folder / "images" / _file_name(classes[label])
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:0{digits}}.png").write_bytes(png(image))
    (folder / "sheet.png").write_bytes(sheet(raw, labels, len(classes)))


def _described(transform: Transform) -> dict[str, object]:
    """Describe the transform of images and its inverse."""
    forward, inverse = "x = (pixels - mean) / std for each channel", "pixels = x std + mean for each channel"
    if transform.whitening is not None:
        forward += "; flat = x of one image as a row, channel by channel; x = (flat - centre) matrix"
        inverse = f"flat = x inverse + centre; {inverse}, with flat as x"
    constants = {"mean": transform.mean.tolist(), "std": transform.std.tolist()}
    return {"forward": forward, "inverse": inverse, **constants, "whitening": transform.whitening is not None}


def _file_name(label: str) -> str:
    """Return a class's name as a folder name: letters, digits, ``-`` and ``_``."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in label) or "_"
