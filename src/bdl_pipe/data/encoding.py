"""The encoding of categories, dates and missing values as numbers.

A table with described columns stores one number for each cell, so that nothing is fitted when a file is read: a number,
the days since 1970 of a date, the index of a category in the sorted list of the file's categories, NaN for an empty
cell, and ``UNSEEN`` for a category that the file does not have. An :class:`Encoding` is fitted to the training rows of
a split and turns a row of stored numbers into network inputs:

- ``number``: the number, or the median of the training rows if it is missing;
- ``category``: one column for each of the most frequent categories of the training rows, and one for all other
  categories (scikit-learn's ``OneHotEncoder``); a category without training rows counts as one of the other categories
  or, if there are none, as no category;
- ``date``: days since 1970, then sine and cosine with periods of a year, a week and, if the column has times of day, a
  day.

Each column with a missing value in the file has an additional indicator column. The number of columns depends only on
the file, so that it is the same for all splits; the meaning of the columns depends only on the training rows.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State
from ..errors import without_warnings
from .tables.columns import Column

BOUNDED_SCALE: Final = 0.5  # the scale of 0/1 columns, which are not divided by their standard deviation (Gelman 2008)
_YEAR, _WEEK, _DAY = 365.2425, 7.0, 1.0


class Encoding:
    """A fitted map from rows [n, column] to numbers without gaps [n, width], in float64 on any device.

    Attributes:
        columns: the columns of the file.
        medians: the medians of numbers and dates in the training rows [column].
        places: for each category column, in order: the slot of each of its values, then the slot of unseen values; −1
            means no slot.
    """

    def __init__(self, columns: Sequence[Column], medians: Tensor, places: Sequence[Tensor]) -> None:
        self.columns, self.medians, self.places = tuple(columns), medians, tuple(places)

    @classmethod
    def fit(cls, columns: Sequence[Column], rows: Float[np.ndarray, "n column"]) -> "Encoding":
        """Fit to these rows, which must be training rows."""
        medians = np.zeros(len(columns))
        places = []
        for number, (column, values) in enumerate(zip(columns, rows.T, strict=True)):
            there = values[~np.isnan(values)]
            if column.kind == "category":
                places.append(torch.from_numpy(_places(column, there)))
            elif len(there):
                medians[number] = np.median(there)
        return cls(columns, torch.from_numpy(medians), places)

    @property
    def width(self) -> int:
        """Return the number of network inputs of a row."""
        return sum(column.width for column in self.columns)

    @property
    def bounded(self) -> np.ndarray:
        """Return, for each input, whether it is 0/1, a sine or a cosine [width]."""
        return np.array(list(itertools.chain(*(column.bounded for column in self.columns))), dtype=bool)

    def __call__(self, rows: Float[Tensor, "n column"]) -> Float[Tensor, "n width"]:
        """Encode rows."""
        places, parts = iter(self.places), []
        for column, values, median in zip(self.columns, rows.double().T, self.medians.tolist(), strict=True):
            gaps = values.isnan()
            if column.kind == "category":
                parts.append(_one_hot(column, values, gaps, next(places).to(values.device)))
            else:
                whole = values.masked_fill(gaps, median)
                parts.append(whole[:, None] if column.kind == "number" else _circles(column, whole))
            if column.missing:
                parts.append(gaps.double()[:, None])
        return torch.cat(parts, dim=1)

    def names(self) -> list[str]:
        """Return the names of the inputs."""
        places, found = iter(self.places), list[str]()
        for column in self.columns:
            if column.kind == "category":
                slots = [""] * min(len(column.values), column.slots)
                for value, slot in zip(column.values, next(places).tolist(), strict=False):
                    slots[slot] = f"{slots[slot]}|{value}" if slots[slot] else value
                found += [f"{column.name}={slot}" for slot in slots]
            else:
                circles = [f"{column.name}:{f}" for f in ("year sin", "year cos", "week sin", "week cos")]
                hours = [f"{column.name}:day sin", f"{column.name}:day cos"] if column.hours else []
                found += [column.name] if column.kind == "number" else [column.name, *circles, *hours]
            found += [f"{column.name} missing"] if column.missing else []
        return found

    def state(self) -> State:
        """Return the state, for :meth:`from_state`."""
        tensors = {"medians": self.medians, **{f"places.{i}": places for i, places in enumerate(self.places)}}
        return State(tensors, {"columns": [column.mapping() for column in self.columns]})

    @classmethod
    def from_state(cls, state: State) -> "Encoding":
        """Rebuild the encoding from its :meth:`state`."""
        columns = [Column.of(mapping) for mapping in state.config["columns"]]
        count = sum(column.kind == "category" for column in columns)
        return cls(columns, state.tensors["medians"], [state.tensors[f"places.{i}"] for i in range(count)])


def _places(column: Column, codes: np.ndarray) -> np.ndarray:
    """Return the slot of each value of the column and of unseen values, given the training rows' categories."""
    from sklearn.preprocessing import OneHotEncoder

    count = len(column.values)
    if not len(codes):
        return np.full(count + 1, -1, np.int64)
    encoder = OneHotEncoder(max_categories=column.slots, handle_unknown="infrequent_if_exist", dtype=np.int64)
    encoder.fit(codes[:, None])
    with without_warnings(UserWarning):  # the code of unseen values is no category
        slots = encoder.transform(np.append(np.arange(count), count).astype(float)[:, None]).toarray()
    return np.where(slots.any(1), slots.argmax(1), -1)


def _one_hot(column: Column, codes: Tensor, gaps: Tensor, places: Tensor) -> Tensor:
    """Return the one-hot encoding [n, slot]; a row is zero if the cell is empty."""
    width = min(len(column.values), column.slots)
    index = torch.where(gaps | (codes < 0), float(len(column.values)), codes).long()
    slot = torch.where(gaps, -1, places[index])
    return (slot[:, None] == torch.arange(width, device=codes.device)).double()


def _circles(column: Column, days: Tensor) -> Tensor:
    """Return the days, then sine and cosine of each period."""
    parts = [days]
    for period in (_YEAR, _WEEK, *([_DAY] if column.hours else [])):
        angle = 2 * math.pi * days / period
        parts += [angle.sin(), angle.cos()]
    return torch.stack(parts, dim=1)
