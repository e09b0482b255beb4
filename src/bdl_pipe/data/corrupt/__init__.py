"""The 19 corruptions of CIFAR-10-C at its five severities, for images of any size.

Hendrycks & Dietterich 2019, in the version for 32×32 images, which is far weaker than the version for ImageNet. Lengths
(blur widths, displacements, grains) scale with the smaller side over 32; noise levels, contrasts and shares do not. A
one-channel image is treated as three equal channels and converted back by the luma (Rec. 601), so ``saturate`` does not
change it at severities 1–3.

Deviations from the published images: values are rounded to the nearest grey level and not truncated; random numbers
come from an independent stream for each (corruption, severity, image); the textures of ``frost`` are synthetic. Each
module lists its other deviations.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from jaxtyping import UInt8

from ...errors import ConfigError, DataError
from ...seeds import Seed
from . import blur, colour, digital, noise, weather
from .streams import Streams
from .strengths import SEVERITIES, STRENGTHS

_FUNCTIONS: Final[dict[str, Callable[[np.ndarray, Any, Streams], np.ndarray]]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": colour.brightness,
    "contrast": colour.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": weather.spatter,
    "saturate": colour.saturate,
}
NAMES: Final = tuple(_FUNCTIONS)  # the benchmark's 15 corruptions, then its four extra corruptions
_CHUNK: Final = 2**18  # values processed together, so that memory is bounded and they fit in a cache

__all__ = ["NAMES", "SEVERITIES", "corrupt"]


def corrupt(
    images: np.ndarray, name: str, severity: int, rng: Seed, first: int = 0
) -> UInt8[np.ndarray, "image channel height width"]:
    """Return corrupted copies of images of one or three channels.

    Args:
        images: uint8 [image, channel, height, width].
        name: one of ``NAMES``.
        severity: 1 to 5.
        rng: the seed address; image i draws from its own stream below it, so that the result does not depend on the
            batch or the worker.
        first: the index of ``images[0]`` in a larger set.

    Raises:
        ConfigError: the name or severity is unknown.
        DataError: the images are not uint8 [image, 1 or 3, height >= 8, width >= 8].
    """
    if name not in _FUNCTIONS:
        raise ConfigError("corruption", f"must be one of {', '.join(NAMES)}", name)
    if severity not in SEVERITIES or isinstance(severity, bool):
        raise ConfigError("severity", "must be 1, 2, 3, 4 or 5", severity)
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < 8:
        raise DataError(
            "images to corrupt must be uint8 [image, 1 or 3, height >= 8, width >= 8], "
            f"got {images.dtype} {list(images.shape)}"
        )
    at, corrupted = rng.fold(name, severity), np.empty_like(images)
    step = max(1, _CHUNK // int(np.prod(images.shape[1:])))
    for start in range(0, len(images), step):
        part = images[start : start + step]
        streams = Streams(at, range(first + start, first + start + len(part)))
        values = _FUNCTIONS[name](part.astype(np.float32) / 255, STRENGTHS[name][severity - 1], streams)
        corrupted[start : start + step] = np.rint(np.clip(values, 0, 1) * 255)
    return corrupted
