"""The method ``gp``: an exact Gaussian process with an RBF kernel, its hyperparameters by evidence maximisation.

Adam or L-BFGS minimises the negative log marginal likelihood of the training rows, per row and output. Each step
factors an n×n matrix in O(on³), so the method is for tables of a few thousand rows. See ``gaussian_processes`` for the
model. Targets are divided by their standard deviation over the training rows, since initial values and steps suit
hyperparameters of about 1.

A row of weight w in the log-likelihood has the noise variance σ²/w, with the terms in which N(y | f, σ²)^w differs from
N(y | f, σ²/w).

With few rows and many columns the evidence hardly determines the length scales, and some of them grow without end.
The prior of Hvarfner, Hellsten and Nardi (2024, "Vanilla Bayesian optimization performs great in high dimensions",
section 5) grows with the square root of the number of columns: log ℓ ~ N(√2 + ½ log d, 3). It is for columns uniform in
[0, 1]; our columns are standardised, so that our ℓ is larger by √12. With it the noise of standardised targets has the
prior log σ² ~ N(−4, 1), as in BoTorch: long length scales and a noise without a prior would explain all targets of a
few rows as noise. The maximum a posteriori takes the place of the evidence's. Unlike theirs, our output scale is
fitted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import LogNormal
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..artifacts import State, under
from ..config import LATER
from ..data.fitdata import FitData, variance_of
from ..errors import DataError, UserError, require_positive
from ..joint_predictive import GaussianFunctions
from ..method import Default, Inputs, Method, StageSpec
from ..posterior_protocols import grad_of_inputs
from ..predictive import Gaussian
from ..progress import Report
from ..seeds import Seed
from ..training.loop import Objective, OptimiserConfig, run_steps

if TYPE_CHECKING:
    from .gaussian_processes import ExactGp

AFFORDABLE: Final = 3_000  # the most training rows for which the exact process is affordable
_MOST: Final = 10_000  # the most rows: 0.8 GB for each n×n matrix, and a step holds several
# L-BFGS keeps softplus⁻¹ of scales in this range: without noise a growing output scale would leave a covariance that is
# singular in float64. With σ² ≥ 1e-4 the condition number is at most 1e8 per row. A length scale below 1e-3 makes all
# different rows independent already, and far below that the differences of equal numbers, |x|² + |y|² − 2xy, are noise.
_RAW: Final = (-20.0, 1e4)
_LENGTH: Final = (-7.0, 1e4)


@dataclass(frozen=True)
class GpConfig:
    """The section ``methods.gp`` of params.yaml.

    Attributes:
        ard: whether each input column has its own length scale.
        steps: the number of Adam steps, or the most iterations of L-BFGS.
        lr: Adam's constant learning rate for the unconstrained hyperparameters.
        optimiser: ``lbfgs`` goes to a minimum, which matters where targets have no noise: the evidence of the noise is
            flat, and after 100 steps of Adam it is still far too large. It does not use ``lr``.
        prior: of length scales and noise, besides the evidence: ``none``, or ``dimension_scaled``, by which more
            columns have longer length scales, and noise is small.
    """

    ard: bool
    steps: int
    lr: float
    optimiser: Literal["adam", "lbfgs"] = field(default="adam", metadata=LATER)
    prior: Literal["none", "dimension_scaled"] = field(default="none", metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "steps", "lr")


def processes() -> ModuleType:
    """Import the module with gpytorch's processes, so that the methods are listed even if gpytorch is not installed.

    Raises:
        UserError: gpytorch is not installed.
    """
    try:
        from . import gaussian_processes
    except ImportError as error:
        ways = "pip install 'bdl-pipe[gp]'"
        raise UserError(f"Gaussian processes need the package gpytorch ({error}): {ways}") from None
    return gaussian_processes


@final
class Evidence(Objective):
    """The negative log marginal likelihood of all training rows, less the log prior, as a training objective."""

    def __init__(
        self, inputs: Tensor, targets: Tensor, ard: bool, weights: Tensor | None = None, prior: str = "none"
    ) -> None:
        self.process = processes().ExactGp(inputs, targets / variance_of(targets, weights).sqrt(), ard, weights)
        self._count = targets.numel() if weights is None else float(weights.sum()) * targets.shape[1]
        self._priors: tuple[LogNormal, LogNormal] | None = None
        if prior != "none":
            means = torch.tensor([math.sqrt(2) + 0.5 * math.log(12 * inputs.shape[1]), -4.0], dtype=torch.float64)
            of_lengths, of_noise = means.to(inputs.device)
            self._priors = LogNormal(of_lengths, math.sqrt(3)), LogNormal(of_noise, 1.0)

    def parameters(self) -> list[Tensor]:
        return list(self.process.parameters())

    def loss(self, step: int) -> Tensor:
        log_density = self.process.log_marginal_likelihood()
        if self._priors is not None:
            of_lengths, of_noise = self._priors
            log_density = log_density + of_lengths.log_prob(self.process.covar_module.base_kernel.lengthscale).sum()
            log_density = log_density + of_noise.log_prob(self.process.likelihood.noise).sum()
        return -log_density / self._count

    def state(self) -> dict[str, Tensor]:
        return {k: v.detach().clone() for k, v in self.process.named_parameters()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        _set_hyperparameters(self.process, state)

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        return {"loss": float(loss)} if step % 50 == 49 else {}


@final
class GpPosterior:
    """An exact Gaussian process: training rows and hyperparameters. It predicts in closed form."""

    key = "gp"

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        hyperparameters: Mapping[str, Tensor],
        ard: bool,
        weights: Tensor | None = None,
    ) -> None:
        """Create the posterior from transformed inputs [n, d], targets [n, o] and the parameters of ``ExactGp``.

        Args:
            weights: of the rows, float64 [n]. None: all are 1.
        """
        self.inputs, self.targets, self.ard, self._weights = inputs, targets, ard, weights
        self._unit = variance_of(targets, weights).sqrt()
        self.process = processes().ExactGp(inputs, targets / self._unit, ard, weights)
        _set_hyperparameters(self.process, hyperparameters)
        self.process.requires_grad_(False)

    @grad_of_inputs
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Gaussian:
        """Predict transformed inputs, in the targets' units, computed in float64; ``rng`` is not used."""
        mean, variance = self.process.predictive(inputs)
        mean, variance = self._unit * mean, self._unit.square() * variance
        return Gaussian(mean[None].to(inputs.dtype), variance[None].to(inputs.dtype))

    @grad_of_inputs
    def functions(self, inputs: Float[Tensor, "group row d"], *, rng: Seed) -> GaussianFunctions:
        """Return the Gaussian over functions at the rows of each group, in the targets' units; ``rng`` is not used."""
        mean, covariance = self.process.functions(inputs)
        noise = self._unit.square() * self.process.likelihood.noise.detach()[:, 0]
        covariance = self._unit.square()[:, None, None] * covariance
        return GaussianFunctions((self._unit * mean)[None], covariance[None], noise[None], classes=False)

    def state(self) -> State:
        hyperparameters = {f"gp.{k}": v.detach().clone() for k, v in self.process.named_parameters()}
        tensors = {"inputs": self.inputs, "targets": self.targets}
        tensors |= {} if self._weights is None else {"weights": self._weights}
        return State(tensors | hyperparameters, {"posterior": self.key, "ard": self.ard})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "GpPosterior":
        tensors = {k: v.to(device) for k, v in state.tensors.items()}
        named = under("gp.", tensors)
        return cls(tensors["inputs"], tensors["targets"], named, bool(state.config["ard"]), tensors.get("weights"))


