"""The checkpoints of one stage: a folder of files, named by a hash of everything that the work depends on.

Unfinished work is ``<task>.part`` and a finished task ``<task>.done``, so that a stage which was killed repeats only
unfinished tasks. A checkpoint of other parameters, data or code has another folder and is never used. A process that
works in a folder holds a shared lock on ``<folder>.lock``, and no process removes a locked folder. With
``BDL_CHECKPOINTS`` unfinished work is kept in shared storage, which workers write themselves. Files hold bytes: torch
is not imported here.
"""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import IO, Any, Final

from bdl_pipe.files import write_bytes

from ..core.storage import Folder

_VARIABLE: Final = "BDL_CHECKPOINTS"
_LOCK: Final = ".lock"


class Store:
    """The checkpoints of one stage, in ``folder/identity``. A copy in another process uses the same files.

    Attributes:
        shared: the folder of unfinished work in shared storage; None: unfinished work lies here.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder.absolute()
        self._place = self._folder / identity
        self._lock: IO[bytes] | None = None
        self.shared: Folder | None = None

    def sharing(self, address: str) -> "Store":
        """Return this store with unfinished work in the storage at ``address``; an empty address changes nothing.

        Raises:
            UserError: the storage cannot be written.
        """
        if not address:
            return self
        store = Store(self._folder, self._place.name)
        name = "-".join((*self._folder.parts[-2:], self._place.name))
        store.shared = Folder(_VARIABLE, address, name).make()
        return store

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def open(self) -> None:
        """Create and lock the folder, and remove folders of other identities that no process has locked."""
        self._lock = _locked(self._place)
        self._remove_unlocked(keep=self._place.name)

    def save(self, task: str, blob: bytes) -> None:
        """Write a checkpoint of an unfinished task."""
        if self.shared:
            self.shared.save(f"{task}.part", blob)
        else:
            write_bytes(self._place / f"{task}.part", blob)

    def finish(self, task: str, blob: bytes) -> None:
        """Write a finished task's result, and remove its checkpoint."""
        write_bytes(self._place / f"{task}.done", blob)
        (self._place / f"{task}.part").unlink(missing_ok=True)
        if self.shared:
            self.shared.remove(f"{task}.part")

    def load(self, task: str) -> bytes | None:
        """Read the checkpoint of a task; None if there is none."""
        blob = self.shared.load(f"{task}.part") if self.shared else None
        return _read(self._place / f"{task}.part") if blob is None else blob

    def finished(self, task: str) -> bytes | None:
        """Read the result of a finished task; None if there is none."""
        return _read(self._place / f"{task}.done")

    def clear(self) -> None:
        """Unlock the folder, and remove every folder that no other process has locked: the result is safe."""
        if self._lock is not None:
            self._lock.close()
        with contextlib.suppress(OSError):  # another process works in a sibling folder
            self._remove_unlocked()
            self._folder.rmdir()

    def _remove_unlocked(self, keep: str = "") -> None:
        for name in {path.name.removesuffix(_LOCK) for path in self._folder.iterdir()} - {keep}:
            _remove_unless_locked(self._folder / name)


def _locked(place: Path) -> IO[bytes]:
    """Create the folder, and return its lock file, open and locked in shared mode."""
    path = place.with_name(place.name + _LOCK)
    while True:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # the folder was removed between mkdir's failure and mkdir's check of its kind
            if place.parent.is_file():
                raise
            continue
        with contextlib.suppress(FileNotFoundError):  # another process removed the parent folder
            lock = open(path, "ab+")  # noqa: SIM115 (it stays open)
            with contextlib.suppress(OSError):  # the file system has no locks
                fcntl.flock(lock, fcntl.LOCK_SH)
            if _is_at(path, lock):
                place.mkdir(exist_ok=True)
                return lock


def _remove_unless_locked(place: Path) -> None:
    """Remove a folder and its lock file, unless a process works there."""
    path = place.with_name(place.name + _LOCK)
    with contextlib.suppress(OSError), open(path, "ab+") as lock:  # OSError: the file is locked
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
