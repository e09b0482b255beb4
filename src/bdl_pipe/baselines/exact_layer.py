"""A posterior whose trunk is a point and whose last layer is exact Bayesian linear regression on its features.

p(y | x, D) = N(φᵀm, φᵀA⁻¹φ + σ²), φ the trunk's features and a one. The features are float32, all after them is
float64: A's condition number is that of I + (s/σ²)ΦᵀΦ, which float32 does not bear.

State: ``network.trunk.…``, and m, A's Cholesky factor and σ² as ``mean``, ``factor`` and ``noise_variance``; no
training row. Config: ``spec`` (a :class:`TrunkSpec`), ``prior_variance``, ``epochs`` and ``loss``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from .. import networks
from ..artifacts import State
from ..config import read, to_mapping
from ..errors import DataError
from ..networks import MlpConfig, Network
from ..predictive import Gaussian
from ..seeds import Seed
from ..training.learner import FitResult
from . import linear
from .linear import LinearPosterior, with_bias

_MOST: Final = 5_000_000  # numbers in Φ: 40 MB, of which a training step holds several


@dataclass(frozen=True)
class TrunkSpec:
    """What a trunk is built from."""

    network: MlpConfig
    input_shape: tuple[int, ...]

    def build(self, rng: Seed) -> Network:
        return networks.build(self.network, self.input_shape, 0, rng=rng)

    def check_size(self, method: str, rows: int) -> None:
        """Refuse more rows than exact regression on these features can hold.

        Raises:
            DataError: Φ, rows × (width + 1), is too large.
        """
        columns = self.network.hidden[-1] + 1
        if rows * columns > _MOST:
            rule = f"must have at most {_MOST // columns} training rows for {columns} features"
            raise DataError(f"{method}: the data {rule}, got {rows}")


def features(trunk: torch.nn.Module, inputs: Float[Tensor, "row ..."]) -> Float[Tensor, "row feature"]:
    """φ(x): the trunk's features and a one, in float64."""
    return with_bias(trunk(inputs).double())


@final
class ExactLayerPosterior:
    """The fitted trunk and the posterior of its last layer; predicts in closed form."""

    key = "exact_layer"

    def __init__(self, state: State, device: torch.device | str = "cpu") -> None:
        self._state = state
        tensors = {k: v.to(device) for k, v in state.tensors.items()}
        self.layer = LinearPosterior(*(tensors.pop(name) for name in ("mean", "factor", "noise_variance")))
        self.trunk = read(TrunkSpec, state.config["spec"], "spec").build(Seed(0)).eval().to(device)
        self.trunk.load_state_dict(_trunk(tensors))

    @classmethod
    def of(cls, spec: TrunkSpec, learned: FitResult, layer: LinearPosterior, prior_variance: float) -> State:
        """The state of a learner's trunk (its ``network``) with ``layer`` on it."""
        trunk = {f"network.{k}": v for k, v in _trunk(learned.state).items()}
        tensors = trunk | {k: v.detach().cpu().clone() for k, v in vars(layer).items()}
        about = {"prior_variance": prior_variance, "epochs": learned.epochs, "loss": learned.loss}
        return State(tensors, {"posterior": cls.key, "spec": to_mapping(spec), **about})

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Gaussian:
        """Of transformed inputs, in the units of the transformed targets; ``rng`` is not used."""
        return predict(self.layer, self.trunk, inputs)

    def state(self) -> State:
        return self._state

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "ExactLayerPosterior":
        return cls(state, device)


def predict(layer: LinearPosterior, trunk: torch.nn.Module, inputs: Float[Tensor, "row ..."]) -> Gaussian:
    """``layer``'s predictive at the trunk's features, computed in float64, in the dtype of ``inputs``."""
    exact = linear.predict(layer, features(trunk, inputs))
    return Gaussian(exact.draw_mean.to(inputs.dtype), exact.draw_variance.to(inputs.dtype))


def _trunk(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of ``network.trunk``, named as in a network without a head."""
    return {k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.trunk.")}
