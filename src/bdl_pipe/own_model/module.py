"""A user's model as a trunk of the library: its head taken off, its inputs packed in rows.

The head is the last linear layer: applied to the outputs of the model without it, it must give the model's own outputs.
After the head, the model may apply an operation that commutes with a linear layer, such as selecting one token. Weights
that the user has frozen (``requires_grad`` False) become buffers of the copy: no method moves or draws them.

Tied weights (one weight under several names, as in T5) are refused if a method moves or draws them: a state has a
tensor for each name. Frozen weights may be tied, and a head that shares its weight with an embedding gets a copy of it.

A module cannot be written into a config. So the module is registered in this process, under a digest of the names and
shapes of its weights, its settings, its frozen values and its code; a config names the digest.
"""

import contextlib
import copy
import hashlib
import inspect
import itertools
import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..config import LATER, to_mapping
from ..errors import UserError, brief, require
from ..networks import NETWORKS, overruns_channels_last, register_network
from ..networks.base import close, cut, fix, is_last, linear_layers, skip_init
from .lora import adapted
from .trunk import Layout, ModuleTrunk, PlainOrder, called, check, logits

_TRIED: Final = 4  # linear layers, from the last call backwards, that are tried as the head
_PLAIN: Final = (bool, int, float, str)  # types of a module's settings that enter the digest
T = TypeVar("T")
_COPIED: Final = (
    "can be copied (first call it once under torch.no_grad(), if it keeps tensors of a training step, as the hooks of "
    "torch.nn.utils.weight_norm, spectral_norm and prune do)"
)
_STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")  # not hashed: a posterior has its own


@final
@dataclass(frozen=True)
class ModuleConfig:
    """A network that is a module of this process.

    Attributes:
        digest: the module's digest.
        dropout: whether training has the module's dropout; chains have none.
        head_bias: whether the module's head has a bias. Without one the head's bias is a constant, which is zero, or
            the shift of the targets: no method trains or draws it.
        head_trained: whether methods train or draw the module's head. A frozen head of a module with adapters is a
            constant.
    """

    name: Literal["module"]
    digest: str
    dropout: bool = True
    head_bias: bool = field(default=True, metadata=LATER)
    head_trained: bool = field(default=True, metadata=LATER)


@final
@dataclass(frozen=True)
class Registered:
    """A user's model that is registered in this process for the lifetime of this object.

    Attributes:
        config: the network's config, for any method.
        trunk: the model without its head, on the CPU in float32.
        head: the model's head, on the CPU in float32, or in float64 if the model's is.
    """

    config: ModuleConfig
    trunk: ModuleTrunk
    head: nn.Linear

    @property
    def network(self) -> dict[str, object]:
        """Return the section ``network``."""
        return to_mapping(self.config)

    @property
    def without_dropout(self) -> "Registered":
        """Return the model without dropout in training."""
        return replace(self, config=replace(self.config, dropout=False))

    def weights(self) -> dict[str, Tensor]:
        """Return the weights under the library's names; a head without a bias has zeros."""
        bias = torch.zeros(self.head.out_features) if self.head.bias is None else self.head.bias
        named = {f"trunk.{name}": value for name, value in self.trunk.state_dict().items()}
        named |= {"head.weight": self.head.weight, "head.bias": bias}
        return {name: value.detach().clone() for name, value in named.items()}


# (digest, number) -> a model that is in use, the latest last
_known: Final[weakref.WeakValueDictionary[tuple[str, int], ModuleTrunk]] = weakref.WeakValueDictionary()
_numbers: Final = itertools.count()


def register(
    model: nn.Module,
    layout: Layout,
    probe: Float[Tensor, "row 1 1 width"],
    head: str | None,
    *,
    frozen_trunk: bool = False,
    classes: bool = False,
) -> Registered:
    """Register a model in this process; the model itself is not changed.

    Args:
        probe: a few packed rows, on which the model is called for the checks.
        head: dotted name of the last linear layer. None searches for it.
        frozen_trunk: freeze all weights except the head's.
        classes: whether the outputs are of classes. One output z, which ``nn.Sigmoid`` may follow, becomes two.

    Raises:
        UserError: the model cannot be copied, does not take the rows, gives no outputs [row, output], or does not end
            in a linear layer; one weight has two names, and the trunk is not frozen; equal rows get different outputs
            in evaluation.
    """
    copied = _copied(model, may_be_tied=frozen_trunk)
    with torch.no_grad():
        sigmoid = _without_sigmoid(copied, layout.unpack(probe.cpu())) if classes else ""
        trunk, last = _cut(copied, layout, probe.cpu(), head)
        trunk.sigmoid = sigmoid
        if (own := model.get_submodule(trunk.head)).weight.dtype is torch.float64:  # float32 rounds a bias of 1e8 by 4
            last = last.double()
            for rounded, weight in zip(last.parameters(), own.parameters(), strict=True):
                rounded.copy_(weight)
    if classes and last.out_features == 1:
        last = two_classes(last)
    if not _runs_channels_last(trunk, probe.cpu()):
        trunk.order = PlainOrder()
    return _registered(trunk, last, frozen_trunk)


