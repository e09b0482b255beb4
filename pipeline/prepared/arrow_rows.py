"""Rows on disk as uncompressed, memory-mapped Arrow IPC.

Inputs are one column of the fixed-shape-tensor extension type, uint8 [channel, height, width] or float64 [feature].
Regression targets are a column of the same type, float64 [output]; labels are an int64 column. All columns are read
without a copy, and a row's numbers are contiguous, so that each row of a batch needs one read. The schema's metadata
contain the names of features and targets, and the number of training rows. If rows belong to groups or dates, an int64
column has their numbers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bdl_pipe.data.examples import Examples
from bdl_pipe.errors import ArtifactError
from bdl_pipe.files import Source

_ABOUT: Final = b"bdl_pipe"


@dataclass(frozen=True)
class Rows:
    """The rows of a file and the facts in its metadata."""

    examples: Examples
    about: Mapping[str, Any]


def write(
    path: Path,
    examples: Examples,
    *,
    features: tuple[str, ...] = (),
    targets: tuple[str, ...] = ("label",),
    about: Mapping[str, object] | None = None,
) -> None:
    """Write rows to ``path``; ``features`` and ``targets`` name the columns of tables."""
    outputs = pa.array(examples.targets) if examples.targets.ndim == 1 else _tensor_array(examples.targets)
    facts = {"features": list(features), "targets": list(targets), **(about or {})}
    columns = {"input": _tensor_array(examples.inputs), "target": outputs}
    if examples.units is not None:
        columns["unit"] = pa.array(examples.units)
    table = pa.table(columns, metadata={_ABOUT: json.dumps(facts, sort_keys=True)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read(path: Path) -> Rows:
    """Read the rows at ``path``, memory-mapped; they are not copied and are read-only.

    Raises:
        ArtifactError: the file is missing, truncated, or was not written by :func:`write`.
    """
    try:
        with pa.memory_map(str(path)) as source:
            return _rows(source, str(path))
    except FileNotFoundError:
        raise ArtifactError(f"{path}: is missing") from None
    except OSError as error:  # also for an empty file, which cannot be mapped
        raise ArtifactError(f"{path}: is truncated or cannot be read ({str(error).splitlines()[0]})") from None


def loads(source: Source, origin: str) -> Rows:
    """Read the rows of a file from ``source``, which may be on another machine, into memory.

    Raises:
        ArtifactError: see :func:`read`.
    """
    return _rows(pa.BufferReader(source.read(0, source.size)), origin)


def _rows(file: Any, origin: str) -> Rows:
    try:
        table = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
        facts = json.loads(table.schema.metadata[_ABOUT])
        units = _array(table.column("unit")) if "unit" in table.column_names else None
        return Rows(Examples(_array(table.column("input")), _array(table.column("target")), units), facts)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ArtifactError(f"{origin}: is truncated or is not an Arrow file of rows ({reason})") from None


def _tensor_array(images: np.ndarray) -> pa.ExtensionArray:
    """Convert [n, ...] with any strides to n row-major tensors (pyarrow's own conversion records a permutation)."""
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(images.dtype), images.shape[1:])
    values = pa.array(images.reshape(-1))
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(values, type=kind.storage_type))


def _array(column: pa.ChunkedArray) -> np.ndarray:
    """Read [n, ...] as a view of the file, since a column is written as one chunk."""
    if not isinstance(column.type, pa.FixedShapeTensorType):
        parts = [chunk.to_numpy(zero_copy_only=True) for chunk in column.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.int64)])
    kind = column.type.value_type.to_pandas_dtype()
    parts = [chunk.storage.flatten().to_numpy(zero_copy_only=True) for chunk in column.chunks]
    flat = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, kind)])
    return flat.reshape(-1, *column.type.shape)
