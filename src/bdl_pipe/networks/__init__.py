"""Networks as a trunk φ and a linear head: f(x) = Wᵀφ(x) + b. One architecture a file."""

from ..seeds import Seed
from .base import Network, dropout_masks, fastest_order, in_order
from .convnet import ConvNetConfig, convnet_trunk
from .mlp import MlpConfig, mlp_trunk
from .preresnet import PreResNetConfig, preresnet_trunk
from .resnet import ResNetConfig, resnet_trunk
from .vgg import VggConfig, vgg_trunk
from .wideresnet import WideResNetConfig, wideresnet_trunk

NetworkConfig = MlpConfig | ConvNetConfig | ResNetConfig | WideResNetConfig | VggConfig | PreResNetConfig

__all__ = [
    "ConvNetConfig",
    "MlpConfig",
    "Network",
    "NetworkConfig",
    "PreResNetConfig",
    "ResNetConfig",
    "VggConfig",
    "WideResNetConfig",
    "build",
    "dropout_masks",
    "fastest_order",
    "in_order",
]


def build(config: NetworkConfig, input_shape: tuple[int, ...], outputs: int, *, rng: Seed) -> Network:
    """Return a freshly initialised network; equal arguments give equal weights.

    Args:
        input_shape: (channel, height, width) or (feature,).
        outputs: width of the head; 0 for a trunk without a head.
        rng: the address of the initial weights.
    """
    generator = rng.generator()
    if isinstance(config, MlpConfig):
        trunk, width = mlp_trunk(config, input_shape, generator)
    elif isinstance(config, ResNetConfig):
        trunk, width = resnet_trunk(config, input_shape, generator)
    elif isinstance(config, WideResNetConfig):
        trunk, width = wideresnet_trunk(config, input_shape, generator)
    elif isinstance(config, VggConfig):
        trunk, width = vgg_trunk(config, input_shape, generator)
    elif isinstance(config, PreResNetConfig):
        trunk, width = preresnet_trunk(config, input_shape, generator)
    else:
        trunk, width = convnet_trunk(config, input_shape, generator)
    return Network(trunk, width, outputs, generator)
