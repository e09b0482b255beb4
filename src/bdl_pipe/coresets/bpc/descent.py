"""The random start of an outer step: an expert, one of its epochs and a draw of the augmentation.

Labels are the classes of the coreset's initial rows and are not learned, as in the published code of Kim et al. 2022.
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
    """The settings of the optimisation of a coreset's images.

    Attributes:
        steps: the number of outer steps.
        optimiser: the update rule and its schedule (published: sgd, rate 1000, momentum .5).
        augmentation: the augmentation of the coreset's images, drawn for each step (published: ``choose: one``).
        average: the decay of an unbiased exponential average of the images; the average is the result. With null, the
            last images are the result.
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
    """An expert's weights at the start of an outer step, and its weights θ_D some epochs later."""

    weights: Tensor
    target: Tensor


def drawn_epoch(experts: Experts, epochs: int, rng: Seed) -> tuple[int, int]:
    """Draw an expert, and one of its first ``epochs`` epochs."""
    return rng.fold("expert").integer() % len(experts), rng.fold("epoch").integer() % epochs


def drawn_start(experts: Experts, epochs: int, ahead: int, rng: Seed) -> Start:
    """Draw an expert and one of its first ``epochs`` epochs as the start; the target is ``ahead`` epochs later."""
    expert, epoch = drawn_epoch(experts, epochs, rng)
    return Start(experts.weights(expert, epoch), experts.weights(expert, epoch + ahead))


def noisy(weights: Tensor, draws: int, sd: float, rng: Seed) -> Tensor:
    """Draw from N(weights, sd² I): [draw, weight], on the weights' device."""
    noise = torch.randn((draws, len(weights)), generator=rng.generator(), dtype=weights.dtype)
    return weights + sd * noise.to(weights.device)


def augmented(images: Tensor, config: AugmentConfig, rng: Seed) -> Tensor:
    """Augment all images of the coreset with one draw."""
    return augment(images, config, rng.fold("augment"))
