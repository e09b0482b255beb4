"""Files of the driver's machine in the hands of workers, who may run on others.

What is shared may hold files that are read when they are asked for: stored tensors, and rows. A worker that has the
file on its machine, the driver's or one of a shared disk, reads it there; any other asks the hub for the bytes.
"""

from dataclasses import dataclass
from typing import Any

from bdl_pipe.artifacts import State, StoredTensors
from bdl_pipe.files import FileBytes, Source

from .hub import get


@dataclass(frozen=True)
class HubFile:
    """A file that is read through the hub on a machine that does not have it."""

    file: FileBytes
    hub: Any

    @property
    def size(self) -> int:
        return self.file.size

    def read(self, start: int, count: int) -> bytes:
        if self.file.is_here():
            return self.file.read(start, count)
        return get(self.hub.read.remote(self.file, start, count))


def through_hub(value: Any, hub: Any) -> Any:
    """Return ``value`` with each file in it replaced by one that ``hub`` can serve; all else is left as it is."""
    if isinstance(value, State) and isinstance(value.tensors, StoredTensors):
        return State(value.tensors.through(lambda source: _hub_file(source, hub)), value.config)
    if isinstance(value, dict):
        return {key: through_hub(part, hub) for key, part in value.items()}
    return _hub_file(value, hub) if isinstance(value, FileBytes) else value


def _hub_file(source: Source, hub: Any) -> Source:
    return HubFile(source, hub) if isinstance(source, FileBytes) else source
