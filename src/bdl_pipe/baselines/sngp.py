"""SNGP: a random-feature Gaussian process on a trunk of layers with bounded spectral norms.

Liu, Lin, Padhy, Tran, Bedrax-Weiss & Lakshminarayanan 2020 (and 2023), algorithm 1. With h the trunk,

    φ(x) = √(2/D) cos(Ωᵀh(x) + b),  Ω ~ N(0, 1/ℓ²), b ~ U(0, 2π), fixed;    f(x) = φ(x)ᵀβ,  β ~ N(0, I/τ),

so that φ(x)ᵀφ(x') ≈ exp(−‖h(x) − h(x')‖²/(2ℓ²)). Trunk and β are trained by the MAP loss of β, −(1/B) Σ log p(y | f) +
τ‖β‖²/(2n). One pass over the training rows then gives the precision for all outputs:

    classes:    Λ = τI + Σ_i p_i(1 − p_i) φ_i φ_iᵀ,  p_i the largest class probability of row i,
    regression: Λ = τI + Σ_i φ_i φ_iᵀ/σ²,  exact for a fixed trunk; σ² is learned, one for all outputs,

v(x) = φᵀΛ⁻¹φ, and the predictive is softmax(f/√(1 + πv/8)) (mean field), or N(f, v + σ²). The largest class probability
has the largest p(1 − p) of all classes, so v is at most the variance from a separate precision for each class.

Deviations: spectral norms are exact (``networks.spectral``). The precision is computed in one pass after training, in
float64, where the paper has a moving average during training. A trunk without residual connections has only the upper
Lipschitz bound, so distant inputs may have similar features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import networks
from ..data.fitdata import FitData
from ..data.rows import Rows
from ..data.size import Section, Size
from ..errors import require
from ..joint_predictive import GaussianFunctions
from ..method import Default, Method, StageSpec
from ..networks import NetworkConfig
from ..networks.last_layer import LastLayer, linear
from ..networks.spectral import bound_spectral_norms, remove_bounds
from ..predictive import Categorical, Gaussian, Predictive, mean_field
from ..seeds import Seed
from ..training.learner import FitResult, Learner, TrainingConfig
from ..training.likelihood import least_variance
from ..training.posterior import LearnerPosterior
from ..training.warm_start import Weights

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
        training: the settings of training; weight decay does not apply to β, which has τ, nor to σ².
    """

    network: NetworkConfig
    features: int
    length_scale: float
    norm_bound: float
    ridge: float
    training: TrainingConfig

    def __post_init__(self) -> None:
        require(self.features > 0, "features", "must be > 0", self.features)
        require(self.length_scale > 0, "length_scale", "must be > 0", self.length_scale)
        require(self.norm_bound > 0, "norm_bound", "must be > 0", self.norm_bound)
        require(self.ridge > 0, "ridge", "must be > 0", self.ridge)


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


