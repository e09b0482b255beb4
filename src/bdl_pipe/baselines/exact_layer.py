"""A posterior with a point estimate of the trunk, and exact Bayesian linear regression on its features.

p(y | x, D) = N(φᵀm, φᵀA⁻¹φ + σ²), where φ is the trunk's features and a one. A noise of each input (ours) is
σ² exp(φᵀg). The features are float32 and everything
after them is float64, because A is as ill-conditioned as I + (s/σ²)ΦᵀΦ, which is too much for float32.

State: ``network.trunk.…``, and m, A's Cholesky factor, σ² and g as ``mean``, ``factor``, ``noise_variance`` and
``noise_head``, without training rows. Config: ``spec`` (a :class:`TrunkSpec`), ``prior_variance``, ``epochs`` and
``loss``.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import networks
from ..artifacts import State
from ..config import read, to_mapping
from ..data.fitdata import FitData
from ..errors import DataError
from ..joint_predictive import GaussianFunctions
from ..linear_regression import LinearPosterior, RecursiveLayer, with_bias
from ..networks import MlpConfig, Network
from ..networks.base import Replicas
from ..posterior_protocols import grad_of_inputs
from ..predictive import Gaussian
from ..progress import Report
from ..seeds import Seed
from ..training.fit import fit_epochs
from ..training.learner import TrainingConfig, WeightedLearner
from ..training.likelihood import NoiseOf
from .stored import StoredPosterior

_TRUNK: Final = "network.trunk."
AFFORDABLE: Final = 5_000_000  # the most entries of Φ: 40 MB, and a training step holds several such matrices


@dataclass(frozen=True)
class TrunkSpec:
    """The description of a trunk, from which it is built."""

    network: MlpConfig
    input_shape: tuple[int, ...]

    def build(self, rng: Seed) -> Network:
        """Build the trunk, a network without a head, with weights initialised from ``rng``."""
        return networks.build(self.network, self.input_shape, 0, rng=rng)


def noise_head(noise: NoiseOf, network: MlpConfig) -> nn.Parameter | None:
    """Return g [h, 1] of a noise of each input, which starts at 0; None with one noise."""
    return nn.Parameter(torch.zeros(network.hidden[-1] + 1, 1)) if noise == "each input" else None


class ExactLayerLearner(WeightedLearner):
    """A learner that gets an exact last layer on its trunk, ``network.trunk``, after training.

    Attributes:
        noise_head: g of a noise of each input; None with one noise.
    """

    noise_head: nn.Parameter | None

    def log_noise(self, phi: Float[Tensor, "row feature"]) -> Float[Tensor, "row 1"] | None:
        """Return φᵀg of rows in float64; None with one noise."""
        return None if self.noise_head is None else phi @ self.noise_head.double()

    @abstractmethod
    def exact_layer(self, data: FitData) -> tuple[LinearPosterior, float]:
        """Return the last layer's posterior given the training rows, and its prior variance."""


def fit_exact_layers(
    method: str,
    learner_of: Callable[[Any, FitData, Seed], ExactLayerLearner],
    config: Any,
    training: TrainingConfig,
    data: Sequence[FitData],
    *,
    rngs: Sequence[Seed],
    report: Report,
) -> list[State]:
    """Train a learner of ``config`` on each of ``data``, and add the exact layer to its trunk.

    Raises:
        DataError: there are too many rows for an exact layer.
        Diverged: a loss became NaN or infinite.
    """

    def build(rows: FitData, rng: Seed) -> ExactLayerLearner:
        return learner_of(config, rows, rng)

    rows, columns = max(len(d.train) for d in data), config.network.hidden[-1] + 1
    if rows * columns > AFFORDABLE:
        rule = f"must have at most {AFFORDABLE // columns} training rows for {columns} features"
        raise DataError(f"{method}: the data {rule}, got {rows}")
    states, spec = list[State](), to_mapping(TrunkSpec(config.network, data[0].input_shape))
    for each, fitted in zip(data, fit_epochs(build, data, training, rngs=rngs, report=report), strict=True):
        learner = build(each, Seed(0))
        learner.load_state_dict(fitted.state)
        with torch.no_grad():
            layer, prior_variance = learner.to(each.device).eval().exact_layer(each)
        tensors = {name: values for name, values in fitted.state.items() if name.startswith(_TRUNK)}
        noise = {} if learner.noise_head is None else {"noise_head": learner.noise_head.double()}
        tensors |= {name: values.detach().cpu().clone() for name, values in {**vars(layer), **noise}.items()}
        about = {"prior_variance": prior_variance, "epochs": fitted.epochs, "loss": fitted.loss}
        states.append(State(tensors, {"posterior": ExactLayerPosterior.key, "spec": spec, **about}))
    return states


