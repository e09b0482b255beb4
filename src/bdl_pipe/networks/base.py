"""The base of all networks: a trunk, then a head."""

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from ..errors import require
from ..seeds import Seed, global_generator
from .passes import TrunkPass, plain

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
WEIGHTED: Final = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers whose weights can have a distribution


@final
class Network(nn.Module):
    """A network ``head(trunk(x))``, or the trunk alone if it has no outputs.

    Attributes:
        trunk: inputs [batch, ...] -> features [batch, width].
        head: features -> outputs [batch, output].
        width: the number of features.
    """

    def __init__(
        self, trunk: nn.Module, width: int, outputs: int, generator: torch.Generator, *, head_bias: bool = True
    ) -> None:
        """Create the network.

        Args:
            head_bias: whether the head's bias is a weight. Otherwise it is a constant: no method trains or draws it.
        """
        super().__init__()
        self.trunk, self.width, self.outputs = trunk, width, outputs
        self.head: nn.Module = (
            lecun_normal(skip_init(nn.Linear, width, outputs), generator) if outputs else nn.Identity()
        )
        if outputs and not head_bias:
            bias = self.head._parameters.pop("bias")
            assert bias is not None
            self.head.register_buffer("bias", bias.detach())
        self._pass: TrunkPass = plain

    def features(self, inputs: Tensor) -> Tensor:
        """Compute the head's inputs [batch, width]."""
        return self._pass(self.trunk, inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.features(inputs))

    def compute_by(self, trunk_pass: TrunkPass) -> None:
        """Compute the trunk by ``trunk_pass`` from now on."""
        self._pass = trunk_pass


def has_dropout(network: nn.Module) -> bool:
    """Return whether a forward pass in training draws masks."""
    return any(isinstance(module, nn.Dropout) for module in network.modules())


@contextlib.contextmanager
def dropout_masks(network: nn.Module, rng: Seed) -> Iterator[None]:
    """Draw the masks of ``network``'s dropout layers from ``rng`` inside; torch's own state is restored afterwards.

    ``nn.Dropout`` uses torch's global generator. Wrap a forward pass in training, with the seed address of its step. It
    costs nothing for a network without dropout.
    """
    if not has_dropout(network):
        yield
        return
    device = next(network.parameters()).device
    with global_generator(rng.integer(), [device] if device.type == "cuda" else []):
        yield


def fastest_order(network: nn.Module) -> torch.memory_format:
    """Return the memory order of images and filters in which a network is fastest on a CPU.

    Channels-last is 1.4 to 2.4 times as fast as the contiguous order for small ConvNets. With instance norm the
    contiguous order is 1.4 to 2.3 times as fast, because a channel's pixels are then adjacent. The order is contiguous,
    too, where channels-last is not safe (:func:`overruns_channels_last`).
    """
    by_image = any(isinstance(m, nn.GroupNorm) and m.num_groups == m.num_channels for m in network.modules())
    return torch.contiguous_format if by_image or overruns_channels_last(network) else torch.channels_last


def overruns_channels_last(network: nn.Module) -> bool:
    """Return whether torch may write beyond a buffer in the network's gradient if images are channels-last.

    oneDNN 3.12, in torch 2.13, does so on processors with AVX2 and without AVX-512, in the weights' gradient of a
    convolution of one pixel with a stride and fewer than 8 channels: the process crashes, or other values change.
    """
    convolutions = (module for module in network.modules() if isinstance(module, nn.Conv2d))
    return any(c.kernel_size == (1, 1) and max(c.stride) > 1 and c.in_channels % 8 for c in convolutions)


def in_order(weights: Mapping[str, Tensor], order: torch.memory_format) -> dict[str, Tensor]:
    """Return stacked weights [draw, ...] with each draw's filters in the memory order ``order``; values are the same.

    Filters that already have this order are returned unchanged; filters of one channel or one pixel have every order.
    """
    return {name: _filters_in_order(value, order) if value.ndim == 5 else value for name, value in weights.items()}


def _filters_in_order(stacked: Tensor, order: torch.memory_format) -> Tensor:
    if stacked[0].is_contiguous(memory_format=order):
        return stacked
    if len(stacked) > 1 and stacked.stride(0) == 0:  # expanded: the same in all draws
        return _filters_in_order(stacked[:1], order).expand_as(stacked)
    if order is torch.channels_last:
        return stacked.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    return stacked.contiguous()


def has_bias(layer: nn.Module) -> bool:
    """Return whether a layer has a bias that is a weight: not none, not a constant, not computed from others."""
    return layer._parameters.get("bias") is not None


def lecun_normal(layer: Layer, generator: torch.Generator) -> Layer:
    """Initialise weights N(0, 1/fan_in) and biases 0 (LeCun et al. 1998)."""
    return _normal(layer, 1.0, generator)


def he_normal(layer: Layer, generator: torch.Generator) -> Layer:
    """Initialise weights N(0, 2/fan_in) and biases 0 (He et al. 2015)."""
    return _normal(layer, 2.0, generator)


def conv(before: int, after: int, side: int, stride: int, generator: torch.Generator) -> nn.Conv2d:
    """Return a convolution of residual networks: without bias, padded so that stride 1 keeps the image's size."""
    layer = skip_init(nn.Conv2d, before, after, side, stride, padding=side // 2, bias=False)
    return he_normal(layer, generator)


def padding_of_first(side: int, input_shape: tuple[int, ...], name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the padding of a first convolution that enlarges small images to 32 pixels a side.

    Other images keep their size.

    Args:
        side: the side of the convolution's kernel, odd.
        name: the network's name, for the error.

    Returns:
        The padding of height and width, and the image's height and width after the convolution.

    Raises:
        ConfigError: the rows are not images.
    """
    shape = list(input_shape)
    require(len(shape) == 3, "network.name", f"must not be {name} for rows of shape {shape}: it takes images")
    more = [-(min(pixels - 32, 0) // 2) for pixels in shape[1:]]  # zeros on either side
    height, width = (pixels + 2 * zeros for pixels, zeros in zip(shape[1:], more, strict=True))
    return (side // 2 + more[0], side // 2 + more[1]), (height, width)


def preactivated_trunk(
    channels: int,
    stem: int,
    blocks: int,
    block: Callable[[int, int, int], nn.Module],
    width: Callable[[int], int],
    generator: torch.Generator,
) -> tuple[nn.Module, int]:
    """Build a residual trunk for small images: 3×3 convolution, three groups of blocks, batch norm, ReLU, mean.

    The first block of groups 1 and 2 halves the image; an odd side is rounded up.

    Args:
        channels: the number of channels of the image.
        stem: the number of channels of the first convolution.
        blocks: the number of blocks of each group.
        block: (channels before, group, stride) -> a block.
        width: group -> the number of channels after its blocks.

    Returns:
        The trunk and its width.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=conv(channels, stem, 3, 1, generator))
    before = stem
    for group in range(3):
        for index in range(blocks):
            layers[f"group{group}_block{index}"] = block(before, group, 2 if group > 0 and index == 0 else 1)
            before = width(group)
    layers |= {"norm": nn.BatchNorm2d(before), "relu": nn.ReLU()}
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return nn.Sequential(layers), before


def _normal(layer: Layer, gain: float, generator: torch.Generator) -> Layer:
    fan_in = layer.weight[0].numel()
    with torch.no_grad():
        layer.weight.normal_(0, math.sqrt(gain / fan_in), generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()
    return layer
