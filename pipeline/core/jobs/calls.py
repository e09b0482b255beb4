"""What the two ends of a job agree on: the call that is sent, and the lines that come back.

A call is a folder with a pickle of the function and its arguments, and one folder for each shared value, named by its
hash. Ray's Jobs API takes folders as modules, sends each hash once, and puts them on the path of the job. What comes
back are lines of the job's output: ``MARK`` and an event in JSON. All else in the output is somebody's words.
"""

import hashlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from bdl_pipe.artifacts import State, StoredTensors
from bdl_pipe.files import Source, write_bytes

MARK: Final = "@bdl "
BLOB: Final = "blob"
VERSIONS: Final = "versions.json"
EXPORTS: Final = "bdl-results"  # in the folder of Ray's logs, which the dashboard serves


class Outlet(Protocol):
    """A job's way home."""

    def tell(self, **event: Any) -> None:
        """Send an event: what JSON can hold."""

    def step(self, task: str, step: int, total: int, metrics: dict[str, float]) -> None:
        """Send a task's progress; of figures of the same name the last one may be all that arrives."""

    def keep(self, name: str, blob: bytes) -> None:
        """Send a file; it waits for whoever asks for it."""


Function = Callable[[Any, Mapping[str, Any], Outlet], None]


@dataclass(frozen=True)
class Call:
    """A call to be made on the cluster.

    Attributes:
        name: follows from the work, and is a name to people, too.
        title: what the terminal calls it.
        stage: which asks for it again when it is run; empty: another command does.
        function: importable; what it is given is ``arguments``, the shared values and the outlet.
        shared: each is sent once, whatever number of calls need it.
    """

    name: str
    title: str
    stage: str
    function: Function
    arguments: Any
    shared: Mapping[str, Any]


@dataclass(frozen=True)
class Held:
    """The bytes of a file that travel with whatever reads it."""

    blob: bytes

    @property
    def size(self) -> int:
        return len(self.blob)

    def read(self, start: int, count: int) -> bytes:
        return self.blob[start : start + count]


def portable(value: Any) -> Any:
    """Return ``value`` with each file of this machine in it replaced by its bytes; all else is left as it is."""
    if isinstance(value, State) and isinstance(value.tensors, StoredTensors):
        return State(value.tensors.through(_held), value.config)
    if isinstance(value, dict):
        return {key: portable(part) for key, part in value.items()}
    return _held(value) if isinstance(value, Source) else value


def write(folder: Path, kind: str, blob: bytes) -> Path:
    """Write a blob into a folder that is named by its hash, and return the folder."""
    place = folder / f"bdl_{kind}_{hashlib.sha256(blob).hexdigest()[:32]}"
    place.mkdir(parents=True, exist_ok=True)
    if not (place / BLOB).is_file():
        write_bytes(place / BLOB, blob)
    return place


_TELLING: Final = threading.Lock()
_NUMBERS: Final = itertools.count(1)


def tell(event: Mapping[str, Any]) -> None:
    """Write an event to a job's output with its number ``n``, at once and in one piece: others write there, too."""
    with _TELLING:
        os.write(1, f"{MARK}{json.dumps({**event, 'n': next(_NUMBERS)})}\n".encode())


def event(line: str) -> dict[str, Any] | None:
    """Read a line of a job's output; None where it is somebody's words, which may also stand before an event."""
    _, mark, text = line.partition(MARK)
    if not mark:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("n"), int) else None


def _held(source: Source) -> Source:
    return Held(source.read(0, source.size))
