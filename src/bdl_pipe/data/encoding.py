"""Columns as people have them, as numbers: categories, dates, missing values.

A table whose columns are described keeps one number for each cell, so that nothing is learnt when a file is read: a
number itself, a date's days since 1970, a category's place in the sorted list of all that the file has; NaN where a
cell is empty, ``UNSEEN`` for a category that the file did not have. An :class:`Encoding` is fitted to the training rows
of a split and turns such a row into what a network sees:

- ``number``: itself, and the median of the training rows where it is missing;
- ``category``: one column for each of the most frequent categories of the training rows, and one for all others
  (scikit-learn's ``OneHotEncoder``); a category that no training row has is one of the others or, where there are none,
  no category at all;
- ``date``: days since 1970; sine and cosine of the year, of the week and, where there are hours, of the day.

Each column with a missing value in the file has another one that says so. The number of columns follows from the file,
so that all splits have equally many; what they mean follows from the training rows alone.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State

ColumnKind = Literal["number", "category", "date"]
KINDS: Final = get_args(ColumnKind)
UNSEEN: Final = -1.0
BOUNDED_SCALE: Final = 0.5  # of columns of 0 and 1, which are not divided by their deviation (Gelman 2008)
_YEAR, _WEEK, _DAY = 365.2425, 7.0, 1.0


@dataclass(frozen=True)
class Column:
    """A feature column of a file.

    Attributes:
        values: of a category, all that the file has, sorted; a row's number is its place here.
        missing: whether a row of the file has none.
        slots: of a category, the most columns that it may become.
        hours: of a date, whether a row has a time of day.
        zoned: of a date, whether rows have a zone and are instants; None: not known (data prepared earlier).
        ends: of a number or a date, the smallest and the largest of the file; empty: not known (data prepared earlier).
    """

    name: str
    kind: ColumnKind
    values: tuple[str, ...] = ()
    missing: bool = False
    slots: int = 20
    hours: bool = False
    zoned: bool | None = None
    ends: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Return how many numbers it becomes."""
        own = {"number": 1, "category": min(len(self.values), self.slots), "date": 7 if self.hours else 5}[self.kind]
        return own + self.missing

    @property
    def bounded(self) -> list[bool]:
        """Say of each of these numbers whether it is one of 0 and 1, or of a circle."""
        return [self.kind == "category", *[True] * (self.width - 1)]

    def mapping(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            "name": self.name,
            "kind": self.kind,
            "values": list(self.values),
            "missing": self.missing,
            "slots": self.slots,
            "hours": self.hours,
            **({"zoned": self.zoned} if self.kind == "date" else {}),
            **({"ends": list(self.ends)} if self.ends else {}),
        }

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> "Column":
        """Read what :meth:`mapping` returned."""
        return cls(**{**mapping, "values": tuple(mapping["values"]), "ends": tuple(mapping.get("ends", ()))})


class Encoding:
    """A fitted map of rows [n, column] to numbers without a gap [n, width]; float64, on any device.

    Attributes:
        columns: as the file has them.
        medians: [column], of numbers and dates in the training rows.
        places: of each category, in the order of the columns: the slot of each of its values, then that of the unseen;
            −1 for none.
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
        """Return how many numbers a row becomes."""
        return sum(column.width for column in self.columns)

    @property
    def bounded(self) -> np.ndarray:
        """Say of each number whether it is one of 0 and 1, or of a circle [width]."""
        return np.array(list(itertools.chain(*(column.bounded for column in self.columns))), dtype=bool)

    def __call__(self, rows: Float[Tensor, "n column"]) -> Float[Tensor, "n width"]:
        """Turn rows into numbers."""
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
        """Name the numbers that a row becomes."""
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
        """Return tensors and config, from which :meth:`from_state` makes it again."""
        tensors = {"medians": self.medians, **{f"places.{i}": places for i, places in enumerate(self.places)}}
        return State(tensors, {"columns": [column.mapping() for column in self.columns]})

    @classmethod
    def from_state(cls, state: State) -> "Encoding":
        """Read what :meth:`state` returned."""
        columns = [Column.of(mapping) for mapping in state.config["columns"]]
        count = sum(column.kind == "category" for column in columns)
        return cls(columns, state.tensors["medians"], [state.tensors[f"places.{i}"] for i in range(count)])


def _places(column: Column, codes: np.ndarray) -> np.ndarray:
    """Return the slot of each value of the column, and of an unseen one, by the categories of the training rows."""
    import warnings

    from sklearn.preprocessing import OneHotEncoder

    count = len(column.values)
    if not len(codes):
        return np.full(count + 1, -1, np.int64)
    encoder = OneHotEncoder(max_categories=column.slots, handle_unknown="infrequent_if_exist", dtype=np.int64)
    encoder.fit(codes[:, None])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found unknown categories")
        slots = encoder.transform(np.append(np.arange(count), count).astype(float)[:, None]).toarray()
    return np.where(slots.any(1), slots.argmax(1), -1)


def _one_hot(column: Column, codes: Tensor, gaps: Tensor, places: Tensor) -> Tensor:
    """Return 0 and 1 [n, slot]; nothing is 1 where the cell is empty."""
    width = min(len(column.values), column.slots)
    index = torch.where(gaps | (codes < 0), float(len(column.values)), codes).long()
    slot = torch.where(gaps, -1, places[index])
    return (slot[:, None] == torch.arange(width, device=codes.device)).double()


def _circles(column: Column, days: Tensor) -> Tensor:
    """Return the days themselves, then sine and cosine of each period."""
    parts = [days]
    for period in (_YEAR, _WEEK, *([_DAY] if column.hours else [])):
        angle = 2 * math.pi * days / period
        parts += [angle.sin(), angle.cos()]
    return torch.stack(parts, dim=1)
