"""A posterior with a point estimate of the trunk, and exact Bayesian linear regression on its features.

p(y | x, D) = N(φᵀm, φᵀA⁻¹φ + σ²), where φ is the trunk's features and a one. The features are float32 and everything
after them is float64, because A is as ill-conditioned as I + (s/σ²)ΦᵀΦ, which is too much for float32.

State: ``network.trunk.…``, and m, A's Cholesky factor and σ² as ``mean``, ``factor`` and ``noise_variance``, without
training rows. Config: ``spec`` (a :class:`TrunkSpec`), ``prior_variance``, ``epochs`` and ``loss``.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from .. import networks
from ..artifacts import State
from ..config import read, to_mapping
from ..data.fitdata import FitData
from ..errors import DataError
from ..joint_predictive import GaussianFunctions
from ..networks import MlpConfig, Network
from ..networks.replicas import Replicas
from ..predictive import Gaussian
from ..progress import Report
from ..seeds import Seed
from ..training.fit import fit_epochs
from ..training.learner import FitResult, Learner, TrainingConfig
from . import linear
from .linear import LinearPosterior, with_bias
from .stored import StoredPosterior

_MOST: Final = 5_000_000  # the most entries of Φ: 40 MB, and a training step holds several such matrices


@dataclass(frozen=True)
class TrunkSpec:
    """The description of a trunk, from which it is built."""

    network: MlpConfig
    input_shape: tuple[int, ...]

    def build(self, rng: Seed) -> Network:
        """Build the trunk, a network without a head, with weights initialised from ``rng``."""
        return networks.build(self.network, self.input_shape, 0, rng=rng)

    def check_size(self, method: str, rows: int) -> None:
        """Refuse more rows than fit in memory for exact regression on these features.

        Raises:
            DataError: Φ, rows × (width + 1), is too large.
        """
        columns = self.network.hidden[-1] + 1
        if rows * columns > _MOST:
            rule = f"must have at most {_MOST // columns} training rows for {columns} features"
            raise DataError(f"{method}: the data {rule}, got {rows}")


class ExactLayerLearner(Learner):
    """A learner that gets an exact last layer on its trunk, ``network.trunk``, after training."""

    @abstractmethod
    def exact_layer(self, data: FitData) -> tuple[LinearPosterior, float]:
        """Return the last layer's posterior given the training rows, and its prior variance."""


def fit_exact_layers(
    method: str,
    build: Callable[[FitData, Seed], ExactLayerLearner],
    network: MlpConfig,
    training: TrainingConfig,
    data: Sequence[FitData],
    *,
    rngs: Sequence[Seed],
    report: Report,
) -> list[State]:
    """Train a learner on each of ``data``, and add the exact layer to its trunk.

    Raises:
        DataError: there are too many rows for an exact layer.
        Diverged: a loss became NaN or infinite.
    """
    spec = TrunkSpec(network, data[0].input_shape)
    spec.check_size(method, max(len(d.train) for d in data))
    fitted = fit_epochs(build, data, training, rngs=rngs, report=report)
    return [_with_layer(spec, build(d, Seed(0)), d, member) for d, member in zip(data, fitted, strict=True)]


@torch.no_grad()
def _with_layer(spec: TrunkSpec, learner: ExactLayerLearner, data: FitData, fitted: FitResult) -> State:
    learner.load_state_dict(fitted.state)
    layer, prior_variance = learner.to(data.device).eval().exact_layer(data)
    return ExactLayerPosterior.of(spec, fitted, layer, prior_variance)


def features(trunk: torch.nn.Module, inputs: Float[Tensor, "row ..."]) -> Float[Tensor, "row feature"]:
    """Return φ(x): the trunk's features and a one, in float64."""
    return with_bias(trunk(inputs).double())


@final
class ExactLayerPosterior(StoredPosterior):
    """A posterior with a fitted trunk and an exact last layer, which predicts in closed form."""

    key = "exact_layer"

    def __init__(self, state: State, device: torch.device | str = "cpu") -> None:
        super().__init__(state, device)
        self.layer = LinearPosterior(*(self.tensors[name] for name in ("mean", "factor", "noise_variance")))
        trunk = read(TrunkSpec, state.config["spec"], "spec").build(Seed(0)).eval().to(device)
        trunk.load_state_dict(_trunk(self.tensors))
        self.trunk, self._trunks = trunk, Replicas(trunk)

    @classmethod
    def of(cls, spec: TrunkSpec, learned: FitResult, layer: LinearPosterior, prior_variance: float) -> State:
        """Return the state of a learner's trunk (its ``network``) with ``layer``."""
        trunk = {f"network.{k}": v for k, v in _trunk(learned.state).items()}
        tensors = trunk | {k: v.detach().cpu().clone() for k, v in vars(layer).items()}
        about = {"prior_variance": prior_variance, "epochs": learned.epochs, "loss": learned.loss}
        return State(tensors, {"posterior": cls.key, "spec": to_mapping(spec), **about})

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Gaussian:
        """Predict transformed inputs, in the units of the transformed targets; ``rng`` is not used."""
        with self._trunks.one() as trunk:
            return predict(self.layer, trunk, inputs)

    @torch.no_grad()
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> GaussianFunctions:
        """Return the Gaussian over functions at the rows of each group; ``rng`` is not used."""
        with self._trunks.one() as trunk:
            phi = features(trunk, inputs.flatten(0, 1))
        return linear.functions(self.layer, phi.unflatten(0, inputs.shape[:2]))


def predict(layer: LinearPosterior, trunk: torch.nn.Module, inputs: Float[Tensor, "row ..."]) -> Gaussian:
    """Return ``layer``'s predictive at the trunk's features, computed in float64, in the dtype of ``inputs``."""
    exact = linear.predict(layer, features(trunk, inputs))
    return Gaussian(exact.draw_mean.to(inputs.dtype), exact.draw_variance.to(inputs.dtype))


def _trunk(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of ``network.trunk`` under the names of a network without a head."""
    return {k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.trunk.")}
