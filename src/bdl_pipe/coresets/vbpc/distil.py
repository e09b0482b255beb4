"""Distilling a pseudo-coreset: images and labels descend the dataset loss of the closed form.

Lee et al. 2025, algorithm 1: a batch B of training rows, a network of the model pool with features
φ, the head's posterior q given S in closed form (eq. 21), the loss of eq. 27 on B, one Adam step of
S, one step of that network on S. Only the coreset's features carry a graph; the batch's do not.

The paper's setting (E.4): Adam, cosine from 3e-3 for images and labels, batch 1024, 0.5M steps,
ρ = 1. At a few hundred steps that predictive is under-confident, because the labels' scale sets the
logits' scale and Σ(x) grows while a trunk fits S. What cures it, on Fashion-MNIST's validation rows
(ipc 10, width 16, 400 steps, NLL at T' = 100): label rate .1 and ρ = 1: .53; ρ = 10: .473; label
rate .3 as well: .474, with no temperature left to gain, and flat in T' from 20 to 200 (ρ = 1: .50 to
.65). So the labels have their own ``label_lr`` (deviation). Instance norm equalled batch norm by
the coreset's statistics and predicts each row by itself, so it is the default of ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ... import networks
from ...artifacts import State, under
from ...data.augment import AugmentConfig, augment
from ...data.fitdata import FitData
from ...errors import require
from ...progress import Report
from ...seeds import Seed
from ...training import loop
from ..shared.init import Coreset
from ..shared.pool import ModelPool, PoolConfig
from ..shared.trunk import features
from . import closed_form
from .head import HeadConfig


@dataclass(frozen=True)
class DistilConfig:
    """The settings of a coreset's distillation.

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


class Distillation(loop.Objective):
    """The descent of eq. 27 in (images, labels).

    The labels are held as Ŷ·rate/label_lr, so that one rate serves both: Adam's step does not
    depend on the scale of a gradient.
    """

    def __init__(
        self,
        data: FitData,
        start: Coreset,
        network: networks.NetworkConfig,
        head: HeadConfig,
        beta_dataset: float,
        config: DistilConfig,
        *,
        rng: Seed,
    ) -> None:
        self._data, self._head, self._beta, self._config = data, head, beta_dataset, config
        self._rng, self._unit, device = rng, config.label_lr / config.lr, data.device
        self._images = start.images.to(device, copy=True).requires_grad_()
        self._labels = (start.labels.to(device, copy=True) / self._unit).requires_grad_()
        shape, outputs = data.input_shape, data.outputs
        self._pool = ModelPool(config.pool, network, shape, outputs, rng=rng.fold("pool"), device=device)
        self._slot, self._accuracy = 0, 0.0

    def coreset(self) -> tuple[Tensor, Tensor]:
        """Return images and labels as they stand, detached."""
        return self._images.detach(), self._unit * self._labels.detach()

    def parameters(self) -> list[Tensor]:
        return [self._images, self._labels]

    def loss(self, step: int) -> Tensor:
        address = self._rng.fold("step", step)
        self._slot, network = self._pool.draw(step)
        images, labels = self._batch(address)
        coreset = augment(self._images, self._config.augmentation, address.fold("coreset"))
        q = self._head.solve(network, coreset, self._unit * self._labels)
        with torch.no_grad():
            phi = features(network, images, self._head.feature_scale)
            if self._reports(step):
                hits = q.logit_moments(phi)[0].argmax(1) == labels
                self._accuracy = float(hits.float().mean())
        return closed_form.dataset_loss(q, phi, labels, len(self._data.train), self._beta)

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        images, labels = self.coreset()
        fit = self._pool.advance(self._slot, images, labels, self._config.augmentation)
        if not self._reports(step):
            return {}
        return {"loss": float(loss) / len(self._data.train), "batch_accuracy": self._accuracy, "pool_loss": fit}

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
        size = (min(self._config.batch, len(self._data.train)),)
        index = torch.randint(len(self._data.train), size, generator=address.fold("batch").generator()).numpy()
        images = self._data.transform.inputs(self._data.train.inputs[index], self._data.device)
        labels = self._data.transform.targets(self._data.train.targets[index], self._data.device)
        return augment(images, self._config.augmentation, address.fold("augment")), labels


def distil(
    data: FitData,
    start: Coreset,
    network: networks.NetworkConfig,
    head: HeadConfig,
    beta_dataset: float,
    config: DistilConfig,
    *,
    rng: Seed,
    report: Report,
) -> Coreset:
    """Distil a coreset from ``start``; it resumes from ``report.load()`` with the same bits.

    Raises:
        Diverged: the loss became NaN or infinite.
    """
    task = Distillation(data, start, network, head, beta_dataset, config, rng=rng)
    optimiser = loop.OptimiserConfig("adam", config.lr, "cosine")
    loop.run_steps(task, optimiser, config.steps, report)
    images, labels = task.coreset()
    return Coreset(images, labels, start.classes)
