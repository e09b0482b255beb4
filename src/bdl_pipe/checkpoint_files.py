"""Folders of checkpoints and results, stored as bytes. This module does not import torch.

:class:`CheckpointFiles` is a folder for one program. :class:`CheckpointFolder` is for programs that are killed, started
again with other parameters, or run beside each other: finished work is not repeated, unfinished work continues, and a
checkpoint of other parameters, data or code is never used.

    folder = CheckpointFolder(Path("checkpoints/chain"), identity)  # a hash of parameters, data and code
    folder.open()
    state = fit(data, inputs, config, rng=rng, report=Checkpointed("chain", folder))
    folder.clear()  # once the result is safe
"""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import IO, Final

from .files import write_bytes

_LOCK: Final = ".lock"


class CheckpointFiles:
    """A folder that keeps the checkpoint of unfinished work as ``<name>.part``, and a result as ``<name>.done``."""

    def __init__(self, folder: Path) -> None:
        self._place = folder

    def save(self, name: str, blob: bytes) -> None:
        """Write a checkpoint in place of the last one of this name."""
        self._write(f"{name}.part", blob)

    def load(self, name: str) -> bytes | None:
        """Read the last checkpoint of this name; None if there is none."""
        return self._read(f"{name}.part")

    def finish(self, name: str, blob: bytes) -> None:
        """Write a result, and remove the checkpoint of this name."""
        self._write(f"{name}.done", blob)
        (self._place / f"{name}.part").unlink(missing_ok=True)

    def finished(self, name: str) -> bytes | None:
        """Read the result of this name; None if there is none."""
        return self._read(f"{name}.done")

    def _write(self, name: str, blob: bytes) -> None:
        self._place.mkdir(parents=True, exist_ok=True)
        write_bytes(self._place / name, blob)

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._place / name).read_bytes()
        except FileNotFoundError:
            return None


class CheckpointFolder(CheckpointFiles):
    """The checkpoints of one piece of work, in ``folder/identity``. A copy in another process uses the same files.

    A process that works in a folder holds a shared lock on ``<identity>.lock``, which ends with the process. No process
    removes a locked folder.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        """Name the folder of the work by ``identity``, a hash of everything that the work depends on."""
        self._folder = folder.absolute()
        super().__init__(self._folder / identity)
        self._lock: IO[bytes] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None}

    def open(self) -> None:
        """Create and lock the folder, and remove folders of other identities that no process has locked."""
        self._lock = _locked(self._place)
        self._remove_unlocked(keep=self._place.name)

    def clear(self) -> None:
        """Unlock the folder, and remove every folder that no process has locked; call it once the result is safe."""
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
