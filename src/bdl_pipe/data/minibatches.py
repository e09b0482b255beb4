"""The rows of a step: three ways to draw them, each from a seed address.

An epoch is a permutation cut into batches (:class:`Minibatches` for a chain; training cuts a permutation for each of
its models). An independent step draws distinct rows, or rows with replacement, at a cost that does not depend on the
number of rows.
"""

from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from ..seeds import Seed


def epoch_order(rows: int, epoch: int, rng: Seed) -> Int[Tensor, " row"]:
    """Return the order of rows in epoch number ``epoch``, a new permutation."""
    return torch.randperm(rows, generator=rng.fold("epoch", epoch).generator())


def distinct(rows: int, size: int | None, generator: torch.Generator) -> Int[Tensor, " row"]:
    """Draw ``size`` distinct rows of ``rows``, in a random order; all rows if ``size`` is None or larger."""
    return torch.randperm(rows, generator=generator)[:size]


def with_replacement(rows: int, size: int, generator: torch.Generator) -> Int[Tensor, " row"]:
    """Draw ``size`` rows independently, at most ``rows`` of them."""
    return torch.randint(rows, (min(size, rows),), generator=generator)


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
