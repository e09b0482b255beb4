"""Brightness, contrast and saturation; HSV changes written out in RGB.

At fixed hue, RGB = V (1 − S u) with u ∈ [0, 1] given by the hue: a new value scales RGB by V'/V, and a
new saturation scales the distance V − RGB by S'/S.
"""

import numpy as np

from . import filters
from .streams import Streams


def brightness(images: np.ndarray, amount: float, streams: Streams) -> np.ndarray:
    """Map the HSV value: V → min(V + c, 1)."""
    value = images.max(1, keepdims=True)
    brighter = np.minimum(value + np.float32(amount), 1)
    return np.where(value > 0, images * (brighter / np.where(value > 0, value, 1)), brighter)


def contrast(images: np.ndarray, share: float, streams: Streams) -> np.ndarray:
    """Map x → m + c (x − m), m the mean of the image's channel."""
    mean = images.reshape(*images.shape[:2], -1).mean(-1, dtype=np.float64).astype(np.float32)[..., None, None]
    return mean + np.float32(share) * (images - mean)


def saturate(images: np.ndarray, strength: tuple[float, float], streams: Streams) -> np.ndarray:
    """Map the HSV saturation: S → min(a S + b, 1); a grey pixel has hue 0 (red), as in HSV."""
    if images.shape[1] == 1:
        return filters.luma(saturate(np.repeat(images, 3, axis=1), strength, streams))
    value, least = images.max(1, keepdims=True), images.min(1, keepdims=True)
    saturation = (value - least) / np.where(value > 0, value, 1)
    changed = np.clip(saturation * np.float32(strength[0]) + np.float32(strength[1]), 0, 1)
    coloured = value - (value - images) * (changed / np.where(saturation > 0, saturation, 1))
    red = np.concatenate([value, value * (1 - changed), value * (1 - changed)], axis=1)
    return np.where(saturation > 0, coloured, red)
