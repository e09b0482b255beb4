"""Rows on disk: uncompressed Arrow IPC, memory-mapped.

Images are one column of the fixed-shape-tensor extension type, uint8 [channel, height, width], read
without a copy; tables are float64 columns under their own names. The file's schema metadata say
which columns are inputs and which targets, and how many of the rows are training rows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..errors import ArtifactError
from ..files import Source
from .fitdata import Examples

_ABOUT: Final = b"bdl_pipe"


@dataclass(frozen=True)
class Rows:
    """The rows of a file and the facts written with it."""

    examples: Examples
    about: Mapping[str, Any]


def write(
    path: Path,
    examples: Examples,
    *,
    features: tuple[str, ...] = (),
    targets: tuple[str, ...] = ("label",),
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write rows to ``path``: images where ``features`` is empty, else a table with those columns."""
    if features:
        inputs = {f"input:{n}": pa.array(c) for n, c in zip(features, examples.inputs.T, strict=True)}
    else:
        inputs = {"input": _tensor_array(examples.inputs)}
    columns = examples.targets[:, None] if examples.targets.ndim == 1 else examples.targets
    outputs = {f"target:{n}": pa.array(c) for n, c in zip(targets, columns.T, strict=True)}
    facts = {"one_label": examples.targets.ndim == 1, **(about or {})}
    table = pa.table(inputs | outputs, metadata={_ABOUT: json.dumps(facts, sort_keys=True)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read(path: Path) -> Rows:
    """Read the rows at ``path``, memory-mapped; images are not copied and are read-only.

    Raises:
        ArtifactError: the file is missing, truncated, or was not written by :func:`write`.
    """
    try:
        with pa.memory_map(str(path)) as source:
            return _rows(source, str(path))
    except FileNotFoundError:
        raise ArtifactError(f"{path}: is missing") from None
    except OSError as error:  # an empty file cannot be mapped
        raise ArtifactError(f"{path}: is truncated or cannot be read ({str(error).splitlines()[0]})") from None


def loads(source: Source, origin: str) -> Rows:
    """Read the rows of a file that lies wherever ``source`` reads from, in memory.

    Raises:
        ArtifactError: as :func:`read`.
    """
    return _rows(pa.BufferReader(source.read(0, source.size)), origin)


def _rows(file: Any, origin: str) -> Rows:
    try:
        table = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
        facts = json.loads(table.schema.metadata[_ABOUT])
        return Rows(_examples(table, facts["one_label"]), facts)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ArtifactError(f"{origin}: is truncated or is not an Arrow file of rows ({reason})") from None


def _tensor_array(images: np.ndarray) -> pa.ExtensionArray:
    """Make n tensors of [n, ...], row-major whatever the strides (pyarrow's own conversion records a permutation)."""
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(images.dtype), images.shape[1:])
    values = pa.array(images.reshape(-1))
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(values, type=kind.storage_type))


def _examples(table: pa.Table, one_label: bool) -> Examples:
    inputs = _tensors(table.column("input")) if "input" in table.column_names else _matrix(table, "input:")
    targets = _matrix(table, "target:")
    return Examples(inputs, targets[:, 0] if one_label else targets)


def _tensors(column: pa.ChunkedArray) -> np.ndarray:
    """Read [n, ...]; it is a view of the file where it is one chunk, which is how it is written."""
    chunks = [chunk.storage.flatten().to_numpy(zero_copy_only=True) for chunk in column.chunks]
    flat = chunks[0] if len(chunks) == 1 else np.concatenate([*chunks, np.empty(0, np.uint8)])
    return flat.reshape(-1, *column.type.shape)


def _matrix(table: pa.Table, prefix: str) -> np.ndarray:
    names = [n for n in table.column_names if n.startswith(prefix)]
    return np.stack([table.column(n).to_numpy() for n in names], axis=1)
