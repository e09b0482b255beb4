"""The categories of encoded rows, for methods that split by categories in place of one-hot columns.

An :class:`.transform.Encoding` gives a category one input for each of its most frequent values, and one for all others.
:class:`Categories` turns such inputs back into one code for each category. Rare values that share an input keep one
code: their own values are not in a network's inputs.
"""

from collections.abc import Mapping
from typing import Final, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .transform import Transform

NONE: Final = -1.0  # the code of an empty cell, and of a value that the training rows lack and no input stands for


@final
class Categories:
    """The map from inputs [n, d] to rows with a code for each category, then all other inputs [n, d'].

    A code is the place of the category's input among its inputs, or :data:`NONE`.

    Attributes:
        start, width: the first input of each category and the number of its inputs [category].
        middle: the value of each input half-way between 0 and 1, in transformed units [d].
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.start, self.width, self.middle = (tensors[name] for name in ("start", "width", "middle"))
        taken = torch.zeros(len(self.middle), dtype=torch.bool)
        for start, width in zip(self.start.tolist(), self.width.tolist(), strict=True):
            taken[start : start + width] = True
        self._others = (~taken).nonzero()[:, 0]

    @classmethod
    def of(cls, transform: Transform, inputs: int) -> "Categories":
        """Return the map of a table's transform; a table without described columns has no category.

        Args:
            inputs: d, the number of inputs of a row.
        """
        starts, widths, place = list[int](), list[int](), 0
        for column in () if transform.encoding is None else transform.encoding.columns:
            if column.kind == "category" and column.width > column.missing:
                starts.append(place)
                widths.append(column.width - column.missing)
            place += column.width
        half = torch.full((1, inputs), 0.5, dtype=torch.float64)
        middle = (half - transform.mean.double()) / transform.std.double()
        if transform.smooth:
            middle = middle / (1 + (middle / 3).square()).sqrt()
        named = {"start": torch.tensor(starts), "width": torch.tensor(widths)}
        return cls({name: values.to(torch.int64) for name, values in named.items()} | {"middle": middle[0]})

    def __len__(self) -> int:
        """Return the number of categories."""
        return len(self.start)

    @property
    def mask(self) -> Bool[Tensor, " columns"]:
        """Return which columns of the result are codes: the first ones."""
        return torch.arange(len(self) + len(self._others)) < len(self)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the constructor."""
        return {"start": self.start, "width": self.width, "middle": self.middle}

    def __call__(self, inputs: Float[Tensor, "n d"]) -> Float[Tensor, "n columns"]:
        """Return the rows in float64."""
        values = inputs.double()
        on, codes = values > self.middle, list[Tensor]()
        for start, width in zip(self.start.tolist(), self.width.tolist(), strict=True):
            of_column = on[:, start : start + width].double()
            codes.append(torch.where(of_column.any(1), of_column.argmax(1).double(), NONE))
        others = values[:, self._others]
        return torch.cat([torch.stack(codes, 1), others], 1) if codes else others
