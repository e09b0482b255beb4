"""Posteriors of a network that is linearised at its weights: draws of weights, and their exact Gaussian.

The linear model is f(x; w*) + J(x)(w − w*), with J the Jacobian of the outputs by the weights at w*. A Gauss–Newton
curvature is the curvature of this model, not of the network: networks drawn far from w* underfit (Immer, Korzepa &
Bauer 2021). Each draw costs one product of the Jacobian and a vector. If only the head's weights are drawn, the linear
model equals the network.

A Gaussian over the weights gives a Gaussian over this model's outputs at any set of rows, with mean f(x; w*) and
covariance J(x) Σ J(x')ᵀ between the outputs at x and x'. :class:`LinearisedLaplace` stores Σ beside the draws. Its
predictive of one row uses the draws; its joint of several rows uses the Gaussian.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..artifacts import State, under
from ..config import read, to_mapping
from ..networks.last_layer import LastLayer, of_networks
from ..networks.replicas import Replicas
from ..posterior import NetworkDraws, NetworkSpec
from ..predictive import Predictive
from ..seeds import Seed
from .linearised_joint import LinearisedFunctions

_LAYER: Final = "laplace."  # prefix of a Gaussian's tensors; a network's begin with trunk or head
_ATTENTION: Final = threading.Lock()
_ELEMENTS: Final = 2**25  # the most elements of Jacobians computed at once: 128 MiB in float32


@final
class LinearisedDraws:
    """A posterior of S equally weighted draws of the weights, and the weights at which the network is linearised."""

    key = "linearised_draws"

    def __init__(self, spec: NetworkSpec, weights: dict[str, Tensor]) -> None:
        """Create the posterior from the entries of the network's ``state_dict``, stacked [1 + draw, ...] with w* first.

        Entries that are not parameters (running statistics) are taken from w*.
        """
        self.spec, self.weights = spec, weights
        skeleton = spec.build(Seed(0)).eval().to(next(iter(weights.values())).device)
        self._networks = Replicas(skeleton)
        names = [name for name, _ in skeleton.named_parameters()]
        self._drawn = [name for name in names if (weights[name] != weights[name][:1]).any()]

    @classmethod
    def of(cls, draws: NetworkDraws, center: dict[str, Tensor]) -> "LinearisedDraws":
        """Linearise ``draws`` at ``center``, w*."""
        return cls(draws.spec, {name: torch.cat([center[name][None], drawn]) for name, drawn in draws.weights.items()})

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Return the predictive of the draws; ``rng`` is not used."""
        center = {name: value[0] for name, value in self.weights.items()}
        at = {name: center[name] for name in self._drawn}

        def outputs(drawn: dict[str, Tensor]) -> Tensor:
            return self._networks.call(center | drawn, inputs)

        linear = []
        for draw in range(1, len(next(iter(self.weights.values())))):
            with _attention_by_parts():
                found = jvp(outputs, (at,), ({name: self.weights[name][draw] - at[name] for name in at},))
            linear.append(found[0] + found[1])
        return self.spec.predictive(torch.stack(linear))

    def last_layer(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> LastLayer | None:
        """Return the last layer of w* at transformed inputs; None if it is not linear."""
        return of_networks(self._networks, {name: value[:1] for name, value in self.weights.items()}, inputs)

    def state(self) -> State:
        return State(dict(self.weights), {"posterior": self.key, "spec": to_mapping(self.spec)})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "LinearisedDraws":
        spec = read(NetworkSpec, state.config["spec"], "spec")
        return cls(spec, {name: value.to(device) for name, value in state.tensors.items()})


@final
@dataclass(frozen=True)
class LayerGaussian:
    """The Gaussian over one layer's weights around w*: W − W* = P (Z ∘ S) Qᵀ, Z standard normal.

    A layer's bias is the last column of W. The temperature and the prior are in S; see :mod:`.kronecker`.

    Attributes:
        input_vectors, output_vectors: Q and P.
        scale: S, the standard deviations along the columns of P and Q.
    """

    input_vectors: Float[Tensor, "fan_in fan_in"]
    output_vectors: Float[Tensor, "fan_out fan_out"]
    scale: Float[Tensor, "fan_out fan_in"]

    def white(self, jacobian: Float[Tensor, "... fan_out fan_in"]) -> Float[Tensor, "... weight"]:
        """Return the Jacobian of the outputs by Z; its product with its transpose is the outputs' covariance."""
        return (self.scale * (self.output_vectors.T @ jacobian @ self.input_vectors)).flatten(-2)


@final
class LinearisedLaplace:
    """Laplace's approximation of the linearised network: draws of weights, and their Gaussian."""

    key = "linearised_laplace"

    def __init__(self, draws: LinearisedDraws, layers: Mapping[str, LayerGaussian]) -> None:
        """Create the posterior from draws, which predict single rows, and the Gaussian of each layer by its name."""
        self.draws, self.layers, self.spec = draws, dict(layers), draws.spec
        self._center = {name: value[0] for name, value in draws.weights.items()}
        network = self.spec.build(Seed(0)).eval().to(next(iter(self._center.values())).device)
        parameters = [name for name, _ in network.named_parameters()]  # a constant bias is none
        self._drawn = [name for name in parameters if name.rpartition(".")[0] in self.layers]
        self._networks = Replicas(network)

    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Return the predictive of the draws; ``rng`` is not used."""
        return self.draws.predict(inputs, rng=rng)

    def last_layer(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> LastLayer | None:
        """Return the last layer of w* at transformed inputs; None if it is not linear."""
        return self.draws.last_layer(inputs)

    @torch.no_grad()
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed = Seed(0)) -> LinearisedFunctions:
        """Return the Gaussian over the outputs at the rows of each group; ``rng`` is not used.

        Jacobians have the weights' type, and their products are in float64.
        """
        at = {name: self._center[name] for name in self._drawn}

        def outputs(weights: dict[str, Tensor], row: Tensor) -> tuple[Tensor, Tensor]:
            found = self._networks.call(self._center | weights, row[None])[0]
            return found, found

        by_row = vmap(jacrev(outputs, has_aux=True), in_dims=(None, 0))
        weights = sum(value.numel() for value in at.values())
        width = self.spec.outputs * (2 if self.spec.likelihood == "gaussian_head" else 1)
        size = max(1, _ELEMENTS // (weights * width * inputs.shape[1]))
        means, covariances = [], []
        for part in inputs.split(size):
            with _attention_by_parts():
                jacobians, mean = by_row(at, part.flatten(0, 1))
            means.append(mean.double().unflatten(0, part.shape[:2]))
            parts = [self._covariance(name, jacobians, len(part)) for name in self.layers]
            covariances.append(torch.stack(parts).sum(0))
        return LinearisedFunctions(torch.cat(means), torch.cat(covariances), self.spec)

    def _covariance(self, name: str, jacobians: Mapping[str, Tensor], groups: int) -> Tensor:
        """Return one layer's contribution to the covariance of each group [group, row·output, row·output]."""
        matrix = jacobians[f"{name}.weight"].flatten(3)  # [row of all groups, output, fan_out, fan_in]
        if f"{name}.bias" in jacobians:
            matrix = torch.cat([matrix, jacobians[f"{name}.bias"][..., None]], dim=-1)
        white = self.layers[name].white(matrix).double().flatten(0, 1).unflatten(0, (groups, -1))
        return white @ white.mT

    def state(self) -> State:
        stored = self.draws.state()
        factors = {
            f"{_LAYER}{name}.{field}": value
            for name, layer in self.layers.items()
            for field, value in vars(layer).items()
        }
        return State({**stored.tensors, **factors}, {**stored.config, "posterior": self.key})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "LinearisedLaplace":
        factors = {name: value.to(device) for name, value in under(_LAYER, state.tensors).items()}
        drawn = {name: value for name, value in state.tensors.items() if not name.startswith(_LAYER)}
        layers = dict.fromkeys(name.rpartition(".")[0] for name in factors)
        return cls(
            LinearisedDraws.from_state(State(drawn, state.config), device),
            {name: LayerGaussian(**under(f"{name}.", factors)) for name in layers},
        )


@contextlib.contextmanager
def _attention_by_parts() -> Iterator[None]:
    """Inside the block, attention is not fused, because torch's fused kernels have no forward derivatives.

    torch has one setting for the whole process, so one thread at a time is inside the block. Attention in other threads
    is not fused meanwhile, which changes rounding errors alone.
    """
    with _ATTENTION:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)
