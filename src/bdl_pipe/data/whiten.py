"""ZCA whitening with a ridge, of standardised images flattened to [n, d].

C = (1/n) Σ (x − μ)(x − μ)ᵀ = U diag(s) Uᵀ,   r = λ tr(C)/d with λ = 0.1
W = U diag((s + r)^−½) Uᵀ,   W⁻¹ = U diag((s + r)^½) Uᵀ,   so W C W = U diag(s/(s + r)) Uᵀ

The ridge relative to tr(C)/d is that of Nguyen et al. (2021, KIP) and Zhou et al. (2022, FRePo).
All in float64; the result is stored in float64.
"""

from typing import Final

import numpy as np
import torch

from .transform import Whitening

RIDGE: Final = 0.1
_CHUNK: Final = 5_000


def fit_zca(images: np.ndarray, mean: np.ndarray, std: np.ndarray, ridge: float = RIDGE) -> Whitening:
    """The whitening of uint8 images [n, channel, height, width] after (x/255 − mean)/std per channel."""
    centre, covariance = moments(images, mean, std)
    values, vectors = np.linalg.eigh(covariance)
    shifted = np.maximum(values, 0) + ridge * np.trace(covariance) / len(covariance)
    matrix = (vectors * shifted**-0.5) @ vectors.T
    inverse = (vectors * shifted**0.5) @ vectors.T
    return Whitening(*(torch.from_numpy(np.ascontiguousarray(a)) for a in (centre, matrix, inverse)))


def moments(images: np.ndarray, mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean [d] and covariance [d, d] of the standardised images, in two passes over chunks."""
    width = int(np.prod(images.shape[1:]))
    centre, covariance = np.zeros(width), np.zeros((width, width))
    for start in range(0, len(images), _CHUNK):
        centre += _standard(images[start : start + _CHUNK], mean, std).sum(axis=0) / len(images)
    for start in range(0, len(images), _CHUNK):
        centred = _standard(images[start : start + _CHUNK], mean, std) - centre
        covariance += centred.T @ centred / len(images)
    return centre, covariance


def _standard(images: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    values = (images / 255.0 - mean[:, None, None]) / std[:, None, None]
    return values.reshape(len(values), -1)
