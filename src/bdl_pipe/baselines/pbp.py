"""The method ``pbp``: probabilistic backpropagation, a factorised Gaussian over weights by assumed density filtering.

Hernández-Lobato & Adams 2015, "Probabilistic Backpropagation for Scalable Learning of Bayesian Neural Networks" (its
equations are named here by what they state: their numbers were not checked against the paper). The model is y = f(x; W)
+ N(0, 1/γ) with rectified units, W_ij ~ N(0, 1/λ), and gamma distributions of λ and γ. The posterior is approximated by
independent Gaussians of all weights and gamma distributions of λ and γ. An epoch takes the rows one at a time in a new
order, each by the update of :mod:`.moment_propagation`; it then refines the factors N(w_ij | 0, 1/λ) of the prior by
expectation propagation (:func:`refine`), one weight after the other. The rows' own factors are not kept: each epoch
takes all rows again as if they were new, so the weights' variances shrink with the number of epochs, and ``epochs`` is
a hyperparameter; the paper has 40.

At the start the prior's factor gives every weight the variance b/(a − 1) of λ ~ Gamma(a, b), and means are drawn from
N(0, 1/(k + 1)) for k inputs, since equal means would stay equal. The predictive is the Gaussian with the propagated
mean, and the propagated variance plus E[1/γ].

Rules that keep a distribution proper are those of the authors' published program: an update that would make a variance
negative is not made, and a factor is refined only where its cavity is a proper distribution. Deviations: several
target columns have one network and a γ each, and log Z is summed over them as if the outputs were independent (the
paper has one column); a γ whose new distribution had no mean of 1/γ is not updated. Everything is in float64, and
several seeds or splits are computed together, since the time of a row is mostly overhead.

State: ``mean.<layer>``, ``variance.<layer>`` [output, input + 1] with the bias in the last column, ``noise`` [2,
output] and ``prior`` [2], shapes and rates of γ, in transformed targets⁻², and of λ.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State
from ..config import read, to_mapping
from ..data.fitdata import FitData, epoch_order
from ..errors import require, require_positive
from ..joint_predictive import GaussianFunctions
from ..method import Inputs, Method, StageSpec
from ..networks import MlpConfig
from ..predictive import Gaussian
from ..progress import Report
from ..seeds import Seed
from .moment_propagation import Beliefs, functions
from .stored import StoredPosterior

_WIDEST: Final = 1e6  # a cavity with a larger variance knows nothing of its weight, and its factor stays as it is
Factor = tuple[float, float, float, float]


@dataclass(frozen=True)
class PbpConfig:
    """The section ``methods.pbp`` of params.yaml.

    Attributes:
        network: the architecture, an ``mlp`` of rectified units without dropout and frequencies.
        epochs: the number of passes over the rows.
        weight_shape, weight_rate: a and b of the prior Gamma(a, b) of λ, the precision of all weights.
        noise_shape, noise_rate: the same of γ, the precision of the noise, in transformed targets⁻².
    """

    network: MlpConfig
    epochs: int
    weight_shape: float
    weight_rate: float
    noise_shape: float
    noise_rate: float

    def __post_init__(self) -> None:
        activation = self.network.activation
        require(activation == "relu", "network.activation", "must be relu: its moments are propagated", activation)
        require(self.network.dropout == 0, "network.dropout", "must be 0", self.network.dropout)
        require(not self.network.frequencies, "network.frequencies", "must be empty", list(self.network.frequencies))
        require_positive(self, "epochs", "weight_rate", "noise_rate")
        for name in ("weight_shape", "noise_shape"):
            require(getattr(self, name) > 1, name, "must be > 1", getattr(self, name))


@dataclass
class Prior:
    """The gamma distribution of λ, and the approximate factor of each weight's prior.

    Attributes:
        shape, rate: of the posterior of λ.
        factors: of each weight, what its factor adds to 1/v, m/v, the shape and the rate.
    """

    shape: float
    rate: float
    factors: list[Factor]

    @classmethod
    def first(cls, weights: int, config: PbpConfig) -> "Prior":
        """Return the factors before the first epoch: each gives its weight the precision (a − 1)/b."""
        precision = (config.weight_shape - 1) / config.weight_rate
        return cls(config.weight_shape, config.weight_rate, [(precision, 0.0, 0.0, 0.0)] * weights)

    def refine(self, means: list[float], variances: list[float]) -> None:
        """Refine the factor of each weight in turn, in place.

        The cavity N(m, v) Gamma(a, b) is the posterior without the weight's factor. Its normaliser with the factor
        N(w | 0, 1/λ) is about N(0 | m, v + b/(a − 1)), from which follow the new moments of w and λ, as for a row.
        """
        for index, (precision, product, shape, rate) in enumerate(self.factors):
            cavity = 1 / variances[index] - precision
            a, b = self.shape - shape, self.rate - rate
            if not (cavity > 1 / _WIDEST and a > 1 and b > 0):
                continue
            v = 1 / cavity
            m = v * (means[index] / variances[index] - product)
            spreads = [v + b / (a - 1 + more) for more in range(3)]
            log_z, log_z1, log_z2 = (-0.5 * (math.log(spread) + m * m / spread) for spread in spreads)
            slope, of_variance = -m / spreads[0], 0.5 * (m * m / spreads[0] - 1) / spreads[0]
            mean, variance = m + v * slope, v - v * v * (slope * slope - 2 * of_variance)
            excess = math.exp(log_z2 - 2 * log_z1 + log_z) * (a + 1) / a - 1
            inverse = math.exp(log_z2 - log_z1) * (a + 1) / b - math.exp(log_z1 - log_z) * a / b
            if not (variance > 0 and excess > 0 and inverse > 0 and excess < 1):
                continue
            self.factors[index] = (1 / variance - cavity, mean / variance - m / v, 1 / excess - a, 1 / inverse - b)
            means[index], variances[index], self.shape, self.rate = mean, variance, 1 / excess, 1 / inverse


def refine(beliefs: Beliefs, priors: Sequence[Prior]) -> Beliefs:
    """Return the beliefs after the factors of each member's prior are refined; ``priors`` change in place."""
    shapes = [of.shape[1:] for of in beliefs.means]
    sizes = [shape.numel() for shape in shapes]
    columns, parts = [], (beliefs.means, beliefs.variances)
    for member, prior in enumerate(priors):
        means, variances = (torch.cat([of[member].flatten() for of in part]).tolist() for part in parts)
        prior.refine(means, variances)
        columns.append(torch.tensor([means, variances], dtype=torch.float64))
    both = torch.stack(columns, 1).to(beliefs.shape.device)  # [2, member, weight]
    means, variances = (
        [of.unflatten(1, shape) for of, shape in zip(part.split(sizes, 1), shapes, strict=True)] for part in both
    )
    return Beliefs(means, variances, beliefs.shape, beliefs.rate)


