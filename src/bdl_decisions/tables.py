"""Rows of the catalogue's data sets, in the form for decisions."""

from typing import Final

import numpy as np
import torch

from bdl_pipe.data.raw import Raw, Source
from bdl_pipe.data.transform import Encoding

_READ: Final[dict[str, Raw]] = {}


def raw_of(source: Source) -> Raw:
    """Read a data set, once in each process."""
    key = repr(source)  # a source with column kinds is not hashable
    if key not in _READ:
        _READ[key] = source.read()
    return _READ[key]


def inputs_of(source: Source) -> np.ndarray:
    """Return the inputs of a data set's own training rows: images unchanged, a table's columns as numbers.

    Categories and gaps are encoded by the inputs of all rows, without the targets.
    """
    raw = raw_of(source)
    if raw.kind == "image" or not raw.columns:
        return raw.train.inputs
    rows = raw.train.inputs
    return Encoding.fit(raw.columns, rows)(torch.from_numpy(rows)).numpy()


def numbers_of(source: Source) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return a data set's standardised inputs float64 [row, column], labels and class names.

    A constant column becomes 0.
    """
    raw, rows = raw_of(source), inputs_of(source)
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    deviation = flat.std(0)
    return (flat - flat.mean(0)) / np.where(deviation > 0, deviation, 1.0), raw.train.targets, raw.classes
