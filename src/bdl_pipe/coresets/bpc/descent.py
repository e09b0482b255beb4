"""The descent of a coreset's images along the surrogate of a divergence.

One outer step: an expert, an epoch to start from and one draw of the augmentation, all by the step's address; the
surrogate's gradient; one step of the optimiser. Labels are the classes of the rows that the coreset started from, and
stay (as in the published code of Kim et al. 2022). An exponential average of the images may be what is kept.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...data.augment import AugmentConfig, augment
from ...errors import require
from ...seeds import Seed
from ...training import loop
from ..shared.init import Coreset
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
        fits = self.average is None or 0 < self.average < 1
        require(fits, "average", "must be in (0, 1) or null", self.average)


class Surrogate(ABC):
    """A loss of the images whose gradient is that of a divergence, up to a positive factor."""

    @abstractmethod
    def loss(self, images: Tensor, rng: Seed) -> Tensor:
        """Return the surrogate [] at the images, with its graph; ``rng`` is the step's address."""

    def parameters(self) -> list[Tensor]:
        """Return what is learned beside the images."""
        return []


class CoresetDescent(loop.Objective):
    """The descent of the images, with an average of them."""

    def __init__(self, start: Coreset, surrogate: Surrogate, config: OuterConfig, *, rng: Seed) -> None:
        self._images = start.images.clone().requires_grad_()
        self._classes, self._labels = start.classes, start.labels
        self._surrogate, self._config, self._rng = surrogate, config, rng
        self._average, self._taken = torch.zeros_like(start.images), 0

    def coreset(self) -> Coreset:
        """Return the coreset as it stands: its average, where there is one."""
        images = self._images.detach()
        if self._config.average is not None and self._taken > 0:
            images = self._average / (1 - self._config.average**self._taken)
        return Coreset(images.clone(), self._labels, self._classes)

    def parameters(self) -> list[Tensor]:
        return [self._images, *self._surrogate.parameters()]

    def loss(self, step: int) -> Tensor:
        return self._surrogate.loss(self._images, self._rng.fold("step", step))

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        if self._config.average is not None:
            self._average.lerp_(self._images.detach(), 1 - self._config.average)
            self._taken += 1
        slope = self._images.grad
        metrics = {"surrogate": float(loss), "rms": float(self._images.detach().square().mean().sqrt())}
        return metrics | ({} if slope is None else {"gradient": float(slope.norm())})

    def state(self) -> dict[str, Tensor]:
        learned = {f"learned.{i}": p.detach().clone() for i, p in enumerate(self._surrogate.parameters())}
        taken = torch.tensor(self._taken)
        return {"images": self._images.detach().clone(), "average": self._average.clone(), "taken": taken} | learned

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._images.copy_(state["images"])
        self._average.copy_(state["average"])
        self._taken = int(state["taken"])
        for i, parameter in enumerate(self._surrogate.parameters()):
            parameter.copy_(state[f"learned.{i}"])


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