def features(trunk: nn.Module, inputs: Float[Tensor, "row ..."]) -> Float[Tensor, "row feature"]:
    """Return φ(x): the trunk's features and a one, in float64."""
    return with_bias(trunk(inputs).double())


class LinearFunctionsPosterior(StoredPosterior):
    """A posterior of Bayesian linear regression on features, which predicts in closed form.

    Attributes:
        layer: the posterior of the weights.
        noise_head: g [h, 1] of a noise of each input, σ² exp(φᵀg); None with one noise.
    """

    def __init__(self, state: State, device: torch.device | str = "cpu") -> None:
        super().__init__(state, device)
        self.layer = LinearPosterior(*(self.tensors[name] for name in ("mean", "factor", "noise_variance")))
        self.noise_head = self.tensors.get("noise_head")

    @abstractmethod
    def features(self, inputs: Float[Tensor, "row ..."]) -> Float[Tensor, "row feature"]:
        """Return φ(x) in float64."""

    def log_noise(self, phi: Float[Tensor, "*rows feature"]) -> Float[Tensor, "*rows 1"] | None:
        """Return φᵀg of rows; None with one noise."""
        return None if self.noise_head is None else phi @ self.noise_head

    @torch.no_grad()
    def learnt(self, inputs: Tensor, targets: Tensor, *, keep: float) -> State:
        """Return the state given further rows; see :class:`~bdl_pipe.posterior_protocols.OnlinePosterior`."""
        phi, factor = self.features(inputs).double(), self.layer.factor.double()
        precision = factor @ factor.mT
        layer = RecursiveLayer(precision, precision @ self.layer.mean.double(), self.layer.noise_variance.double())
        layer.learn(phi, targets, self.log_noise(phi), keep)
        return State(dict(self._state.tensors) | vars(layer.posterior()), self._state.config)

    @grad_of_inputs
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Gaussian:
        """Predict transformed inputs, in the units of the transformed targets; ``rng`` is not used."""
        phi = self.features(inputs)
        return self.layer.predict(phi, self.log_noise(phi), inputs.dtype)

    @grad_of_inputs
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> GaussianFunctions:
        """Return the Gaussian over functions at the rows of each group; ``rng`` is not used."""
        phi = self.features(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])
        return self.layer.functions(phi, self.log_noise(phi))


@final
class ExactLayerPosterior(LinearFunctionsPosterior):
    """A posterior with a fitted trunk and an exact last layer."""

    key = "exact_layer"

    def __init__(self, state: State, device: torch.device | str = "cpu") -> None:
        super().__init__(state, device)
        trunk = read(TrunkSpec, state.config["spec"], "spec").build(Seed(0)).eval().to(device)
        weights = {k.removeprefix("network."): v for k, v in self.tensors.items() if k.startswith(_TRUNK)}
        trunk.load_state_dict(weights)
        self._trunks = Replicas(trunk)

    def features(self, inputs: Float[Tensor, "row ..."]) -> Float[Tensor, "row feature"]:
        with self._trunks.one() as trunk:
            return features(trunk, inputs)
