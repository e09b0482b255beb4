"""The methods ``bpc_fkl``, ``bpc_rkl``, ``bpc_w``, ``bpc_cd`` and ``fbpc``: coresets from expert trajectories.

An outer step starts at an expert's weights after one of its first epochs. The data's posterior π_D is approximated by
N(θ_D, σ²I), with θ_D the same expert's weights some epochs later, and the coreset's posterior π_S by N(θ_S, σ²I), with
θ_S the result of some steps on the coreset from the same start (Kim et al. 2022, section 4; σ is a standard deviation).
Only ``bpc_w`` differentiates the steps to θ_S with respect to the images.
"""

import math
from abc import abstractmethod
from typing import Any, Final, final

import torch
from torch import Tensor

from ...data.augment import augment
from ...data.fitdata import FitData
from ...data.size import Section
from ...errors import require
from ...method import Inputs, Method
from ...seeds import Seed
from ..shared.descent import Search, Surrogate, distilled_stage
from ..shared.init import Coreset, mean_log_likelihood
from . import surrogates
from .config import ContrastiveConfig, ForwardKlConfig, FunctionConfig, ReverseKlConfig, WassersteinConfig
from .experts import Experts, check_experts, drawn_epoch, drawn_start, noisy
from .inner import Loss, descended, langevin, unrolled


class _Bpc(Surrogate):
    """The base of the five surrogates: experts, the coreset's classes, the data, and the config."""

    def __init__(self, experts: Experts, start: Coreset, data: FitData, config: Any) -> None:
        self.experts, self.data, self.config = experts, data, config
        self.classes, self.augmentation = start.classes, config.outer.augmentation

    @classmethod
    def of_fit(cls, data: FitData, inputs: Inputs, config: Any, start: Coreset, rng: Seed) -> "_Bpc":
        """Return the surrogate with the experts in ``inputs``.

        Raises:
            ConfigError: the experts are not suitable, see :class:`Experts`, or lack an epoch that the config needs.
        """
        experts = Experts(inputs["trajectory"], data)
        rule = f"asks for epoch {config.last_epoch} of {experts.epochs}"
        require(config.last_epoch <= experts.epochs, "start_epochs", rule)
        return cls(experts, start, data, config)

    def path(self, start: Tensor, images: Tensor, rng: Seed) -> list[Tensor]:
        """Return the weights [1, weight] after each step on the coreset from ``start``, without a graph."""
        return descended(self.inner_loss(rng), start[None], images, self.config.inner.steps, self.config.inner.lr)

    @abstractmethod
    def surrogate(self, images: Tensor, rng: Seed) -> Tensor:
        """Return the surrogate [] at the images, with its graph; ``rng`` is the step's seed address."""

    def loss(self, images: Tensor, labels: Tensor, step: int, rng: Seed) -> Tensor:
        return self.surrogate(images, rng)

    def after(self, step: int, loss: Tensor, images: Tensor, labels: Tensor) -> dict[str, float]:
        metrics = {"surrogate": float(loss), "rms": float(images.detach().square().mean().sqrt())}
        return metrics | ({} if images.grad is None else {"gradient": float(images.grad.norm())})

    def outputs(self, weights: Tensor, images: Tensor, rng: Seed) -> Tensor:
        """Return the logits under each draw of the weights, [draw, row, class], with one augmentation of the images."""
        return self.experts.network.outputs(weights, augment(images, self.augmentation, rng.fold("augment")))

    def likelihood(self, weights: Tensor, images: Tensor, rng: Seed) -> Tensor:
        """Compute the coreset's mean log-likelihood under each draw of the weights, [draw]."""
        return mean_log_likelihood(self.outputs(weights, images, rng), self.classes)

    def inner_loss(self, rng: Seed) -> Loss:
        """Return the mean cross-entropy of the coreset, with a new augmentation at each step."""
        classes, outputs = self.classes, self.experts.network.outputs

        def loss(step: int, weights: Tensor, images: Tensor) -> Tensor:
            pictures = augment(images, self.augmentation, rng.fold("inner", step))
            return -mean_log_likelihood(outputs(weights, pictures), classes)

        return loss


@final
class _ForwardKl(_Bpc):
    def surrogate(self, images: Tensor, rng: Seed) -> Tensor:
        config: ForwardKlConfig = self.config
        start, target = drawn_start(self.experts, config.start_epochs, config.inner.ahead, rng)
        end = self.path(start, images, rng)[-1][0]
        other = rng.fold("noise" if config.shared_noise else "noise of the coreset's")
        data = noisy(target, config.draws, config.sd, rng.fold("noise"))
        coreset = noisy(end, config.draws, config.sd, other)
        both = self.likelihood(torch.cat([data, coreset]), images, rng)
        return surrogates.contrast(both[: config.draws], both[config.draws :])


@final
class _ReverseKl(_Bpc):
    def surrogate(self, images: Tensor, rng: Seed) -> Tensor:
        config: ReverseKlConfig = self.config
        start, _ = drawn_start(self.experts, config.start_epochs, config.inner.ahead, rng)
        draws = noisy(self.path(start, images, rng)[-1][0], config.draws, config.sd, rng.fold("noise"))
        with torch.no_grad():
            rows, classes = self.data.batch(config.batch, rng.fold("batch"))
            data = mean_log_likelihood(self.experts.network.outputs(draws, rows), classes)
        coreset = self.likelihood(draws, images, rng)
        return surrogates.covariance(coreset, data, config.weight)


