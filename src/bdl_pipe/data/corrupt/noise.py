"""Noise on every value of every channel: x ∈ [0, 1]."""

import numpy as np

from .streams import Streams


def gaussian_noise(images: np.ndarray, sigma: float, streams: Streams) -> np.ndarray:
    """Return x + σ z, z ~ N(0, 1)."""
    return images + np.float32(sigma) * streams.normal(*images.shape[1:])


def shot_noise(images: np.ndarray, photons: int, streams: Streams) -> np.ndarray:
    """Draw Poisson(c x) / c: mean x, variance x / c."""
    return streams.poisson(images.astype(np.float64) * photons) / np.float32(photons)


def impulse_noise(images: np.ndarray, share: float, streams: Streams) -> np.ndarray:
    """Set a share of values to 0 or 1 with equal probability (salt and pepper)."""
    draw = streams.uniform(0.0, 1.0, *images.shape[1:])
    return np.where(draw < share / 2, np.float32(0), np.where(draw < share, np.float32(1), images))


def speckle_noise(images: np.ndarray, sigma: float, streams: Streams) -> np.ndarray:
    """Return x + x σ z, z ~ N(0, 1)."""
    return images * (1 + np.float32(sigma) * streams.normal(*images.shape[1:]))
