"""Variational inference with a Gaussian, in the subspace of a trajectory's principal components.

Izmailov et al. 2019, section 4, see ``subspace``: q(z) = N(m, LLᵀ) maximises the tempered bound

    E_q[(1/temperature) Σ_i log p(y_i | x_i, w(z))] − KL(q ‖ N(0, prior_variance I))

with the reparameterisation z = m + Lε (Kingma & Welling 2014), on a new batch at each step. Deviations: L is a full
Cholesky factor, which costs almost nothing up to about twenty dimensions; the paper has a diagonal. log q is
differentiated through z alone (Roeder, Wu & Duvenaud 2017): this gradient is also unbiased, and has no noise where q is
the posterior.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from ..artifacts import State
from ..data.fitdata import FitData, distinct
from ..data.size import Section
from ..errors import require, require_positive
from ..method import Default, FromModel, Inputs, Method, StageSpec
from ..progress import Report
from ..seeds import Seed
from ..training.loop import Objective, OptimiserConfig, run_steps
from .snapshots import BATCH_NORM
from .subspace import SubspaceConfig, Target, fitted, from_model


@dataclass(frozen=True)
class PcaViConfig(SubspaceConfig):
    """The section ``methods.pca_vi``: the subspace and the fit of q.

    Attributes:
        initial_sd: the initial standard deviation of each coordinate; the mean starts at 0, the trajectory's mean.
        steps: the number of updates of q.
        samples: the number of draws of z at each step.
        batch: the number of rows of a step, at most all rows of the likelihood.
        optimiser: the update rule and its schedule over all steps.
    """

    initial_sd: float
    steps: int
    samples: int
    batch: int
    optimiser: OptimiserConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "initial_sd", "steps", "samples")
        require(self.batch > 1, "batch", "must be > 1", self.batch)
        decay = self.optimiser.weight_decay
        require(decay == 0, "optimiser.weight_decay", "must be 0: the prior is in the bound", decay)


@final
class Bound(Objective):
    """The negative tempered bound as a training objective.

    It is multiplied by temperature / (number of training rows), so that its unit is nats per row.

    Attributes:
        mean: m [dimension].
        log_scale: the log of L's diagonal [dimension].
        lower: L's entries below the diagonal [dimension, dimension]; other entries are not used.
    """

    def __init__(self, target: Target, config: PcaViConfig, rng: Seed) -> None:
        start = torch.zeros(config.dimension, dtype=torch.float64)
        self.mean = start.clone().requires_grad_()
        self.log_scale = (start + math.log(config.initial_sd)).requires_grad_()
        self.lower = start.diag().requires_grad_()
        self._target, self._config, self._rng = target, config, rng

    def factor(self) -> Float[Tensor, "dimension dimension"]:
        """Return L, the factor of the covariance LLᵀ of q."""
        return self.lower.tril(-1) + self.log_scale.exp().diag()

    def draw(self, count: int, generator: torch.Generator) -> Float[Tensor, "draw dimension"]:
        """Draw coordinates m + Lε, ε ~ N(0, I)."""
        noise = torch.randn(count, len(self.mean), generator=generator, dtype=torch.float64)
        return self.mean + noise @ self.factor().T

    def loss(self, step: int) -> Tensor:
        generator, rows = self._rng.fold("step", step).generator(), len(self._target)
        chosen = distinct(rows, self._config.batch, generator)
        z = self.draw(self._config.samples, generator)
        likelihood = torch.stack([self._target.tempered(one, chosen) for one in z]) * (rows / len(chosen))
        prior = Normal(0.0, self._config.prior_variance**0.5).log_prob(z).sum(1)
        density = MultivariateNormal(self.mean.detach(), scale_tril=self.factor().detach()).log_prob(z)
        return -(likelihood + prior - density).mean() * self._config.temperature / self._target.num_train

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        return {"loss": loss.item()}

    def parameters(self) -> list[Tensor]:
        return [self.mean, self.log_scale, self.lower]

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "log_scale": self.log_scale, "lower": self.lower}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])


def fit(data: FitData, inputs: Inputs, config: PcaViConfig, *, rng: Seed, report: Report) -> State:
    """Return networks drawn from q in the subspace of the trajectory in ``inputs``.

    Raises:
        ConfigError: the dimension is larger than the number of snapshots minus one.
    """
    target = Target(data, inputs, config, "pca_vi", rng)
    bound = Bound(target, config, rng)

    def coordinates(part: Report) -> Tensor:
        run_steps(bound, config.optimiser, config.steps, part)
        with torch.no_grad():
            return bound.draw(config.draws, rng.fold("draws").generator())

    return fitted(target, coordinates, config.steps, config.draws, report)


_SETTINGS: Final[Section] = {
    "prior_variance": 1.0,
    "rows": None,
    "initial_sd": 0.1,
    "steps": 60,
    "samples": 1,
    "batch": 250,
    "optimiser": {"name": "adam", "lr": 3e-2, "schedule": "cosine"},
    **BATCH_NORM,
}
PCA_VI = Method(
    name="pca_vi",
    family="trajectory",
    bayesian=True,
    config=PcaViConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit, needs={"trajectory": "one_to_one"})},
    search={
        "temperature": (0.1, 1e4, "log"),
        "prior_variance": (0.1, 100.0, "log"),
        "optimiser.lr": (1e-3, 1e-1, "log"),
    },
    settings=_SETTINGS,
    default=Default(
        0.5,
        "iterates",
        lambda size: {"dimension": 3, "temperature": 10.0, "draws": 10},
        suits=lambda size: size.task == "classification",
    ),
    from_model=FromModel(partial(from_model, {**_SETTINGS, "temperature": 100.0})),
)
