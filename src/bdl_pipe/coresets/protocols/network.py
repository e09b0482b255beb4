"""The methods ``coreset_nn`` and ``coreset_krr``: a network trained on a coreset, and ridge regression on its features.

``coreset_nn`` is the evaluation of Zhou et al. 2022 (FRePo) and Loo et al. 2023 (RCIG): a new network, the squared
error to the coreset's labels, Adam with a warm-up. ``coreset_krr`` trains the same network and replaces its head by the
ridge solution W = Φᵀ(ΦΦᵀ + λI)⁻¹Ŷ, λ = ``ridge`` · tr(ΦΦᵀ)/n̂ (their inner problem; VBPC's posterior mean at λ =
ρβ_S/γ).

The outputs are regressions on centred labels. Class probabilities are softmax(s f(x)) with a factor s, the
``logit_scale``, which does not affect the accuracy. Deviation: the learning rate falls to 0 (in their code to a
hundredth).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor

from ... import networks
from ...artifacts import State
from ...data.augment import AugmentConfig, augment
from ...data.fitdata import FitData, distinct
from ...data.size import CONVNET
from ...errors import Diverged, require
from ...method import Inputs, Method, StageSpec
from ...posterior import NetworkDraws, NetworkSpec
from ...progress import Report
from ...seeds import Seed
from ...training import loop
from ..shared.descent import NOISY
from ..shared.init import Coreset
from ..shared.trunk import NetworkObjective
from .scale import LogitScale, check_scale, noted, resolved

_CHUNK: Final = 250  # rows in one forward pass


@dataclass(frozen=True)
class TrainedOnCoresetConfig:
    """The section ``methods.coreset_nn``, and the common keys of ``methods.coreset_krr``.

    Attributes:
        network: the architecture.
        steps: the number of steps (1,000 for 10 rows, 2,000 for 100, 5,000 for 500).
        batch: the number of rows per step; a step uses all rows of a smaller coreset.
        optimiser: the update rule and its schedule.
        augmentation: the augmentation of each batch. null disables it.
        logit_scale: s; ``validation`` chooses it on validation rows (:mod:`.scale`).
    """

    network: networks.NetworkConfig
    steps: int
    batch: int
    optimiser: loop.OptimiserConfig
    augmentation: AugmentConfig | None
    logit_scale: LogitScale

    def __post_init__(self) -> None:
        require(self.steps >= 0, "steps", "must be >= 0", self.steps)
        require(self.batch > 0, "batch", "must be > 0", self.batch)
        check_scale(self.logit_scale)


@dataclass(frozen=True)
class RidgeConfig(TrainedOnCoresetConfig):
    """The section ``methods.coreset_krr``.

    Attributes:
        ridge: λ divided by the mean of the Gram matrix's diagonal (1e-6).
    """

    ridge: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ridge > 0, "ridge", "must be > 0", self.ridge)


@final
class _Regression(NetworkObjective):
    """The squared error ½‖f(x̂) − ŷ‖², averaged over the rows of a batch."""

    def __init__(self, network: networks.Network, coreset: Coreset, config: TrainedOnCoresetConfig, rng: Seed) -> None:
        super().__init__(network.train(), coreset, rng)
        self._config = config

    def parameters(self) -> list[Tensor]:
        return list(self.network.parameters())

    def loss(self, step: int) -> Tensor:
        address, count = self._rng.fold("step", step), len(self.coreset.images)
        images, labels = self.coreset.images, self.coreset.labels
        if self._config.batch < count:
            rows = distinct(count, self._config.batch, address.fold("rows").generator())
            images, labels = images[rows.to(images.device)], labels[rows.to(images.device)]
        if self._config.augmentation is not None:
            images = augment(images, self._config.augmentation, address.fold("augment"))
        with networks.dropout_masks(self.network, address.fold("dropout")):
            return 0.5 * (self.network(images) - labels).square().sum(1).mean()


def ridge_head(features: Tensor, labels: Tensor, ridge: float) -> Tensor:
    """Solve for W = Φᵀ(ΦΦᵀ + λI)⁻¹Ŷ [feature, class] in float64, with λ = ridge · tr(ΦΦᵀ)/n̂.

    Raises:
        Diverged: the features are not finite or are all zero.
    """
    wide, gram = features.double(), features.double() @ features.double().T
    damped = gram + ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(damped)
    if bool(failed) or not bool(factor.isfinite().all()):
        raise Diverged("the coreset's features became NaN or all zero: lower the learning rate")
    return wide.T @ torch.cholesky_solve(labels.double(), factor)


def fit_network(data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State:
    """Train a new network on the coreset in ``inputs``.

    The fit uses only the data's shape and device, and its validation rows if ``logit_scale`` is ``validation``. A fit
    resumed from ``report.load()`` has the same bits.
    """
    (stored,) = inputs["coreset"]
    coreset = Coreset.for_fit(stored, data)
    spec = NetworkSpec(config.network, data.input_shape, data.outputs, "categorical")
    network = spec.build(rng.fold("network")).to(data.device)
    loop.run_steps(_Regression(network, coreset, config, rng), config.optimiser, config.steps, report)
    network.eval()
    head = network.head
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        if isinstance(config, RidgeConfig):
            weight = ridge_head(network.trunk(coreset.images), coreset.labels, config.ridge)
            head.weight.copy_(weight.T)
            head.bias.zero_()

        def scaled(inputs: Tensor) -> Callable[[float], Tensor]:
            logits = torch.cat([network(part) for part in inputs.split(_CHUNK)])
            return lambda scale: (scale * logits).log_softmax(-1)

        scale = resolved(config.logit_scale, data, scaled)
        head.weight.mul_(scale)
        head.bias.mul_(scale)
    state = NetworkDraws.of(spec, [{k: v.detach().clone() for k, v in network.state_dict().items()}]).state()
    return noted(state, config.logit_scale, scale)


def _method(name: str, config: type, **more: float) -> Method:
    settings = {
        "network": CONVNET,
        "steps": 500,
        "batch": 500,
        "optimiser": {"name": "adam", "lr": 3e-3, "schedule": "one_cycle", "warmup": 0.25},
        "augmentation": NOISY,
        "logit_scale": "validation",
        **more,
    }
    return Method(
        name=name,
        family="coresets",
        config=config,
        tasks=("classification",),
        stages={"student": StageSpec(fit_network, needs={"coreset": "cyclic"})},
        search={"optimiser.lr": (1e-5, 1e-2, "log"), "logit_scale": (1.0, 100.0, "log")},
        settings=settings,
    )


CORESET_NN = _method("coreset_nn", TrainedOnCoresetConfig)
CORESET_KRR = _method("coreset_krr", RidgeConfig, ridge=1e-3)
