"""Sparse matrices: removed entries are exactly 0 and are stored neither on disk nor in an optimiser."""

import math
from typing import Final, cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

_BITS: Final = 8


@final
class Kept(nn.Module):
    """The pattern of a matrix's kept entries; a call puts values there.

    Attributes:
        packed: bits [⌈size/8⌉], uint8, with the first entry lowest in the first byte; or, if fewer than one in 32
            entries is kept, the kept entries' ascending row-major numbers [count], int32, which need fewer bytes.
        shape: the shape of the matrix.
        count: the number of kept entries.
    """

    def __init__(self, mask: Bool[Tensor, "row column"]) -> None:
        super().__init__()
        flat = mask.flatten()
        self.shape, self.count, size = tuple(mask.shape), int(flat.sum()), flat.numel()
        by_number = 4 * self.count < math.ceil(size / _BITS) and size < 2**31
        if by_number:
            packed = flat.nonzero()[:, 0].to(torch.int32)
        else:
            padded = nn.functional.pad(flat.to(torch.uint8), (0, -len(flat) % _BITS)).view(-1, _BITS)
            packed = (padded * _powers(flat.device)).sum(1, dtype=torch.uint8)
        self.register_buffer("packed", packed)

    def forward(self, values: Float[Tensor, " count"]) -> Float[Tensor, "row column"]:
        """Return the matrix, differentiable in the values."""
        flat = values.new_zeros(math.prod(self.shape))
        return flat.scatter(0, self.numbers(), values).view(self.shape)

    def of(self, matrix: Float[Tensor, "row column"]) -> Float[Tensor, " count"]:
        """Return the kept entries of a matrix, row by row."""
        return matrix.flatten()[self.numbers()]

    def numbers(self) -> Int[Tensor, " count"]:
        """Return the row-major places of the kept entries, with a constant count so that ``vmap`` works."""
        packed = cast(Tensor, self.packed)
        if packed.dtype == torch.int32:
            return packed.long()
        size = math.prod(self.shape)
        bits = (packed[:, None] & _powers(packed.device)).ne(0).flatten()[:size]
        slots = torch.where(bits, bits.cumsum(0) - 1, self.count)  # removed entries go to an additional slot
        numbers = torch.zeros(self.count + 1, dtype=torch.int64, device=packed.device)
        return numbers.scatter(0, slots, torch.arange(size, device=packed.device))[: self.count]


def whole(values: Tensor, kept: Kept | None) -> Float[Tensor, "row column"]:
    """Return the matrix of ``values``; if it is pruned, ``values`` are only the kept entries."""
    return values if kept is None else kept(values)


def _powers(device: torch.device) -> Tensor:
    return 2 ** torch.arange(_BITS, dtype=torch.uint8, device=device)
