"""Surrogates with a pool of networks, for VBPC, FRePo and RCIG.

An outer step draws a batch B of training rows and a network of the model pool, and augments the coreset. It computes
the loss of B given the coreset with this network's features, and makes one Adam step of images and labels, then one
Adam step of the network on the coreset (Zhou et al. 2022; Lee et al. 2025, algorithm 1).

A step of class-incremental learning distils its coreset from its own rows alone (published), or together with the
earlier coreset as a memory (ours). The networks of the pool are then trained on the union of the earlier and the new
coreset; the earlier rows do not change. At each outer step a random half of the rows of each earlier class is in the
inner problem with the new rows. The other half is in the outer loss with a batch of the step's rows, where it replaces
the earlier classes' data. Each class, earlier or new, has the same weight.

No row is in both problems: rows that the inner problem fits have no loss left, and then nothing would keep the new
classes from claiming all inputs that differ from an earlier *synthetic* row (results/vbpc/increments.md).
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ... import networks
from ...artifacts import under
from ...config import LATER
from ...data.augment import AugmentConfig
from ...data.fitdata import FitData
from ...errors import require, require_positive
from ...method import Inputs
from ...seeds import Seed
from ...training import loop
from .descent import Descent, Surrogate, check_average
from .init import Choice, Coreset
from .pool import ModelPool, PoolConfig
from .trunk import augmented

_REPORT_EVERY: Final = 20  # steps between reports of the batch accuracy


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
    average: float | None = field(default=None, metadata=LATER)
    start: Choice = field(default="random", metadata=LATER)
    optimiser: Literal["adam", "lamb"] = field(default="adam", metadata=LATER)
    increment: Literal["alone", "with_earlier"] = field(default="alone", metadata=LATER)

    @property
    def descent(self) -> Descent:
        """Return the outer loop; the labels' unit is their learning rate divided by the images'."""
        unit = None if self.label_lr is None else self.label_lr / self.lr
        update = loop.OptimiserConfig(self.optimiser, self.lr, "cosine")
        return Descent(self.steps, update, self.average, unit, self.label_scale, self.start)

    def __post_init__(self) -> None:
        require(self.label_lr is None or self.label_lr > 0, "label_lr", "must be > 0 or null", self.label_lr)
        require_positive(self, "steps", "batch", "lr", "label_scale")
        check_average(self.average)


def label_margin(labels: Float[Tensor, "n k"], most: float) -> Float[Tensor, ""]:
    """Return the mean over rows of min(top1 − top2, most) of a row's labels."""
    top = labels.topk(2, dim=1).values
    return (top[:, 0] - top[:, 1]).clamp(max=most).mean()


