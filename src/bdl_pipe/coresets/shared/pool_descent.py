"""The descent of a coreset through a pool of networks: what VBPC and FRePo have in common.

A batch B of training rows, a network of the model pool, the coreset augmented by one draw; the loss of B given the
coreset through that network's features; one Adam step of images and labels, one step of that network on the coreset
(Zhou et al. 2022; Lee et al. 2025, algorithm 1). Only the coreset's features carry a graph; the batch's do not.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import networks
from ...artifacts import State, under
from ...data.augment import AugmentConfig, augment
from ...data.fitdata import FitData
from ...errors import require
from ...method import Inputs
from ...progress import Report
from ...seeds import Seed
from ...training import loop
from .init import Coreset, balanced
from .pool import ModelPool, PoolConfig


@dataclass(frozen=True)
class DistilConfig:
    """How a coreset is distilled through a pool.

    Attributes:
        steps: outer updates.
        batch: training rows a step.
        lr, label_lr: Adam's peak learning rates of images and labels; both fall to 0 by a cosine.
        label_scale: factor of the initial labels (onehot − 1/k)/√(k/10).
        pool: the model pool.
        augmentation: of the coreset, of the batch and of the networks' own steps.
        accuracy_every: steps between reports of the batch accuracy.
    """

    steps: int
    batch: int
    lr: float
    label_lr: float
    label_scale: float
    pool: PoolConfig
    augmentation: AugmentConfig
    accuracy_every: int = 20

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "lr", "label_lr", "label_scale", "accuracy_every"):
            require(getattr(self, name) > 0, name, "must be > 0", getattr(self, name))


def stored(checkpoint: State, config: DistilConfig) -> tuple[Tensor, Tensor]:
    """Read images and labels from a checkpoint of :func:`distil`."""
    tensors = checkpoint.tensors
    return tensors["task.images"], tensors["task.labels"] * config.label_lr / config.lr


class PoolDescent(loop.Objective):
    """The descent in (images, labels).

    The labels are held as Ŷ·lr/label_lr, so that one rate serves both: Adam's step does not depend on the scale of a
    gradient.
    """

    def __init__(
        self, data: FitData, start: Coreset, network: networks.NetworkConfig, config: DistilConfig, *, rng: Seed
    ) -> None:
        self._data, self._config = data, config
        self._rng, self._unit, device = rng, config.label_lr / config.lr, data.device
        self._images = start.images.to(device, copy=True).requires_grad_()
        self._labels = (start.labels.to(device, copy=True) / self._unit).requires_grad_()
        shape, outputs = data.input_shape, data.outputs
        self._pool = ModelPool(config.pool, network, shape, outputs, rng=rng.fold("pool"), device=device)
        self._slot, self._accuracy = 0, 0.0

    @abstractmethod
    def outer_loss(
        self, network: networks.Network, coreset: Tensor, labels: Tensor, images: Tensor, classes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss [] of a batch given the coreset, and the outputs [b, k] by which classes are predicted.

        Args:
            network: of the pool.
            coreset, labels: the coreset's augmented images and its labels, with a graph.
            images, classes: augmented training rows and their classes.
        """

    def reported(self, loss: float) -> float:
        """Return the loss as progress shows it: per training row."""
        return loss

    def coreset(self) -> tuple[Tensor, Tensor]:
        """Return images and labels as they stand, detached."""
        return self._images.detach(), self._unit * self._labels.detach()

    def parameters(self) -> list[Tensor]:
        return [self._images, self._labels]

    def loss(self, step: int) -> Tensor:
        address = self._rng.fold("step", step)
        self._slot, network = self._pool.draw(step)
        images, classes = self._batch(address)
        coreset = augment(self._images, self._config.augmentation, address.fold("coreset"))
        loss, outputs = self.outer_loss(network, coreset, self._unit * self._labels, images, classes)
        if self._reports(step):
            self._accuracy = float((outputs.detach().argmax(1) == classes).float().mean())
        return loss

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        images, labels = self.coreset()
        fit = self._pool.advance(self._slot, images, labels, self._config.augmentation)
        if not self._reports(step):
            return {}
        return {"loss": self.reported(float(loss)), "batch_accuracy": self._accuracy, "pool_loss": fit}

    def state(self) -> dict[str, Tensor]:
        own = {"images": self._images.detach().clone(), "labels": self._labels.detach().clone()}
        return own | {f"pool.{k}": v for k, v in self._pool.state().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            self._images.copy_(state["images"])
            self._labels.copy_(state["labels"])
        self._pool.restore(under("pool.", state))

    def _reports(self, step: int) -> bool:
        return (step + 1) % self._config.accuracy_every == 0 or step + 1 == self._config.steps

    def _batch(self, address: Seed) -> tuple[Tensor, Tensor]:
        """Draw augmented training rows with replacement, and their classes."""
        images, classes = self._data.batch(self._config.batch, address.fold("batch"))
        return augment(images, self._config.augmentation, address.fold("augment")), classes


def distil(task: PoolDescent, config: DistilConfig, report: Report) -> tuple[Tensor, Tensor]:
    """Run the descent, from ``report.load()`` with the same bits where it was stopped; return images and labels.

    Raises:
        Diverged: the loss became NaN or infinite.
    """
    loop.run_steps(task, loop.OptimiserConfig("adam", config.lr, "cosine"), config.steps, report)
    return task.coreset()


def from_checkpoint(name: str, checkpoint: State, data: FitData, inputs: Inputs, config: Any, *, rng: Seed) -> State:
    """Read the coreset as it stands in a checkpoint of a method's fit: a search judges it half-way.

    Args:
        name: the method's.
        config: a method's, with ``ipc`` and ``coreset`` (a :class:`DistilConfig`).
    """
    start = balanced(data, config.ipc, config.coreset.label_scale, rng=rng.fold("start"))
    images, labels = stored(checkpoint, config.coreset)
    return Coreset(images, labels, start.classes).state(data, {"coreset": name, "ipc": config.ipc})
