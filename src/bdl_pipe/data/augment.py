"""Augmentation of transformed images, differentiable with respect to the images.

The operations and strengths of dataset distillation (Zhao & Bilen 2021; Zhou et al. 2022), which Lee et al. 2025 use
for distilling and for fitting to a coreset: ``flip`` (probability .5), ``colour`` or ``brightness`` (.25), ``crop``
(zoom up to 1.25), ``rotate`` (15 degrees), ``translate`` (.125 of the side), ``cutout`` (.25 of the side), ``noise``
(standard deviation .1, so variance .01). Each image draws its own parameters; pixels from outside the image repeat the
border.

``pad_crop`` (4 pixels) with ``flip`` is the augmentation of residual networks (He et al. 2016, sec. 4.2; Lee et al.
2015). Deviation: images are padded after the transform, so the padding has the mean colour instead of black.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..errors import require
from ..seeds import Seed

Images = Float[Tensor, "b c h w"]


@dataclass(frozen=True)
class AugmentConfig:
    """The settings of augmentation: the operations and their strengths.

    Attributes:
        choose: ``all`` applies every operation, in the order of ``OPERATIONS``; ``one`` applies one operation to each
            batch, drawn uniformly. Both add noise last.
        operations: name -> strength; 0 disables an operation. ``flip``: the probability; ``brightness`` and ``colour``:
            the half-width of the shift, in units of the transformed images, and for ``colour`` also of the saturation
            and contrast factors; ``crop``: the largest zoom z (zooms are drawn log-uniformly from [1/z, z]);
            ``pad_crop``: the number of zero pixels added on each side before a window of the image's size is cut at a
            uniformly drawn place; ``rotate``: degrees; ``translate``, ``cutout``: the share of the side; ``noise``: the
            standard deviation in units of the transformed images.
    """

    choose: Literal["one", "all"]
    operations: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, strength in self.operations.items():
            names = [*OPERATIONS, "noise"]
            require(name in names, f"operations.{name}", f"is not one of {', '.join(names)}")
            require(strength >= 0, f"operations.{name}", "must be >= 0", strength)
        for name in ("flip", "translate", "cutout"):
            require(self.operations.get(name, 0) <= 1, f"operations.{name}", "must be <= 1", self.operations.get(name))
        pad = self.operations.get("pad_crop", 0)
        require(float(pad).is_integer(), "operations.pad_crop", "must be a whole number of pixels", pad)
        zoom = self.operations.get("crop", 0)
        require(zoom == 0 or zoom >= 1, "operations.crop", "must be 0 or >= 1", zoom)


def augment(images: Images, config: AugmentConfig, rng: Seed) -> Images:
    """Augment images; equal arguments give equal images on one kind of device.

    Random numbers are drawn on the images' device, since drawing a large batch's noise on a CPU takes longer than a
    GPU's step.
    """
    there = images.device if images.device.type != "meta" else "cpu"  # meta tensors have no generator
    active = [name for name in OPERATIONS if config.operations.get(name, 0) > 0]
    if config.choose == "one" and active:
        active = [active[rng.fold("operation").integer() % len(active)]]
    for name in active:
        draw = _Draws(rng.fold(name).generator(there), len(images), images)
        images = OPERATIONS[name](images, config.operations[name], draw)
    noise = config.operations.get("noise", 0)
    if noise > 0:
        generator = rng.fold("noise").generator(there)
        sample = torch.randn(images.shape, generator=generator, dtype=images.dtype, device=there)
        images = images + noise * sample.to(images.device)
    return images


class _Draws:
    """A source of uniform numbers, with a row for each image, drawn on the generator's device."""

    def __init__(self, generator: torch.Generator, count: int, like: Tensor) -> None:
        self._generator, self._count, self._like = generator, count, like

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Draw uniform numbers from [low, high) [image, *shape]."""
        generator, dtype = self._generator, self._like.dtype
        numbers = torch.rand((self._count, *shape), generator=generator, dtype=dtype, device=generator.device)
        return (low + (high - low) * numbers).to(self._like.device)


def _flip(images: Images, strength: float, draw: _Draws) -> Images:
    mirrored = draw.uniform(0, 1, 1, 1, 1) < strength
    return torch.where(mirrored, images.flip(-1), images)


def _brightness(images: Images, strength: float, draw: _Draws) -> Images:
    return images + draw.uniform(-strength, strength, 1, 1, 1)


def _colour(images: Images, strength: float, draw: _Draws) -> Images:
    """Change brightness, then saturation (about the mean over channels), then contrast (about the mean)."""
    images = _brightness(images, strength, draw)
    grey = images.mean(1, keepdim=True)
    images = grey + (images - grey) * draw.uniform(1 - strength, 1 + strength, 1, 1, 1)
    level = images.mean((1, 2, 3), keepdim=True)
    return level + (images - level) * draw.uniform(1 - strength, 1 + strength, 1, 1, 1)


def _affine(images: Images, matrix: Tensor, shift: Tensor) -> Images:
    """Sample image i at matrix_i·p + shift_i, in coordinates where the side is [−1, 1]."""
    grid = F.affine_grid(torch.cat([matrix, shift[:, :, None]], 2), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _crop(images: Images, strength: float, draw: _Draws) -> Images:
    zoom = draw.uniform(-math.log(strength), math.log(strength), 1, 1).exp()
    identity = torch.eye(2, dtype=images.dtype, device=images.device)
    return _affine(images, identity / zoom, images.new_zeros(len(images), 2))


def _pad_crop(images: Images, strength: float, draw: _Draws) -> Images:
    pad, (count, channels, height, width) = int(strength), images.shape
    corner = draw.uniform(0, 2 * pad + 1, 2).long().clamp(max=2 * pad)  # [b, 2], 0 … 2·pad
    rows = corner[:, :1] + torch.arange(height, device=images.device)  # [b, h]
    columns = corner[:, 1:] + torch.arange(width, device=images.device)  # [b, w]
    padded = F.pad(images, (pad,) * 4)
    window = padded.gather(2, rows[:, None, :, None].expand(-1, channels, -1, width + 2 * pad))
    return window.gather(3, columns[:, None, None, :].expand(count, channels, height, -1))


def _rotate(images: Images, strength: float, draw: _Draws) -> Images:
    angle = draw.uniform(-math.radians(strength), math.radians(strength))
    rows = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1)
    return _affine(images, rows.reshape(-1, 2, 2), images.new_zeros(len(images), 2))


def _translate(images: Images, strength: float, draw: _Draws) -> Images:
    identity = torch.eye(2, dtype=images.dtype, device=images.device).expand(len(images), 2, 2)
    return _affine(images, identity, draw.uniform(-2 * strength, 2 * strength, 2))  # the image's side has length 2


def _cutout(images: Images, strength: float, draw: _Draws) -> Images:
    """Set a square to 0, the mean of transformed training images; its side is ``strength`` times the image's side."""
    inside = []
    for side in images.shape[2:]:
        centre = draw.uniform(0, side, 1)
        pixel = torch.arange(side, dtype=images.dtype, device=images.device) + 0.5
        inside.append((pixel - centre).abs() < strength * side / 2)  # [b, side]
    hole = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return images.masked_fill(hole, 0.0)


OPERATIONS: Final[dict[str, Callable[[Tensor, float, _Draws], Tensor]]] = {
    "flip": _flip,
    "brightness": _brightness,
    "colour": _colour,
    "crop": _crop,
    "pad_crop": _pad_crop,
    "rotate": _rotate,
    "translate": _translate,
    "cutout": _cutout,
}
