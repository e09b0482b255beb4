"""A network's parameters as one vector, and the network as a function of many such vectors."""

from collections.abc import Mapping
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..errors import ConfigError, require
from . import NetworkConfig

_RULE: Final = "must be of a network without running statistics (norm: instance, group or none)"
_AT_ONCE: Final = 32  # a CPU computes all draws at once up to this many images


def check_norm(network: NetworkConfig, key: str) -> None:
    """Refuse a config with ``norm: batch``, before a network is built; :func:`stateless` asks the network's modules.

    Raises:
        ConfigError: the config has it; under ``key``.
    """
    require(getattr(network, "norm", None) != "batch", key, _RULE, "batch")


def stateless(network: nn.Module, key: str) -> "FlatNetwork":
    """Return the network as a function of its weights alone.

    Raises:
        ConfigError: the network has running statistics, which are in no vector of weights; under ``key``.
    """
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        raise ConfigError(key, _RULE)
    return FlatNetwork(network)


@final
class FlatNetwork:
    """A network whose parameters are one vector, one parameter after another.

    Attributes:
        network: the network; its own parameters are the weights of no draw.
        size: the length of the vector.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
        self.size = sum(shape.numel() for shape in self._shapes.values())

    def flat(self, named: Mapping[str, Tensor]) -> Float[Tensor, " weight"]:
        """Return a ``state_dict`` as a vector."""
        return torch.cat([named[name].flatten() for name in self._shapes])

    def named(self, weights: Float[Tensor, "draw weight"]) -> dict[str, Tensor]:
        """Return vectors as the network's parameters by name, each [draw, ...]."""
        parts = weights.split([shape.numel() for shape in self._shapes.values()], dim=1)
        return {name: p.reshape(-1, *shape) for (name, shape), p in zip(self._shapes.items(), parts, strict=True)}

    def tie(self, weights: Float[Tensor, " weight"], gradient: Float[Tensor, " weight"]) -> None:
        """Make the network's own parameters views of ``weights``, and their gradients views of ``gradient``."""
        values, slopes = self.named(weights[None]), self.named(gradient[None])
        for name, parameter in self.network.named_parameters():
            parameter.data, parameter.grad = values[name][0], slopes[name][0]

    def outputs(self, weights: Float[Tensor, "draw weight"], images: Tensor) -> Float[Tensor, "draw row class"]:
        """Compute the logits of each draw's network at the images.

        A CPU takes one draw after another where the images are many, since its convolutions of one network are faster
        than grouped convolutions of all: 12 draws of a ConvNet of 16 filters at 100 images take 441 ms with their
        gradient, and 801 ms at once; at 10 images they take 64 ms and 44 ms.
        """

        def of_one(draw: dict[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(self.network, draw, (images,))
            return logits

        named = self.named(weights)
        if weights.device.type == "cpu" and len(images) > _AT_ONCE:
            return torch.stack([of_one({name: w[k] for name, w in named.items()}) for k in range(len(weights))])
        at_once: Tensor = vmap(of_one)(named)
        return at_once
