"""The method ``rcig``: a coreset by the implicit gradient of a linearised network's training on it (Loo et al. 2023).

The outer loss is the cross-entropy of a batch under softmax(e^ℓ g(x)), where g is the model trained on the coreset
(:mod:`.linearised`), minus the mean of min(top1(ŷ_m) − top2(ŷ_m), 1/(2k)); ℓ is learned. The implicit part of the
gradient is scaled down to the norm of the direct part if it is larger, separately for images and labels.

Deviations: Adam with a cosine instead of AdaBelief; the networks' ages are staggered as in all of our pools; networks
train with ReLU, and only the linearisation has the softplus. Both linear problems are solved exactly (``exact``) or by
conjugate gradients (``cg``), where the published code makes 20 steps of Adam. On Fashion-MNIST with ten
images per class, networks after 0 and 50 steps and float32, compared with a dense solution in float64, the error of the
images' implicit gradient is 58 and 53 % after 5 iterations of ``cg``, 18 and 16 % after 10 (labels: 26 and 22 %), 1.2
and 1.0 % after 20, and .1 % after 30. ``exact`` is within .01 % and takes the time of 10 iterations.
"""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import networks
from ...data.fitdata import FitData
from ...errors import require, require_positive
from ...method import Method
from ...seeds import Seed
from ..shared.descent import POOLED, RATES, distilled_stage
from ..shared.pool_surrogate import DistilConfig, Memory, OuterProblem, PoolSurrogate, label_margin
from .linearised import InnerProblem, Linearisation, Model, SolverConfig, fitted, slope_along


@dataclass(frozen=True)
class RcigConfig:
    """The section ``methods.rcig``.

    Attributes:
        ipc: the number of coreset rows per class.
        network: the architecture of the pool's networks.
        ridge: λ divided by the number of rows (published: 5e-4).
        softplus: β of the softplus that replaces each ReLU in the linearisation (published: 60).
        solver: the solver of the two linear problems.
        scale_lr: the peak learning rate of ℓ (published: .03).
        network_steps: the pool trains a network for 1 … network_steps steps after each use, with equal probability
            (published: 15).
        coreset: the settings of the distillation (published: a rate of 3e-3, a pool of 30 at 5e-5, batch 1024, average
            .99).
    """

    ipc: int
    network: networks.NetworkConfig
    ridge: float
    softplus: float
    solver: SolverConfig
    scale_lr: float
    network_steps: int
    coreset: DistilConfig

    def __post_init__(self) -> None:
        require_positive(self, "ipc", "ridge", "softplus", "scale_lr", "network_steps")
        pool = self.coreset.pool
        rule = "is not for rcig, which differentiates through a linearised network; it"
        require(not pool.compiled, "coreset.pool.compiled", f"{rule} must be false", pool.compiled)
        require(pool.precision == "float32", "coreset.pool.precision", f"{rule} must be float32", pool.precision)


@dataclass(frozen=True)
class OuterGradient:
    """The outer loss, and the two parts of its gradient.

    Attributes:
        loss: L_t.
        outputs: g at the batch [row, class].
        direct: ∂L_t with respect to images, labels and ℓ.
        implicit: −∂[vᵀ∇L_S] with respect to images and labels.
    """

    loss: Tensor
    outputs: Tensor
    direct: tuple[Tensor, Tensor, Tensor]
    implicit: tuple[Tensor, Tensor]


