"""The inputs of a user's model as rows of numbers: one tensor, or a dictionary of tensors, side by side in float32.

Whole numbers are exact in float32 below 2²⁴; larger ones are refused. A row has the shape (1, 1, width) and not
(width,): the library would take (width,) for a row of a table, and fits networks on small tables together by
``torch.func.vmap``, which not every model supports.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import DataError, short

ModelInputs = Tensor | Mapping[str, Tensor]
_EXACT: Final = 2**24
_ONE: Final = "inputs"  # the name of an unnamed input tensor in errors
_FLOAT: Final = "float"


@dataclass(frozen=True)
class Part:
    """One input tensor of a row.

    Attributes:
        name: its key in the dictionary; empty if the inputs are this tensor.
        shape: the shape of one row.
        dtype: ``float``, or the name of torch's type of whole numbers (``int64``, ``bool``).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def check(self, values: Tensor, where: str) -> None:
        """Raise DataError unless ``values`` [row, ...] is a batch of this part."""
        name = self.name or _ONE
        if tuple(values.shape[1:]) != self.shape:
            rule = f"{name} must have the shape {list(self.shape)} in every row (pad to one length)"
            raise DataError(f"{where}: {rule}, got {list(values.shape[1:])}")
        if (_kind(values) == _FLOAT) != (self.dtype == _FLOAT):
            raise DataError(f"{where}: {name} must be of the type {self.dtype}, got {_kind(values)}")
        if self.dtype != _FLOAT and values.numel() and int(values.long().abs().max()) >= _EXACT:
            raise DataError(f"{where}: {name} must be below 2**24, got {int(values.long().abs().max())}")
        if self.dtype == _FLOAT and not bool(torch.isfinite(values).all()):
            raise DataError(f"{where}: {name} must be finite, got {float(values[~torch.isfinite(values)][0])}")


@dataclass(frozen=True)
class Layout:
    """The places of all input tensors in a row."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, inputs: Any, where: str) -> "Layout":
        """Return the layout of a batch of inputs.

        Raises:
            DataError: the inputs are neither a tensor [row, ...] nor a dictionary of such tensors.
        """
        return cls(tuple(Part(n, tuple(v.shape[1:]), _kind(v)) for n, v in sorted(_named(inputs, where).items())))

    @property
    def width(self) -> int:
        """Return the number of values in a row."""
        return sum(prod(part.shape) for part in self.parts)

    @property
    def row(self) -> tuple[int, int, int]:
        """Return the shape of a row."""
        return 1, 1, self.width

    def pack(self, inputs: Any, where: str) -> Float[Tensor, "row 1 1 width"]:
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
        pairs = [(named[part.name], prod(part.shape)) for part in self.parts]
        flat = [values.reshape(len(values), size).to(torch.float32) for values, size in pairs]
        if len({len(values) for values in flat}) > 1:
            counts = [len(values) for values in flat]
            raise DataError(f"{where}: {_listed(names)} must have equally many rows, got {counts}")
        return torch.cat(flat, dim=1)[:, None, None]

    def unpack(self, rows: Float[Tensor, "row 1 1 width"]) -> Tensor | dict[str, Tensor]:
        """Return rows as the model takes them: whole numbers in their own type, other numbers in the rows' type."""
        pieces = rows.flatten(1).split([prod(part.shape) for part in self.parts], dim=1)
        named = {}
        for part, values in zip(self.parts, pieces, strict=True):
            dtype = rows.dtype if part.dtype == _FLOAT else getattr(torch, part.dtype)
            named[part.name] = values.reshape(len(rows), *part.shape).to(dtype)
        return named[""] if list(named) == [""] else named


def _named(inputs: Any, where: str) -> dict[str, Tensor]:
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
    for kind, (found, cure) in kinds.items():
        if found:
            raise DataError(f"{what} must be a dense tensor, got {kind} one; pass {cure}")


def _kind(values: Tensor) -> str:
    return _FLOAT if values.is_floating_point() else str(values.dtype).removeprefix("torch.")


def _listed(names: list[str]) -> str:
    return ", ".join(name or "one tensor" for name in names)
