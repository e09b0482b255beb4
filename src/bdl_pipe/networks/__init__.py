"""Networks as a trunk φ and a linear head: f(x) = Wᵀφ(x) + b. One architecture a file."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import nn

from .. import config as configs
from ..errors import short
from ..plugins import PluginError, Registered, variant_name
from ..seeds import Seed
from .alexnet import AlexNetConfig, alexnet_trunk
from .base import Network, dropout_masks, fastest_order, has_dropout, in_order
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
    "Vgg11Config",
    "VggConfig",
    "WideResNetConfig",
    "build",
    "dropout_masks",
    "fastest_order",
    "has_dropout",
    "in_order",
    "register_network",
]

Trunk = Callable[[Any, tuple[int, ...], torch.Generator], tuple[nn.Module, int]]


@runtime_checkable
class NetworkConfig(Protocol):
    """The numbers of any architecture: a frozen dataclass, known by its ``name``."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Architecture:
    """An entry of the table of networks.

    Attributes:
        config: the frozen dataclass that reads a section ``network``.
        trunk: (config, input shape, generator of the initial weights) -> the trunk, and how many features it has.
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
    """Add an architecture, under the name that its config has.

    Args:
        config: a frozen dataclass with a field ``name: Literal["…"]``.
        trunk: (config, input shape, generator of the initial weights) -> the trunk, a module that turns inputs
            [batch, ...] into features [batch, width], and that width. What the pipeline must know of a network (batch
            norm, dropout) it asks of the trunk's modules.

    Raises:
        PluginError: the config is another thing, or its name is taken.
    """
    name = variant_name(config, "network")
    if not callable(trunk):
        raise PluginError(f"the trunk of the network {name} must be a function, got {short(trunk)}")
    NETWORKS.add(name, Architecture(config, trunk), config.__module__)


def build(config: NetworkConfig, input_shape: tuple[int, ...], outputs: int, *, rng: Seed) -> Network:
    """Return a freshly initialised network; equal arguments give equal weights.

    Args:
        input_shape: (channel, height, width) or (feature,).
        outputs: width of the head; 0 for a trunk without a head.
        rng: the address of the initial weights.
    """
    generator = rng.generator()
    trunk, width = NETWORKS[config.name].trunk(config, input_shape, generator)
    return Network(trunk, width, outputs, generator)