def register_again(
    model: nn.Module, layout: Layout, head: str, *, plain_order: bool, frozen_trunk: bool, classes: bool, sigmoid: str
) -> Registered:
    """Register a model again in another process, with the facts of its first registration; the model is not called.

    Raises:
        UserError: the model cannot be copied, or has no such head.
    """
    copied = _copied(model, may_be_tied=frozen_trunk)
    if head not in linear_layers(copied):
        kind = type(dict(copied.named_modules()).get(head)).__name__
        raise UserError(f"model must have the linear layer {head}, got {kind}")
    layer = cut(copied, head)
    if classes and layer.out_features == 1:
        layer = two_classes(layer)
    if sigmoid and isinstance(dict(copied.named_modules()).get(sigmoid), nn.Sigmoid):
        copied.set_submodule(sigmoid, nn.Identity())
    trunk = ModuleTrunk(copied, layout, layer.in_features, head)
    if plain_order:
        trunk.order = PlainOrder()
    return _registered(trunk, layer, frozen_trunk)


def two_classes(head: nn.Linear) -> nn.Linear:
    """Return a head with the logits −z/2 and z/2 for a head with the one output z.

    The softmax of both is the sigmoid of z. A prior N(0, I/τ) of the two rows is a prior N(0, 2I/τ) of their
    difference, the weights of z, and of their sum, on which no output depends.
    """
    wide = skip_init(nn.Linear, head.in_features, 2, bias=head.bias is not None)
    for name, weight in wide.named_parameters():
        one = head.get_parameter(name)
        weight.data.copy_(torch.cat([-one.detach() / 2, one.detach() / 2]))
        weight.requires_grad_(one.requires_grad)
    return wide


def _without_sigmoid(model: nn.Module, inputs: Tensor | dict[str, Tensor]) -> str:
    """Remove ``nn.Sigmoid`` after a model's one output, in place; return its name, or the empty text without one."""
    names = [name for name, layer in model.named_modules() if name and type(layer) is nn.Sigmoid]
    if not names:
        return ""
    before = logits(called(model, inputs))
    for name in reversed(names):
        layer = model.get_submodule(name)
        model.set_submodule(name, nn.Identity())
        if before[:1].numel() == 1 and close(logits(called(model, inputs)).sigmoid(), before):
            return name
        model.set_submodule(name, layer)
    return ""


def _copied(model: nn.Module, *, may_be_tied: bool) -> nn.Module:
    check(model, may_be_tied=may_be_tied)
    copied: nn.Module = asked(_COPIED, lambda: copy.deepcopy(model))
    return copied.cpu().float().eval()


def _registered(trunk: ModuleTrunk, head: nn.Linear, frozen_trunk: bool) -> Registered:
    head = copy.deepcopy(head)  # the trunk may share the head's weight
    fix(trunk.module, every=frozen_trunk, stored=False)  # states omit them, and the digest includes them
    if "module" not in NETWORKS:
        register_network(ModuleConfig, module_trunk)
    digest = _digest(trunk, head)
    _known[digest, next(_numbers)] = trunk
    trained = not adapted(trunk) or head.weight.requires_grad
    config = ModuleConfig("module", digest, head_bias=head.bias is not None, head_trained=trained)
    return Registered(config, trunk, head)


def module_trunk(
    config: ModuleConfig, input_shape: tuple[int, ...], generator: torch.Generator
) -> tuple[nn.Module, int]:
    """Return a copy of a registered model without its head, with the user's weights, and its number of features.

    Raises:
        UserError: no model of this digest is registered in this process.
    """
    trunk = copy.deepcopy(trunk_of(config.digest))
    return trunk if config.dropout else trunk.without_dropout(), trunk.width


def trunk_of(digest: str) -> ModuleTrunk:
    """Return the model of a digest that was registered last.

    Raises:
        UserError: no model of this digest is in use in this process.
    """
    alive = [trunk for (key, _), trunk in _known.items() if key == digest]
    if not alive:
        cure = "call bdl_pipe.bayesianise with the model, or ModulePosterior.load(path, model), first"
        raise UserError(f"network: the module {digest} is not known in this process: {cure}")
    return alive[-1]


