"""The constants of a transform: published ones, or the mean and deviation of the training rows; and its whitening.

All is computed and stored in float64. A column (or channel) that does not vary keeps deviation 1, so it becomes 0.

Whitening is ZCA with a ridge, of standardised images flattened to [n, d]:

C = (1/n) Σ (x − μ)(x − μ)ᵀ = U diag(s) Uᵀ,   r = λ tr(C)/d with λ = 0.1
W = U diag((s + r)^−½) Uᵀ,   W⁻¹ = U diag((s + r)^½) Uᵀ,   so W C W = U diag(s/(s + r)) Uᵀ

The ridge relative to tr(C)/d is that of Nguyen et al. (2021, KIP) and Zhou et al. (2022, FRePo).
"""

from typing import Final, Literal

import numpy as np
import torch

from ..errors import DataError
from .transform import Transform, Whitening

Scaling = Literal["standardise", "centre", "none"]
Published = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation per channel, of x/255
Constants = tuple[np.ndarray, np.ndarray]
RIDGE: Final = 0.1  # λ
_CHUNK: Final = 5_000  # images per step, so that float64 copies stay small


def fit_transform(
    inputs: np.ndarray,
    targets: np.ndarray,
    *,
    kind: Literal["image", "table"],
    normalise: Literal["published", "train", "none"],
    whiten: bool,
    published: Published | None = None,
    scaling: Scaling = "standardise",
    origin: str = "targets",
) -> Transform:
    """Fit the transform of these rows; they must be training rows.

    Args:
        inputs: uint8 [n, channel, height, width] or float64 [n, feature].
        targets: int64 [n] for classes, which need no constants, or float64 [n, output].
        published: mean and deviation per channel, of x/255, where ``normalise`` asks for them.
        scaling: of regression targets, (y − shift)/scale: ``standardise``: mean and deviation of
            these rows; ``centre``: their mean and scale 1; ``none``: 0 and 1.

    Raises:
        DataError: a target to standardise is constant.
    """
    mean, std = _inputs(inputs, kind, normalise, published)
    transform = Transform(kind, torch.from_numpy(mean), torch.from_numpy(std))
    white = fit_zca(inputs, mean, std) if whiten else None
    if targets.ndim == 1:
        return Transform(kind, transform.mean, transform.std, white)
    shift, scale = _targets(targets, scaling, origin)
    return Transform(kind, transform.mean, transform.std, white, torch.from_numpy(shift), torch.from_numpy(scale))


def _inputs(inputs: np.ndarray, kind: str, normalise: str, published: Published | None) -> Constants:
    width = inputs.shape[1]
    if normalise == "none":
        return np.zeros(width), np.ones(width)
    if normalise == "published":
        assert published is not None, "a data set's config sees to it"
        return np.array(published[0]), np.array(published[1])
    mean, std = channel_moments(inputs) if kind == "image" else (inputs.mean(axis=0), inputs.std(axis=0))
    return mean, _safe(std)


def channel_moments(images: np.ndarray) -> Constants:
    """Compute mean and deviation per channel of x/255, exact: sums of uint8 in whole numbers."""
    count = images[:, 0].size
    total, square = np.zeros(images.shape[1], np.int64), np.zeros(images.shape[1], np.int64)
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK].astype(np.int64)
        total += chunk.sum(axis=(0, 2, 3))
        square += (chunk**2).sum(axis=(0, 2, 3))
    mean = total / count
    return mean / 255, np.sqrt(np.maximum(square / count - mean**2, 0)) / 255


def _targets(targets: np.ndarray, scaling: Scaling, origin: str) -> Constants:
    zeros, ones = np.zeros(targets.shape[1]), np.ones(targets.shape[1])
    if scaling == "none":
        return zeros, ones
    deviation = targets.std(axis=0)
    if scaling == "standardise" and (deviation == 0).any():
        raise DataError(f"{origin}: the target is constant in the training rows of a split")
    return targets.mean(axis=0), deviation if scaling == "standardise" else ones


def _safe(std: np.ndarray) -> np.ndarray:
    return np.where(std > 0, std, 1.0)


def fit_zca(images: np.ndarray, mean: np.ndarray, std: np.ndarray, ridge: float = RIDGE) -> Whitening:
    """Fit the whitening of uint8 images [n, channel, height, width] after (x/255 − mean)/std per channel."""
    centre, covariance = moments(images, mean, std)
    values, vectors = np.linalg.eigh(covariance)
    shifted = np.maximum(values, 0) + ridge * np.trace(covariance) / len(covariance)
    matrix = (vectors * shifted**-0.5) @ vectors.T
    inverse = (vectors * shifted**0.5) @ vectors.T
    return Whitening(*(torch.from_numpy(np.ascontiguousarray(a)) for a in (centre, matrix, inverse)))


def moments(images: np.ndarray, mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean [d] and covariance [d, d] of the standardised images, in two passes over chunks."""
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
