"""The distillation of a pseudo-coreset: images and labels minimise the dataset loss of the closed form.

Lee et al. 2025, algorithm 1: the head's posterior q given S is in closed form (eq. 21), and eq. 27 is the loss on a
batch. It is minus the log of the predictive (``outer: predictive``) and not the bound of eq. 16, which has the
expectation outside of the logarithm. The bound is ``outer: expected`` (ours), with 16 pairs of draws of the logits per
row and step.

The paper's setting (E.4) is Adam, a cosine from 3e-3 for images and labels, batch 1024, 0.5M steps and ρ = 1. After a
few hundred steps its predictive is under-confident, because the labels' scale sets the logits' scale and Σ(x) grows
while a trunk fits S. On Fashion-MNIST's validation rows (ipc 10, width 16, 400 steps, NLL at T' = 100): label rate .1
and ρ = 1: .53; ρ = 10: .473; label rate .3 as well: .474, which no temperature improves, and constant in T' from 20 to
200 (ρ = 1: .50 to .65). So the labels have their own ``label_lr`` (deviation). Instance norm was as good as batch norm
with the coreset's statistics and predicts each row independently, so it is our default.
"""

from typing import Final, Literal, final

import torch
from torch import Tensor

from ... import networks
from ...data.fitdata import FitData
from ...seeds import Seed
from ..shared.memory import Memory
from ..shared.pool_surrogate import DistilConfig, PoolSurrogate
from ..shared.trunk import features
from . import closed_form
from .head import HeadConfig

Outer = Literal["predictive", "expected"]
_PAIRS: Final = 16  # pairs of draws of a row's logits


@final
class DatasetLoss(PoolSurrogate):
    """The loss of eq. 27 on a batch, or the bound, as a function of (images, labels)."""

    def __init__(
        self,
        data: FitData,
        network: networks.NetworkConfig,
        head: HeadConfig,
        beta_dataset: float,
        config: DistilConfig,
        *,
        outer: Outer = "predictive",
        memory: Memory | None = None,
        rng: Seed,
    ) -> None:
        super().__init__(data, network, config, memory=memory, rng=rng)
        self._head, self._beta, self._outer = head, beta_dataset, outer
        # the number of rows of all classes so far, if each class had as many rows as a class of this step
        self._rows = len(data.train) if memory is None else round(len(data.train) / memory.share)
        self._step = rng

    def loss(self, images: Tensor, labels: Tensor, step: int, rng: Seed) -> Tensor:
        self._step = rng
        return super().loss(images, labels, step, rng)

    def outer_loss(
        self,
        network: networks.Network,
        coreset: Tensor,
        labels: Tensor,
        images: Tensor,
        classes: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        q = self._head.solve(network, coreset, labels)
        with torch.no_grad():
            phi = features(network, images, self._head.feature_scale)
        noise = None
        if self._outer == "expected":
            generator = self._step.fold("logits").generator()
            noise = torch.randn(_PAIRS, *phi.shape[:1], q.mean.shape[1], generator=generator, dtype=phi.dtype)
            noise = noise.to(phi.device, non_blocking=True)
        loss = closed_form.dataset_loss(q, phi, classes, self._rows, self._beta, noise, weights)
        return loss, phi @ q.mean.detach()

    def after(self, step: int, loss: Tensor, images: Tensor, labels: Tensor) -> dict[str, float]:
        return super().after(step, loss / self._rows, images, labels)  # eq. 27 is a sum over all rows
