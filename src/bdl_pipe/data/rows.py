"""Transformed rows for a fit: all as tensors or, for large data, batch by batch.

Large data stay in their memory-mapped file, so that a fit needs memory only for its batches and 8 bytes per row for
the order of an epoch. Batches are the same either way.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Final, final

import torch
from torch import Tensor

from .examples import Examples
from .transform import Transform

HELD: Final = {"table": 2**25, "image": 2**31}  # the most bytes of transformed inputs that are held in memory
_BATCH: Final = 8192  # rows at a time, in a pass over all rows


class Rows(ABC):
    """The transformed rows of one part of the data, on one device.

    Attributes:
        device: the device of the batches.
        shape: the shape of a row's inputs.
    """

    device: torch.device
    shape: tuple[int, ...]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs [batch, ...] and targets of the rows ``index`` [batch]."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the rows from ``start`` to ``stop`` − 1, or to the last row."""

    @final
    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all rows in order, ``size`` at a time."""
        for start in range(0, len(self), size):
            yield self.slice(start, start + size)

    @cached_property
    def box(self) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest value of each input."""
        parts = [torch.stack([x.amin(0), x.amax(0)]) for x, _ in self.batches(_BATCH)]
        both = torch.stack(parts)
        return both[:, 0].amin(0), both[:, 1].amax(0)


@final
class HeldRows(Rows):
    """Rows that are tensors in memory."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets
        self.device, self.shape = inputs.device, tuple(inputs.shape[1:])

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs.index_select(0, index), self.targets.index_select(0, index)

    def slice(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self.inputs[start:stop], self.targets[start:stop]


@final
class StreamedRows(Rows):
    """Raw rows, perhaps memory-mapped, that are read and transformed on access."""

    def __init__(self, examples: Examples, transform: Transform, device: torch.device | str) -> None:
        self._examples, self._transform = examples, transform
        self.device, self.shape = torch.device(device), transform.shape(tuple(examples.inputs.shape[1:]))

    def __len__(self) -> int:
        return len(self._examples)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        chosen = index.cpu().numpy()
        inputs = self._transform.inputs(self._examples.inputs[chosen], self.device)
        return inputs, self._transform.targets(self._examples.targets[chosen], self.device)

    def slice(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        inputs = self._transform.inputs(self._examples.inputs[start:stop], self.device)
        return inputs, self._transform.targets(self._examples.targets[start:stop], self.device)


def rows_of(examples: Examples, transform: Transform, device: torch.device | str) -> Rows:
    """Return the rows, held in memory if they are few enough."""
    shape = transform.shape(tuple(examples.inputs.shape[1:]))
    cells = torch.Size(shape).numel() * len(examples)
    if 4 * cells > HELD[transform.kind]:
        return StreamedRows(examples, transform, device)
    return HeldRows(transform.inputs(examples.inputs, device), transform.targets(examples.targets, device))
