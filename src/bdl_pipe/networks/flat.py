"""A network's parameters as one vector, and the network as a function of several such vectors."""

from collections.abc import Mapping
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from .base import Network
from .mlp import Periodic, PiecewiseLinear

_AT_ONCE: Final = 32  # up to this many images, a CPU is faster with all draws of a convolutional network at once


@final
class FlatNetwork:
    """A network as a function of one vector of all its parameters.

    Attributes:
        network: the network; its own parameter values are not used.
        size: the length of the vector.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._parameters = dict(network.named_parameters())
        self._shapes = {name: parameter.shape for name, parameter in self._parameters.items()}
        self._convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in network.modules())
        self._device = next(network.parameters()).device
        self._layers = _perceptron(network)
        self.size = sum(shape.numel() for shape in self._shapes.values())

    @property
    def is_perceptron(self) -> bool:
        """Return whether the network is a perceptron; :meth:`each` computes its draws as batched products."""
        return self._layers is not None

    def flat(self, named: Mapping[str, Tensor]) -> Float[Tensor, " weight"]:
        """Return a ``state_dict`` as a vector."""
        return torch.cat([named[name].flatten() for name in self._shapes])

    def named(self, weights: Float[Tensor, "draw weight"]) -> dict[str, Tensor]:
        """Return vectors as the network's parameters by name, each [draw, ...]."""
        parts = weights.split([shape.numel() for shape in self._shapes.values()], dim=1)
        return {name: p.reshape(-1, *shape) for (name, shape), p in zip(self._shapes.items(), parts, strict=True)}

    def tied(self, weights: Float[Tensor, " weight"]) -> nn.Module:
        """Return the network with its parameters as views of ``weights``, so that a draw needs no copy."""
        values = self.named(weights[None])
        for name, parameter in self._parameters.items():
            parameter.data = values[name][0]
        return self.network

    def gradient(self, value: Tensor, out: Float[Tensor, " weight"]) -> None:
        """Write the gradient of a value of the tied network to ``out``."""
        # the gradient of a layer that the network does not use is zero
        each = torch.autograd.grad(value, list(self._parameters.values()), materialize_grads=True)
        torch.cat([part.flatten() for part in each], out=out)

    def at_once(self, draws: int, rows: int) -> bool:
        """Return whether it is faster to compute several draws together than one after another.

        On a CPU separate convolutions are faster than grouped convolutions for many images: with gradients, 12 draws of
        a ConvNet of 16 filters take 441 ms separately and 801 ms together at 100 images, but 64 ms and 44 ms at 10.
        """
        return draws > 1 and (self._device.type != "cpu" or rows <= _AT_ONCE or not self._convolves)

    def each(
        self, weights: Float[Tensor, "draw weight"], inputs: Float[Tensor, "draw row ..."]
    ) -> Float[Tensor, "draw row output"]:
        """Compute the outputs of each draw's network at the draw's own inputs, all draws together."""
        named = self.named(weights)
        if self._layers is not None:  # the bits of ``vmap`` without its dispatch, half the time of a small perceptron
            hidden = inputs.flatten(2)
            for name, layer in self._layers.items():
                if isinstance(layer, nn.Linear):
                    hidden = torch.baddbmm(named[f"{name}.bias"][:, None], hidden, named[f"{name}.weight"].mT)
                else:
                    hidden = layer(hidden)
            return hidden

        all_outputs: Tensor = vmap(self._of_one)(named, inputs)
        return all_outputs

    def outputs(self, weights: Float[Tensor, "draw weight"], images: Tensor) -> Float[Tensor, "draw row class"]:
        """Compute the logits of each draw's network at the images."""
        named = self.named(weights)
        if not self.at_once(len(weights), len(images)):
            return torch.stack([self._of_one({n: w[k] for n, w in named.items()}, images) for k in range(len(weights))])
        at_once: Tensor = vmap(self._of_one, in_dims=(0, None))(named, images)
        return at_once

    def _of_one(self, named: dict[str, Tensor], inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self.network, named, (inputs,))
        return outputs


def _perceptron(network: nn.Module) -> dict[str, nn.Module] | None:
    """Return the layers of a perceptron by name, in order; None for any other network."""
    if not (type(network) is Network and type(network.trunk) is nn.Sequential):
        return None
    flatten, *trunk = network.trunk
    layers = [*((f"trunk.{i}", layer) for i, layer in enumerate(trunk, 1)), ("head", network.head)]
    after = layers[1:] if isinstance(layers[0][1], (Periodic, PiecewiseLinear)) else layers
    linear = all(type(layer) is nn.Linear and layer.bias is not None for _, layer in after[::2])
    elementwise = all(
        isinstance(layer, (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.ELU, nn.Mish, nn.SiLU)) for _, layer in after[1::2]
    )
    return dict(layers) if type(flatten) is nn.Flatten and linear and elementwise else None
