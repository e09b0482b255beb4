"""What the driver sends to workers: values that import the plugins they need, and files that workers read remotely."""

from dataclasses import dataclass
from typing import Any

from bdl_pipe import plugins
from bdl_pipe.artifacts import State, StoredTensors
from bdl_pipe.files import FileBytes, Source

from .hub import get


def with_plugins(value: Any) -> Any:
    """Wrap ``value`` so that a worker which unpickles it imports this process's plugins first."""
    return _WithPlugins(value) if plugins.loaded() else value


class _WithPlugins:
    """A value whose pickle imports the plugins; unpickling returns the value itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        from ray import cloudpickle

        return plugins.opened, (plugins.loaded(), cloudpickle.dumps(self._value))


@dataclass(frozen=True)
class HubFile:
    """A file of the driver's machine. A worker reads it from its own disk if it is there, else through the hub.

    The object store would hold a copy of the whole file; a worker that reads a few tensors asks for their bytes alone.
    """

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
    """Return ``value`` with each of its files replaced by a :class:`HubFile`."""
    if isinstance(value, State) and isinstance(value.tensors, StoredTensors):
        return State(value.tensors.through(lambda source: _hub_file(source, hub)), value.config)
    if isinstance(value, dict):
        return {key: through_hub(part, hub) for key, part in value.items()}
    return _hub_file(value, hub) if isinstance(value, FileBytes) else value


def _hub_file(source: Source, hub: Any) -> Source:
    return HubFile(source, hub) if isinstance(source, FileBytes) else source