@final
class Memory:
    """An earlier coreset, and the share of the step's own classes in the outer loss."""

    def __init__(self, coreset: Coreset, new: int) -> None:
        """Create the memory of an earlier coreset, to which ``new`` classes are added.

        Raises:
            ConfigError: a class has only one row, so it cannot be halved.
        """
        self.coreset, self._classes = coreset, coreset.classes.cpu()
        _, place, counts = self._classes.unique(return_inverse=True, return_counts=True)
        rule = "must be alone if the earlier coreset has only one row of a class"
        require(int(counts.min()) > 1, "coreset.increment", rule, "with_earlier")
        out, seen = counts // 2, len(counts) + new
        self.share = new / seen
        # True if a row, in the order of classes, is in the outer half
        self._out = torch.cat([torch.arange(int(n)) < n // 2 for n in counts])
        self._weights = 1 / (seen * out[place].float())

    def halves(self, rng: Seed) -> tuple[Int[Tensor, " inner"], Int[Tensor, " outer"]]:
        """Draw the earlier rows of the inner problem and of the outer loss."""
        order = torch.randperm(len(self._classes), generator=rng.generator())
        order = order[self._classes[order].argsort(stable=True)]
        return order[~self._out].sort().values, order[self._out].sort().values

    def union(self, images: Tensor, labels: Tensor, rows: Int[Tensor, " row"] | None = None) -> tuple[Tensor, Tensor]:
        """Return the images and labels of both coresets; the earlier rows (all, or only ``rows``) come first."""
        earlier = self.coreset.images, self.coreset.labels
        if rows is not None:
            there = rows.to(images.device, non_blocking=True)
            earlier = earlier[0][there], earlier[1][there]
        return torch.cat([earlier[0], images]), torch.cat([earlier[1], labels])

    def weights(self, batch: int, rows: Int[Tensor, " outer"]) -> Float[Tensor, " row"]:
        """Return the weights of a batch of the step's rows followed by the earlier ``rows``; their sum is 1."""
        of_batch = torch.full((batch,), self.share / batch)
        return torch.cat([of_batch, self._weights[rows]]).to(self.coreset.images.device, non_blocking=True)


class OuterProblem(NamedTuple):
    """What an outer loss is of.

    Attributes:
        network: a network of the pool.
        coreset, labels: the coreset's augmented images and its labels, with a graph.
        images, classes: augmented training rows and their classes, in regression their transformed targets [b, k].
        weights: the weights of these rows [b], with the sum 1. With None, the loss is the mean over the rows.
        rng: the step's seed address.
    """

    network: networks.Network
    coreset: Tensor
    labels: Tensor
    images: Tensor
    classes: Tensor
    weights: Tensor | None
    rng: Seed


class PoolSurrogate(Surrogate):
    """A loss of a batch given the coreset, computed with one network of a pool."""

    SCORE: ClassVar = "batch_accuracy"

    def __init__(self, data: FitData, config: Any, memory: Memory | None, rng: Seed) -> None:
        """Create the surrogate; ``config`` has the pool's ``network`` and ``coreset``, a :class:`DistilConfig`."""
        self._data, self._config, self._memory, self._rng = data, config.coreset, memory, rng
        shape, outputs, pool = data.input_shape, data.outputs, config.coreset.pool
        self._pool = ModelPool(pool, config.network, shape, outputs, rng=rng.fold("pool"), device=data.device)
        self._slot, self._score = 0, torch.zeros(())

    @classmethod
    def of_fit(cls, data: FitData, inputs: Inputs, config: Any, start: Coreset, rng: Seed) -> "PoolSurrogate":
        """Return the surrogate of a fit; its memory is the earlier coreset in ``inputs``, if the config asks for it."""
        memory, earlier = None, inputs.get("coreset", ())
        if earlier and config.coreset.increment == "with_earlier":
            memory = Memory(Coreset.for_fit(earlier[0], data), len(np.unique(data.train.targets)))
        return cls(data, config, memory, rng)

    @abstractmethod
    def outer_loss(self, problem: OuterProblem) -> tuple[Tensor, Tensor]:
        """Return the loss [] of a batch given the coreset, and the outputs [b, k] that predict classes or targets."""

    def row_scores(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " b"]:
        """Return the value of each row whose mean is reported as ``SCORE``: 1 if the row's class is predicted."""
        return (outputs.argmax(1) == targets).float()

    def loss(self, images: Tensor, labels: Tensor, step: int, rng: Seed) -> Tensor:
        self._slot, network = self._pool.draw(step)
        weights, memory, augmentation = None, self._memory, self._config.augmentation
        rows, classes = self._batch(rng)
        if memory is not None:
            inner, outer = memory.halves(rng.fold("halves"))
            images, labels = memory.union(images, labels, inner)
            weights, there = memory.weights(len(rows), outer), outer.to(rows.device, non_blocking=True)
            stand_ins = augmented(memory.coreset.images[there], augmentation, rng.fold("memory"))
            rows, classes = torch.cat([rows, stand_ins]), torch.cat([classes, memory.coreset.classes[there]])
        coreset = augmented(images, augmentation, rng.fold("coreset"))
        loss, outputs = self.outer_loss(OuterProblem(network, coreset, labels, rows, classes, weights, rng))
        if self._reports(step):
            scores = self.row_scores(outputs.detach(), classes)
            self._score = scores.mean() if weights is None else weights @ scores
        return loss

    def after(self, step: int, loss: Tensor, images: Tensor, labels: Tensor) -> dict[str, float]:
        fit = self.train_network(images, labels)
        if not self._reports(step):
            return {}
        return {"loss": float(loss), self.SCORE: float(self._score), "pool_loss": float(fit)}

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
        return (step + 1) % _REPORT_EVERY == 0 or step + 1 == self._config.steps

    def _batch(self, address: Seed) -> tuple[Tensor, Tensor]:
        """Draw augmented training rows with replacement, and their classes or targets."""
        images, classes = self._data.batch(self._config.batch, address.fold("batch"))
        return augmented(images, self._config.augmentation, address.fold("augment")), classes
