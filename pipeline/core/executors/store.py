"""Where the checkpoints of one stage are kept: a folder of files, named by what they are the work of.

Unfinished work is ``<task>.part``, a finished member ``<task>.done``, so a stage that was killed does
only what is left. The folder's name is a hash of everything that the work depends on: a checkpoint
that other numbers, data or code made is never gone on from. Bytes only: torch is not imported here.
"""

import shutil
from pathlib import Path

from bdl_pipe.files import write_bytes


class Store:
    """The checkpoints of one stage, in ``folder/identity``."""

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder, self._place = folder, folder / identity

    def open(self) -> None:
        """Make the folder, and forget the work of other identities."""
        self._place.mkdir(parents=True, exist_ok=True)
        for other in self._folder.iterdir():
            if other != self._place:
                shutil.rmtree(other, ignore_errors=True)

    def save(self, task: str, blob: bytes) -> None:
        write_bytes(self._place / f"{task}.part", blob)

    def finish(self, task: str, blob: bytes) -> None:
        write_bytes(self._place / f"{task}.done", blob)
        self.discard(task)

    def load(self, task: str) -> bytes | None:
        return _read(self._place / f"{task}.part")

    def finished(self, task: str) -> bytes | None:
        return _read(self._place / f"{task}.done")

    def discard(self, task: str) -> None:
        (self._place / f"{task}.part").unlink(missing_ok=True)

    def clear(self) -> None:
        """The stage's result is safe: forget everything."""
        shutil.rmtree(self._folder, ignore_errors=True)


class Keeper:
    """The driver's end of a worker's way to it, as to checkpoints; without a store it is never asked to keep any."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    def save(self, task: str, blob: bytes) -> None:
        assert self._store is not None
        self._store.save(task, blob)

    def load(self, task: str) -> bytes | None:
        return self._store.load(task) if self._store else None

    def finish(self, task: str, blob: bytes) -> None:
        assert self._store is not None
        self._store.finish(task, blob)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
