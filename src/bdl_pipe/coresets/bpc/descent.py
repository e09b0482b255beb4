"""Where an outer step begins: an expert, an epoch to start from and one draw of the augmentation, by its address.

Labels are the classes of the rows that the coreset started from, and stay, as in the published code of Kim et al. 2022.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...data.augment import AugmentConfig, augment
from ...errors import require
from ...seeds import Seed
from ...training import loop
from ..shared.descent import check_average
from .experts import Experts


@dataclass(frozen=True)
class OuterConfig:
    """The descent.

    Attributes:
        steps: of the images.
        optimiser: the update rule and its schedule (published: sgd, rate 1000, momentum .5).
        augmentation: of the coreset's images, differentiable, drawn for each step (published: ``choose: one``).
        average: decay of an exponential average of the images, without bias, which is what is kept; null: the last.
    """

    steps: int
    optimiser: loop.OptimiserConfig
    augmentation: AugmentConfig
    average: float | None

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", "must be > 0", self.steps)
        check_average(self.average)


@dataclass(frozen=True)
class Start:
    """Where an outer step begins: an expert's weights, and those of the data's posterior some epochs on."""

    weights: Tensor
    target: Tensor


def drawn_epoch(experts: Experts, epochs: int, rng: Seed) -> tuple[int, int]:
    """Draw an expert, and one of its first ``epochs`` epochs."""
    return rng.fold("expert").integer() % len(experts), rng.fold("epoch").integer() % epochs


def drawn_start(experts: Experts, epochs: int, ahead: int, rng: Seed) -> Start:
    """Draw an expert and one of its first ``epochs`` epochs to start from; the target lies ``ahead`` epochs on."""
    expert, epoch = drawn_epoch(experts, epochs, rng)
    return Start(experts.weights(expert, epoch), experts.weights(expert, epoch + ahead))


def noisy(weights: Tensor, draws: int, sd: float, rng: Seed) -> Tensor:
    """Draw from N(weights, sd² I): [draw, weight], on the weights' device."""
    noise = torch.randn((draws, len(weights)), generator=rng.generator(), dtype=weights.dtype)
    return weights + sd * noise.to(weights.device)


def augmented(images: Tensor, config: AugmentConfig, rng: Seed) -> Tensor:
    """Augment the coreset's own images by one draw."""
    return augment(images, config, rng.fold("augment"))