def fit(data: FitData, inputs: Inputs, config: GpConfig, *, rng: Seed, report: Report) -> State:
    """Return the posterior given the training rows; ``rng`` is not used, because every fit has the same initial values.

    Raises:
        DataError: there are too many rows for an exact process.
    """
    if len(data.train) > _MOST:
        raise DataError(f"gp: the data must have at most {_MOST} training rows, got {len(data.train)}")
    rows, targets = data.tensors("train", data.device)
    weights = data.weights("train", data.device)
    task = Evidence(rows, targets, config.ard, weights, config.prior)
    if config.optimiser == "lbfgs":
        _descend(task, config.steps)
    else:
        run_steps(task, OptimiserConfig("adam", config.lr), config.steps, report)
    return GpPosterior(rows, targets, task.state(), config.ard, weights).state()


def _descend(task: Evidence, steps: int) -> None:
    """Minimise the objective by L-BFGS."""
    from scipy.optimize import minimize  # imported here, because the import takes half a second

    named = dict(task.process.named_parameters())
    parameters = list(named.values())
    bounds = [_bounds(name) for name, part in named.items() for _ in range(part.numel())]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.no_grad():
            vector_to_parameters(torch.from_numpy(flat), parameters)
        value = task.loss(0)
        gradient = torch.autograd.grad(value, parameters)
        return value.item(), torch.cat([part.flatten() for part in gradient]).numpy()

    start = parameters_to_vector(parameters).detach().numpy().copy()
    end = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": steps})
    with torch.no_grad():
        vector_to_parameters(torch.from_numpy(end.x), parameters)


def _bounds(name: str) -> tuple[float | None, float | None]:
    if name.endswith("raw_lengthscale"):
        return _LENGTH
    return (None, None) if name.startswith("mean_module") else _RAW


@torch.no_grad()
def _set_hyperparameters(process: "ExactGp", hyperparameters: Mapping[str, Tensor]) -> None:
    parameters = dict(process.named_parameters())
    assert parameters.keys() == hyperparameters.keys(), "hyperparameters of another process"
    for name, parameter in parameters.items():
        parameter.copy_(hyperparameters[name])


GP = Method(
    name="gp",
    config=GpConfig,
    tasks=("regression",),
    stages={"student": StageSpec(fit, random=False)},
    settings={"ard": False, "steps": 100, "lr": 0.1},
    weighs_rows=True,
    few_rows={"override": {"ard": True, "steps": 200, "optimiser": "lbfgs", "prior": "dimension_scaled"}},
    default=Default(3.0, suits=lambda size: size.train <= AFFORDABLE),
)
