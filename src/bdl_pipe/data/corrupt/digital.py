"""Elastic deformation, pixelation and JPEG compression."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
from PIL import Image

from . import filters
from .streams import Streams


def elastic_transform(images: np.ndarray, strength: tuple[float, float, float], streams: Streams) -> np.ndarray:
    """Apply a random affine map, then a smooth random displacement of each pixel (Simard et al. 2003).

    Displacements are white noise, uniform in (−1, 1), smoothed and scaled. For other image sizes they are scaled so
    that their size relative to the image is the same as for 32×32.
    """
    height, width = images.shape[-2:]
    side, scale = min(height, width), filters.scale_of(images)
    moved = _affine(images, strength[2] * side, streams)
    noise = streams.uniform(-1.0, 1.0, 2, height, width)
    if strength[0] == 0:
        return moved
    sigma = strength[1] * 32
    as_at_32 = filters.kept_deviation(sigma, 3.0) / filters.kept_deviation(sigma * scale, 3.0)
    shift = filters.gaussian(noise, sigma * scale, "reflect", 3.0) * np.float32(strength[0] * side * as_at_32)
    rows, columns = np.arange(height)[:, None] + shift[:, 0], np.arange(width) + shift[:, 1]
    return filters.sample(moved, filters.reflected(rows, height), filters.reflected(columns, width))


def _affine(images: np.ndarray, reach: float, streams: Streams) -> np.ndarray:
    """Move three corners of a central square by up to ``reach`` in x and in y; edges are mirrored."""
    height, width = images.shape[-2:]
    arm = min(height, width) // 3
    corners = np.array([height // 2, width // 2]) + arm * np.array([[1, 1], [1, -1], [-1, -1]])  # [corner, (row, col)]
    moved = corners + streams.uniform(-reach, reach, 3, 2).astype(np.float64)
    ones = np.ones((*moved.shape[:2], 1))
    back = np.linalg.solve(np.concatenate([moved, ones], 2), np.broadcast_to(corners, moved.shape))  # [image, 3, 2]
    grid = np.mgrid[:height, :width].astype(np.float64)
    rows, columns = (
        back[:, 0, k, None, None] * grid[0] + back[:, 1, k, None, None] * grid[1] + back[:, 2, k, None, None]
        for k in (0, 1)
    )
    return filters.sample(images, filters.mirrored(rows, height), filters.mirrored(columns, width))


def pixelate(images: np.ndarray, share: float, streams: Streams) -> np.ndarray:
    """Shrink to a share of each side by a box filter and enlarge again."""
    height, width = images.shape[-2:]
    small = (int(width * share), int(height * share))

    def one(image: Image.Image) -> Image.Image:
        box = Image.Resampling.BOX
        return image.resize(small, box).resize((width, height), box)

    return _by_pillow(images, one)


def jpeg_compression(images: np.ndarray, quality: int, streams: Streams) -> np.ndarray:
    """Write each image to a JPEG file and read it back; a one-channel image becomes a grey JPEG."""

    def one(image: Image.Image) -> Image.Image:
        file = BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _by_pillow(images, one)


def _by_pillow(images: np.ndarray, one: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    whole = np.rint(images * 255).astype(np.uint8).transpose(0, 2, 3, 1)  # [image, h, w, c]
    grey = whole.shape[-1] == 1
    done = np.stack([np.asarray(one(Image.fromarray(i[..., 0] if grey else i))) for i in whole])
    return (done[:, None] if grey else done.transpose(0, 3, 1, 2)).astype(np.float32) / 255