@final
class Sngp(Learner):
    """A trunk, fixed random features and a linear output layer.

    Attributes:
        trunk: inputs -> h, with bounded layers.
        frequencies, phases: Ω [width, feature] and b [feature].
        head: β [feature, output].
        log_noise: log σ², for regression, in standardised units; σ² starts at 1.
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

    def features(self, inputs: Tensor) -> Tensor:
        """Return φ(x) [batch, feature]."""
        return math.sqrt(2 / self.spec.features) * torch.cos(self.trunk(inputs) @ self.frequencies + self.phases)

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        outputs = self.features(inputs) @ self.head
        prior = 0.5 * self.spec.ridge * self.head.square().sum() / num_train
        return prior - self._plain(outputs, None).log_prob(targets).mean()

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Return the predictive; without ``factor``, as in validation, the MAP predictive: v = 0. ``rng`` is unused."""
        if self.factor is None:
            return self._plain(self.features(inputs) @ self.head, None)
        return self.marginal(inputs, self.factor)

    def estimated(self, predicted: Sequence[tuple[Predictive, Tensor]]) -> tuple[float, dict[str, Tensor]]:
        """Return the score and, for regression, the noise variance with the largest likelihood for v = 0.

        σ² starts at 1, and few steps at a small learning rate would leave it near there.
        """
        if self.spec.task == "classification":
            return super().estimated(predicted)
        score, best = least_variance(predicted)
        return score, {"log_noise": torch.full_like(self.log_noise.detach(), best)}

    def undecayed(self) -> set[str]:
        return {name for name, _ in self.named_parameters(recurse=False)}

    def marginal(self, inputs: Tensor, factor: Float[Tensor, "feature feature"]) -> Predictive:
        """Return the predictive with v = ‖L⁻¹φ‖², L the Cholesky factor of Λ in float64."""
        phi = self.features(inputs)
        variance = torch.linalg.solve_triangular(factor, phi.T.to(factor), upper=False).square().sum(0)  # [batch]
        return self._plain(phi @ self.head, variance.to(phi))

    def functions(self, inputs: Float[Tensor, "group row ..."]) -> GaussianFunctions:
        """Return the Gaussian over φᵀβ, β ~ N(β̂, Λ⁻¹), at the rows of each group."""
        assert self.factor is not None, "the precision is computed after training"
        phi, shape = self.features(inputs.flatten(0, 1)), inputs.shape[:2]
        white = torch.linalg.solve_triangular(self.factor, phi.T.to(self.factor), upper=False).T.unflatten(0, shape)
        classes = self.spec.task == "classification"
        noise = phi.new_zeros(()) if classes else self.log_noise.exp()
        mean = (phi @ self.head).unflatten(0, shape)
        return GaussianFunctions(
            mean[None], (white @ white.mT)[None, :, None], noise.expand(1, mean.shape[-1]), classes
        )

    def curvature(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return φ [batch, feature] and the weight of each row in Λ [batch], both float64."""
        phi = self.features(inputs)
        if self.spec.task == "regression":
            return phi.double(), torch.exp(-self.log_noise.double()).expand(len(phi))
        largest = torch.softmax((phi @ self.head).double(), -1).amax(-1)
        return phi.double(), largest * (1 - largest)

    def _plain(self, outputs: Tensor, variance: Tensor | None) -> Predictive:
        """Return the predictive given f and its variance [batch]; None means 0."""
        if self.spec.task == "classification":
            spread = outputs.new_zeros(()) if variance is None else variance[:, None]
            return Categorical(mean_field(outputs, spread)[None])
        total = self.log_noise.exp() if variance is None else self.log_noise.exp() + variance[:, None]
        return Gaussian(outputs[None], total.expand_as(outputs)[None])


@torch.no_grad()
def precision_factor(learner: Sngp, rows: Rows) -> Float[Tensor, "feature feature"]:
    """Return the lower Cholesky factor of Λ over the training rows, in float64."""
    size = learner.spec.features
    precision = learner.spec.ridge * torch.eye(size, dtype=torch.float64, device=rows.device)
    for part, _ in rows.batches(_ROWS):
        phi, weight = learner.curvature(part)
        precision += phi.T @ (weight[:, None] * phi)
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

    @torch.no_grad()
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> GaussianFunctions:
        """Return :meth:`Sngp.functions` of transformed inputs; ``rng`` is not used."""
        with self.lent() as learner:
            return learner.functions(inputs)

    @classmethod
    def spec(cls, config: SngpConfig, data: FitData) -> SngpSpec:
        numbers = (config.features, config.length_scale, config.norm_bound, config.ridge)
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
        learner.factor = precision_factor(learner, data.rows("train", data.device))
        return {name: tensor.detach().cpu() for name, tensor in learner.state_dict().items()}


def default(size: Size) -> Section:
    """Return the hyperparameters; images need group norm and twice the learning rate.

    Bounded norms keep the trunk from memorising many rows, so all epochs are run.
    """
    network = size.network if size.image is None else {**size.network, "norm": "group"}
    training = size.training(5e-3 if size.image is None else 1e-2, regularised=True)
    return {"network": network, "features": 512, "training": training}


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
