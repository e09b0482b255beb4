"""SNGP: a random-feature Gaussian process on a trunk of layers with bounded spectral norms.

Liu, Lin, Padhy, Tran, Bedrax-Weiss & Lakshminarayanan 2020 (and 2023), algorithm 1. With h the trunk,

    φ(x) = √(2/D) cos(Ωᵀh(x) + b),  Ω ~ N(0, 1/ℓ²), b ~ U(0, 2π), fixed;    f(x) = φ(x)ᵀβ,  β ~ N(0, I/τ),

so that φ(x)ᵀφ(x') ≈ exp(−‖h(x) − h(x')‖²/(2ℓ²)). Trunk and β are trained by the MAP loss of β, −(1/B) Σ log p(y | f) +
τ‖β‖²/(2n). One pass over the training rows then gives the precision for all outputs:

    classes:    Λ = τI + Σ_i p_i(1 − p_i) φ_i φ_iᵀ,  p_i the largest class probability of row i,
    regression: Λ = τI + Σ_i φ_i φ_iᵀ/σ_i²,  exact for a fixed trunk; σ_i² is learned, one for all outputs,

v(x) = φᵀΛ⁻¹φ, and the predictive is softmax(f/√(1 + πv/8)) (mean field), or N(f, v + σ²). σ² is one number or,
for each input (ours), σ²(x) = exp(a + φᵀg). The largest class probability
has the largest p(1 − p) of all classes, so v is at most the variance from a separate precision for each class.

Deviations: spectral norms are exact (``networks.spectral``). The precision is computed in one pass after training, in
float64, where the paper has a moving average during training. A trunk without residual connections has only the upper
Lipschitz bound, so distant inputs may have similar features.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import networks
from ..config import LATER
from ..data.fitdata import FitData, Rows
from ..data.size import Section, Size
from ..errors import require, require_positive
from ..joint_predictive import GaussianFunctions
from ..method import Default, Method, StageSpec
from ..networks import NetworkConfig
from ..networks.last_layer import LastLayer, linear
from ..networks.spectral import bound_spectral_norms, remove_bounds
from ..posterior_protocols import grad_of_inputs
from ..predictive import Categorical, Gaussian, Predictive, mean_field
from ..seeds import Seed
from ..training.learner import FitResult, Learner, TrainingConfig, Weights
from ..training.likelihood import NoiseOf, least_head, least_variance, with_line_of_noise
from ..training.posterior import LearnerPosterior

_ROWS: Final = 1000  # training rows in one forward pass of the precision


@dataclass(frozen=True)
class SngpConfig:
    """The section ``methods.sngp`` of params.yaml.

    Attributes:
        network: the trunk.
        features: D, the number of random Fourier features.
        length_scale: ℓ, in the units of the trunk's features.
        norm_bound: c, the largest spectral norm of a layer.
        ridge: τ, the prior precision of β.
        training: the settings of training; weight decay does not apply to β, which has τ, nor to one σ².
        noise: of regression: ``one`` variance σ², or one for ``each input``, linear in the features on the log scale.
    """

    network: NetworkConfig
    features: int
    length_scale: float
    norm_bound: float
    ridge: float
    training: TrainingConfig
    noise: NoiseOf = field(default="one", metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "features", "length_scale", "norm_bound", "ridge")


@dataclass(frozen=True)
class SngpSpec:
    """The description of the network, from which it is built: fields of :class:`SngpConfig` and of the data."""

    network: NetworkConfig
    input_shape: tuple[int, ...]
    outputs: int
    task: Literal["classification", "regression"]
    features: int
    length_scale: float
    norm_bound: float
    ridge: float
    noise: NoiseOf = field(default="one", metadata=LATER)


@final
class Sngp(Learner):
    """A trunk, fixed random features and a linear output layer.

    Attributes:
        trunk: inputs -> h, with bounded layers.
        frequencies, phases: Ω [width, feature] and b [feature].
        head: β [feature, output].
        log_noise: log σ², or a, for regression, in standardised units; σ² starts at 1.
        noise_head: g [feature, 1], which starts at 0; only with a noise of each input.
        factor: the lower Cholesky factor of Λ [feature, feature] in float64; None during training.
    """

    frequencies: Tensor
    phases: Tensor
    factor: Tensor | None

    def __init__(self, spec: SngpSpec, rng: Seed) -> None:
        super().__init__()
        self.spec = spec
        self.trunk = networks.build(spec.network, spec.input_shape, 0, rng=rng.fold("trunk"))
        bound_spectral_norms(self.trunk, spec.norm_bound)
        generator = rng.fold("features").generator()
        frequencies = torch.randn(self.trunk.width, spec.features, generator=generator) / spec.length_scale
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("phases", 2 * math.pi * torch.rand(spec.features, generator=generator))
        self.register_buffer("factor", None)
        self.head = nn.Parameter(torch.zeros(spec.features, spec.outputs))
        if spec.task == "regression":
            self.log_noise = nn.Parameter(torch.zeros(()))
        rule = "must be one: classes have no noise"
        require(spec.task == "regression" or spec.noise == "one", "noise", rule, spec.noise)
        if spec.noise == "each input":
            self.noise_head = nn.Parameter(torch.zeros(spec.features, 1))

    def features(self, inputs: Tensor) -> Tensor:
        """Return φ(x) [batch, feature]."""
        return math.sqrt(2 / self.spec.features) * torch.cos(self.trunk(inputs) @ self.frequencies + self.phases)

    def _log_variance(self, phi: Float[Tensor, "batch feature"]) -> Float[Tensor, "#batch #one"]:
        return self.log_noise + phi @ self.noise_head if self.spec.noise == "each input" else self.log_noise[None, None]

    def _predictive(self, phi: Float[Tensor, "batch feature"], variance: Tensor | None) -> Predictive:
        """Return the predictive given the variance v [batch] of f; None means 0."""
        outputs = phi @ self.head
        if self.spec.task == "classification":
            spread = outputs.new_zeros(()) if variance is None else variance[:, None]
            return Categorical(mean_field(outputs, spread)[None])
        noise = self._log_variance(phi).exp()
        total = noise if variance is None else noise + variance[:, None]
        return Gaussian(outputs[None], total.expand_as(outputs)[None])

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        predictive = self._predictive(self.features(inputs), None)
        prior = 0.5 * self.spec.ridge * self.head.square().sum() / num_train
        return prior - predictive.log_prob(targets).mean()

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Return the predictive with v = ‖L⁻¹φ‖², L the factor of Λ; without it, as in validation, v = 0."""
        phi = self.features(inputs)
        if self.factor is None:
            return self._predictive(phi, None)
        variance = torch.linalg.solve_triangular(self.factor, phi.T.to(self.factor), upper=False).square().sum(0)
        return self._predictive(phi, variance.to(phi))

    def estimated(self, predicted: Sequence[tuple[Predictive, Tensor]]) -> tuple[float, dict[str, Tensor]]:
        """Return the score and, for regression, the noise variance with the largest likelihood for v = 0.

        σ² starts at 1, and few steps at a small learning rate would leave it near there. A noise of each input has the
        line of :func:`~bdl_pipe.training.likelihood.least_head_nll`.
        """
        if self.spec.task == "classification":
            return super().estimated(predicted)
        if self.spec.noise == "each input":
            return least_head(predicted, None)
        score, best = least_variance(predicted)
        return score, {"log_noise": torch.full_like(self.log_noise.detach(), best)}

    def with_estimated(self, weights: Mapping[str, Tensor], estimates: Mapping[str, Tensor]) -> Weights:
        return with_line_of_noise(weights, estimates, "log_noise", "noise_head")

    def undecayed(self) -> set[str]:
        return {"head", "log_noise"} & {name for name, _ in self.named_parameters(recurse=False)}

    def functions(self, inputs: Float[Tensor, "group row ..."]) -> GaussianFunctions:
        """Return the Gaussian over φᵀβ, β ~ N(β̂, Λ⁻¹), at the rows of each group."""
        assert self.factor is not None, "the precision is computed after training"
        phi, shape = self.features(inputs.flatten(0, 1)), inputs.shape[:2]
        white = torch.linalg.solve_triangular(self.factor, phi.T.to(self.factor), upper=False).T.unflatten(0, shape)
        classes, mean = self.spec.task == "classification", (phi @ self.head).unflatten(0, shape)
        noise = phi.new_zeros(1, 1) if classes else self._log_variance(phi).exp()
        if self.spec.noise == "each input":
            noise = noise.unflatten(0, shape)[None]
        noise = noise.expand(*noise.shape[:-1], mean.shape[-1])
        return GaussianFunctions(mean[None], (white @ white.mT)[None, :, None], noise, classes)

    @torch.no_grad()
    def precision_factor(self, rows: Rows) -> Float[Tensor, "feature feature"]:
        """Return the lower Cholesky factor of Λ over the training rows, in float64."""
        precision = self.spec.ridge * torch.eye(self.spec.features, dtype=torch.float64, device=rows.device)
        for part, _ in rows.batches(_ROWS):
            phi = self.features(part)
            if self.spec.task == "regression":
                weight = torch.exp(-self._log_variance(phi).double()).expand(len(phi), 1)
            else:
                largest = torch.softmax((phi @ self.head).double(), -1).amax(-1, keepdim=True)
                weight = largest * (1 - largest)
            precision += phi.double().T @ (weight * phi.double())
        return torch.linalg.cholesky(precision)


