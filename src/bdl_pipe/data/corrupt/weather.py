"""Snow, frost, fog and spatter: layers drawn for each image and laid over it."""

from typing import Any

import numpy as np
import scipy.ndimage

from . import filters
from .streams import Streams

_FROST_TINT = np.array([0.85, 0.93, 1.0], np.float32)[:, None, None]
_WATER = np.array([175, 238, 238], np.float32)[:, None, None] / 255  # pale turquoise
_MUD = np.array([63, 42, 20], np.float32)[:, None, None] / 255
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)


def snow(images: np.ndarray, strength: tuple[float, ...], streams: Streams) -> np.ndarray:
    """Make the scene paler, and add smeared bright grains of thresholded noise and their copy turned by 180°."""
    mean, deviation, zoom, threshold, radius, sigma, kept = strength
    scale, (height, width) = filters.scale_of(images), images.shape[-2:]
    grains = mean + deviation * streams.normal(1, height, width)
    grains = filters.zoomed(grains.astype(np.float32), max(1.0, zoom * scale))
    grains = np.clip(np.where(grains < threshold, 0, grains), 0, 1).astype(np.float32)
    layer = filters.motion(grains, radius * scale, sigma * scale, streams.uniform(-135.0, -45.0))
    grey = images if images.shape[1] == 1 else filters.luma(images)
    pale = np.maximum(images, grey * np.float32(1.5) + np.float32(0.5))
    return np.float32(kept) * images + np.float32(1 - kept) * pale + layer + layer[..., ::-1, ::-1]


def frost(images: np.ndarray, strength: tuple[float, float], streams: Streams) -> np.ndarray:
    """Return a x + b texture.

    The original cuts textures out of six photographs of frost, which cannot be shipped. Here they are
    synthetic: ridged noise at three scales, in a bluish white, of mean intensity about one half.
    """
    if images.shape[1] == 1:
        return filters.luma(np.clip(frost(np.repeat(images, 3, axis=1), strength, streams), 0, 1))
    crystals = frost_texture(streams, *images.shape[-2:])
    return np.float32(strength[0]) * images + np.float32(strength[1]) * _FROST_TINT * crystals


def frost_texture(streams: Streams, height: int, width: int) -> np.ndarray:
    """Return grey textures [image, 1, height, width] in [0, 1]: bright ridges where smooth noise changes sign."""
    total = np.float32(0)
    for cells, weight in ((4, 0.5), (8, 0.3), (16, 0.2)):
        nodes = streams.normal(1, cells + 1, cells + 1)
        rows, columns = (filters.interpolation(np.linspace(0, cells, n), cells + 1) for n in (height, width))
        smooth = rows @ nodes @ columns.T
        total = total + np.float32(weight) * np.maximum(0, 1 - np.abs(smooth))
    low, high = total.min((2, 3), keepdims=True), total.max((2, 3), keepdims=True)
    return (total - low) / (high - low)


def fog(images: np.ndarray, strength: tuple[float, float], streams: Streams) -> np.ndarray:
    """Return (x + t·plasma)·m / (m + t), m the largest value of the image."""
    thickness, decay = strength
    height, width = images.shape[-2:]
    plasma = plasma_fractal(streams, max(height, width), decay)[:, None, :height, :width]
    most = images.max((1, 2, 3), keepdims=True)
    return (images + np.float32(thickness) * plasma) * (most / (most + np.float32(thickness)))


