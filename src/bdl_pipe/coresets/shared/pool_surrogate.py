"""Surrogates with a pool of networks, for VBPC, FRePo and RCIG.

An outer step draws a batch B of training rows and a network of the model pool, and augments the coreset. It computes
the loss of B given the coreset with this network's features, and makes one Adam step of images and labels, then one
Adam step of the network on the coreset (Zhou et al. 2022; Lee et al. 2025, algorithm 1).

A step of class-incremental learning distils its coreset from its own rows alone (published), or together with the
earlier coreset (ours, :mod:`.memory`).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ... import networks
from ...artifacts import State, under
from ...config import LATER, to_mapping
from ...data.augment import AugmentConfig, augment
from ...data.fitdata import FitData
from ...errors import require
from ...method import Inputs
from ...progress import Report
from ...seeds import Seed
from ...training import loop
from .descent import CoresetDescent, Surrogate, check_average, kept
from .init import Choice, Coreset, balanced
from .memory import Memory
from .pool import ModelPool, PoolConfig


@dataclass(frozen=True)
class DistilConfig:
    """The settings of distillation with a pool.

    Attributes:
        steps: the number of outer steps.
        batch: the number of training rows of a step.
        lr: the peak learning rate of images, which falls to 0 by a cosine.
        label_lr: the peak learning rate of labels, which falls to 0 by a cosine. With null, labels are not learned.
            With ``lamb`` the labels have the images' rate, since a step is proportional to the tensor's norm.
        label_scale: the factor of the initial labels (onehot − 1/k)/√(k/10).
        pool: the settings of the model pool.
        augmentation: the augmentation of the coreset, of the batch and of the networks' training.
        accuracy_every: the number of steps between reports of the batch accuracy.
        average: the decay of an unbiased exponential average of images and labels; the average is the result. With
            null, the last images and labels are the result.
        start: the initial images: ``random`` rows, rows nearest to ``kmeans`` centres, rows from ``herding``, or
            ``noise``.
        optimiser: the update rule of images and labels.
        increment: whether a step of class-incremental learning distils its coreset from its own rows ``alone`` or
            ``with_earlier`` coreset. Without an earlier coreset, both values have the same effect.
    """

    steps: int
    batch: int
    lr: float
    label_lr: float | None
    label_scale: float
    pool: PoolConfig
    augmentation: AugmentConfig
    accuracy_every: int = 20
    average: float | None = field(default=None, metadata=LATER)
    start: Choice = field(default="random", metadata=LATER)
    optimiser: Literal["adam", "lamb"] = field(default="adam", metadata=LATER)
    increment: Literal["alone", "with_earlier"] = field(default="alone", metadata=LATER)

    @property
    def label_unit(self) -> float | None:
        """Return the labels' learning rate divided by the images'; None if labels are not learned."""
        return None if self.label_lr is None else self.label_lr / self.lr

    def __post_init__(self) -> None:
        require(self.label_lr is None or self.label_lr > 0, "label_lr", "must be > 0 or null", self.label_lr)
        for name in ("steps", "batch", "lr", "label_scale", "accuracy_every"):
            require(getattr(self, name) > 0, name, "must be > 0", getattr(self, name))
        check_average(self.average)


def label_margin(labels: Float[Tensor, "n k"], most: float) -> Float[Tensor, ""]:
    """Return the mean over rows of min(top1 − top2, most) of a row's labels."""
    top = labels.topk(2, dim=1).values
    return (top[:, 0] - top[:, 1]).clamp(max=most).mean()


