"""Images of a coreset as PNG files."""

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bdl_pipe import artifacts
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.shared.pictures import of_artifact, png, sheet


def pixels(image: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(image)))


def test_images_are_written_as_they_are() -> None:
    assert pixels(png(np.array([[[0.0, 1.0], [0.5, 7.0]]]))).tolist() == [[0, 255], [128, 255]]
    colour = np.zeros((3, 2, 2))
    colour[2] = 1
    assert pixels(png(colour))[0, 0].tolist() == [0, 0, 255]


def test_a_sheet_has_a_row_for_each_class_and_as_many_images_as_asked_for() -> None:
    images = np.array([0.0, 0.2, 0.4]).reshape(3, 1, 1, 1)
    shown = pixels(sheet(images, np.array([1, 0, 1]), 2, most=1))[::8, ::8]
    assert shown.tolist() == [[51], [0]]
    assert pixels(sheet(images, np.array([1, 0, 1]), 2))[::8, ::8].tolist() == [[51, 255], [0, 102]]


def test_a_stored_coreset_of_images_is_drawn_by_its_learned_labels(tmp_path: Path) -> None:
    images, labels = torch.tensor([0.0, 0.2, 0.4]), torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]])
    for name, raw in (("images", images.view(3, 1, 1, 1)), ("rows", images.view(3, 1))):
        with artifacts.publish(tmp_path / name, "coreset") as folder:
            artifacts.write_state(folder / "0-0", State({"raw": raw, "labels": labels}))
    drawn = of_artifact(tmp_path / "images")
    assert drawn is not None and pixels(drawn)[::8, ::8].tolist() == [[51, 255], [0, 102]]
    assert of_artifact(tmp_path / "rows") is None and of_artifact(tmp_path / "absent") is None
