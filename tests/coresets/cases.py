"""A tiny data set, a tiny setting, and derivatives by differences, for every test of the family."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.seeds import Seed
from tests.cases import VBPC


def tiny_data(rows: int = 60, classes: int = 3, channels: int = 1, side: int = 8) -> FitData:
    """Square images whose brightness depends on the class, so that there is something to learn."""
    generator = np.random.default_rng(0)
    labels = np.arange(rows) % classes
    images = generator.integers(0, 120, (rows, channels, side, side)) + 50 * labels[:, None, None, None]
    split = Examples(images.astype(np.uint8), labels.astype(np.int64))
    transform = Transform("image", torch.full((channels,), 0.4), torch.full((channels,), 0.25))
    return FitData("classification", split, split, transform, tuple("abc"[:classes]))


def tiny_vbpc(**changes: Any) -> dict[str, Any]:
    """The section ``methods.vbpc``, a little larger than the smallest one, with augmentations that are not linear."""
    augmentation = {"choose": "one", "operations": {"noise": 0.1, "rotate": 15.0, "cutout": 0.25}}
    coreset = {"steps": 12, "pool": {"networks": 3, "steps": 4, "lr": 1.0e-3}, "augmentation": augmentation}
    larger = {"rho": 10.0, "coreset": VBPC["coreset"] | coreset}
    return VBPC | larger | {"student": {"steps": 5, "lr": 3.0e-4, "augmentation": augmentation}} | changes


def drawn(*shape: int, at: Seed) -> Tensor:
    return torch.randn(shape, generator=at.generator(), dtype=torch.float64)


def normal(*shape: int, at: str) -> Tensor:
    return drawn(*shape, at=Seed(0).fold(at))


def central(value: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-5) -> Tensor:
    """Derivatives of a scalar along the rows of :func:`directions`, by central differences."""
    slopes = [(value(at + step * d) - value(at - step * d)).detach() / (2 * step) for d in directions(at)]
    return torch.stack(slopes)


def directions(at: Tensor, count: int = 8) -> Tensor:
    """Random directions, along which a wrong gradient almost surely differs from the right one."""
    return drawn(count, *at.shape, at=Seed(1).fold("directions"))


def projected(gradient: Tensor) -> Tensor:
    """A gradient along the same directions."""
    return torch.stack([(d * gradient).sum() for d in directions(gradient)])


def relative(found: Tensor, expected: Tensor) -> float:
    return float(((found - expected).norm() / expected.norm()).detach())
