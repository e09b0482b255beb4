"""The base of all networks: a trunk, then a head; its forward passes; and calls from several threads.

A trunk is computed eagerly or compiled, in float32 or with bfloat16 products. torch.compile fuses the norm, ReLU and
pool of a block into one loop. On a GPU it also captures a pass as one graph (``mode="reduce-overhead"``); on a CPU this
mode changes nothing.

The head of a user's network is its last layer, which is linear. A layer is the last one if the network returns the
layer's outputs, whatever its weights are. The present weights alone do not show a ReLU after the layer if all outputs
are positive. So other weights are drawn, with either sign.
"""

import contextlib
import copy
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, Generic, Literal, TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ..errors import require
from ..seeds import Seed, global_generator

M = TypeVar("M", bound=nn.Module)
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
Precision = Literal["float32", "bfloat16"]
TrunkPass = Callable[[nn.Module, Tensor], Tensor]
WEIGHTED: Final = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers whose weights can have a distribution
_SIZE: Final = 100.0  # deviation of drawn weights: a ReLU, tanh or clamp after the layer then changes its outputs
_CLOSE: Final = 1e-4  # the largest change by the order of float32 sums, relative to the largest output
# compiled shapes, gradients, modes; beyond torch's own limit a pass would be eager, with other bits
MOST_VARIANTS: Final = 32


def plain(trunk: nn.Module, inputs: Tensor) -> Tensor:
    """Compute ``trunk(inputs)``, eagerly, in the precision of its weights."""
    return trunk(inputs)


@final
class Network(nn.Module):
    """A network ``head(trunk(x))``, or the trunk alone if it has no outputs.

    Attributes:
        trunk: inputs [batch, ...] -> features [batch, width].
        head: features -> outputs [batch, output].
        width: the number of features.
    """

    def __init__(
        self,
        trunk: nn.Module,
        width: int,
        outputs: int,
        generator: torch.Generator,
        *,
        head_bias: bool = True,
        head_trained: bool = True,
    ) -> None:
        """Create the network.

        Args:
            head_bias: whether the head's bias is a weight. Otherwise it is a constant: no method trains or draws it.
            head_trained: whether the head has weights. Otherwise its weight and its bias are constants.
        """
        super().__init__()
        self.trunk, self.width, self.outputs = trunk, width, outputs
        self.head: nn.Module = (
            lecun_normal(skip_init(nn.Linear, width, outputs), generator) if outputs else nn.Identity()
        )
        for name, is_weight in {"weight": head_trained, "bias": head_trained and head_bias}.items():
            if outputs and not is_weight:
                self.head.get_parameter(name).requires_grad_(False)
        fix(self.head)
        self._pass: TrunkPass = plain

    def features(self, inputs: Tensor) -> Tensor:
        """Compute the head's inputs [batch, width]."""
        return self._pass(self.trunk, inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.features(inputs))

    def compute_by(self, trunk_pass: TrunkPass) -> None:
        """Compute the trunk by ``trunk_pass`` from now on."""
        self._pass = trunk_pass