@final
class _Wasserstein(_Bpc):
    def __init__(self, experts: Experts, start: Coreset, data: FitData, config: WassersteinConfig) -> None:
        super().__init__(experts, start, data, config)
        rate, outer = config.lr_step, config.outer.optimiser
        # the unit of the rate's logarithm, chosen so that one optimiser suits the logarithm and the images
        self._unit = math.sqrt(rate / outer.lr) if outer.name == "sgd" else rate / outer.lr
        self._moved = torch.zeros((), device=data.device, requires_grad=True)

    def parameters(self) -> list[Tensor]:
        return [self._moved]

    def surrogate(self, images: Tensor, rng: Seed) -> Tensor:
        config: WassersteinConfig = self.config
        start, target = drawn_start(self.experts, config.start_epochs, config.inner.ahead, rng)
        rate = config.inner.lr * (self._unit * self._moved).exp()
        end = unrolled(self.inner_loss(rng), start[None], images, config.inner.steps, rate)
        return surrogates.distance(end[0], target, start)


@final
class _Contrastive(_Bpc):
    def surrogate(self, images: Tensor, rng: Seed) -> Tensor:
        config: ContrastiveConfig = self.config
        start = self.experts.weights(*drawn_epoch(self.experts, config.start_epochs, rng))
        positive = noisy(start, config.chains, config.sd, rng.fold("noise"))
        mean = self.inner_loss(rng)

        def energy(step: int, weights: Tensor, pictures: Tensor) -> Tensor:
            prior = 0.5 * config.prior_precision * weights.square().sum(1)
            return config.weight * len(pictures) * mean(step, weights, pictures) + prior

        negative = langevin(energy, positive, images, config.steps, config.step_size, config.temperature, rng=rng)
        both = self.likelihood(torch.cat([positive, negative]), images, rng)
        return surrogates.contrast(both[: config.chains], both[config.chains :])


@final
class _FunctionSpace(_Bpc):
    def surrogate(self, images: Tensor, rng: Seed) -> Tensor:
        config: FunctionConfig = self.config
        count = config.inner.ahead
        expert, epoch = drawn_epoch(self.experts, config.start_epochs, rng)
        data = torch.stack([self.experts.weights(expert, epoch + ahead) for ahead in range(1, count + 1)])
        path = self.path(self.experts.weights(expert, epoch), images, rng)
        outputs = self.outputs(torch.cat([data, torch.cat(path[-count:])]), images, rng)
        likelihoods = [
            mean_log_likelihood(
                surrogates.function_draws(of, config.draws, config.noise, rng=rng.fold("functions")), self.classes
            )
            for of in (outputs[:count], outputs[count:])
        ]
        return surrogates.contrast(*likelihoods)


_MATCHED: Final[Search] = {"inner.lr": (1e-3, 0.3, "log"), "inner.steps": (3, 30, "integer")}
_INNER: Final = {"steps": 10, "lr": 0.03, "ahead": 1}
_MOVES: Final = {"crop": 1.25, "rotate": 15.0, "translate": 0.125, "cutout": 0.25}
_CHAINS: Final[Search] = {"step_size": (1e-5, 1e-1, "log"), "steps": (3, 30, "integer")}


def _method(
    name: str, config: type, surrogate: type[_Bpc], space: Search, settings: Section, outer_lr: float = 0.02
) -> Method:
    outer = {
        "steps": 100,
        "optimiser": {"name": "adam", "lr": outer_lr},
        "augmentation": {"choose": "one", "operations": _MOVES},
        "average": None,
    }
    stage = distilled_stage(
        name,
        surrogate.of_fit,
        "outer",
        needs={"trajectory": "all"},
        validate_sources=lambda config, sources: check_experts(sources, config.last_epoch),
    )
    return Method(
        name=name,
        family="coresets",
        config=config,
        tasks=("classification",),
        stages={"coreset": stage},
        search={"outer.optimiser.lr": (1e-4, 1e-1, "log"), **space},
        settings={"ipc": 10, "start_epochs": 4, "outer": outer, **settings},
    )


_FKL: Final = {"inner": _INNER, "draws": 4, "sd": 0.01, "shared_noise": True}
_RKL_INNER: Final = {"steps": 29, "lr": 0.1429, "ahead": 1}
_RKL: Final = {"inner": _RKL_INNER, "draws": 8, "sd": 0.01, "batch": 256, "weight": 1.0}
_CD: Final = {"chains": 2, "sd": 0.01, "steps": 10, "step_size": 1e-3, "temperature": 1.0, "weight": 1.0}

BPC_FKL = _method("bpc_fkl", ForwardKlConfig, _ForwardKl, _MATCHED, _FKL)
BPC_RKL = _method("bpc_rkl", ReverseKlConfig, _ReverseKl, _MATCHED, _RKL, outer_lr=0.0216)
BPC_W = _method("bpc_w", WassersteinConfig, _Wasserstein, _MATCHED, {"inner": _INNER, "lr_step": 0.01})
BPC_CD = _method("bpc_cd", ContrastiveConfig, _Contrastive, _CHAINS, {**_CD, "prior_precision": 1.0})
FBPC = _method(
    "fbpc", FunctionConfig, _FunctionSpace, _MATCHED, {"inner": {**_INNER, "ahead": 4}, "draws": 8, "noise": 0.1}
)
