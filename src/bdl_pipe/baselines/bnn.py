"""Bayes by backprop: a mean-field Gaussian over weights, with one weight sample per step (Blundell et al. 2015).

The loss is −mean_{i ∈ batch} log p(y_i | f(x_i; θ)) + κ·KL(q‖p)/N with θ = m + s·ε, ε ~ N(0, I) drawn once a step for
the whole batch: their variational free energy divided by N, the number of training rows. They sample the KL; ours is
the closed form of two Gaussians. log s is learned, instead of their softplus. κ = 1 gives the ELBO; Harrison, Willes &
Snoek 2023 (appendix G.3) use other weights.

There are two forms, as in the paper's baseline. ``all``: every weight and bias of linear and convolutional layers is
Gaussian with the prior N(0, c/√n_in), c = 4 (G.2: UCI). ``head``: the trunk is a point estimate, and only the linear
head is Gaussian, with the prior N(0, .01) (G.3: images); all draws share the trunk's features.

Regression: N(y | f(x; θ), σ²) with one σ² learned as a point estimate, in the units of the transformed targets. The
predictive is the mixture of K draws of θ; draw k is the same network in every batch.

State: the learner's ``state_dict``; config ``spec`` (a :class:`BnnSpec`), ``epochs`` and ``loss``.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, final

import torch
from torch import Tensor, nn

from ..config import LATER
from ..data.size import Section, Size
from ..errors import require, require_positive
from ..method import Default, Method
from ..networks import NetworkConfig
from ..networks.last_layer import LastLayer, linear
from ..networks.variational import MeanField
from ..seeds import Seed
from ..training.learner import TrainingConfig, Weights
from ..training.likelihood import MixtureLearner, NoiseOf, with_likelihood
from ..training.posterior import LearnerPosterior, LearnerSpec


@dataclass(frozen=True)
class BnnConfig:
    """The section ``methods.bnn`` of params.yaml.

    Attributes:
        network: the architecture.
        training: the settings of training; weight decay applies only to point estimates.
        stochastic: ``all``: every layer is Gaussian; ``head``: only the last layer is Gaussian.
        initial_sd: the initial standard deviation of every Gaussian weight.
        draws: the number of weight draws of the predictive.
        validation_draws: the number of weight draws of a validation score.
        kl_weight: κ, the weight of the KL.
        prior_scale: c in the prior variance c/√n_in (``all``).
        head_prior_variance: the prior variance of every weight and bias (``head``).
        noise_variance: the initial σ², in the units of the transformed targets (regression).
        noise: ``one`` variance σ² of regression, or one for ``each input``, which the network has as an output.
    """

    network: NetworkConfig
    training: TrainingConfig
    stochastic: Literal["all", "head"]
    initial_sd: float
    draws: int
    validation_draws: int
    kl_weight: float = 1.0
    prior_scale: float = 4.0
    head_prior_variance: float = 0.01
    noise_variance: float = 1.0
    noise: NoiseOf = field(default="one", metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(
            self, "initial_sd", "draws", "validation_draws", "prior_scale", "head_prior_variance", "noise_variance"
        )
        require(self.kl_weight >= 0, "kl_weight", "must be >= 0", self.kl_weight)


@dataclass(frozen=True)
class BnnSpec(LearnerSpec[BnnConfig]):
    """The description of a learner, from which it is built."""

    config: BnnConfig


@final
class Bnn(MixtureLearner):
    """A network ``random(fixed(x))``: ``head`` fixes the trunk, ``all`` fixes nothing."""

    def __init__(self, spec: BnnSpec, rng: Seed, start: Weights | None = None) -> None:
        """Build the network, with new weights or with ``start`` as means and point estimates."""
        super().__init__()
        self.spec = spec
        config = spec.config
        network, likelihood = with_likelihood(spec, rng, start)
        if config.stochastic == "all":
            self.fixed: nn.Module = nn.Identity()
            self.random = MeanField(network, config.initial_sd, config.prior_scale)
        else:
            scale = config.head_prior_variance * math.sqrt(network.width)  # MeanField divides it by √n_in
            self.fixed, self.random = network.trunk, MeanField(network.head, config.initial_sd, scale)
        self.likelihood = likelihood

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        outputs = self.random(self.fixed(inputs), noise)  # [batch, output]
        return -self.log_likelihood(outputs, targets) + self.spec.config.kl_weight * self.random.kl() / num_train

    def noise(self, steps: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        return self.random.draw(steps, generator)

    def undecayed(self) -> set[str]:
        """Return the names of the variational parameters (the loss has their prior) and of the noise."""
        sds = {f"random.log_sd.{name}" for name in self.random.log_sd}
        means = {f"random.module.{name.replace('/', '.')}" for name in self.random.log_sd}
        return sds | means | super().undecayed()

    def drawn_outputs(self, inputs: Tensor, draws: int, rng: Seed) -> Tensor:
        features = self.fixed(inputs)
        noises = [self.draw(rng.fold("draw", k), inputs.device) for k in range(draws)]
        return torch.stack([self.random(features, noise) for noise in noises])


@final
class BnnPosterior(LearnerPosterior[Bnn]):
    """A fitted :class:`Bnn`."""

    key, spec_class, learner_class = "bnn", BnnSpec, Bnn

    @torch.no_grad()
    def last_layer(self, inputs: Tensor, *, rng: Seed) -> LastLayer | None:
        """Return the last layer of a fixed trunk, with a Gaussian head at its mean; None if all layers are Gaussian."""
        with self.lent() as learner:
            if learner.spec.config.stochastic != "head":
                return None
            return linear(learner.fixed(inputs), **dict(learner.random.module.named_parameters()))


def default(size: Size) -> Section:
    """Return the hyperparameters of a network with all weights random."""
    first = {"network": size.network, "stochastic": "all", "initial_sd": 0.05, "kl_weight": 0.2, "draws": 30}
    return {**first, "training": size.training(decay=0.0, regularised=True), **size.noise}


BNN = Method(
    name="bnn",
    bayesian=True,
    config=BnnConfig,
    tasks=("classification", "regression"),
    stages={"student": BnnPosterior.stage()},
    search={
        "training.optimiser.lr": (1e-4, 3e-2, "log"),
        "initial_sd": (1e-3, 1e-1, "log"),
        "kl_weight": (1e-2, 1e1, "log"),
    },
    settings={"noise_variance": 0.1, "validation_draws": 10},
    default=Default(3.0, override=default),
)
