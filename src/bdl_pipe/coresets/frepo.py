"""The method ``frepo``: a coreset whose ridge regression on a network's features predicts the data (Zhou et al. 2022).

With Φ the features of the coreset and Φ_B a batch's features, P = Φ_BΦᵀ(ΦΦᵀ + λI)⁻¹Ŷ, λ = 1e-6·tr(ΦΦᵀ)/n̂, the loss is

    mean_B ½‖P − Y‖² − mean_m min(top1(ŷ_m) − top2(ŷ_m), 1/k),        Y = onehot − 1/k

The second term separates the two largest entries of a label, whichever classes they are (as in the published code; the
paper has "of the true class"). P is VBPC's posterior mean at ρβ_S/γ = λ.

Deviations: Adam with a cosine to 0 and a separate learning rate of the labels, instead of LAMB; one augmentation for
the coreset, the batch and the networks; no stacking of mirrored images, as in the published settings for MNIST and
Fashion-MNIST.
"""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from .. import networks
from ..data.fitdata import FitData
from ..data.size import CONVNET
from ..errors import require_positive
from ..method import Method
from ..seeds import Seed
from .protocols.network import ridge_head
from .shared.descent import POOLED, RATES, distilled_stage
from .shared.pool_surrogate import DistilConfig, Memory, OuterProblem, PoolSurrogate, label_margin
from .shared.trunk import features


@dataclass(frozen=True)
class FrepoConfig:
    """The section ``methods.frepo``.

    Attributes:
        ipc: the number of coreset rows per class.
        network: the architecture of the pool's networks.
        ridge: λ divided by the mean of the Gram matrix's diagonal (1e-6).
        coreset: the settings of the distillation (published: 500,000 steps, batch 1024, a pool of 10).
    """

    ipc: int
    network: networks.NetworkConfig
    ridge: float
    coreset: DistilConfig

    def __post_init__(self) -> None:
        require_positive(self, "ipc", "ridge")


def ridge_loss(
    predictions: Float[Tensor, "b k"],
    classes: Int[Tensor, " b"],
    labels: Float[Tensor, "n k"],
    weights: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, ""]:
    """Return the loss of the predictions P of a batch, minus the margin of the coreset's labels.

    Args:
        weights: the weights of the batch's rows. With None, the error is the mean over the rows.
    """
    outputs = labels.shape[1]
    targets = F.one_hot(classes, outputs).to(predictions.dtype) - 1 / outputs
    errors = (predictions - targets).square().sum(1)
    error = errors.mean() if weights is None else weights.to(errors) @ errors
    return 0.5 * error - label_margin(labels, 1 / outputs)


@final
class _RidgeLoss(PoolSurrogate):
    """The loss of a batch under ridge regression on the coreset's features."""

    def __init__(self, data: FitData, config: FrepoConfig, memory: Memory | None, rng: Seed) -> None:
        super().__init__(data, config, memory, rng)
        self._ridge = config.ridge

    def outer_loss(self, problem: OuterProblem) -> tuple[Tensor, Tensor]:
        network, coreset, labels, images, classes, weights, _ = problem
        head = ridge_head(features(network, coreset, 1.0), labels, self._ridge)
        with torch.no_grad():
            phi = features(network, images, 1.0)
        predictions = phi.double() @ head
        return ridge_loss(predictions, classes, labels, weights), predictions


FREPO = Method(
    name="frepo",
    family="coresets",
    config=FrepoConfig,
    tasks=("classification",),
    stages={"coreset": distilled_stage("frepo", _RidgeLoss.of_fit, "coreset")},
    search={**RATES, "coreset.pool.steps": (10, 300, "integer")},
    settings={
        "ipc": 10,
        "network": CONVNET,
        "ridge": 1e-6,
        "coreset": {"steps": 400, "batch": 256, "lr": 0.02, "label_lr": 0.1, **POOLED},
    },
)
