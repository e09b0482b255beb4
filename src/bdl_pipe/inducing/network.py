"""A network with random weights, drawn for each call.

:class:`Bayesian` holds the given network (its converted layers have empty buffers as weights) and the distributions of
these weights. A call draws all weights and passes them to the network for its forward pass. torch's global random state
is not used. ``net(x, noise)`` is a function of the noise, which :meth:`Bayesian.draw` makes, for ``torch.func.vmap``
over draws and ``Learner.noise``. ``net(x)`` draws the noise at the address ``rng.fold("call", t)``, where t counts the
calls, so that every rank of a data-parallel run draws the same weights. t is not in the ``state_dict``; to resume a run
at step s, call ``net.reseed(rng.fold("step", s))``.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from ..artifacts import under
from ..errors import UserError, require
from ..networks.normalisation import evaluation
from ..seeds import Seed
from .layers import FactorCache, Inducing, Shared, Weights
from .low_rank import RankOneWeights
from .posteriors import Members, Noise
from .weightspace import IndependentWeights

_MEMBER = "member"
_OUTPUTS = "outputs"
_SHARED = "/shared"  # differs from every layer's key


class Place(NamedTuple):
    """The layer of a drawn matrix: its name in the network, its weight's shape and whether it has a bias."""

    name: str
    shape: tuple[int, ...]
    bias: bool

    def lend(self, matrix: Tensor, weight: str = "weight", bias: str = "bias") -> dict[str, Tensor]:
        """Return the layer's tensors, by their names in the network, for ``matrix`` [out, in]."""
        weights = matrix[:, :-1] if self.bias else matrix
        tensors = {self.inside(weight): weights.reshape(self.shape)}
        return tensors | ({self.inside(bias): matrix[:, -1]} if self.bias else {})

    @property
    def size(self) -> int:
        """Return the number of weights."""
        return math.prod(self.shape) + self.shape[0] * self.bias

    def inside(self, name: str) -> str:
        """Return the full name, in the network, of the layer's parameter ``name``."""
        return f"{self.name}.{name}" if self.name else name


