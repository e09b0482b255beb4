"""Blurs. Lengths are scaled by s = smaller side / 32."""

import numpy as np
import scipy.ndimage

from . import filters
from .streams import Streams


def gaussian_blur(images: np.ndarray, sigma: float, streams: Streams) -> np.ndarray:
    """Smooth with a Gaussian of standard deviation ``sigma``, in pixels of a 32×32 image."""
    return filters.gaussian(images, sigma * filters.scale_of(images))


def defocus_blur(images: np.ndarray, strength: tuple[float, float], streams: Streams) -> np.ndarray:
    """Convolve with a slightly smoothed disc."""
    kernel = resized(disc(*strength), filters.scale_of(images))
    return scipy.ndimage.correlate(images, kernel[None, None], mode="mirror")


def glass_blur(images: np.ndarray, strength: tuple[float, int, int], streams: Streams) -> np.ndarray:
    """Smooth, replace each inner pixel by a random nearby pixel for some rounds, and smooth again.

    The nearby pixel is at −d … d − 1 in either direction. The published code exchanges pixels in sequence, which has
    the same effect as these simultaneous copies, since it copies from pixels that are not yet changed.
    """
    scale = filters.scale_of(images)
    sigma, reach, rounds = strength[0] * scale, max(1, round(strength[1] * scale)), strength[2]
    height, width = images.shape[-2:]
    inner = np.s_[:, reach + 1 : height - reach + 1, reach + 1 : width - reach + 1]
    blurred = filters.gaussian(images, sigma)
    for _ in range(rounds):
        shift = streams.integers(-reach, reach, 2, height, width)
        rows, columns = (np.broadcast_to(p, shift[:, 0].shape).copy() for p in np.mgrid[:height, :width])
        rows[inner] += shift[:, 0][inner]
        columns[inner] += shift[:, 1][inner]
        blurred = filters.take(blurred, rows, columns)
    return filters.gaussian(blurred, sigma)


def motion_blur(images: np.ndarray, strength: tuple[float, float], streams: Streams) -> np.ndarray:
    """Smear in a direction drawn from (−45°, 45°) off the horizontal."""
    scale = filters.scale_of(images)
    return filters.motion(images, strength[0] * scale, strength[1] * scale, streams.uniform(-45.0, 45.0))


def zoom_blur(images: np.ndarray, zooms: int, streams: Streams) -> np.ndarray:
    """Average the image and its enlargements by 1.00, 1.01, …, about the exact centre."""
    total = images.copy()
    for step in range(zooms):
        total += filters.zoomed(images, 1 + step / 100)
    return total / np.float32(zooms + 1)


def disc(radius: float, sigma: float) -> np.ndarray:
    """Return the pixels within ``radius``, equally weighted, smoothed by a 3×3 Gaussian; [2r + 3, 2r + 3], sum 1."""
    reach = int(np.ceil(radius)) + 1
    offsets = np.arange(-reach, reach + 1)
    inside = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(float)
    smooth = np.exp(-np.array([1.0, 0.0, 1.0]) / (2 * sigma**2))
    smooth /= smooth.sum()
    kernel = scipy.ndimage.convolve(inside / inside.sum(), np.outer(smooth, smooth), mode="constant")
    return kernel / kernel.sum()


def resized(kernel: np.ndarray, scale: float) -> np.ndarray:
    """Return a kernel for images ``scale`` times larger: each weight spread over its pixel's enlarged area."""
    half = len(kernel) // 2
    reach = max(0, int(np.ceil((half + 0.5) * scale - 0.5 - 1e-9)))
    new, old = np.arange(-reach, reach + 1)[:, None], np.arange(-half, half + 1)
    overlap = np.minimum(new + 0.5, (old + 0.5) * scale) - np.maximum(new - 0.5, (old - 0.5) * scale)
    spread = np.maximum(0, overlap) / scale
    return spread @ kernel @ spread.T