@final
class SngpPosterior(LearnerPosterior[Sngp]):
    """A fitted :class:`Sngp` with the factor of Λ; the bounds are already applied to its weights."""

    key, spec_class = "sngp", SngpSpec

    @torch.no_grad()
    def last_layer(self, inputs: Tensor, *, rng: Seed) -> LastLayer:
        """Return the layer on the random features of transformed inputs; ``rng`` is not used."""
        with self.lent() as learner:
            return linear(learner.features(inputs), learner.head.T)

    @grad_of_inputs
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> GaussianFunctions:
        """Return :meth:`Sngp.functions` of transformed inputs; ``rng`` is not used."""
        with self.lent() as learner:
            return learner.functions(inputs)

    @classmethod
    def spec(cls, config: SngpConfig, data: FitData) -> SngpSpec:
        numbers = (config.features, config.length_scale, config.norm_bound, config.ridge, config.noise)
        return SngpSpec(config.network, data.input_shape, data.outputs, data.task, *numbers)

    @classmethod
    def build(cls, spec: SngpSpec, data: FitData, rng: Seed, start: Weights | None) -> Sngp:
        assert start is None, "the method takes no trajectory"
        return Sngp(spec, rng)

    @classmethod
    def skeleton(cls, spec: SngpSpec) -> Sngp:
        learner = Sngp(spec, Seed(0))
        remove_bounds(learner.trunk, keep_values=False)
        learner.factor = torch.zeros(spec.features, spec.features, dtype=torch.float64)
        return learner

    @staticmethod
    def finish(spec: SngpSpec, fitted: FitResult, data: FitData, rng: Seed) -> dict[str, Tensor]:
        """Replace the weights by the bounded weights, and factorise the precision over the training rows."""
        learner = Sngp(spec, Seed(0)).eval()
        learner.load_state_dict(fitted.state)
        learner.to(data.device)
        remove_bounds(learner.trunk, keep_values=True)
        learner.factor = learner.precision_factor(data.rows("train", data.device))
        return {name: tensor.detach().cpu() for name, tensor in learner.state_dict().items()}


def default(size: Size) -> Section:
    """Return the hyperparameters; images need group norm and twice the learning rate.

    Bounded norms keep the trunk from memorising many rows, so all epochs are run.
    """
    network = size.network if size.image is None else {**size.network, "norm": "group"}
    training = size.training(5e-3 if size.image is None else 1e-2, regularised=True)
    return {"network": network, "features": 512, "training": training, **size.noise_of}


SNGP = Method(
    name="sngp",
    bayesian=True,
    config=SngpConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit_many=SngpPosterior.fit, data_parallel=True)},
    search={
        "training.optimiser.lr": (1e-3, 1e-1, "log"),
        "length_scale": (0.3, 10.0, "log"),
        "norm_bound": (0.5, 10.0, "log"),
        "ridge": (1e-3, 1.0, "log"),
    },
    settings={"length_scale": 2.0, "norm_bound": 1.0, "ridge": 0.1},
    program=True,
    default=Default(1.6, override=default),
)