def outer_gradient(
    model: Model,
    images: Tensor,
    labels: Tensor,
    log_scale: Tensor,
    batch: Tensor,
    classes: Tensor,
    penalty: float,
    solver: SolverConfig,
    weights: Tensor | None = None,
) -> OuterGradient:
    """Compute the outer loss and its gradient.

    Args:
        model: a network's linearisation.
        images, labels: the coreset [row, ...] and [row, class].
        log_scale: ℓ [].
        batch, classes: training rows, without a gradient.
        penalty: λ.
        weights: the weights of the training rows [row]. With None, the loss is the mean over the rows.

    Raises:
        Diverged: the features are not finite.
    """
    images, labels, log_scale = (t.detach().requires_grad_() for t in (images, labels, log_scale))
    with torch.no_grad():
        problem = InnerProblem(model, images, labels, penalty, solver)
        solution = problem.solution()
    tangent = solution.requires_grad_()
    fit = fitted(model, images, labels, tangent, penalty)
    features, moved = model.both(batch, tangent)
    outputs = moved.double() + features.detach().double() @ (fit.features.double().T @ fit.dual)
    logits = log_scale.exp() * outputs
    if weights is None:
        fit_of_batch = F.cross_entropy(logits, classes)
    else:
        fit_of_batch = weights.to(logits) @ F.cross_entropy(logits, classes, reduction="none")
    loss = fit_of_batch - label_margin(labels, 0.5 / labels.shape[1])
    of_images, of_labels, of_scale, slope = torch.autograd.grad(
        loss, (images, labels, log_scale, tangent), retain_graph=True
    )
    with torch.no_grad():
        along = problem.adjoint(slope)
    inner = slope_along(model, images, labels, fit, tangent, along, penalty)
    through_images, through_labels = torch.autograd.grad(inner, (images, labels))
    return OuterGradient(
        loss.detach(), outputs.detach(), (of_images, of_labels, of_scale), (-through_images, -through_labels)
    )


def clipped(implicit: Tensor, direct: Tensor) -> Tensor:
    """Scale ``implicit`` down to the norm of ``direct`` if its norm is larger."""
    norm, most = implicit.norm(), direct.norm()
    return implicit * (most / norm) if bool(norm > most) else implicit


@final
class _Implicit(PoolSurrogate):
    def __init__(self, data: FitData, config: RcigConfig, memory: Memory | None, rng: Seed) -> None:
        super().__init__(data, config, memory, rng)
        self._rcig = config
        template = networks.build(config.network, data.input_shape, data.outputs, rng=Seed(0)).to(data.device)
        self._linearisation = Linearisation(template, config.softplus)
        self._unit = config.scale_lr / config.coreset.lr  # with this unit one learning rate suits ℓ and the images
        self._log_scale = torch.zeros((), device=data.device, requires_grad=True)

    def parameters(self) -> list[Tensor]:
        return [self._log_scale]

    def after(self, step: int, loss: Tensor, images: Tensor, labels: Tensor) -> dict[str, float]:
        for _ in range(self._rng.fold("network steps", step).integer() % self._rcig.network_steps):
            self.train_network(images, labels)
        return super().after(step, loss, images, labels)

    def outer_loss(self, problem: OuterProblem) -> tuple[Tensor, Tensor]:
        network, coreset, labels, images, classes, weights, _ = problem
        log_scale, model = self._unit * self._log_scale, self._linearisation.at(network)
        penalty, solver = self._rcig.ridge * len(labels), self._rcig.solver
        outer = outer_gradient(model, coreset, labels, log_scale, images, classes, penalty, solver, weights)
        parts = [d + clipped(i, d) for d, i in zip(outer.direct, outer.implicit, strict=False)]
        slopes, values = [*parts, outer.direct[2]], (coreset, labels, log_scale)
        linear = torch.stack([(slope * value).sum() for slope, value in zip(slopes, values, strict=True)]).sum()
        return outer.loss + (linear - linear.detach()), outer.outputs  # L_t, with the computed gradient


RCIG = Method(
    name="rcig",
    family="coresets",
    config=RcigConfig,
    tasks=("classification",),
    stages={"coreset": distilled_stage("rcig", _Implicit.of_fit, "coreset")},
    search={**RATES, "network_steps": (1, 30, "integer")},
    settings={
        "ipc": 10,
        "network": {"name": "convnet", "width": 16, "norm": "none"},
        "ridge": 5e-4,
        "softplus": 60.0,
        "solver": {"name": "exact"},
        "scale_lr": 0.03,
        "network_steps": 15,
        "coreset": {
            "steps": 100,
            "batch": 256,
            "lr": 0.02,
            "label_lr": 0.02,
            **POOLED,
            "augmentation": {"choose": "all"},
            "average": 0.9,
        },
    },
)
