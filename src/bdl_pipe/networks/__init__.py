"""Networks as a trunk φ and a linear head: f(x) = Wᵀφ(x) + b. Each architecture has its own file."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from .. import config as configs
from ..errors import short
from ..plugins import PluginError, Registered, variant_name
from ..seeds import Seed
from .alexnet import AlexNetConfig, alexnet_trunk
from .base import Network, dropout_masks, fastest_order, fix, in_order, overruns_channels_last
from .convnet import ConvNetConfig, convnet_trunk
from .mlp import MlpConfig, mlp_trunk
from .preresnet import PreResNetConfig, preresnet_trunk
from .python_file import PythonConfig, python_trunk
from .resnet import ResNetConfig, resnet_trunk
from .vgg import VggConfig, vgg_trunk
from .vgg11 import Vgg11Config, vgg11_trunk
from .wideresnet import WideResNetConfig, wideresnet_trunk

__all__ = [
    "NETWORKS",
    "AlexNetConfig",
    "Architecture",
    "ConvNetConfig",
    "MlpConfig",
    "Network",
    "NetworkConfig",
    "PreResNetConfig",
    "PythonConfig",
    "ResNetConfig",
    "RowsConfig",
    "Vgg11Config",
    "VggConfig",
    "WideResNetConfig",
    "build",
    "dropout_masks",
    "fastest_order",
    "in_order",
    "overruns_channels_last",
    "register_network",
]

Trunk = Callable[[Any, tuple[int, ...], torch.Generator], tuple[nn.Module, int]]


@runtime_checkable
class NetworkConfig(Protocol):
    """The config of an architecture: a frozen dataclass with a field ``name``."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class RowsConfig(NetworkConfig, Protocol):
    """The config of an architecture with values that a fit computes from its training rows, such as edges of bins."""

    @property
    def needs_rows(self) -> bool:
        """Return True if these values are still to be computed."""

    def with_rows(self, rows: Tensor) -> Self:
        """Return the config with these values, computed from transformed training inputs [row, ...].

        The config that is returned must not need rows.
        """


@dataclass(frozen=True)
class Architecture:
    """An architecture of the table of networks.

    Attributes:
        config: the frozen dataclass of the section ``network``.
        trunk: (config, input shape, generator of the initial weights) -> the trunk and its number of features.
    """

    config: type
    trunk: Trunk


NETWORKS: Final[Registered[Architecture]] = Registered(
    "network",
    {
        "mlp": Architecture(MlpConfig, mlp_trunk),
        "convnet": Architecture(ConvNetConfig, convnet_trunk),
        "resnet": Architecture(ResNetConfig, resnet_trunk),
        "wide_resnet": Architecture(WideResNetConfig, wideresnet_trunk),
        "alexnet": Architecture(AlexNetConfig, alexnet_trunk),
        "vgg11": Architecture(Vgg11Config, vgg11_trunk),
        "vgg": Architecture(VggConfig, vgg_trunk),
        "preresnet": Architecture(PreResNetConfig, preresnet_trunk),
        "python": Architecture(PythonConfig, python_trunk),
    },
)
configs.open_kind(NetworkConfig, lambda: {name: entry.config for name, entry in NETWORKS.items()})


def register_network(config: type, trunk: Trunk) -> None:
    """Register an architecture under the name of its config.

    Args:
        config: a frozen dataclass with a field ``name: Literal["…"]``.
        trunk: (config, input shape, generator of the initial weights) -> (trunk, width). The trunk is a module that
            maps inputs [batch, ...] to features [batch, width]. The library finds batch norm and dropout among the
            trunk's modules.

    Raises:
        PluginError: ``config`` is not such a dataclass, ``trunk`` is not a function, or the name is taken.
    """
    name = variant_name(config, "network")
    if not callable(trunk):
        raise PluginError(f"the trunk of the network {name} must be a function, got {short(trunk)}")
    NETWORKS.add(name, Architecture(config, trunk), config.__module__)


def build(config: NetworkConfig, input_shape: tuple[int, ...], outputs: int, *, rng: Seed) -> Network:
    """Build a network with new initial weights; equal arguments give equal weights.

    Weights of a trunk that need no gradient become buffers: no method trains or draws them.

    Args:
        input_shape: (channel, height, width) or (feature,).
        outputs: the number of outputs of the head; 0 builds a trunk without a head.
        rng: the seed address of the initial weights.
    """
    generator = rng.generator()
    trunk, width = NETWORKS[config.name].trunk(config, input_shape, generator)
    fix(trunk)
    kinds = {key: getattr(config, key, True) for key in ("head_bias", "head_trained")}
    return Network(trunk, width, outputs, generator, **kinds)
