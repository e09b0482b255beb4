"""A user's model without its head, as a trunk of the library; the layout of its inputs; checks and calls of the model.

The inputs are one tensor, or a dictionary of tensors, side by side in float32. Sequences beside an ``attention_mask``
may have another length in each batch; the length follows from the width of the rows. Whole numbers are exact in float32
below 2²⁴; larger ones are refused. A row has the shape (1, 1, width) and not (width,): the library would take (width,)
for a row of a table, and fits networks on small tables together by ``torch.func.vmap``, which not every model supports.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..config import LATER
from ..errors import DataError, UserError, require, short

ModelInputs = Tensor | Mapping[str, Tensor]
_EXACT: Final = 2**24
_ONE: Final = "inputs"  # the name of an unnamed input tensor in errors
_FLOAT: Final = "float"
MASK: Final = "attention_mask"  # [row, place], 0 where a sequence is padded
AT_ONCE: Final = 128  # rows per pass in evaluation
_TAKES_TIES: Final = "kfac_laplace over the last layer without epochs"  # it changes and draws a copy of the head


@dataclass(frozen=True)
class Part:
    """One input tensor of a row.

    Attributes:
        name: its key in the dictionary; empty if the inputs are this tensor.
        shape: the shape of one row.
        dtype: ``float``, or the name of torch's type of whole numbers (``int64``, ``bool``).
        padded: whether the first number of ``shape`` is a length, the largest of the fit, which may differ elsewhere.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    padded: bool = field(default=False, metadata=LATER)

    def check(self, values: Tensor, where: str) -> None:
        """Raise DataError unless ``values`` [row, ...] is a batch of this part."""
        name = self.name or _ONE
        shape = tuple(values.shape[1:])
        if (shape[1:] != self.shape[1:] or len(shape) != len(self.shape)) if self.padded else shape != self.shape:
            cure = f"pad to one length, or give {MASK} beside the sequences"
            rule = f"{name} must have the shape {list(self.shape)} in every row ({cure})"
            raise DataError(f"{where}: {rule}, got {list(values.shape[1:])}")
        if (_kind(values) == _FLOAT) != (self.dtype == _FLOAT):
            raise DataError(f"{where}: {name} must be of the type {self.dtype}, got {_kind(values)}")
        if self.dtype != _FLOAT and values.numel() and int(values.long().abs().max()) >= _EXACT:
            raise DataError(f"{where}: {name} must be below 2**24, got {int(values.long().abs().max())}")
        if self.dtype != _FLOAT and _kind(values) != self.dtype:  # 300 would become 44 in uint8
            wrong = values[values.to(getattr(torch, self.dtype)).to(values.dtype) != values]
            if wrong.numel():
                raise DataError(f"{where}: {name} must be numbers of the type {self.dtype}, got {wrong[0].item()}")
        if self.dtype == _FLOAT and not bool(torch.isfinite(values).all()):
            raise DataError(f"{where}: {name} must be finite, got {float(values[~torch.isfinite(values)][0])}")


