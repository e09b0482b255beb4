"""Posteriors of a network that is linearised at its weights: draws of weights, and their exact Gaussian.

The linear model is f(x; w*) + J(x)(w − w*), with J the Jacobian of the outputs by the weights at w*. A Gauss–Newton
curvature is the curvature of this model, not of the network: networks drawn far from w* underfit (Immer, Korzepa &
Bauer 2021). Each draw costs one product of the Jacobian and a vector. If only the head's weights are drawn, the linear
model equals the network.

A Gaussian over the weights gives a Gaussian over this model's outputs at any set of rows, with mean f(x; w*) and
covariance J(x) Σ J(x')ᵀ between the outputs at x and x'. :class:`LinearisedLaplace` stores Σ beside the draws. Its
predictive of one row uses the draws; its joint of several rows uses the Gaussian.

The joint of the targets of several rows: all outputs at all rows of a group have one Gaussian, since outputs and rows
share weights. For a network that predicts a mean and a log-variance, the Gaussian is over both. Given the
log-variances, targets are Gaussian, so the joint density is a mean over draws of the log-variances only.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import jacrev, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..artifacts import State, under
from ..config import read, to_mapping
from ..joint_predictive import Joint, JointCategorical, jittered_root, normal_log_prob
from ..networks.base import Replicas
from ..networks.last_layer import LastLayer, of_networks
from ..posterior import NetworkDraws, NetworkSpec
from ..predictive import Gaussian, Predictive
from ..seeds import Seed


@final
class JointDependent(Joint):
    """The joint of regression: an equal mixture over draws of Gaussians. In each, the outputs of a row are dependent.

    Args:
        mean: the mean of each target.
        variance: the variance of each target's own noise.
        covariance: the covariance of the functions' values, for each draw or one for all draws.
    """

    def __init__(
        self,
        mean: Float[Tensor, "draw group row output"],
        variance: Float[Tensor, "draw group row output"],
        covariance: Float[Tensor, "#draw group row output row output"],
    ) -> None:
        self.mean, self.variance, self.covariance = mean.double(), variance.double(), covariance.double()
        self.draws, self.target_shape, self.is_product = len(mean), tuple(mean.shape[1:]), False

    def _row_terms(self, targets: Float[Tensor, "group row output"]) -> Float[Tensor, "draw group row"]:
        of_rows = self.covariance.diagonal(dim1=2, dim2=4).movedim(-1, 2)  # [#draw, group, row, output, output]
        return normal_log_prob(of_rows + torch.diag_embed(self.variance), targets.double() - self.mean).sum(-1)

    def _chain_terms(self, targets: Float[Tensor, "group row output"]) -> Float[Tensor, "draw group row"]:
        whole = self.covariance.flatten(4).flatten(2, 3) + torch.diag_embed(self.variance.flatten(2))
        terms = normal_log_prob(whole, (targets.double() - self.mean).flatten(2))
        return terms.unflatten(2, self.target_shape[1:]).sum(-1).cumsum(-1)


@final
@dataclass(frozen=True)
class LinearisedFunctions:
    """The Gaussian over a linearised network's outputs at the rows of each group.

    Attributes:
        mean: the outputs' mean.
        covariance: the covariance of all outputs at all rows, ordered by row and then by output.
        spec: the network's spec, which defines the likelihood of the outputs.
    """

    mean: Float[Tensor, "group row output"]
    covariance: Float[Tensor, "group row·output row·output"]
    spec: NetworkSpec

    def joint(self, places: Int[Tensor, "group place"] | None, *, draws: int, rng: Seed) -> Joint:
        """Return the joint of the observations in ``places``. None: each row once.

        The joint of regression with a fixed noise is a Gaussian in closed form. For classes the softmax is averaged
        over ``draws`` functions. If the network predicts a log-variance, ``draws`` vectors of log-variances are drawn
        jointly at the rows, and the joint given each is in closed form. Logits are kept in float32.
        """
        normal = torch.randn(draws, *self.mean.shape, generator=rng.fold("functions").generator()).to(self.mean)
        if self.spec.likelihood == "categorical":
            offsets = torch.einsum("gij,dgj->dgi", jittered_root(self.covariance), normal.flatten(2))
            logits = self.mean + offsets.unflatten(2, self.mean.shape[1:])
            return JointCategorical(logits.float().log_softmax(-1), places)
        shape = self.mean.shape[1:]
        blocks = self.covariance.unflatten(2, shape).unflatten(1, shape)  # [group, row, output, row, output]
        if self.spec.likelihood == "gaussian":
            mean, variance = self.mean[None], self.spec.noise_of(self.mean[None])
        else:
            mean, variance, blocks = self._given_variances(blocks, normal.chunk(2, dim=-1)[0])
        if places is not None:
            mean, variance = (torch.take_along_dim(x, places[None, :, :, None], 2) for x in (mean, variance))
            blocks = torch.take_along_dim(blocks, places[:, :, None, None, None], 1)
            blocks = torch.take_along_dim(blocks, places[:, None, None, :, None], 3)
        return JointDependent(mean, variance, blocks[None])

    def _given_variances(self, blocks: Tensor, normal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw log-variances; return the means given each draw, the variances, and the covariance of the means.

        Let LLᵀ be the covariance of the log-variances and C the covariance of the means with them. A draw deviates by L
        z from its mean. Given the draw, the means shift by C L⁻ᵀ z, and their covariance falls by C L⁻ᵀ (C L⁻ᵀ)ᵀ.
        """
        mean, free = self.mean.chunk(2, dim=-1)
        shape, (above, below) = mean.shape[1:], blocks.chunk(2, dim=2)
        of_means, cross, of_logs = (
            block.flatten(3).flatten(1, 2) for block in (*above.chunk(2, dim=4), below.chunk(2, dim=4)[1])
        )
        root = jittered_root(of_logs)
        slope = torch.linalg.solve_triangular(root, cross.mT, upper=False).mT  # C L⁻ᵀ
        moved, drawn = (torch.einsum("gij,dgj->dgi", by, normal.flatten(2)).unflatten(2, shape) for by in (slope, root))
        read = self.spec.predictive(torch.cat([mean + moved, free + drawn], dim=-1).flatten(1, 2))
        assert isinstance(read, Gaussian)
        variance = read.draw_variance.unflatten(1, mean.shape[:2])
        return mean + moved, variance, (of_means - slope @ slope.mT).unflatten(2, shape).unflatten(1, shape)