@final
class Bayesian(nn.Module):
    """A network with random weights, made by :func:`~.convert.bayesianize`.

    Attributes:
        network: the network; it keeps its parameters that are not converted, such as normalisation's.
        layers: the distribution of each converted layer's weights, by its name with ``/`` for dots.
        shared: the joint distribution of all inducing weights; None if each layer has its own.
        places: the place of each layer's draws, by the same key.
        members: K of Ensemble-U or of a mixture of rank-1 factors; None if no layer has members.
        draws_outputs: whether calls without noise draw the outputs of layers with independent weights in training.
    """

    def __init__(
        self, network: nn.Module, layers: dict[str, Weights], places: dict[str, Place], shared: Shared | None, rng: Seed
    ) -> None:
        super().__init__()
        _hide_noise_from_compiler()
        self.network, self.layers, self.shared = network, nn.ModuleDict(layers), shared
        self.places, self._rng, self._calls, self._cache = places, rng, 0, FactorCache()
        self.draws_outputs = True
        self._outputs: dict[tuple[int, ...], dict[str, tuple[int, ...]]] = {}  # by an input's shape
        counts = {len(m.members) for m in self.modules() if isinstance(m, Members)}
        counts |= {m.components for m in self.modules() if isinstance(m, RankOneWeights)}
        assert len(counts) <= 1
        self.members = counts.pop() if counts else None

    def forward(self, inputs: Tensor, noise: Noise | None = None) -> Tensor:
        """Return the network's outputs under one draw of its weights.

        Args:
            noise: the result of :meth:`draw`. None draws new noise, with which layers with independent weights
                (``ffg_w``, ``matrix_normal_w``, ``k_tied_w``) in training draw their outputs by default (local
                reparameterisation).
        """
        if noise is None:
            noise = self._fresh(inputs)
        return self.run(inputs, self.weights(noise))

    def run(self, inputs: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the network's outputs with the result of :meth:`weights`."""
        return functional_call(self.network, weights, (inputs,))

    def weights(self, noise: Noise, factors: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Return a draw of all weights, by name in the network, in the parameters' type even under autocast.

        Args:
            noise: the noise of one draw, without the first dimension.
            factors: the result of :meth:`factors`. None computes the factors here.
        """
        with torch.autocast(self.device.type, enabled=False):
            if factors is None:
                factors = self.factors()
            joint = {} if self.shared is None else self.shared(_part(_SHARED, noise), factors[_SHARED])
            weights: dict[str, Tensor] = {}
            for key, place in self.places.items():
                layer, part, of_layer = self.layers[key], _part(key, noise), factors[key]
                if key in joint:
                    weights |= place.lend(cast(Inducing, layer)(part, of_layer, joint[key]))
                elif not isinstance(layer, IndependentWeights):
                    weights |= place.lend(layer(part, of_layer))
                elif _OUTPUTS not in part:
                    weights |= place.lend(layer(part, of_layer), "layer.weight", "layer.bias")
                else:
                    weights |= place.lend(layer.centre(), "layer.weight", "layer.bias")
                    weights |= place.lend(of_layer.square(), "variance", "bias_variance")
                    weights[place.inside("noise")] = part[_OUTPUTS]
        return weights

    def factors(self) -> dict[str, Any]:
        """Return the tensors that all draws share, by layer and for ``shared`` if it exists."""
        factors = {key: cast(Weights, layer).factors() for key, layer in self.layers.items()}
        return factors if self.shared is None else factors | {_SHARED: self.shared.weights.factors()}

    @torch.no_grad()
    def kept_factors(self) -> dict[str, Any]:
        """Return :meth:`factors` without a graph, from the cache if the parameters have not changed."""
        inducing = {key: layer for key, layer in self.layers.items() if isinstance(layer, Inducing)}
        if self.shared is not None:
            inducing[_SHARED] = self.shared.weights
        cached = {key: self._cache.get(key, layer) for key, layer in inducing.items()}
        return cached | {k: cast(Weights, v).factors() for k, v in self.layers.items() if k not in cached}

    def draw(self, steps: int, generator: torch.Generator, inputs: Tensor | None = None) -> Noise:
        """Draw standard normal numbers for ``steps`` draws of all weights.

        The numbers are returned by name, [steps, ...] each, on the generator's device. The draws use the members
        (Ensemble-U, rank-1 factors) in turn, from a random member on. With ``inputs`` [batch, ...], layers with
        independent weights draw their outputs for this batch instead of their weights.

        Raises:
            UserError: with ``inputs``, a layer with independent weights is called more than once in a forward pass.
        """
        local = {} if inputs is None else self._output_shapes(inputs)
        noise: Noise = {}
        for key, shapes in self._shapes().items():
            if key in local:
                shapes = {_OUTPUTS: local[key]}
            for name, shape in shapes.items():
                noise[f"{key}:{name}"] = torch.randn(
                    steps, *shape, generator=generator, device=generator.device, dtype=self.dtype
                )
        if self.members is not None:
            first = torch.randint(self.members, (1,), generator=generator, device=generator.device)
            noise[_MEMBER] = self.turns(first, steps)
        return noise

    def noise_size(self, inputs: Tensor | None) -> int:
        """Return the count of random numbers that :meth:`draw` makes for one step, with or without ``inputs``."""
        local = {} if inputs is None else self._output_shapes(inputs)
        of_weights = [shapes for key, shapes in self._shapes().items() if key not in local]
        return sum(math.prod(shape) for shapes in (*of_weights, local) for shape in shapes.values())

    def turns(self, first: Tensor | int, steps: int) -> Float[Tensor, "steps member"]:
        """Return one-hot rows of the members in turn, from ``first`` on."""
        assert self.members is not None
        at = torch.as_tensor(first).reshape(1)
        at = at + torch.arange(steps, device=at.device)
        return nn.functional.one_hot(at % self.members, self.members).to(self.dtype)

    def kl(self, rows: int | None = None, positions: Mapping[str, int] | None = None) -> Float[Tensor, ""]:
        """Return Σ_l β_l R(λ_l) + KL[q ‖ p] in nats.

        Args:
            rows: N, the number of training rows, for β_l = min(1, N P_l/d_in) (function space, appendix G). With None,
                β = 1.
            positions: P_l, from :meth:`positions`. None gives 1 each, which is correct if all layers are linear.
        """
        per_row = positions or {}
        terms = [
            cast(Weights, layer).kl(None if rows is None else rows * per_row.get(key, 1))
            for key, layer in self.layers.items()
        ]
        return torch.stack(terms + ([] if self.shared is None else [self.shared.kl()])).sum()

    def positions(self, inputs: Float[Tensor, "1 ..."]) -> dict[str, int]:
        """Return the number of products W x that each layer computes for one row, over places of an image and calls.

        Equation 43 of the paper counts one product, but the matrix X of a convolution has a column for each place.

        Args:
            inputs: a batch of one row.
        """
        shapes = self._probe(inputs, self.places)
        return {key: sum(map(math.prod, shapes[key])) // place.shape[0] for key, place in self.places.items()}

    def centre(self) -> dict[str, Tensor]:
        """Return the means of all weights, by name in the network."""
        joint = {} if self.shared is None else self.shared.centre()
        means: dict[str, Tensor] = {}
        for key, place in self.places.items():
            layer = cast(Weights, self.layers[key])
            matrix = cast(Inducing, layer).centre(joint[key]) if key in joint else layer.centre()
            local = "layer." if isinstance(layer, IndependentWeights) else ""
            means |= place.lend(matrix, f"{local}weight", f"{local}bias")
        return means

    def reseed(self, rng: Seed) -> None:
        """Set the seed address of calls without noise, and count calls from 0 again."""
        self._rng, self._calls = rng, 0

    @property
    def device(self) -> torch.device:
        return next(self.layers.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.layers.parameters()).dtype

    def _shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        shapes = {key: cast(Weights, layer).shapes() for key, layer in self.layers.items()}
        return shapes if self.shared is None else shapes | {_SHARED: self.shared.weights.shapes()}

    def _fresh(self, inputs: Tensor) -> Noise:
        generator = self._rng.fold("call", self._calls).generator(self.device)
        self._calls += 1
        local = inputs if self.training and self.draws_outputs else None
        return {k: v[0] for k, v in self.draw(1, generator, local).items()}

    def _output_shapes(self, inputs: Tensor) -> dict[str, tuple[int, ...]]:
        """Return the shape of each local layer's outputs, by key. The first call runs one row through the network."""
        local = {k: p for k, p in self.places.items() if isinstance(self.layers[k], IndependentWeights)}
        if not local:
            return {}
        row = tuple(inputs.shape[1:])
        if row not in self._outputs:
            calls = self._probe(inputs[:1], local)
            for key, shapes in calls.items():
                if len(shapes) > 1:
                    raise UserError(
                        f"layer {local[key].name!r} is called {len(shapes)} times in a pass: draw weights, not outputs"
                    )
            self._outputs[row] = {key: shapes[0] for key, shapes in calls.items() if shapes}
        return {k: (len(inputs) * first, *rest) for k, (first, *rest) in self._outputs[row].items()}

    @torch.no_grad()
    def _probe(self, inputs: Tensor, places: Mapping[str, Place]) -> dict[str, list[tuple[int, ...]]]:
        """Return the shapes of each layer's outputs in a forward pass at the means, one for each call."""
        calls: dict[str, list[tuple[int, ...]]] = {key: [] for key in places}
        hooks = []
        for key, place in places.items():
            layer = self.network.get_submodule(place.name)
            seen = calls[key]
            hooks.append(layer.register_forward_hook(lambda _m, _i, out, seen=seen: seen.append(tuple(out.shape))))
        try:
            with evaluation(self):
                self.run(inputs, self.centre())
        finally:
            for hook in hooks:
                hook.remove()
        return calls


def kl(net: Bayesian, rows: int | None = None, positions: Mapping[str, int] | None = None) -> Float[Tensor, ""]:
    """Return the KL of all layers in nats, see :meth:`Bayesian.kl`; divide by the number of training rows."""
    require(rows is None or rows > 0, "rows", "must be > 0", rows)
    return net.kl(rows, positions)


def is_local(name: str) -> bool:
    """Return whether noise of this name is for outputs (with rows) and not for weights."""
    return name.endswith(f":{_OUTPUTS}")


def _part(key: str, noise: Noise) -> Noise:
    """Return one layer's noise under the layer's own names, and the member."""
    return under(f"{key}:", noise) | ({_MEMBER: noise[_MEMBER]} if _MEMBER in noise else {})


@cache
def _hide_noise_from_compiler() -> None:
    """Make torch.compile break its graph at :meth:`Bayesian._fresh`.

    A network's constructor calls this function; a call on import would cost 1 s, to import the compiler.
    """
    Bayesian._fresh = torch.compiler.disable(Bayesian._fresh)  # type: ignore[method-assign]
