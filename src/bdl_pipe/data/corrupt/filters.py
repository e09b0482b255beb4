"""Linear filters and resampling, vectorised over images; the result for one image never depends on the others."""

import numpy as np
import scipy.ndimage
from jaxtyping import Float, Float32

LUMA = (0.299, 0.587, 0.114)  # Rec. 601


def scale_of(images: np.ndarray) -> float:
    """Return the scale relative to a 32×32 image: the smaller side / 32."""
    return min(images.shape[-2:]) / 32


def luma(images: Float32[np.ndarray, "image 3 h w"]) -> Float32[np.ndarray, "image 1 h w"]:
    """Return the luma of images, a weighted sum of their three channels."""
    return sum(np.float32(weight) * images[:, k : k + 1] for k, weight in enumerate(LUMA))  # type: ignore[return-value]


def gaussian(images: np.ndarray, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> np.ndarray:
    """Smooth by a Gaussian over the last two axes."""
    sigmas = (0,) * (images.ndim - 2) + (sigma, sigma)
    return scipy.ndimage.gaussian_filter(images, sigmas, mode=mode, truncate=truncate)


def kept_deviation(sigma: float, truncate: float = 4.0) -> float:
    """Return the standard deviation that :func:`gaussian` leaves of white noise of deviation 1, far from edges."""
    impulse = np.zeros(2 * int(truncate * sigma + 1) + 1)
    impulse[len(impulse) // 2] = 1
    kernel = scipy.ndimage.gaussian_filter1d(impulse, sigma, truncate=truncate) if sigma > 0 else impulse
    return float((kernel**2).sum())  # √(Σk² over rows · Σk² over columns)


def interpolation(positions: np.ndarray, size: int) -> Float32[np.ndarray, "out size"]:
    """Return the matrix that interpolates ``size`` samples linearly at positions, which are clipped to the ends."""
    positions = np.clip(positions, 0, size - 1)
    return np.maximum(0, 1 - np.abs(positions[:, None] - np.arange(size))).astype(np.float32)


def zoomed(images: np.ndarray, zoom: float) -> np.ndarray:
    """Return the central part, enlarged ``zoom`` times to the same size, linearly."""
    rows, columns = (interpolation((np.arange(n) - (n - 1) / 2) / zoom + (n - 1) / 2, n) for n in images.shape[-2:])
    return rows @ images @ columns.T  # one product per image, so that its bits do not depend on the batch


def mirrored(positions: np.ndarray, size: int) -> np.ndarray:
    """Fold positions into [0, size − 1] by mirrors at the centres of the end pixels."""
    period = 2 * (size - 1)
    folded = positions % period
    return np.minimum(folded, period - folded)


def reflected(positions: np.ndarray, size: int) -> np.ndarray:
    """Fold positions by mirrors at the outer edges of the end pixels."""
    folded = (positions + 0.5) % (2 * size)
    return np.clip(np.minimum(folded, 2 * size - folded) - 0.5, 0, size - 1)


def sample(
    images: Float32[np.ndarray, "image c h w"],
    rows: Float[np.ndarray, "image i j"],
    columns: Float[np.ndarray, "image i j"],
) -> Float32[np.ndarray, "image c i j"]:
    """Return bilinear values at positions inside the image."""
    height, width = images.shape[-2:]
    top, left = (np.minimum(np.floor(p).astype(np.intp), n - 2) for p, n in ((rows, height), (columns, width)))
    down, right = (rows - top).astype(np.float32)[:, None], (columns - left).astype(np.float32)[:, None]
    upper = take(images, top, left) * (1 - right) + take(images, top, left + 1) * right
    lower = take(images, top + 1, left) * (1 - right) + take(images, top + 1, left + 1) * right
    return upper * (1 - down) + lower * down


def take(images: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the pixels at whole positions [image, i, j], of all channels."""
    count, channels, _, width = images.shape
    flat = rows * width + columns
    picked = np.take_along_axis(images.reshape(count, channels, -1), flat.reshape(count, 1, -1), 2)
    return picked.reshape(count, channels, *flat.shape[1:])


def motion(images: np.ndarray, radius: float, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """Smear each image along its own direction by a one-sided Gaussian, in whole pixels.

    Σ_i k_i x[p + round(i·(sin, cos))], i = 0 … 2⌈radius⌉, k_i ∝ exp(−i²/2σ²). This is the
    filter of ImageMagick's motion blur, which made the published images. Edges repeat.
    """
    height, width = images.shape[-2:]
    taps = np.arange(2 * int(np.ceil(radius)) + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    angle = np.deg2rad(degrees.astype(np.float64))[:, None]
    down, right = (np.ceil(taps * f(angle) - 0.5).astype(np.intp)[:, :, None] for f in (np.sin, np.cos))
    blurred = np.zeros_like(images)
    for i in np.flatnonzero(weights / weights.sum() > 1e-6):
        rows = np.clip(np.arange(height) + down[:, i], 0, height - 1)[:, :, None]
        columns = np.clip(np.arange(width) + right[:, i], 0, width - 1)[:, None, :]
        blurred += np.float32(weights[i] / weights.sum()) * take(images, rows, columns)
    return blurred