class PoolSurrogate(Surrogate):
    """A loss of a batch given the coreset, computed with one network of a pool."""

    def __init__(
        self,
        data: FitData,
        network: networks.NetworkConfig,
        config: DistilConfig,
        *,
        memory: Memory | None = None,
        rng: Seed,
    ) -> None:
        self._data, self._config, self._memory, self._rng = data, config, memory, rng
        shape, outputs = data.input_shape, data.outputs
        self._pool = ModelPool(config.pool, network, shape, outputs, rng=rng.fold("pool"), device=data.device)
        self._slot, self._accuracy = 0, torch.zeros(())

    @abstractmethod
    def outer_loss(
        self,
        network: networks.Network,
        coreset: Tensor,
        labels: Tensor,
        images: Tensor,
        classes: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss [] of a batch given the coreset, and the outputs [b, k] that predict classes.

        Args:
            network: a network of the pool.
            coreset, labels: the coreset's augmented images and its labels, with a graph.
            images, classes: augmented training rows and their classes.
            weights: the weights of these rows [b], with the sum 1. With None, the loss is the mean over the rows.
        """

    def loss(self, images: Tensor, labels: Tensor, step: int, rng: Seed) -> Tensor:
        self._slot, network = self._pool.draw(step)
        rows, classes = self._batch(rng)
        weights, memory, augmentation = None, self._memory, self._config.augmentation
        if memory is not None:
            inner, outer = memory.halves(rng.fold("halves"))
            images, labels = memory.union(images, labels, inner)
            weights, there = memory.weights(len(rows), outer), outer.to(rows.device, non_blocking=True)
            stand_ins = augment(memory.coreset.images[there], augmentation, rng.fold("memory"))
            rows, classes = torch.cat([rows, stand_ins]), torch.cat([classes, memory.coreset.classes[there]])
        coreset = augment(images, augmentation, rng.fold("coreset"))
        loss, outputs = self.outer_loss(network, coreset, labels, rows, classes, weights)
        if self._reports(step):
            right = (outputs.detach().argmax(1) == classes).float()
            self._accuracy = right.mean() if weights is None else weights @ right
        return loss

    def after(self, step: int, loss: Tensor, images: Tensor, labels: Tensor) -> dict[str, float]:
        fit = self.train_network(images, labels)
        if not self._reports(step):
            return {}
        return {"loss": float(loss), "batch_accuracy": float(self._accuracy), "pool_loss": float(fit)}

    def train_network(self, images: Tensor, labels: Tensor) -> Tensor:
        """Train the drawn network for one step on the coreset, and return its loss []."""
        images = images.detach()
        if self._memory is not None:
            images, labels = self._memory.union(images, labels)
        return self._pool.advance(self._slot, images, labels, self._config.augmentation)

    def state(self) -> dict[str, Tensor]:
        return {f"pool.{k}": v for k, v in self._pool.state().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._pool.restore(under("pool.", state))

    def _reports(self, step: int) -> bool:
        return (step + 1) % self._config.accuracy_every == 0 or step + 1 == self._config.steps

    def _batch(self, address: Seed) -> tuple[Tensor, Tensor]:
        """Draw augmented training rows with replacement, and their classes."""
        images, classes = self._data.batch(self._config.batch, address.fold("batch"))
        return augment(images, self._config.augmentation, address.fold("augment")), classes


def distil(
    surrogate: Callable[[FitData, Any, Memory | None, Seed], PoolSurrogate],
    name: str,
    data: FitData,
    inputs: Inputs,
    config: Any,
    *,
    rng: Seed,
    report: Report,
) -> State:
    """Distil a coreset through a pool: ``images``, ``labels``, ``classes`` and the un-transformed ``raw``.

    A fit resumed from ``report.load()`` has the same bits.

    Args:
        surrogate: makes the method's surrogate from (data, config, memory, seed).
        name: the method's name.
        config: the method's config, with ``ipc`` and ``coreset`` (a :class:`DistilConfig`).

    Raises:
        ConfigError: :meth:`Coreset.for_fit` or :class:`Memory` refuses the earlier coreset.
        Diverged: the loss or an image became NaN or infinite.
    """
    outer: DistilConfig = config.coreset
    start, address = _start(data, config, rng), rng.fold("distil")
    made = surrogate(data, config, _memory(data, inputs, outer), address)
    task = CoresetDescent(start, made, label_unit=outer.label_unit, average=outer.average, rng=address)
    loop.run_steps(task, loop.OptimiserConfig(outer.optimiser, outer.lr, "cosine"), outer.steps, report)
    return task.coreset().state(data, {"coreset": name, "ipc": config.ipc, "config": to_mapping(config)})


def from_checkpoint(name: str, checkpoint: State, data: FitData, inputs: Inputs, config: Any, *, rng: Seed) -> State:
    """Return the coreset in a checkpoint of :func:`distil`; searches score it before the distillation ends."""
    outer: DistilConfig = config.coreset
    tensors = under("task.", checkpoint.tensors)
    coreset = kept(tensors, _start(data, config, rng), outer.label_unit, outer.average)
    return coreset.state(data, {"coreset": name, "ipc": config.ipc})


def _start(data: FitData, config: Any, rng: Seed) -> Coreset:
    outer: DistilConfig = config.coreset
    made = balanced(data, config.ipc, outer.label_scale, rng=rng.fold("start"), choice=outer.start)
    return made.to(data.device)


def _memory(data: FitData, inputs: Inputs, outer: DistilConfig) -> Memory | None:
    for earlier in inputs.get("coreset", ()) if outer.increment == "with_earlier" else ():
        return Memory(Coreset.for_fit(earlier, data), len(np.unique(data.train.targets)))
    return None
