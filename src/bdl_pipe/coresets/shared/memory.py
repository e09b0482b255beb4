"""The memory of class-incremental learning: the earlier coreset, beside which a step distils its own (ours).

The networks of the pool are trained on the union of both, and the inner problem is solved on it; the earlier rows stay
as they are. In the outer loss they stand in for the rows of the classes that have gone: all of them, under an
augmentation of their own, beside a batch of the step's rows. Every class that has come so far has one weight, within
the step as often as its rows are drawn.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .init import Coreset


@dataclass(frozen=True)
class Memory:
    """An earlier coreset, and how its rows count in the outer loss.

    Attributes:
        coreset: its rows, which stay.
        weights: of each row in the outer loss [row].
        share: what is left for all rows of a batch together; 1 = ``share`` + the sum of ``weights``.
    """

    coreset: Coreset
    weights: Float[Tensor, " row"]
    share: float

    @classmethod
    def of(cls, coreset: Coreset, new: int) -> "Memory":
        """Weight the rows of ``coreset`` where ``new`` classes come beside its own."""
        _, place, counts = coreset.classes.unique(return_inverse=True, return_counts=True)
        seen = len(counts) + new
        return cls(coreset, 1 / (seen * counts[place].float()), new / seen)

    def union(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and labels of both coresets, the earlier rows first, as :func:`~.stage.joined` does."""
        return torch.cat([self.coreset.images, images]), torch.cat([self.coreset.labels, labels])

    def of_batch(self, rows: int) -> Float[Tensor, " row"]:
        """Return the weights of ``rows`` of a batch and, after them, of the earlier rows."""
        return torch.cat([self.weights.new_full((rows,), self.share / rows), self.weights])
