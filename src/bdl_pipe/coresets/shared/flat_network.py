"""A network as a function of a vector of its weights, for many vectors at once."""

from collections.abc import Mapping
from typing import Final, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ...errors import ConfigError, require
from ...networks import NetworkConfig
from ...posterior import NetworkSpec
from ...seeds import Seed

_RULE: Final = "must be of a network without running statistics (norm: instance, group or none)"
_AT_ONCE: Final = 32  # images up to which all draws go through a CPU at once


def check_norm(network: NetworkConfig, key: str) -> None:
    """Refuse a network whose numbers say ``norm: batch``, before anything is made; FlatNetwork asks its modules.

    Raises:
        ConfigError: it does; under ``key``.
    """
    require(getattr(network, "norm", None) != "batch", key, _RULE, "batch")


@final
class FlatNetwork:
    """A network whose parameters are one vector, one parameter after another.

    Attributes:
        spec: how the network is built.
        size: of the vector.
    """

    def __init__(self, spec: NetworkSpec, device: torch.device | str, key: str) -> None:
        """Take the spec.

        Raises:
            ConfigError: the network has running statistics, of which no vector of weights knows; under ``key``.
        """
        self.spec, self._network = spec, spec.build(Seed(0)).to(device)
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self._network.modules()):
            raise ConfigError(key, _RULE)
        self._shapes = {name: p.shape for name, p in self._network.named_parameters()}
        self.size = sum(shape.numel() for shape in self._shapes.values())

    def flat(self, named: Mapping[str, Tensor]) -> Float[Tensor, " weight"]:
        """Return a ``state_dict`` as a vector."""
        return torch.cat([named[name].flatten() for name in self._shapes])

    def named(self, weights: Float[Tensor, "draw weight"]) -> dict[str, Tensor]:
        """Return vectors as the network's parameters by name, [draw, ...] each."""
        parts = weights.split([shape.numel() for shape in self._shapes.values()], dim=1)
        return {name: p.reshape(-1, *shape) for (name, shape), p in zip(self._shapes.items(), parts, strict=True)}

    def outputs(self, weights: Float[Tensor, "draw weight"], images: Tensor) -> Float[Tensor, "draw row class"]:
        """Compute the logits of each draw's network at the images.

        Many images go through one draw after another on a CPU, whose convolutions of one network are faster than the
        grouped ones of all: 12 draws of a ConvNet of 16 filters at 100 images take 441 ms with their gradient and 801
        at once; at 10 images 64 and 44.
        """

        def of_one(draw: dict[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(self._network, draw, (images,))
            return logits

        named = self.named(weights)
        if weights.device.type == "cpu" and len(images) > _AT_ONCE:
            return torch.stack([of_one({name: w[k] for name, w in named.items()}) for k in range(len(weights))])
        at_once: Tensor = vmap(of_one)(named)
        return at_once


def mean_log_likelihood(
    logits: Float[Tensor, "draw row class"], classes: Int[Tensor, " row"]
) -> Float[Tensor, " draw"]:
    """Compute the mean over rows of log p(class | logits), of each draw."""
    of_rows = F.log_softmax(logits, -1).gather(-1, classes.expand(len(logits), -1)[..., None])
    return of_rows[..., 0].mean(-1)
