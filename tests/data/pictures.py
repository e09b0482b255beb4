"""Pictures to corrupt: smooth shades with sharp-edged discs and stripes."""

from pathlib import Path

import numpy as np
from PIL import Image

from bdl_pipe.seeds import Seed


def pictures(number: int, channels: int, height: int = 32, width: int = 32) -> np.ndarray:
    """uint8 [number, channels, height, width], every one different, intensities from 30 to 220."""
    random = Seed(11).fold(number, channels, height, width).numpy()
    rows, columns = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)
    stack = np.empty((number, channels, height, width))
    for image in stack:
        centre, radius, waves = random.uniform(0.3, 0.7, 2), random.uniform(0.15, 0.3), random.uniform(4, 9)
        inside = (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < radius**2
        for channel in image:
            a, b, c = random.uniform(0.2, 0.8, 3)
            shade = a * rows + (1 - a) * columns
            stripes = c * (np.sin(waves * 6.28 * columns) > 0) + (1 - c) * np.ones_like(rows)
            channel[:] = 30 + 190 * np.where(inside, b * stripes, shade)
    return stack.round().astype(np.uint8)


def flat(number: int, channels: int, value: int, size: int = 32) -> np.ndarray:
    return np.full((number, channels, size, size), value, np.uint8)


def two_classes(root: Path, rows: int = 30) -> Path:
    """Write two classes, ``a`` and ``b``, of different grey images; those of class ``b`` are bright at the top."""
    random = np.random.default_rng(0)
    for number in range(2 * rows):
        pixels = random.integers(0, 100, (6, 6), dtype=np.uint8)
        pixels[:3] += np.uint8(100 * (number % 2))
        path = root / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return root
