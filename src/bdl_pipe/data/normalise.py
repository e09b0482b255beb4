"""The constants of a transform: published ones, or the mean and deviation of the training rows.

Computed in float64. A column (or channel) that does not vary keeps deviation 1, so it becomes 0.
"""

from typing import Final, Literal

import numpy as np
import torch

from ..errors import DataError
from .transform import Transform
from .whiten import fit_zca

# per channel, of x/255: (mean, deviation) as the papers' published code has them
PAPER: Final[dict[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "mnist5k": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}

Scaling = Literal["standardise", "centre", "none"]
Constants = tuple[np.ndarray, np.ndarray]
_CHUNK: Final = 5_000  # images per step, so that float64 copies stay small


def fit_transform(
    inputs: np.ndarray,
    targets: np.ndarray,
    *,
    kind: Literal["image", "table"],
    normalise: Literal["paper", "train", "none"],
    whiten: bool,
    source: str,
    scaling: Scaling = "standardise",
    origin: str = "targets",
) -> Transform:
    """The transform of these rows; they must be training rows.

    Args:
        inputs: uint8 [n, channel, height, width] or float64 [n, feature].
        targets: int64 [n] for classes, which need no constants, or float64 [n, output].
        source: the set's name, for its published constants.
        scaling: of regression targets, (y − shift)/scale: ``standardise``: mean and deviation of
            these rows; ``centre``: their mean and scale 1; ``none``: 0 and 1.

    Raises:
        DataError: a target to standardise is constant, or there are no published constants.
    """
    mean, std = _inputs(inputs, kind, normalise, source)
    transform = Transform(kind, torch.from_numpy(mean), torch.from_numpy(std))
    white = fit_zca(inputs, mean, std) if whiten else None
    if targets.ndim == 1:
        return Transform(kind, transform.mean, transform.std, white)
    shift, scale = _targets(targets, scaling, origin)
    return Transform(kind, transform.mean, transform.std, white, torch.from_numpy(shift), torch.from_numpy(scale))


def _inputs(inputs: np.ndarray, kind: str, normalise: str, source: str) -> Constants:
    width = inputs.shape[1]
    if normalise == "none":
        return np.zeros(width), np.ones(width)
    if normalise == "paper":
        if source not in PAPER:
            raise DataError(f"{source}: normalise must be train or none: no published constants for this set")
        return np.array(PAPER[source][0]), np.array(PAPER[source][1])
    mean, std = channel_moments(inputs) if kind == "image" else (inputs.mean(axis=0), inputs.std(axis=0))
    return mean, _safe(std)


def channel_moments(images: np.ndarray) -> Constants:
    """Mean and deviation per channel of x/255, exact: sums of uint8 in whole numbers."""
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