_LAYER: Final = "laplace."  # prefix of a Gaussian's tensors; a network's begin with trunk or head
_ATTENTION: Final = threading.Lock()
_ELEMENTS: Final = 2**25  # the most elements of Jacobians computed at once: 128 MiB in float32


class LinearisedDraws:
    """A posterior of S equally weighted draws of the weights, and the weights at which the network is linearised."""

    key = "linearised_draws"

    def __init__(self, spec: NetworkSpec, weights: dict[str, Tensor]) -> None:
        """Create the posterior from the entries of the network's ``state_dict``, stacked [1 + draw, ...] with w* first.

        Entries that are not parameters (running statistics) are taken from w*.
        """
        self.spec, self.weights = spec, weights
        network = spec.build(Seed(0)).eval().to(next(iter(weights.values())).device)
        self._networks, self._center = Replicas(network), {name: value[0] for name, value in weights.items()}
        self._parameters = [name for name, _ in network.named_parameters()]  # a constant bias is none
        self._moved = [name for name in self._parameters if (weights[name] != weights[name][:1]).any()]

    @classmethod
    def of(cls, draws: NetworkDraws, center: dict[str, Tensor], *gaussians: Any) -> Self:
        """Linearise ``draws`` at ``center``, w*."""
        weights = {name: torch.cat([center[name][None], drawn]) for name, drawn in draws.weights.items()}
        return cls(draws.spec, weights, *gaussians)

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Return the predictive of the draws; ``rng`` is not used."""
        at = {name: self._center[name] for name in self._moved}

        def outputs(drawn: dict[str, Tensor]) -> Tensor:
            return self._networks.call(self._center | drawn, inputs)

        linear = []
        for draw in range(1, len(next(iter(self.weights.values())))):
            with _attention_by_parts():
                pair = jvp(outputs, (at,), ({name: self.weights[name][draw] - at[name] for name in at},))
            linear.append(pair[0] + pair[1])  # the value and its change
        return self.spec.predictive(torch.stack(linear))

    def last_layer(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> LastLayer | None:
        """Return the last layer of w* at transformed inputs; None if it is not linear."""
        return of_networks(self._networks, {name: value[:1] for name, value in self.weights.items()}, inputs)

    def state(self) -> State:
        return State(dict(self.weights), {"posterior": self.key, "spec": to_mapping(self.spec)})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> Self:
        spec = read(NetworkSpec, state.config["spec"], "spec")
        return cls(spec, {name: value.to(device) for name, value in state.tensors.items()})


@final
@dataclass(frozen=True)
class LayerGaussian:
    """The Gaussian over one layer's weights around w*: W − W* = P (Z ∘ S) Qᵀ, Z standard normal.

    A layer's bias is the last column of W. The temperature and the prior are in S; see :mod:`.curvature`.

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
class LinearisedLaplace(LinearisedDraws):
    """Laplace's approximation of the linearised network: draws of weights, and their Gaussian."""

    key = "linearised_laplace"

    def __init__(self, spec: NetworkSpec, weights: dict[str, Tensor], layers: Mapping[str, LayerGaussian]) -> None:
        """Create the posterior from draws, which predict single rows, and the Gaussian of each layer by its name."""
        super().__init__(spec, weights)
        self.layers = dict(layers)

    @torch.no_grad()
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed = Seed(0)) -> LinearisedFunctions:
        """Return the Gaussian over the outputs at the rows of each group; ``rng`` is not used.

        Jacobians have the weights' type, and their products are in float64.
        """
        at = {name: self._center[name] for name in self._parameters if name.rpartition(".")[0] in self.layers}

        def outputs(weights: dict[str, Tensor], row: Tensor) -> tuple[Tensor, Tensor]:
            of_row = self._networks.call(self._center | weights, row[None])[0]
            return of_row, of_row

        by_row = vmap(jacrev(outputs, has_aux=True), in_dims=(None, 0))
        weights = sum(value.numel() for value in at.values())
        width = self.spec.outputs * (2 if self.spec.likelihood == "gaussian_head" else 1)
        size = max(1, _ELEMENTS // (weights * width * inputs.shape[1]))
        means, covariances = [], []
        for part in inputs.split(size):
            with _attention_by_parts():
                jacobians, mean = by_row(at, part.flatten(0, 1))
            means.append(mean.double().unflatten(0, part.shape[:2]))
            parts = []  # the covariance of each group [group, row·output, row·output] from each layer
            for name, layer in self.layers.items():
                matrix = jacobians[f"{name}.weight"].flatten(3)  # [row of all groups, output, fan_out, fan_in]
                if f"{name}.bias" in jacobians:
                    matrix = torch.cat([matrix, jacobians[f"{name}.bias"][..., None]], dim=-1)
                white = layer.white(matrix).double().flatten(0, 1).unflatten(0, (len(part), -1))
                parts.append(white @ white.mT)
            covariances.append(torch.stack(parts).sum(0))
        return LinearisedFunctions(torch.cat(means), torch.cat(covariances), self.spec)

    def state(self) -> State:
        factors = {f"{_LAYER}{name}.{k}": v for name, layer in self.layers.items() for k, v in vars(layer).items()}
        stored = super().state()
        return State({**stored.tensors, **factors}, stored.config)

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> Self:
        tensors = {name: value.to(device) for name, value in state.tensors.items()}
        factors = under(_LAYER, tensors)
        layers = dict.fromkeys(name.rpartition(".")[0] for name in factors)
        weights = {name: value for name, value in tensors.items() if not name.startswith(_LAYER)}
        spec = read(NetworkSpec, state.config["spec"], "spec")
        return cls(spec, weights, {name: LayerGaussian(**under(f"{name}.", factors)) for name in layers})


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
