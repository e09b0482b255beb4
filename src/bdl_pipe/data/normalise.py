"""The constants of a transform: published ones, or mean and standard deviation of the training rows; and whitening.

All constants are computed and stored in float64. Tables may also use robust constants: median and interquartile range.
A constant column (or channel) gets the deviation 1, so it becomes 0.

Whitening is ZCA with a ridge, of standardised images flattened to [n, d]:

C = (1/n) Σ (x − μ)(x − μ)ᵀ = U diag(s) Uᵀ,   r = λ tr(C)/d with λ = 0.1
W = U diag((s + r)^−½) Uᵀ,   W⁻¹ = U diag((s + r)^½) Uᵀ,   so W C W = U diag(s/(s + r)) Uᵀ

The ridge relative to tr(C)/d is from Nguyen et al. (2021, KIP) and Zhou et al. (2022, FRePo).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np
import torch

from ..errors import DataError, NothingToFit
from . import scratch
from .tables.columns import Column
from .transform import BOUNDED_SCALE, Encoding, Transform, Whitening

Scaling = Literal["standardise", "log", "centre", "none"]
Normalise = Literal["published", "train", "robust", "none"]
Published = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of x/255 per channel
Constants = tuple[np.ndarray, np.ndarray]
RIDGE: Final = 0.1  # λ
_CHUNK: Final = 5_000  # images per step, so that float64 copies stay small


def fit_transform(
    inputs: np.ndarray,
    targets: np.ndarray,
    *,
    kind: Literal["image", "table"],
    normalise: Normalise,
    whiten: bool,
    columns: Sequence[Column] = (),
    published: Published | None = None,
    scaling: Scaling = "standardise",
    origin: str = "targets",
) -> Transform:
    """Fit the transform to these rows, which must be training rows.

    Args:
        inputs: uint8 [n, channel, height, width] or float64 [n, feature].
        columns: the descriptions of a table's columns if not all are numbers; their encoding is fitted to the rows.
        targets: int64 [n] for classes, which need no constants, or float64 [n, output].
        published: mean and standard deviation of x/255 per channel, if ``normalise`` is ``published``.
        scaling: shift and scale of regression targets, (y − shift)/scale. ``standardise``: mean and standard deviation;
            ``log``: mean and standard deviation of log y; ``centre``: mean and 1; ``none``: 0 and 1.

    Raises:
        DataError: a target to standardise is constant, or ``scaling`` is ``log`` and a target is not > 0.
    """
    encoding = Encoding.fit(columns, inputs) if columns else None
    if kind == "table" and inputs.nbytes >= scratch.LARGE:
        mean, std = _in_parts(inputs, encoding, normalise)
    elif encoding is None:
        mean, std = _inputs(inputs, kind, normalise, published)
    else:
        encoded, bounded = encoding(torch.from_numpy(inputs)).numpy(), encoding.bounded
        mean, std = _inputs(encoded, "table", normalise, None)
        if normalise != "none":  # 0/1 columns are centred and divided by 0.5, not standardised
            mean, std = np.where(bounded, encoded.mean(axis=0), mean), np.where(bounded, BOUNDED_SCALE, std)
    white = fit_zca(inputs, mean, std) if whiten else None
    constants, smooth = (torch.from_numpy(mean), torch.from_numpy(std)), normalise == "robust"
    transform = Transform(kind, *constants, white, encoding=encoding, smooth=smooth)
    if targets.ndim == 1:
        return transform
    shift, scale = target_constants(targets, scaling, origin)
    return replace(transform, shift=torch.from_numpy(shift), scale=torch.from_numpy(scale), log=scaling == "log")


def _inputs(inputs: np.ndarray, kind: str, normalise: str, published: Published | None) -> Constants:
    width = inputs.shape[1]
    if normalise == "none":
        return np.zeros(width), np.ones(width)
    if normalise == "published":
        assert published is not None, "a data set's config sees to it"
        return np.array(published[0]), np.array(published[1])
    if normalise == "robust":
        return robust(inputs)
    mean, std = channel_moments(inputs) if kind == "image" else (inputs.mean(axis=0), inputs.std(axis=0))
    return mean, _safe(std)


def robust(inputs: np.ndarray) -> Constants:
    """Compute median and interquartile range of each column; half the range if the quartiles are equal.

    Source: Holzmüller, Grinsztajn & Steinwart 2024, "Better by Default", section 3.
    """
    low, middle, high = np.quantile(inputs, (0.25, 0.5, 0.75), axis=0)
    return middle, np.where(high > low, high - low, _safe(np.ptp(inputs, axis=0) / 2))


def _in_parts(inputs: np.ndarray, encoding: Encoding | None, normalise: str) -> Constants:
    """Compute the constants of a large table: quantiles column by column, moments in parts of rows.

    Moments are merged by the method of Chan, Golub & LeVeque (1983), which changes them only by rounding.
    """
    width = inputs.shape[1] if encoding is None else encoding.width
    if normalise == "none":
        return np.zeros(width), np.ones(width)
    bounded = np.zeros(width, bool) if encoding is None else encoding.bounded
    places = np.flatnonzero(~bounded) if normalise == "robust" else np.zeros(0, int)
    columns = scratch.empty((len(places), len(inputs)), np.float64)
    count, mean, square = 0, np.zeros(width), np.zeros(width)
    for rows in scratch.chunks(len(inputs), 8 * width):
        part = inputs[rows] if encoding is None else encoding(torch.from_numpy(inputs[rows])).numpy()
        columns[:, rows] = part[:, places].T
        new, shift = len(part), part.mean(axis=0) - mean
        square += ((part - part.mean(axis=0)) ** 2).sum(axis=0) + shift**2 * (count * new / (count + new))
        mean += shift * (new / (count + new))
        count += new
    middle, std = mean.copy(), _safe(np.sqrt(square / count))
    for place, column in zip(places, columns, strict=True):
        (middle[place],), (std[place],) = robust(column[:, None])
    return middle, np.where(bounded, BOUNDED_SCALE, std)


def channel_moments(images: np.ndarray) -> Constants:
    """Compute mean and standard deviation of x/255 per channel, exactly, by integer sums of uint8."""
    count = images[:, 0].size
    total, square = np.zeros(images.shape[1], np.int64), np.zeros(images.shape[1], np.int64)
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK].astype(np.int64)
        total += chunk.sum(axis=(0, 2, 3))
        square += (chunk**2).sum(axis=(0, 2, 3))
    mean = total / count
    return mean / 255, np.sqrt(np.maximum(square / count - mean**2, 0)) / 255


def target_constants(targets: np.ndarray, scaling: Scaling, origin: str) -> Constants:
    """Return shift and scale of regression targets [n, output], each [output].

    Raises:
        DataError: a target to standardise is constant, or ``scaling`` is ``log`` and a target is not > 0.
    """
    zeros, ones = np.zeros(targets.shape[1]), np.ones(targets.shape[1])
    if scaling == "none":
        return zeros, ones
    if scaling == "log":
        if not (targets > 0).all():
            raise DataError(f"{origin}: targets must be > 0 for their logarithm (targets: log), got {targets.min():g}")
        targets = np.log(targets)
    deviation = targets.std(axis=0)
    if scaling in ("standardise", "log") and (np.ptp(targets, axis=0) == 0).any():  # the deviation may be 1e-17
        raise NothingToFit(f"{origin}: the target is constant in the training rows of a split; choose another target")
    return targets.mean(axis=0), ones if scaling == "centre" else deviation


def _safe(std: np.ndarray) -> np.ndarray:
    return np.where(std > 0, std, 1.0)


def fit_zca(images: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Whitening:
    """Fit the whitening of uint8 images [n, channel, height, width] after (x/255 − mean)/std per channel."""
    centre, covariance = moments(images, mean, std)
    values, vectors = np.linalg.eigh(covariance)
    shifted = np.maximum(values, 0) + RIDGE * np.trace(covariance) / len(covariance)
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
