"""The outer loop of all methods that distil a coreset: it minimises a surrogate loss.

An outer step computes the surrogate's loss at the images and labels, with random numbers from the step's seed address,
and makes one optimiser step of the images, the labels (if they are learned) and the surrogate's own parameters. The
result is the last coreset or an unbiased exponential average.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from ...errors import require
from ...seeds import Seed
from ...training import loop
from .init import Coreset


class Surrogate(ABC):
    """A loss of a coreset with the gradient of a method's objective, up to a positive factor."""

    @abstractmethod
    def loss(self, images: Tensor, labels: Tensor, step: int, rng: Seed) -> Tensor:
        """Return the loss [] at the images and labels, with its graph; ``rng`` is the step's seed address."""

    @abstractmethod
    def after(self, step: int, loss: Tensor, images: Tensor, labels: Tensor) -> dict[str, float]:
        """Run after the step of the images and labels; return the metrics to report.

        Args:
            loss: the loss of the step.
            images: the updated images, with the step's gradient.
            labels: the updated labels.
        """

    def parameters(self) -> list[Tensor]:
        """Return the surrogate's own learned parameters."""
        return []

    def state(self) -> dict[str, Tensor]:
        """Return all other tensors that later steps depend on."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027, the default state is empty
        """Restore the tensors of :meth:`state`."""


@final
class CoresetDescent(loop.Objective):
    """The distillation as a training objective. It stores labels as Ŷ/``label_unit``.

    Adam's step does not depend on the scale of a gradient, so with the unit label_lr/lr the labels have the learning
    rate label_lr.
    """

    def __init__(
        self, start: Coreset, surrogate: Surrogate, *, label_unit: float | None, average: float | None, rng: Seed
    ) -> None:
        """Start from ``start``, on the device of its images.

        Args:
            label_unit: the unit of stored labels. With None, labels are not learned.
            average: the decay of the average that is the result. With None, the last images and labels are the result.
        """
        device = start.images.device
        self._start, self._surrogate, self._rng = start, surrogate, rng
        self._unit, self._learns, self._decay = label_unit or 1.0, label_unit is not None, average
        self._images = start.images.clone().requires_grad_()
        self._labels = (start.labels.to(device, copy=True) / self._unit).requires_grad_(self._learns)
        self._averages = [torch.zeros_like(t) for t in (self._images.detach(), self._labels.detach())]
        self._taken = 0

    def coreset(self) -> Coreset:
        """Return the current coreset, or its average if there is one."""
        return kept(self._own(), self._start, self._unit, self._decay)

    def parameters(self) -> list[Tensor]:
        return [self._images, *([self._labels] if self._learns else []), *self._surrogate.parameters()]

    def loss(self, step: int) -> Tensor:
        return self._surrogate.loss(self._images, self._unit * self._labels, step, self._rng.fold("step", step))

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        if self._decay is not None:
            for average, now in zip(self._averages, (self._images, self._labels), strict=True):
                average.lerp_(now.detach(), 1 - self._decay)
            self._taken += 1
        return self._surrogate.after(step, loss, self._images, self._unit * self._labels.detach())

    def state(self) -> dict[str, Tensor]:
        learned = {f"learned.{i}": parameter for i, parameter in enumerate(self._surrogate.parameters())}
        now = {name: value.detach().clone() for name, value in (self._own() | learned).items()}
        return now | self._surrogate.state()

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._images.copy_(state["images"])
        self._labels.copy_(state["labels"])
        if self._decay is not None:
            for average, name in zip(self._averages, ("images", "labels"), strict=True):
                average.copy_(state[f"average.{name}"])
            self._taken = int(state["taken"])
        for i, parameter in enumerate(self._surrogate.parameters()):
            parameter.copy_(state[f"learned.{i}"])
        self._surrogate.restore(state)

    def _own(self) -> dict[str, Tensor]:
        """Return the state for :func:`kept`."""
        now = {"images": self._images.detach(), "labels": self._labels.detach()}
        if self._decay is None:
            return now
        averages = {"average.images": self._averages[0], "average.labels": self._averages[1]}
        return now | averages | {"taken": torch.tensor(self._taken)}


def kept(state: Mapping[str, Tensor], start: Coreset, label_unit: float | None, average: float | None) -> Coreset:
    """Return the coreset of a descent's state, given the arguments of the descent."""
    images, labels = state["images"], state["labels"]
    if average is not None and int(state["taken"]) > 0:
        present = 1 - average ** int(state["taken"])
        images, labels = state["average.images"] / present, state["average.labels"] / present
    return Coreset(images.clone(), (label_unit or 1.0) * labels, start.classes)


def check_average(average: float | None) -> None:
    """Raise ConfigError unless ``average`` is in (0, 1) or None."""
    require(average is None or 0 < average < 1, "average", "must be in (0, 1) or null", average)
