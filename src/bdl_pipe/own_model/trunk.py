"""A user's model without its head, as a trunk of the library; the checks and calls of the model."""

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import UserError, require, short
from .layout import Layout

AT_ONCE: Final = 128  # rows per pass in evaluation
_TAKES_TIES: Final = "kfac_laplace over the last layer without epochs"  # it changes and draws a copy of the head


@final
class PlainOrder(nn.GroupNorm):
    """A marker, never called: ``fastest_order`` takes it for a norm of each channel and keeps the plain memory order.

    A model that reshapes images by ``view`` fails in another order.
    """

    def __init__(self) -> None:
        super().__init__(1, 1, affine=False)


@final
class ModuleTrunk(nn.Module):
    """A user's model without its head: packed rows [row, 1, 1, width] -> features [row, feature].

    Attributes:
        module: the model, with an identity in place of the head.
        layout: the layout of its inputs.
        width: the number of features.
        head: the head's name.
        order: a marker of the filters' memory order.
    """

    def __init__(self, module: nn.Module, layout: Layout, width: int, head: str) -> None:
        super().__init__()
        self.module, self.layout, self.width, self.head = module, layout, width, head
        self.order: nn.Module = nn.Identity()
        self._dropout = True

    def forward(self, rows: Float[Tensor, "row 1 1 width"]) -> Float[Tensor, "row feature"]:
        """Return the features. In evaluation without gradients, many rows are computed in parts, to save memory."""
        if self.training or torch.is_grad_enabled() or len(rows) <= AT_ONCE:
            return self._features(rows)
        return torch.cat([self._features(part) for part in rows.split(AT_ONCE)])

    def _features(self, rows: Tensor) -> Tensor:
        return logits(called(self.module, self.layout.unpack(rows)))

    def train(self, mode: bool = True) -> "ModuleTrunk":
        """Set the mode; without dropout the model stays in evaluation."""
        super().train(mode)
        if not self._dropout:
            self.module.eval()
        return self

    @property
    def plain_order(self) -> bool:
        """Return whether filters keep the plain memory order."""
        return isinstance(self.order, PlainOrder)

    def without_dropout(self) -> "ModuleTrunk":
        """Switch dropout off permanently, also the dropout of functions that read the model's mode."""
        self._dropout = False
        for layer in self.module.modules():
            if isinstance(layer, nn.modules.dropout._DropoutNd):
                layer.p = 0.0
        return self.train(self.training)


def check(model: object, *, may_be_tied: bool) -> None:
    """Raise UserError unless ``model`` is a module, with one name for each weight if it may not be tied."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model must be a torch.nn.Module, got {short(model)}")
    if isinstance(model, torch.jit.ScriptModule):
        cure = "load its weights into that: module.load_state_dict(scripted.state_dict())"
        raise UserError(f"model must be the module as it was written in Python, got TorchScript; {cure}")
    nowhere = next((name for name, weight in model.named_parameters() if weight.device.type == "meta"), None)
    require(nowhere is None, "model", "must have values in its weights (load them first)", f"{nowhere} on device meta")
    lazy = next((name for name, weight in [*model.named_parameters(), *model.named_buffers()] if is_lazy(weight)), None)
    require(lazy is None, "model", "must have shapes of its weights (call it once on a batch first)", lazy)
    pairs = [] if may_be_tied else tied(model)
    rule = f"must have one name for each weight, except with {_TAKES_TIES}"
    require(not pairs, "model", rule, " and ".join(pairs[0]) + ", which are the same weight" if pairs else None)


def plain(model: Any) -> Any:
    """Return the module that ``torch.compile`` wrapped, or ``model`` itself; the compiled code has the head in it."""
    return getattr(model, "_orig_mod", model) if isinstance(model, nn.Module) else model


def tied(model: nn.Module) -> list[tuple[str, str]]:
    """Return (first name, further name) for each further name of a weight."""
    names: dict[int, str] = {}
    every = [(names.setdefault(id(w), name), name) for name, w in model.named_parameters(remove_duplicate=False)]
    return [(first, name) for first, name in every if first != name]


def called(model: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> Any:
    """Call a model with its input tensor, or with its input tensors as keyword arguments."""
    return model(inputs) if isinstance(inputs, Tensor) else model(**inputs)


def logits(answer: Any) -> Tensor:
    """Return the outputs in a model's answer: a tensor, or ``logits`` of an object or a dictionary.

    Raises:
        UserError: the answer has no outputs.
    """
    found = answer if isinstance(answer, Tensor) else getattr(answer, "logits", None)
    if found is None and isinstance(answer, Mapping):
        found = answer.get("logits")
    if not isinstance(found, Tensor):
        raise UserError(
            f"model must give a tensor, or logits of an object or a dictionary, got {type(answer).__name__}"
        )
    return found