@dataclass(frozen=True)
class PbpSpec:
    """The shape of a fitted network."""

    network: MlpConfig
    input_shape: tuple[int, ...]
    outputs: int

    @property
    def layers(self) -> Iterator[tuple[int, int]]:
        """Yield the outputs and the inputs of each layer; an input for the bias is counted."""
        widths = [math.prod(self.input_shape), *self.network.hidden, self.outputs]
        for inputs, outputs in pairwise(widths):
            yield outputs, inputs + 1


@final
class PbpPosterior(StoredPosterior):
    """Independent Gaussians over weights; their functions are taken for a Gaussian, with a predictive of one draw."""

    key = "pbp"

    def __init__(self, state: State, device: torch.device | str = "cpu") -> None:
        super().__init__(state, device)
        layers = range(len(read(PbpSpec, state.config["spec"], "spec").network.hidden) + 1)
        means, variances = ([self.tensors[f"{part}.{n}"][None] for n in layers] for part in ("mean", "variance"))
        self.beliefs = Beliefs(means, variances, *self.tensors["noise"][:, None])

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Gaussian:
        """Predict transformed inputs, in the units of the transformed targets; ``rng`` is not used."""
        mean, variance = self.beliefs.outputs(inputs.flatten(1).double()[None])
        return Gaussian(mean.to(inputs.dtype), (variance + self.beliefs.noise_variance[:, None]).to(inputs.dtype))

    @torch.no_grad()
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> GaussianFunctions:
        """Return the Gaussian over functions at the rows of each group, in float64; ``rng`` is not used."""
        means, variances = ([of[0] for of in part] for part in (self.beliefs.means, self.beliefs.variances))
        mean, covariance = functions(means, variances, inputs.flatten(2).double())
        return GaussianFunctions(mean[None], covariance[None], self.beliefs.noise_variance, classes=False)


