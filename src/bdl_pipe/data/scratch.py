"""Large arrays and tables in an unnamed temporary file instead of memory.

The file is memory-mapped, is in the folder for temporary files, and disappears however the process ends.
"""

import tempfile
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

LARGE: Final = 2**27  # an array of at least this many bytes is in a file
_AT_ONCE: Final = 2**26  # the most bytes copied at once


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array, in a file if it is large."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(prefix="bdl-rows-") as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def taken(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return ``array[index]`` as a contiguous array, in a file if it is large."""
    if index.size * array[:1].nbytes < LARGE:
        return np.ascontiguousarray(array[index])
    rows = empty((len(index), *array.shape[1:]), array.dtype)
    for part in chunks(len(index), array[:1].nbytes):
        rows[part] = array[index[part]]
    return rows


def chunks(rows: int, row_bytes: int) -> Iterable[slice]:
    """Return slices that together cover ``rows`` rows, each small enough to copy at once."""
    step = max(1, _AT_ONCE // max(1, row_bytes))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def table(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return a table of batches, written to a file and memory-mapped."""
    with tempfile.NamedTemporaryFile(prefix="bdl-table-", suffix=".arrow") as file:
        with pa.OSFile(file.name, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        with pa.memory_map(file.name) as source:
            return pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