def plasma_fractal(streams: Streams, size: int, decay: float) -> np.ndarray:
    """Return diamond–square heights on a torus [image, side, side] in [0, 1], side the next power of two.

    Noise shrinks by decay² per octave, since the original applies the amplitude twice.
    """
    octaves = max(1, int(np.ceil(np.log2(size))))
    heights, amplitude = np.zeros((len(streams), 1, 1), np.float32), np.float32(1)
    for _ in range(octaves):
        side = heights.shape[-1]
        noise = amplitude * streams.uniform(-1.0, 1.0, 3, side, side)
        right, below = np.roll(heights, -1, 2), np.roll(heights, -1, 1)
        centre = (heights + right + below + np.roll(right, -1, 1)) / 4 + noise[:, 0]
        top = (heights + right + centre + np.roll(centre, 1, 1)) / 4 + noise[:, 1]
        left = (heights + below + centre + np.roll(centre, 1, 2)) / 4 + noise[:, 2]
        finer = np.empty((len(heights), 2 * side, 2 * side), np.float32)
        finer[:, ::2, ::2], finer[:, 1::2, 1::2], finer[:, ::2, 1::2], finer[:, 1::2, ::2] = heights, centre, top, left
        heights, amplitude = finer, amplitude / np.float32(decay**2)
    heights = heights - heights.min((1, 2), keepdims=True)
    return heights / heights.max((1, 2), keepdims=True)


def spatter(images: np.ndarray, strength: tuple[Any, ...], streams: Streams) -> np.ndarray:
    """Add drops of water (severities 1–3) or mud (4, 5): smoothed noise above a threshold.

    The edges of drops, from which the light on water is computed, are the borders of the thresholded mask. The original
    uses Canny's detector, which finds the same edges, since the jump exceeds its thresholds.
    """
    if images.shape[1] == 1:
        return filters.luma(np.clip(spatter(np.repeat(images, 3, axis=1), strength, streams), 0, 1))
    mean, deviation, sigma, threshold, amount, kind = strength
    scale = filters.scale_of(images)
    white = streams.normal(1, *images.shape[-2:])
    # wider smoothing reduces noise more, so rescale to keep the share above the threshold as at 32×32
    white *= np.float32(deviation * filters.kept_deviation(sigma) / filters.kept_deviation(sigma * scale))
    liquid = np.float32(mean) + filters.gaussian(white, sigma * scale)
    if kind == "water":
        liquid = np.where(liquid < threshold, np.float32(0), liquid)
        return images + np.float32(amount) * _light(liquid) * _WATER
    mask = filters.gaussian((liquid > threshold).astype(np.float32), amount * scale)
    mask = np.where(mask < 0.8, np.float32(0), mask)
    return images * (1 - mask) + mask * _MUD


def _light(liquid: np.ndarray) -> np.ndarray:
    """Return liquid × embossed distance from the edges of drops, scaled to a maximum of 1; [image, 1, h, w]."""
    wet = liquid[:, 0] > 0
    cross = scipy.ndimage.generate_binary_structure(2, 1)[None]
    edges = wet & ~scipy.ndimage.binary_erosion(wet, cross, border_value=1)
    # images are a million pixels apart, so that distances stay within each image
    far = scipy.ndimage.distance_transform_edt(~edges, sampling=(1e6, 1, 1))
    distance = _boxed(np.minimum(far, 20).astype(np.float32)).astype(np.uint8)
    bright = scipy.ndimage.correlate(_equalised(distance), _EMBOSS[None], mode="mirror")
    shine = liquid * _boxed(np.clip(bright, 0, 255))[:, None]
    most = shine.max((2, 3), keepdims=True)
    return shine / np.where(most > 0, most, 1)


def _boxed(images: np.ndarray) -> np.ndarray:
    return scipy.ndimage.uniform_filter(images, (0, 3, 3), mode="mirror")


def _equalised(images: np.ndarray) -> np.ndarray:
    """Make each image's histogram flat: grey level → 255 (share at or below it), the lowest level → 0."""
    count = len(images)
    place = images.reshape(count, -1).astype(np.intp)
    histogram = np.stack([np.bincount(p, minlength=256) for p in place])  # [image, level]
    total, lowest = place.shape[1], np.take_along_axis(histogram, place.min(1)[:, None], 1)  # [image, 1]
    table = (histogram.cumsum(1) - lowest) * (255 / np.maximum(total - lowest, 1))
    return np.rint(np.take_along_axis(table, place, 1)).reshape(images.shape).astype(np.float32)
