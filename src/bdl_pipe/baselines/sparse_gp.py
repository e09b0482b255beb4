"""The method ``svgp``: a sparse variational Gaussian process, for more rows than ``gp`` can fit.

Adam minimises minus the ELBO per row on minibatches, with inducing inputs Z and a whitened q(u) = N(m, S) (Hensman et
al. 2013; gpytorch's variational strategy). Each output has its own process and inducing inputs, with a constant mean, a
scaled RBF kernel and Gaussian noise, as in ``gp``. The initial Z are training rows drawn without replacement. All
numbers are float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State
from ..config import read, to_mapping
from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..errors import require
from ..joint_predictive import GaussianFunctions
from ..method import Default, Inputs, Method, StageSpec
from ..predictive import Gaussian, Predictive
from ..progress import Report
from ..seeds import Seed
from ..training.fit import fit_epochs
from ..training.learner import Learner, TrainingConfig
from ..training.likelihood import least_nll
from .gp import AFFORDABLE, processes


@dataclass(frozen=True)
class SvgpConfig:
    """The section ``methods.svgp`` of params.yaml.

    Attributes:
        inducing: the number of inducing inputs; at most the number of training rows.
        ard: whether each input column has its own length scale.
        training: the settings of training.
    """

    inducing: int
    ard: bool
    training: TrainingConfig

    def __post_init__(self) -> None:
        require(self.inducing > 0, "inducing", "must be > 0", self.inducing)
        none = self.training.augmentation is None
        require(none, "training.augmentation", "must be null: the rows are not images", self.training.augmentation)


@final
class SparseGp(Learner):
    """A sparse process as a learner, with minus the ELBO per row as its loss."""

    def __init__(self, inducing: Tensor, ard: bool) -> None:
        """Create it with q(u) at the prior and the initial inducing inputs [o, m, d]."""
        super().__init__()
        gpytorch = processes()
        self.process = gpytorch.SparseProcess(inducing.double(), ard)
        self.likelihood = gpytorch.GaussianLikelihood(batch_shape=torch.Size([len(inducing)]))
        self.likelihood.noise = gpytorch.NOISE
        self.double()
        self.process.variational_strategy.variational_params_initialized.fill_(1)  # gpytorch draws if it is 0

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        mean, variance = self._latent(inputs)
        noises = self.likelihood.noise[:, 0]
        error = (targets.double() - mean).square() + variance
        fit = -0.5 * (error / noises + noises.log() + math.log(2 * math.pi)).sum(-1).mean()
        kl = self.process.variational_strategy.kl_divergence().sum()
        return (kl / num_train - fit).to(inputs.dtype)

    def predict(self, inputs: Tensor, *, rng: Seed) -> Gaussian:
        mean, variance = self._latent(inputs)
        total = variance + self.likelihood.noise[:, 0]
        return Gaussian(mean[None].to(inputs.dtype), total[None].to(inputs.dtype))

    def estimated(self, predicted: Sequence[tuple[Predictive, Tensor]]) -> tuple[float, dict[str, Tensor]]:
        """Return the score, and each output's noise variance with the largest likelihood, given q(f)."""
        gaussians = [of for of, _ in predicted if isinstance(of, Gaussian)]
        mean = torch.cat([of.draw_mean for of in gaussians], 1).double()
        total = torch.cat([of.draw_variance for of in gaussians], 1).double()
        targets = torch.cat([rows for _, rows in predicted]).double()
        latent = (total - self.likelihood.noise[:, 0]).clamp_min(0.0)
        columns = [values.split(1, dim=-1) for values in (mean, targets, latent)]
        minima = [least_nll(*column) for column in zip(*columns, strict=True)]
        noise = torch.tensor([[math.exp(log_noise)] for _, log_noise in minima]).to(self.likelihood.noise)
        bound = self.likelihood.noise_covar.raw_noise_constraint
        raw = bound.inverse_transform(torch.maximum(noise, 1.01 * bound.lower_bound))
        return sum(score for score, _ in minima), {"likelihood.noise_covar.raw_noise": raw}

    def undecayed(self) -> set[str]:
        return {name for name, _ in self.named_parameters()}

    def _latent(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        with processes().dense():
            latent = self.process(inputs.double())
            return latent.mean.T, latent.variance.T


@final
class SvgpPosterior:
    """A fitted process, which predicts in closed form."""

    key = "svgp"

    def __init__(self, learner: SparseGp, config: SvgpConfig) -> None:
        self.learner, self._config = learner.eval(), config

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Gaussian:
        """Predict transformed inputs; ``rng`` is not used."""
        return self.learner.predict(inputs, rng=rng)

    @torch.no_grad()
    def functions(self, inputs: Float[Tensor, "group row d"], *, rng: Seed) -> GaussianFunctions:
        """Return the Gaussian over functions at the rows of each group; ``rng`` is not used."""
        mean, covariance = processes().group_moments(self.learner.process, inputs)
        noise = self.learner.likelihood.noise[:, 0]
        return GaussianFunctions(mean[None], covariance[None], noise[None], classes=False)

    def state(self) -> State:
        tensors = {name: value.detach().clone() for name, value in self.learner.state_dict().items()}
        return State(tensors, {"posterior": self.key, "config": to_mapping(self._config)})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "SvgpPosterior":
        config = read(SvgpConfig, state.config["config"], "config")
        (place,) = (name for name in state.tensors if name.endswith(".inducing_points"))
        learner = SparseGp(state.tensors[place], config.ard)
        learner.load_state_dict(state.tensors)
        return cls(learner.to(device), config)


def fit(data: FitData, inputs: Inputs, config: SvgpConfig, *, rng: Seed, report: Report) -> State:
    """Return the posterior given the training rows."""

    def build(data: FitData, rng: Seed) -> SparseGp:
        rows, _ = data.drawn(min(config.inducing, len(data.train)), rng.fold("inducing"))
        return SparseGp(rows.expand(data.outputs, -1, -1).clone(), config.ard)

    (result,) = fit_epochs(build, [data], config.training, rngs=[rng], report=report)
    learner = build(data, rng.fold("weights"))
    learner.load_state_dict(result.state)
    return SvgpPosterior(learner, config).state()


def default(size: Size) -> Section:
    """Return hyperparameters with 200 inducing points, and epochs that follow from the number of rows."""
    optimiser = {"lr": 2e-2}
    training = {"epochs": size.epochs(2_000), "batch": size.batch, "optimiser": optimiser, "noise": "training"}
    return {"inducing": 200, "training": training}


SVGP = Method(
    name="svgp",
    config=SvgpConfig,
    tasks=("regression",),
    stages={"student": StageSpec(fit)},
    search={"training.optimiser.lr": (1e-3, 1e-1, "log")},
    settings={"ard": False, "training": {"optimiser": {"name": "adam", "schedule": "cosine"}}},
    default=Default(12.0, override=default, suits=lambda size: size.train > AFFORDABLE),
)
