"""The memory of class-incremental learning: the earlier coreset, beside which a step distils its own (ours).

The networks of the pool are trained on the union of both; the earlier rows stay as they are. At each outer step half
of the rows of each earlier class, drawn anew, is in the inner problem with the new rows; the other half is in the outer
loss with a batch of the step's rows, where it stands in for the rows that have gone. Each earlier class has one weight,
and the new ones together have as many as they are.

No row is on both sides: what the inner problem has fitted has no loss left, and then nothing keeps the new rows from
claiming all that looks unlike an earlier *synthetic* row (results/vbpc/increments.md).
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
    """An earlier coreset, and the share of a step's own rows in the outer loss, that of its classes."""

    def __init__(self, coreset: Coreset, new: int) -> None:
        """Take the earlier coreset, beside whose classes ``new`` ones come.

        Raises:
            ConfigError: it has one row of a class, which has no halves.
        """
        self.coreset, self._classes = coreset, coreset.classes.cpu()
        _, place, counts = self._classes.unique(return_inverse=True, return_counts=True)
        rule = "must be alone where the earlier coreset has one row of a class"
        require(int(counts.min()) > 1, "coreset.increment", rule, "with_earlier")
        out, seen = counts // 2, len(counts) + new
        self.share = new / seen
        self._out = torch.cat([torch.arange(int(n)) < n // 2 for n in counts])  # of rows in the order of their classes
        self._weights = 1 / (seen * out[place].float())

    def halves(self, rng: Seed) -> tuple[Int[Tensor, " inner"], Int[Tensor, " outer"]]:
        """Draw the earlier rows of the inner problem and those of the outer loss."""
        order = torch.randperm(len(self._classes), generator=rng.generator())
        order = order[self._classes[order].argsort(stable=True)]
        return order[~self._out].sort().values, order[self._out].sort().values

    def union(self, images: Tensor, labels: Tensor, rows: Int[Tensor, " row"] | None = None) -> tuple[Tensor, Tensor]:
        """Return the images and labels of both, all earlier ones or ``rows`` of them first, as the stage joins them."""
        earlier = self.coreset.images, self.coreset.labels
        if rows is not None:
            there = rows.to(images.device, non_blocking=True)
            earlier = earlier[0][there], earlier[1][there]
        return torch.cat([earlier[0], images]), torch.cat([earlier[1], labels])

    def weights(self, batch: int, rows: Int[Tensor, " outer"]) -> Float[Tensor, " row"]:
        """Return the weights of a batch of the step's rows and of earlier ``rows`` after it; their sum is 1."""
        own = torch.full((batch,), self.share / batch)
        return torch.cat([own, self._weights[rows]]).to(self.coreset.images.device, non_blocking=True)
