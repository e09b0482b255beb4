"""Where the checkpoints of one stage are kept: a folder of files, named by what they are the work of.

Unfinished work is ``<task>.part``, a finished task ``<task>.done``, so a stage that was killed does
only what is left. The folder's name is a hash of everything that the work depends on: a checkpoint
that other numbers, data or code made is never gone on from. A process that works in a folder holds a shared lock
on the file ``<folder>.lock``, until it ends: nobody removes the folder before. Bytes only: torch is not imported here.
With ``BDL_CHECKPOINTS`` unfinished work is kept in storage that all machines share, which workers write themselves.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from ..core import object_store
from ..core.storage import Place, opened

_VARIABLE: Final = "BDL_CHECKPOINTS"
_LOCK: Final = ".lock"


class Store:
    """A store of the checkpoints of one stage, in ``folder/identity``.

    A copy in another process of this machine is of the same files.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder.absolute()
        self._place = self._folder / identity
        self._lock: IO[bytes] | None = None
        self.shared: Shared | None = None

    def sharing(self, address: str) -> "Store":
        """Return this store with checkpoints in the storage at ``address``; without one as it is.

        Raises:
            UserError: it cannot be written.
        """
        if not address:
            return self
        store = Store(self._folder, self._place.name)
        store.shared = Shared(address, opened(_VARIABLE, address, self.name))
        return store

    @property
    def name(self) -> str:
        """Return a name of the work: what it is for, and a hash of all that it depends on."""
        return "-".join((*self._folder.parts[-2:], self._place.name))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def open(self) -> None:
        """Make the folder, and forget the work of other identities that no process is at."""
        self._lock = _hold(self._place)
        self._forget(self._place.name)

    def save(self, task: str, blob: bytes) -> None:
        """Write a checkpoint of a task that is not finished."""
        if self.shared:
            self.shared.save(task, blob)
        else:
            write_bytes(self._place / f"{task}.part", blob)

    def finish(self, task: str, blob: bytes) -> None:
        """Write a finished task's result, and remove its checkpoint."""
        write_bytes(self._place / f"{task}.done", blob)
        self.discard(task)

    def load(self, task: str) -> bytes | None:
        """Read the checkpoint of a task; None where there is none."""
        shared = self.shared.load(task) if self.shared else None
        return _read(self._place / f"{task}.part") if shared is None else shared

    def finished(self, task: str) -> bytes | None:
        """Read the result of a finished task; None where there is none."""
        return _read(self._place / f"{task}.done")

    def discard(self, task: str) -> None:
        """Remove a task's checkpoint, if there is one."""
        (self._place / f"{task}.part").unlink(missing_ok=True)
        if self.shared:
            self.shared.discard(task)

    def clear(self) -> None:
        """Forget everything that no other process is at work on: the stage's result is safe."""
        if self._lock is not None:
            self._lock.close()
        with contextlib.suppress(OSError):  # another process is at work
            self._forget()
            self._folder.rmdir()

    def _forget(self, but: str = "") -> None:
        for name in {path.name.removesuffix(_LOCK) for path in self._folder.iterdir()} - {but}:
            _forget(self._folder / name)


@dataclass(frozen=True)
class Shared:
    """Checkpoints of unfinished work in storage that every node reaches.

    Attributes:
        address: of the storage, for errors.
        place: of the work.
    """

    address: str
    place: Place

    def save(self, task: str, blob: bytes) -> None:
        """Write a checkpoint."""
        with self._told("written"):
            self.place.save(f"{task}.part", blob)

    def load(self, task: str) -> bytes | None:
        """Read a checkpoint; None where there is none."""
        with self._told("read"):
            return self.place.load(f"{task}.part")

    def discard(self, task: str) -> None:
        """Remove a checkpoint, if there is one."""
        with self._told("removed"):
            self.place.remove(f"{task}.part")

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = object_store.reason(error)
            raise UserError(f"{_VARIABLE}={self.address}: a checkpoint cannot be {what}: {why}") from None


class CheckpointChannel:
    """A channel's part that keeps checkpoints. Without a store it is never asked to keep any."""

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


def _hold(place: Path) -> IO[bytes]:
    """Make the folder, and return its lock file, open and shared with whoever else works there."""
    path = place.with_name(place.name + _LOCK)
    while True:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # it was there, and somebody removed it before mkdir saw that it is a folder
            if place.parent.is_file():
                raise
            continue
        with contextlib.suppress(FileNotFoundError):  # somebody removed it in between
            lock = open(path, "ab+")  # noqa: SIM115 (it stays open)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_SH)
            if _is_at(path, lock):
                place.mkdir(exist_ok=True)
                return lock


def _forget(place: Path) -> None:
    """Remove a folder and its lock file, unless a process is at work there."""
    path = place.with_name(place.name + _LOCK)
    with contextlib.suppress(OSError), open(path, "ab+") as lock:  # another's, or a file system without locks
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, lock):
            shutil.rmtree(place, ignore_errors=True)
            path.unlink()


def _is_at(path: Path, file: IO[bytes]) -> bool:
    return os.path.samestat(os.fstat(file.fileno()), os.stat(path))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