def trunk_pass(compiled: bool, precision: Precision, device: torch.device | str) -> TrunkPass:
    """Return a function of (trunk, inputs [batch, ...]) that computes float32 features [batch, width].

    Trunks of one shape share the compiled code. Its bits depend on the inputs, the processor, the compiler and the
    number of threads.

    Args:
        compiled: whether to use torch.compile: half a minute for three blocks, once per machine and version.
        precision: the precision of the factors of convolutions and products; sums, norms, weights and gradients are
            float32.
        device: the device of the pass.

    Raises:
        ConfigError: ``compiled`` is set for a CPU and there is no C++ compiler.
    """
    if not compiled and precision == "float32":
        return plain

    def compute(trunk: nn.Module, inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            return trunk(inputs).float()

    if not compiled:
        return compute
    if torch.device(device).type == "cpu":
        name = os.environ.get("CXX", "g++")
        rule = f"needs a C++ compiler, and there is no {name} on this machine; install it, or set"
        require(shutil.which(name) is not None, "compiled", rule, "false")
    run: TrunkPass = torch.compile(  # type: ignore[call-overload]  # torch's type hints lack two arguments
        compute,
        fullgraph=True,
        dynamic=False,
        mode="reduce-overhead",
        recompile_limit=MOST_VARIANTS,
        isolate_recompiles=True,
    )
    return run


@final
class Replicas(Generic[M]):
    """Copies of a module that share its tensors; each call takes a copy that no other call uses.

    ``torch.func.functional_call`` puts the given weights into the module while it runs, and ``module.eval()`` sets the
    mode of every submodule. Another thread that calls the same module meanwhile would read them. A copy has its own
    places for weights and modes. It is made when all others are in use, so there are as many as calls have run at once.

    Attributes:
        module: the module that is copied. No call uses it.
    """

    def __init__(self, module: M) -> None:
        self.module = module
        self._idle: list[M] = []  # pop and append are atomic

    @contextlib.contextmanager
    def one(self) -> Iterator[M]:
        """Lend a copy inside the ``with``."""
        try:
            replica = self._idle.pop()
        except IndexError:
            tensors = chain(self.module.parameters(), self.module.buffers())
            replica = copy.deepcopy(self.module, {id(tensor): tensor for tensor in tensors})
        try:
            yield replica
        finally:
            self._idle.append(replica)

    def call(self, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the module's output with ``weights`` in place of its tensors of these names."""
        with self.one() as replica:
            outputs: Tensor = functional_call(replica, dict(weights), (inputs,))
        return outputs


@contextlib.contextmanager
def dropout_masks(network: nn.Module, rng: Seed) -> Iterator[None]:
    """Draw the masks of ``network``'s dropout layers from ``rng`` inside; torch's own state is restored afterwards.

    ``nn.Dropout`` uses torch's global generator. Wrap a forward pass in training, with the seed address of its step. It
    costs nothing for a network without dropout.
    """
    if not any(isinstance(module, nn.Dropout) for module in network.modules()):
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


def fix(module: nn.Module, *, every: bool = False, stored: bool = True) -> None:
    """Turn weights that need no gradient, or ``every`` weight, into buffers, in place: no method trains or draws them.

    Args:
        stored: whether the module's ``state_dict`` has them.
    """
    for layer in module.modules():
        for name, weight in list(layer.named_parameters(recurse=False)):
            if every or not weight.requires_grad:
                delattr(layer, name)
                layer.register_buffer(name, weight.detach(), persistent=stored)


def skip_init(kind: Callable[..., Layer], *args: int, **options: Any) -> Layer:
    """Return a layer whose weights are not initialised.

    It is ``torch.nn.utils.skip_init`` without the Python code of the device ``meta``, which imports sympy: a third of
    a second or more.
    """
    layer = kind(*args, device="meta", **options)
    for name, values in list(layer.named_parameters()):
        setattr(layer, name, nn.Parameter(torch.empty(values.shape, dtype=values.dtype, device="cpu")))
    return layer


def lecun_normal(layer: Layer, generator: torch.Generator, gain: float = 1.0) -> Layer:
    """Initialise weights N(0, gain/fan_in) and biases 0; the gain 1 is of LeCun et al. 1998."""
    with torch.no_grad():
        layer.weight.normal_(0, math.sqrt(gain / layer.weight[0].numel()), generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


def he_normal(layer: Layer, generator: torch.Generator) -> Layer:
    """Initialise weights N(0, 2/fan_in) and biases 0 (He et al. 2015)."""
    return lecun_normal(layer, generator, 2.0)


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers that a model has as attributes, by their dotted names."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name}


def cut(model: nn.Module, name: str) -> nn.Linear:
    """Remove a linear layer of a model, in place, and return it; an identity stays in its place."""
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    model.set_submodule(name, nn.Identity())
    return layer


def is_last(
    model: nn.Module, name: str, head: nn.Linear, features: Tensor, outputs: Tensor, call: Callable[[], Tensor]
) -> bool:
    """Return whether a model that was cut returns the outputs of ``head``, also for other weights of the head.

    Args:
        name: the place of the head.
        features: the outputs of the model without its head, for a few rows [row, feature].
        outputs: the outputs of the whole model for these rows [row, output].
        call: returns the model's present outputs for these rows.
    """
    # without hooks, and without the forward pass of a subclass
    if not close(F.linear(features, head.weight, head.bias), outputs):
        return False
    generator = torch.Generator().manual_seed(0)
    other = skip_init(nn.Linear, head.in_features, head.out_features, bias=head.bias is not None)
    for weight in other.parameters():
        weight.data.copy_(_SIZE * torch.randn(weight.shape, generator=generator))
    for _ in range(2):
        model.set_submodule(name, other)
        try:
            drawn = call()
        finally:
            model.set_submodule(name, nn.Identity())
        rows = len(features)
        if drawn.numel() != rows * head.out_features or not close(drawn.reshape(rows, -1), other(features)):
            return False
        for weight in other.parameters():
            weight.data.neg_()
    return True


def close(values: Tensor, expected: Tensor) -> bool:
    """Return whether two batches of outputs are equal up to the rounding of float32 sums."""
    same = values.shape == expected.shape
    return same and bool((values - expected).abs().max() <= _CLOSE * (1e-12 + expected.abs().max()))
