"""Files that are either wholly there or not at all. Imports nothing heavy."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from .errors import ArtifactError, UserError


@runtime_checkable
class Source(Protocol):
    """Bytes that lie somewhere: in a file here, or in one on another machine."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, count: int) -> bytes:
        """``count`` of them from ``start`` on.

        Raises:
            ArtifactError: they are not there any more.
        """
        ...


@dataclass(frozen=True)
class FileBytes:
    """A file as it was when it was looked at, which may be asked for parts of it wherever this is sent to.

    Attributes:
        path: absolute.
        size: in bytes.
        inode, changed: with the size they tell it from a file at the same path on another machine, or put there since.
    """

    path: Path
    size: int
    inode: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> "FileBytes":
        """Raises ArtifactError where there is none."""
        try:
            found = path.stat()
        except OSError:
            raise ArtifactError(f"{path}: is missing") from None
        return cls(path.absolute(), found.st_size, found.st_ino, found.st_mtime_ns)

    def is_here(self) -> bool:
        """Whether this machine has it, as it was."""
        try:
            return self._is(os.stat(self.path))
        except OSError:
            return False

    def read(self, start: int, count: int) -> bytes:
        """``count`` bytes from ``start`` on.

        Raises:
            ArtifactError: the file is not here or has been replaced, or has fewer bytes.
        """
        try:
            with open(self.path, "rb", buffering=0) as file:
                if not self._is(os.fstat(file.fileno())):
                    raise ArtifactError(f"{self.path}: has been replaced since it was opened; start again")
                if start + count > self.size:
                    raise ArtifactError(f"{self.path}: is truncated: {self.size} bytes, not {start + count}")
                file.seek(start)
                return _whole(file.read, count)
        except OSError as error:
            raise ArtifactError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    def _is(self, found: os.stat_result) -> bool:
        return (found.st_size, found.st_ino, found.st_mtime_ns) == (self.size, self.inode, self.changed)


def _whole(read: Callable[[int], bytes], count: int) -> bytes:
    """Linux reads 2 GiB at once at the most."""
    parts = []
    while count > 0:
        parts.append(read(count))
        count -= len(parts[-1])
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_bytes(path: Path, blob: bytes) -> None:
    """Write a file so that it is either wholly there or not at all, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(error, path) from error


def disk_error(error: OSError, path: Path) -> Exception:
    """``error``, or a UserError where it says that the disk is full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"{path}: the disk is full; nothing was written")
    return error
