"""Raw rows: inputs with their targets, in original units."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Examples:
    """A set of raw rows with their targets, in original units.

    Attributes:
        inputs: images uint8 [n, channel, height, width] or columns float64 [n, column].
        targets: labels int64 [n] or targets float64 [n, output].
        units: the group or the date of each row, int64 [n], see :mod:`.units`. None: rows are independent.
        weights: the weight of each row's log-likelihood, > 0, float64 [n]; a weight of 2 counts as two equal rows.
            None: all are 1. Methods with ``weighs_rows`` use them.

    Arrays with other strides or another byte order are copied, and numbers in columns become float64.
    """

    inputs: np.ndarray
    targets: np.ndarray
    units: np.ndarray | None = None
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            values = native(getattr(self, name))
            object.__setattr__(self, name, values.astype(np.float64, copy=False) if values.ndim == 2 else values)

    def __len__(self) -> int:
        return len(self.inputs)

    def cut(self, count: int) -> "tuple[Examples, Examples]":
        """Return views of the first ``count`` rows and of the rest."""
        return self._some(slice(count)), self._some(slice(count, None))

    def _some(self, rows: slice) -> "Examples":
        units, weights = (None if values is None else values[rows] for values in (self.units, self.weights))
        return Examples(self.inputs[rows], self.targets[rows], units, weights)

    def same(self, other: "Examples") -> bool:
        """Return whether both are views of the same memory."""
        pairs = ((self.inputs, other.inputs), (self.targets, other.targets))
        return all((a.ctypes.data, a.shape, a.strides) == (b.ctypes.data, b.shape, b.strides) for a, b in pairs)


def native(values: np.ndarray) -> np.ndarray:
    """Return a contiguous array in this machine's byte order, as torch needs it; copy only if necessary."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))