@dataclass(frozen=True)
class Layout:
    """The places of all input tensors in a row."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, inputs: object, where: str) -> "Layout":
        """Return the layout of a batch of inputs.

        Raises:
            DataError: the inputs are neither a tensor [row, ...] nor a dictionary of such tensors.
        """
        return cls(tuple(Part(n, tuple(v.shape[1:]), _kind(v)) for n, v in sorted(_named(inputs, where).items())))

    @property
    def padded(self) -> bool:
        """Return whether sequences may have another length in each batch."""
        return any(part.padded for part in self.parts)

    def with_lengths(self, inputs: object, where: str) -> "Layout":
        """Return the layout with the lengths of a further batch, if that has a mask of another length."""
        named, own = _named(inputs, where), {part.name: part.shape for part in self.parts}
        before, length, parts = tuple[int, ...](), 0, list[Part]()
        if not self.padded and MASK in named and len(own.get(MASK, ())) == 1 and named[MASK].ndim == 2:
            before, length = own[MASK], named[MASK].shape[1]
        for part in self.parts:
            other = tuple(named[part.name].shape[1:]) if part.name in named else ()
            starts = before and before != (length,) and part.shape[:1] == before and other[:1] == (length,)
            if (part.padded or starts) and other[1:] == part.shape[1:] and other:
                part = replace(part, shape=(max(part.shape[0], other[0]), *part.shape[1:]), padded=True)
            parts.append(part)
        return Layout(tuple(parts))

    @property
    def width(self) -> int:
        """Return the number of values in a row."""
        return sum(prod(part.shape) for part in self.parts)

    @property
    def row(self) -> tuple[int, int, int]:
        """Return the shape of a row."""
        return 1, 1, self.width

    def pack(self, inputs: object, where: str) -> Float[Tensor, "row 1 1 width"]:
        """Return a batch of inputs as rows, on the inputs' device.

        Raises:
            DataError: the inputs' names, shapes or types differ from the layout's, or their numbers of rows differ;
                whole numbers are too large; a number is not finite.
        """
        named = _named(inputs, where)
        names = [part.name for part in self.parts]
        if sorted(named) != names:
            raise DataError(f"{where}: inputs must be {_listed(names)}, got {_listed(sorted(named))}")
        for part in self.parts:
            part.check(named[part.name], where)
        counts = [len(named[name]) for name in names]
        if len(set(counts)) > 1:
            raise DataError(f"{where}: {_listed(names)} must have equally many rows, got {counts}")
        lengths = {part.name: named[part.name].shape[1] for part in self.parts if part.padded}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{where}: {_listed(list(lengths))} must have one length, got {list(lengths.values())}")
        return self.packed(named)

    def packed(self, named: Mapping[str, Tensor]) -> Float[Tensor, "row 1 1 width"]:
        """Return :meth:`pack` of named tensors that fit, without a check, which a program cannot have."""
        values = [named[part.name].to(torch.float32) for part in self.parts]
        return torch.cat([each.flatten(1) if each.ndim > 1 else each[:, None] for each in values], dim=1)[:, None, None]

    def unpack(self, rows: Float[Tensor, "row 1 1 width"]) -> Tensor | dict[str, Tensor]:
        """Return rows as the model takes them: whole numbers in their own type, other numbers in the rows' type."""
        fixed = sum(prod(part.shape) for part in self.parts if not part.padded)
        of_place = sum(prod(part.shape[1:]) for part in self.parts if part.padded)
        length = (rows.shape[-1] - fixed) // of_place if of_place else 0
        shapes = [(length, *part.shape[1:]) if part.padded else part.shape for part in self.parts]
        pieces = rows.flatten(1).split([prod(shape) for shape in shapes], dim=1)
        named = {}
        for part, shape, values in zip(self.parts, shapes, pieces, strict=True):
            dtype = rows.dtype if part.dtype == _FLOAT else getattr(torch, part.dtype)
            named[part.name] = values.reshape(rows.shape[0], *shape).to(dtype)
        return named[""] if list(named) == [""] else named


def _named(inputs: object, where: str) -> dict[str, Tensor]:
    """Return inputs by name; a single tensor has an empty name."""
    if isinstance(inputs, Tensor):
        inputs = {"": inputs}
    if not isinstance(inputs, Mapping) or not inputs:
        cure = "; pass torch.as_tensor(x)" if hasattr(inputs, "__array__") else ""
        got = f"got {type(inputs).__name__}{cure}"
        raise DataError(f"{where}: inputs must be a tensor or a dictionary of tensors, {got}")
    for name, values in inputs.items():
        if not isinstance(values, Tensor):
            raise DataError(f"{where}: {name} must be a tensor, got {short(values)}")
        require_plain(values, f"{where}: {name or _ONE}")
        if values.ndim == 0:
            raise DataError(f"{where}: {name or _ONE} must have a first dimension of rows, got a single number")
        if values.is_complex():
            raise DataError(f"{where}: {name or _ONE} must be real numbers, got {values.dtype}")
    return {str(name): values.detach() for name, values in inputs.items()}


