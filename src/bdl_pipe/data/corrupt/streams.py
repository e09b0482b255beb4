"""Random streams, one for each image of a batch, which are drawn from together."""

from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np
from jaxtyping import Float32, Int

from ...seeds import Seed


@final
class Streams:
    """The random streams of the images numbered ``numbers``; the first dimension of every draw is the image."""

    def __init__(self, rng: Seed, numbers: Sequence[int]) -> None:
        self._rng, self._numbers = rng, numbers

    @cached_property
    def _generators(self) -> list[np.random.Generator]:
        return [self._rng.fold(number).numpy() for number in self._numbers]

    def normal(self, *shape: int) -> Float32[np.ndarray, " image *shape"]:
        """Draw from N(0, 1)."""
        return np.stack([g.standard_normal(shape, np.float32) for g in self._generators])

    def uniform(self, low: float, high: float, *shape: int) -> Float32[np.ndarray, " image *shape"]:
        """Draw uniform numbers from [low, high)."""
        unit = np.stack([g.random(shape, np.float32) for g in self._generators])
        return (low + (high - low) * unit).astype(np.float32)

    def integers(self, low: int, high: int, *shape: int) -> Int[np.ndarray, " image *shape"]:
        """Draw whole numbers from ``low`` to ``high`` − 1."""
        return np.stack([g.integers(low, high, shape) for g in self._generators])

    def poisson(self, rates: np.ndarray) -> Float32[np.ndarray, "image ..."]:
        """Draw counts at the given rates [image, ...]."""
        return np.stack([g.poisson(rate) for g, rate in zip(self._generators, rates, strict=True)]).astype(np.float32)

    def __len__(self) -> int:
        return len(self._numbers)
