"""Which rows a step sees: the three ways in which this library draws them, each from a seed address.

Whole epochs are one permutation cut into batches (:class:`Minibatches` for a chain; a training run cuts the same one
for each of its models). A step that stands by itself draws distinct rows, or rows with replacement, at a cost that does
not depend on how many there are.
"""

from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from ..seeds import Seed


def epoch_order(rows: int, epoch: int, rng: Seed) -> Int[Tensor, " row"]:
    """Return the order in which epoch number ``epoch`` visits the rows: a fresh permutation."""
    return torch.randperm(rows, generator=rng.fold("epoch", epoch).generator())


def distinct(rows: int, size: int | None, generator: torch.Generator) -> Int[Tensor, " row"]:
    """Draw ``size`` distinct rows of ``rows``, in a random order; null, or more than there are: all."""
    return torch.randperm(rows, generator=generator)[:size]


def with_replacement(rows: int, size: int, generator: torch.Generator) -> Int[Tensor, " row"]:
    """Draw ``size`` rows of ``rows``, at most as many as there are, each independent of the others."""
    return torch.randint(rows, (min(size, rows),), generator=generator)


@final
class Minibatches:
    """The minibatches of a chain: M of N rows at step t, from a fresh permutation of all rows in each epoch.

    A pure function of the seed and t; an epoch has N // M batches, and what does not fill one is left
    for other epochs, so that every batch has M rows and every row the same chance.
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