def require_plain(values: Tensor, what: str) -> None:
    """Raise DataError if a tensor is sparse, nested or quantised, or has no values in memory.

    Args:
        what: the start of the message: the place and the tensor's name.
    """
    kinds = {
        "a nested": (values.is_nested, "torch.nested.to_padded_tensor(x, 0.0)"),
        "a quantised": (values.is_quantized, "x.dequantize()"),
        "a sparse": (values.layout is not torch.strided, "x.to_dense()"),
        "an empty (meta)": (values.is_meta, "a tensor with values"),
    }
    for kind, (applies, cure) in kinds.items():
        if applies:
            raise DataError(f"{what} must be a dense tensor, got {kind} one; pass {cure}")


def _kind(values: Tensor) -> str:
    return _FLOAT if values.is_floating_point() else str(values.dtype).removeprefix("torch.")


def _listed(names: list[str]) -> str:
    return ", ".join(name or "one tensor" for name in names)


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
        sigmoid: the name of the sigmoid that was removed after the head, or the empty text.
    """

    def __init__(self, module: nn.Module, layout: Layout, width: int, head: str) -> None:
        super().__init__()
        self.module, self.layout, self.width, self.head = module, layout, width, head
        self.order: nn.Module = nn.Identity()
        self._dropout, self.sigmoid = True, ""

    def forward(self, rows: Float[Tensor, "row 1 1 width"]) -> Float[Tensor, "row feature"]:
        """Return the features. In evaluation without gradients, many rows are computed in parts, to save memory."""
        if self.training or torch.is_grad_enabled():
            return self._features(rows)
        parts = [self._features(part) for part in rows.split(AT_ONCE)]  # a program's batch of unknown size is one part
        return torch.cat(parts) if len(parts) > 1 else parts[0]

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
    pairs = [] if may_be_tied else tied(model, trained=True)
    rule = f"must have one name for each weight, except with {_TAKES_TIES}"
    require(not pairs, "model", rule, " and ".join(pairs[0]) + ", which are the same weight" if pairs else None)


def plain(model: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` wrapped, or ``model`` itself; the compiled code has the head in it."""
    return getattr(model, "_orig_mod", model) if isinstance(model, nn.Module) else model


def pad_token(model: nn.Module) -> int:
    """Return the token by which a model of transformers knows padding; 0 for all others."""
    configs = [getattr(layer, "config", None) for layer in model.modules()]
    tokens = [getattr(config, "pad_token_id", None) for config in configs]
    return next((token for token in tokens if isinstance(token, int)), 0)


def tied(model: nn.Module, *, trained: bool = False) -> list[tuple[str, str]]:
    """Return (first name, further name) for each further name of a weight, or of a weight that needs a gradient."""
    names: dict[int, str] = {}
    every = [(names.setdefault(id(w), name), name, w) for name, w in model.named_parameters(remove_duplicate=False)]
    return [(first, name) for first, name, w in every if first != name and (w.requires_grad or not trained)]


def called(model: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> Any:
    """Call a model with its input tensor, or with its input tensors as keyword arguments."""
    return model(inputs) if isinstance(inputs, Tensor) else model(**inputs)


def logits(answer: object) -> Tensor:
    """Return the outputs in a model's answer: a tensor, or ``logits`` of an object or a dictionary.

    Raises:
        UserError: the answer has no outputs.
    """
    outputs = answer if isinstance(answer, Tensor) else getattr(answer, "logits", None)
    if outputs is None and isinstance(answer, Mapping):
        outputs = answer.get("logits")
    if not isinstance(outputs, Tensor):
        raise UserError(
            f"model must give a tensor, or logits of an object or a dictionary, got {type(answer).__name__}"
        )
    return outputs
