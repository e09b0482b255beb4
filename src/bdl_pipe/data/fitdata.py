"""The data of a fit: its training and validation rows, as tensors or batch by batch, and their transform.

Large data stay in their memory-mapped file, so that a fit needs memory only for its batches and 8 bytes per row for
the order of an epoch. Batches are the same either way.

There are three ways to draw the rows of a step, each from a seed address. An epoch is a permutation cut into batches
(:class:`Minibatches` for a chain; training cuts a permutation for each of its models). An independent step draws
distinct rows, or rows with replacement, at a cost that does not depend on the number of rows.
"""

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..seeds import Seed
from .examples import Examples, Task
from .transform import Transform

HELD: Final = {"table": 2**25, "image": 2**31}  # the most bytes of transformed inputs that are held in memory
_BATCH: Final = 8192  # rows at a time, in a pass over all rows


def epoch_order(rows: int, epoch: int, rng: Seed) -> Int[Tensor, " row"]:
    """Return the order of rows in epoch number ``epoch``, a new permutation."""
    return torch.randperm(rows, generator=rng.fold("epoch", epoch).generator())


def distinct(rows: int, size: int | None, generator: torch.Generator) -> Int[Tensor, " row"]:
    """Draw ``size`` distinct rows of ``rows``, in a random order; all rows if ``size`` is None or larger."""
    return torch.randperm(rows, generator=generator)[:size]


def with_replacement(rows: int, size: int, generator: torch.Generator) -> Int[Tensor, " row"]:
    """Draw ``size`` rows independently, at most ``rows`` of them."""
    return torch.randint(rows, (min(size, rows),), generator=generator)


def variance_of(
    targets: Float[Tensor, "row output"], weights: Float[Tensor, " row"] | None = None
) -> Float[Tensor, " output"]:
    """Return the variance of each output over the weighted rows, in float64."""
    y = targets.double()
    if weights is None:
        return y.var(0, correction=0)
    shares = weights / weights.sum()
    return shares @ (y - shares @ y).square()


@final
class Minibatches:
    """The minibatches of a chain: M of N rows at step t, from a new permutation of all rows in each epoch.

    The batches are a function of the seed and t. An epoch has N // M batches and skips the remaining rows, so that
    every batch has M rows and all rows have the same probability.
    """

    def __init__(self, rows: int, size: int, rng: Seed, device: torch.device | str = "cpu") -> None:
        self.rows, self.size, self.rng, self.device = rows, min(size, rows), rng, device
        self.per_epoch = rows // self.size
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def __call__(self, step: int) -> Int[Tensor, " row"]:
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, epoch_order(self.rows, epoch, self.rng).to(self.device)
        return self._order[place * self.size : (place + 1) * self.size]


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
        return self._at(index.cpu().numpy())

    def slice(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self._at(slice(start, stop))

    def _at(self, index: np.ndarray | builtins.slice) -> tuple[Tensor, Tensor]:
        return self._transform.rows(self._examples.inputs[index], self._examples.targets[index], self.device)


def rows_of(examples: Examples, transform: Transform, device: torch.device | str) -> Rows:
    """Return the rows, held in memory if they are few enough."""
    shape = transform.shape(tuple(examples.inputs.shape[1:]))
    cells = torch.Size(shape).numel() * len(examples)
    if 4 * cells > HELD[transform.kind]:
        return StreamedRows(examples, transform, device)
    return HeldRows(*transform.rows(examples.inputs, examples.targets, device))


@dataclass(frozen=True)
class FitData:
    """One split of one data set, without its test rows.

    Attributes:
        transform: the transform, fitted to all of ``train``.
        device: the device of a fit's tensors.
        search: the same split with separate validation rows, and a transform fitted only to its training rows. None:
            ``train`` includes no validation rows. A fit that selects something by a score uses ``search or self``, so
            that no row is both fitted and scored.
        ordered: whether ``train.units`` are dates. A cross-validation inside of a method must not divide a unit, and
            must predict later dates from earlier ones (:mod:`.units`).
    """

    task: Task
    train: Examples
    validation: Examples
    transform: Transform
    classes: tuple[str, ...] = ()
    device: str = "cpu"
    search: "FitData | None" = None
    ordered: bool = False

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of a network's input, (channel, height, width) or (feature,)."""
        return self.transform.shape(tuple(self.train.inputs.shape[1:]))

    @property
    def outputs(self) -> int:
        """Return the number of classes or target columns."""
        return len(self.classes) if self.task == "classification" else self.train.targets.shape[1]

    def on(self, device: str) -> "FitData":
        """Return the same data, including ``search``, for a fit on ``device``."""
        return replace(self, device=device, search=self.search.on(device) if self.search else None)

    def __getstate__(self) -> dict[str, Any]:
        """Prepare for pickling, so that rows that ``search`` shares with ``train`` are sent to a worker only once."""
        state, search = {k: v for k, v in self.__dict__.items() if k != "_rows_there"}, self.search
        if search is not None and search.search is None and search.device == self.device:
            train, validation = self.train.cut(len(search.train))
            if train.same(search.train) and validation.same(search.validation):
                state["search"] = len(search.train), search.transform
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(state["search"], tuple):
            count, transform = state["search"]
            train, validation = self.train.cut(count)
            parts = {"train": train, "validation": validation, "transform": transform}
            self.__dict__["search"] = replace(self, **parts, search=None)

    def tensors(
        self, part: Literal["train", "validation"], device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """Return transformed inputs (float32) and targets (int64 [n], or standardised float32 [n, output])."""
        rows = self.train if part == "train" else self.validation
        return self.transform.rows(rows.inputs, rows.targets, device)

    def weights(
        self, part: Literal["train", "validation"], device: torch.device | str = "cpu"
    ) -> Float[Tensor, " row"] | None:
        """Return the weights of the same rows, float64; None if all are 1."""
        given = (self.train if part == "train" else self.validation).weights
        return None if given is None else torch.from_numpy(given).to(device)

    def rows(self, part: Literal["train", "validation"], device: torch.device | str = "cpu") -> Rows:
        """Return the same rows for access by batches, so that large data need not fit in memory."""
        return rows_of(self.train if part == "train" else self.validation, self.transform, device)

    def drawn(self, rows: int | None, rng: Seed) -> tuple[Tensor, Tensor]:
        """Return ``rows`` transformed training rows (None: all), in an order drawn from ``rng``, on ``device``."""
        chosen = distinct(len(self.train), rows, rng.generator()).numpy()
        some = replace(self, train=Examples(self.train.inputs[chosen], self.train.targets[chosen]), search=None)
        return some.tensors("train", self.device)

    def batch(self, size: int, rng: Seed) -> tuple[Tensor, Tensor]:
        """Draw ``size`` transformed training rows with replacement from ``rng``, on ``device``."""
        chosen = with_replacement(len(self.train), size, rng.generator())
        if torch.device(self.device).type == "cpu":
            return self.transform.rows(self.train.inputs[chosen.numpy()], self.train.targets[chosen.numpy()])
        rows, targets = self._rows_there
        there = chosen.to(self.device, non_blocking=True)
        return self.transform.rows(rows[there], targets[there], self.device)

    @cached_property
    def _rows_there(self) -> tuple[Tensor, Tensor]:
        """Return the raw training rows and targets on the device, so that batches are indexed there."""
        return torch.from_numpy(self.train.inputs).to(self.device), torch.from_numpy(self.train.targets).to(self.device)
