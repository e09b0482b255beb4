"""The transform between raw rows and network inputs: encoding, scaling, standardisation, whitening.

Images: x/255, then (x − mean)/std per channel, then optionally W(x − centre) with a ZCA matrix W. Tables: categories,
dates and gaps become numbers (:class:`Encoding`), then z = (x − mean)/std per column and, with ``smooth``, z/√(1 +
(z/3)²), which is in (−3, 3) (Holzmüller et al. 2024, section 3). Regression targets: (y − shift)/scale, or with ``log``
(log y − shift)/scale. Every constant is given or fitted to training rows only; a transform is plain tensors, stored
with the data and the posterior.

A table with described columns stores one number for each cell, so that nothing is fitted when a file is read: a number,
the days since 1970 of a date, the index of a category in the sorted list of the file's categories, NaN for an empty
cell, and ``UNSEEN`` for a category that the file does not have. An :class:`Encoding` turns such a row into network
inputs:

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
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State, under
from ..errors import without_warnings
from .examples import native
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
            if column.kind == "category":  # one-hot; a row is zero if the cell is empty
                index = torch.where(gaps | (values < 0), float(len(column.values)), values).long()
                slot = torch.where(gaps, -1, next(places).to(values.device)[index])
                slots = torch.arange(min(len(column.values), column.slots), device=values.device)
                parts.append((slot[:, None] == slots).double())
            else:
                filled = values.masked_fill(gaps, median)
                parts.append(filled[:, None])
                periods = () if column.kind == "number" else (_YEAR, _WEEK, *([_DAY] if column.hours else []))
                for period in periods:
                    angle = 2 * math.pi * filled / period
                    parts += [angle.sin()[:, None], angle.cos()[:, None]]
            if column.missing:
                parts.append(gaps.double()[:, None])
        return torch.cat(parts, dim=1)

    def names(self) -> list[str]:
        """Return the names of the inputs."""
        places, names = iter(self.places), list[str]()
        for column in self.columns:
            if column.kind == "category":
                slots = [""] * min(len(column.values), column.slots)
                for value, slot in zip(column.values, next(places).tolist(), strict=False):
                    slots[slot] = f"{slots[slot]}|{value}" if slots[slot] else value
                names += [f"{column.name}={slot}" for slot in slots]
            else:
                periods = () if column.kind == "number" else ("year", "week", *(["day"] if column.hours else []))
                names += [column.name, *(f"{column.name}:{of} {f}" for of in periods for f in ("sin", "cos"))]
            names += [f"{column.name} missing"] if column.missing else []
        return names

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


@dataclass(frozen=True)
class Whitening:
    """The whitening x ↦ (x − centre) matrix, for flattened inputs [n, d]; ``inverse`` is the inverse of ``matrix``."""

    centre: Tensor  # [d]
    matrix: Tensor  # [d, d], symmetric
    inverse: Tensor  # [d, d], symmetric


@dataclass(frozen=True)
class Transform:
    """A fitted, invertible map of inputs, and of regression targets.

    Attributes:
        kind: ``image`` (uint8 raw, per channel) or ``table`` (floating raw, per column).
        mean, std: the constants of inputs, [channel] or [feature].
        whitening: the whitening after standardisation, only for images.
        shift, scale: the constants of regression targets [output]; None for classes.
        encoding: the encoding of a table's columns. None: all columns are plain numbers.
        smooth: whether inputs of a table are mapped into (−3, 3).
        log: whether regression targets are replaced by their logarithms before they are scaled.
    """

    kind: Literal["image", "table"]
    mean: Tensor
    std: Tensor
    whitening: Whitening | None = None
    shift: Tensor | None = None
    scale: Tensor | None = None
    encoding: Encoding | None = None
    smooth: bool = False
    log: bool = False

    @classmethod
    def of_targets(cls, shift: Tensor | None = None, scale: Tensor | None = None) -> "Transform":
        """Return the transform that keeps the columns of a table unchanged."""
        return cls("table", torch.zeros(1).double(), torch.ones(1).double(), shift=shift, scale=scale)

    def shape(self, raw: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a network's input, given a raw row's shape."""
        return raw if self.encoding is None else (self.encoding.width,)

    def inputs(self, raw: np.ndarray | Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Convert raw rows to float32 network inputs, see :meth:`shape`.

        Args:
            raw: rows of any numeric type, byte order and strides. Columns are standardised in float64, which keeps
                small differences between large numbers.
        """
        values = _tensor(raw, device)
        values = values.to(torch.float32) / 255 if self.kind == "image" else values.to(torch.float64)
        if self.encoding is not None:
            values = self.encoding(values)
        standard = (values - self._wide(self.mean, values)).div_(self._wide(self.std, values))  # 60,000 images: 188 MB
        if self.smooth:
            standard = standard / (1 + (standard / 3).square()).sqrt()
        if self.whitening is None:
            return standard.to(torch.float32)
        flat = standard.flatten(1) - self.whitening.centre.to(standard)
        return (flat @ self.whitening.matrix.to(standard)).reshape(standard.shape).to(torch.float32)

    def inverse_inputs(self, values: Tensor) -> Tensor:
        """Convert network inputs to raw units (images to intensities in [0, 1], unclipped)."""
        if self.whitening is not None:
            flat = values.reshape(len(values), -1) @ self.whitening.inverse.to(values)
            values = (flat + self.whitening.centre.to(values)).reshape(values.shape)
        return values * self._wide(self.std, values) + self._wide(self.mean, values)

    def targets(self, raw: np.ndarray | Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Return labels as int64 [n], or standardised targets as float32 [n, output].

        If logarithms are fitted, a target of 0 becomes −inf and a negative target NaN.
        """
        values = _tensor(raw, device)
        if self.shift is None or self.scale is None:
            return values.to(torch.int64)
        values = values.double().log() if self.log else values.double()
        return ((values - self.shift.to(values)) / self.scale.to(values)).to(torch.float32)

    def rows(
        self, inputs: np.ndarray | Tensor, targets: np.ndarray | Tensor, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """Convert raw rows, see :meth:`inputs` and :meth:`targets`."""
        return self.inputs(inputs, device), self.targets(targets, device)

    def own_units(self, values: Tensor) -> Tensor:
        """Convert transformed targets, or ends of intervals, to the targets' own units, in float64."""
        assert self.shift is not None and self.scale is not None, "classes have no units"
        values = values.double()
        values = self.shift.to(values) + self.scale.to(values) * values
        return values.exp() if self.log else values

    def state(self) -> State:
        named: dict[str, Any] = {"mean": self.mean, "std": self.std, "shift": self.shift, "scale": self.scale}
        about: dict[str, Any] = {"kind": self.kind}
        about |= {name: True for name in ("smooth", "log") if getattr(self, name)}
        if self.whitening is not None:
            named |= {f"whitening.{name}": value for name, value in vars(self.whitening).items()}
        if self.encoding is not None:
            encoded = self.encoding.state()
            named |= {f"encoding.{name}": value for name, value in encoded.tensors.items()}
            about["encoding"] = dict(encoded.config)
        return State({name: value for name, value in named.items() if value is not None}, about)

    @classmethod
    def from_state(cls, state: State) -> "Transform":
        """Rebuild the transform from its :meth:`state`."""
        parts = {name: state.tensors.get(name) for name in ("mean", "std", "shift", "scale")}
        whitening, about = under("whitening.", state.tensors), dict(state.config)
        encoding = State(under("encoding.", state.tensors), about.pop("encoding", {}))
        return cls(
            **parts,  # type: ignore[arg-type]
            **about,
            whitening=Whitening(**whitening) if whitening else None,
            encoding=Encoding.from_state(encoding) if encoding.config else None,
        )

    def _wide(self, constants: Tensor, values: Tensor) -> Tensor:
        constants = constants.to(values.device, torch.promote_types(values.dtype, torch.float32))
        return constants[:, None, None] if self.kind == "image" else constants


def _tensor(raw: np.ndarray | Tensor, device: torch.device | str) -> Tensor:
    """Return numbers as a tensor; an array, which may be read-only, is copied."""
    if isinstance(raw, Tensor):
        return raw.to(device)
    return torch.tensor(native(raw), device=device)
