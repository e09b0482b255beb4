"""Class-incremental distillation with the earlier coreset as a memory (ours).

The networks of the pool are trained on the union of the earlier and the new coreset; the earlier rows do not change. At
each outer step a random half of the rows of each earlier class is in the inner problem with the new rows. The other
half is in the outer loss with a batch of the step's rows, where it replaces the earlier classes' data. Each class,
earlier or new, has the same weight.

No row is in both problems: rows that the inner problem fits have no loss left, and then nothing would keep the new
classes from claiming all inputs that differ from an earlier *synthetic* row (results/vbpc/increments.md).
"""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import require
from ...seeds import Seed
from .init import Coreset


@final
class Memory:
    """An earlier coreset, and the share of the step's own classes in the outer loss."""

    def __init__(self, coreset: Coreset, new: int) -> None:
        """Create the memory of an earlier coreset, to which ``new`` classes are added.

        Raises:
            ConfigError: a class has only one row, so it cannot be halved.
        """
        self.coreset, self._classes = coreset, coreset.classes.cpu()
        _, place, counts = self._classes.unique(return_inverse=True, return_counts=True)
        rule = "must be alone if the earlier coreset has only one row of a class"
        require(int(counts.min()) > 1, "coreset.increment", rule, "with_earlier")
        out, seen = counts // 2, len(counts) + new
        self.share = new / seen
        self._out = torch.cat(
            [torch.arange(int(n)) < n // 2 for n in counts]
        )  # True if a row, in the order of classes, is in the outer half
        self._weights = 1 / (seen * out[place].float())

    def halves(self, rng: Seed) -> tuple[Int[Tensor, " inner"], Int[Tensor, " outer"]]:
        """Draw the earlier rows of the inner problem and of the outer loss."""
        order = torch.randperm(len(self._classes), generator=rng.generator())
        order = order[self._classes[order].argsort(stable=True)]
        return order[~self._out].sort().values, order[self._out].sort().values

    def union(self, images: Tensor, labels: Tensor, rows: Int[Tensor, " row"] | None = None) -> tuple[Tensor, Tensor]:
        """Return the images and labels of both coresets; the earlier rows (all, or only ``rows``) come first."""
        earlier = self.coreset.images, self.coreset.labels
        if rows is not None:
            there = rows.to(images.device, non_blocking=True)
            earlier = earlier[0][there], earlier[1][there]
        return torch.cat([earlier[0], images]), torch.cat([earlier[1], labels])

    def weights(self, batch: int, rows: Int[Tensor, " outer"]) -> Float[Tensor, " row"]:
        """Return the weights of a batch of the step's rows followed by the earlier ``rows``; their sum is 1."""
        own = torch.full((batch,), self.share / batch)
        return torch.cat([own, self._weights[rows]]).to(self.coreset.images.device, non_blocking=True)