def _cut(model: nn.Module, layout: Layout, probe: Tensor, head: str | None) -> tuple[ModuleTrunk, nn.Linear]:
    """Remove the head of ``model``, in place."""
    inputs = layout.unpack(probe)
    layers = linear_layers(model)
    calls = list[str]()
    hooks = [layer.register_forward_hook(lambda *_, name=name: calls.append(name)) for name, layer in layers.items()]
    shown = {part.name or "inputs": list(part.shape) for part in layout.parts}
    takes = f"takes rows of {', '.join(f'{name} {shape}' for name, shape in shown.items())}"
    try:
        before = logits(asked(takes, lambda: called(model, inputs)))
    finally:
        for hook in hooks:
            hook.remove()
    again = logits(asked(takes, lambda: called(model, inputs)))
    odd = before[~torch.isfinite(before)]
    require(not odd.numel(), "model", "must give finite outputs", float(odd[0]) if odd.numel() else None)
    require(close(before, again), "model", "must give equal rows the same outputs in evaluation")
    fits = before.ndim in (1, 2) and len(before) == len(probe)
    require(fits, "model", f"must give outputs [row, output] of {len(probe)} rows", list(before.shape))
    shape, before = list(before.shape), before.reshape(len(probe), -1)
    alone = logits(asked("takes one row alone", lambda: called(model, layout.unpack(probe[:1])))).reshape(1, -1)
    rule = "must give a row the same outputs alone as among others in evaluation: use no statistics of a batch, and "
    require(close(alone, before[:1]), "model", f"{rule}set batch_first=True in attention and recurrent layers")
    last = ", ".join(list(layers)[-_TRIED:]) or "none"
    rule = "must be a linear layer (nn.Linear) that the model has as an attribute"
    require(bool(layers), "model", "must have a linear layer (nn.Linear) as its last layer", "none")
    require(head is None or head in layers, "head", rule, f"{head} (it has {last})")
    latest = [name for name in dict.fromkeys(reversed(calls)) if layers[name].out_features == before.shape[1]]
    call, failed = lambda: logits(called(model, layout.unpack(probe))), ""
    for name in [head] if head is not None else latest[:_TRIED]:
        layer = cut(model, name)
        trunk = ModuleTrunk(model, layout, layer.in_features, name).eval()
        try:
            features = trunk(probe)
            fits = list(features.shape) == [len(probe), layer.in_features]
            if fits and is_last(model, name, layer, features, before, call):
                return trunk, layer
        except Exception as error:  # the user's code may fail without its head
            failed = f"; with another layer in its place the model ended with {type(error).__name__}: {brief(error)}"
        model.set_submodule(name, layer)
    rule = "must be the last layer of the model and linear: nothing may follow it, such as a softmax or a ReLU"
    cure = "; if only .view(-1), .flatten() or [:, 0] follows it, write .squeeze(-1)" if len(shape) == 1 else ""
    tried = head or (latest[0] if latest else last)
    raise UserError(f"head {rule}{cure}, got {tried} ({len(probe)} rows give {shape}){failed}")


def _runs_channels_last(trunk: ModuleTrunk, probe: Tensor) -> bool:
    """Return whether the trunk runs, forward and backward, with its filters in channels-last memory order."""
    if not any(weight.ndim in (4, 5) for weight in trunk.parameters()):
        return True
    if overruns_channels_last(trunk):
        return False
    try:
        features = copy.deepcopy(trunk).to(memory_format=torch.channels_last)(probe)  # type: ignore[call-overload]
        features.sum().backward()
    except RuntimeError:
        return False
    return True


def _digest(trunk: ModuleTrunk, head: nn.Linear) -> str:
    """Return a digest of everything that a posterior needs from the model and does not store itself."""
    whole = hashlib.sha256(
        json.dumps([to_mapping(trunk.layout), trunk.head, head.in_features, head.out_features]).encode()
    )
    for name, weight in trunk.module.named_parameters():
        whole.update(f"{name} {tuple(weight.shape)}".encode())
    for name, values in trunk.module.named_buffers():
        whole.update(f"{name} {tuple(values.shape)} {values.dtype}".encode())
        if name.rpartition(".")[2] not in _STATISTICS and values.numel():
            flat = values.detach().contiguous().reshape(-1)  # a scale has no dimension
            whole.update(flat.view(torch.uint8).numpy().tobytes())
    for name, layer in trunk.module.named_modules():
        settings = {k: v for k, v in vars(layer).items() if isinstance(v, _PLAIN) and k != "training"}
        whole.update(f"{name} {type(layer).__qualname__} {sorted(settings.items())}".encode())
    for kind in sorted({type(layer) for layer in trunk.module.modules()}, key=lambda kind: kind.__qualname__):
        if not kind.__module__.startswith("torch."):
            with contextlib.suppress(OSError, TypeError):  # code typed at a prompt has no source
                whole.update(inspect.getsource(kind).encode())
    return whole.hexdigest()[:16]


def asked(rule: str, of: Callable[[], T]) -> T:
    """Return the result of the user's code; raise its exceptions as an error of one line."""
    try:
        return of()
    except Exception as error:
        raise UserError(f"model must be one that {rule}: {type(error).__name__}: {brief(error)}") from None