def fit(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: PbpConfig, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """Fit a posterior to each of ``data``; ``inputs`` are not used."""
    spec, device = PbpSpec(config.network, data[0].input_shape, data[0].outputs), data[0].device
    pairs = [of.tensors("train", device) for of in data]
    rows = torch.stack([x.flatten(1).double() for x, _ in pairs])  # [member, row, column]
    targets = torch.stack([y.double() for _, y in pairs])
    first, beliefs, priors = 0, *_start(spec, config, rngs, device)
    if (last := report.load()) is not None:
        first, beliefs, priors = _resumed(last, beliefs)
    members = torch.arange(len(data), device=device)
    for epoch in range(first, config.epochs):
        order = torch.stack([epoch_order(rows.shape[1], epoch, rng) for rng in rngs], 1).to(device)
        log_z, rejected = torch.zeros(len(data), dtype=torch.float64, device=device), 0
        for index in order:
            updated = beliefs.given(rows[members, index], targets[members, index])
            beliefs, log_z, rejected = updated.beliefs, log_z + updated.log_z, rejected + updated.rejected
        beliefs = refine(beliefs, priors)
        metrics = {"log_z": float(log_z.mean()) / len(order), "rejected": rejected / len(order) / len(data)}
        report(epoch + 1, config.epochs, metrics)
        if report.due():
            report.save(_checkpoint(epoch + 1, beliefs, priors))
    return [_state(spec, beliefs, priors[member], member) for member in range(len(data))]


def _start(
    spec: PbpSpec, config: PbpConfig, rngs: Sequence[Seed], device: torch.device | str
) -> tuple[Beliefs, list[Prior]]:
    """Return the beliefs and the prior of each member before the first row."""
    variance, count, means, variances = config.weight_rate / (config.weight_shape - 1), len(rngs), [], []
    for layer, (outputs, inputs) in enumerate(spec.layers):
        generators = [rng.fold("mean", layer).generator() for rng in rngs]
        drawn = [torch.randn(outputs, inputs, generator=generator, dtype=torch.float64) for generator in generators]
        means.append((torch.stack(drawn) / math.sqrt(inputs)).to(device))
        variances.append(torch.full_like(means[-1], variance))
    shape, rate = (means[0].new_full((count, spec.outputs), v) for v in (config.noise_shape, config.noise_rate))
    weights = sum(outputs * inputs for outputs, inputs in spec.layers)
    return Beliefs(means, variances, shape, rate), [Prior.first(weights, config) for _ in rngs]


def _checkpoint(epoch: int, beliefs: Beliefs, priors: Sequence[Prior]) -> State:
    tensors = {f"mean.{n}": of for n, of in enumerate(beliefs.means)}
    tensors |= {f"variance.{n}": of for n, of in enumerate(beliefs.variances)}
    tensors["noise"] = torch.stack([beliefs.shape, beliefs.rate])
    tensors["factors"] = torch.tensor([prior.factors for prior in priors], dtype=torch.float64)
    tensors["prior"] = torch.tensor([(prior.shape, prior.rate) for prior in priors], dtype=torch.float64)
    return State(tensors, {"epoch": epoch})


def _resumed(state: State, start: Beliefs) -> tuple[int, Beliefs, list[Prior]]:
    tensors = {name: values.to(start.shape.device) for name, values in state.tensors.items()}
    layers = range(len(start.means))
    means, variances = ([tensors[f"{part}.{n}"] for n in layers] for part in ("mean", "variance"))
    gammas, factors = tensors["prior"].tolist(), tensors["factors"].tolist()
    priors = [Prior(a, b, [tuple(of) for of in each]) for (a, b), each in zip(gammas, factors, strict=True)]
    return int(state.config["epoch"]), Beliefs(means, variances, *tensors["noise"]), priors


def _state(spec: PbpSpec, beliefs: Beliefs, prior: Prior, member: int) -> State:
    tensors = {f"mean.{n}": of[member].clone() for n, of in enumerate(beliefs.means)}
    tensors |= {f"variance.{n}": of[member].clone() for n, of in enumerate(beliefs.variances)}
    tensors["noise"] = torch.stack([beliefs.shape[member], beliefs.rate[member]])
    tensors["prior"] = torch.tensor([prior.shape, prior.rate], dtype=torch.float64)
    about: dict[str, Any] = {"posterior": PbpPosterior.key, "spec": to_mapping(spec)}
    return State(tensors, about)


PBP = Method(
    name="pbp",
    bayesian=True,
    config=PbpConfig,
    tasks=("regression",),
    stages={"student": StageSpec(fit_many=fit)},
    search={"epochs": (5, 100, "integer")},
    settings={
        "network": {"name": "mlp", "hidden": [50]},
        "epochs": 40,
        "weight_shape": 6.0,
        "weight_rate": 6.0,
        "noise_shape": 6.0,
        "noise_rate": 6.0,
    },
)
