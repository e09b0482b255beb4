"""Files that are written completely or not at all, and checks of text files. Imports nothing heavy."""

import codecs
import errno
import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from .errors import ArtifactError, DataError, UserError, brief

_MARKS: Final = (  # byte order marks; UTF-32's is first, since it begins with UTF-16's
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@runtime_checkable
class Source(Protocol):
    """A file whose bytes can be read, on this machine or another one."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, count: int) -> bytes:
        """Read ``count`` bytes from ``start`` on.

        Raises:
            ArtifactError: the file no longer exists or has changed.
        """
        ...


@dataclass(frozen=True)
class FileBytes:
    """A file as it was when the object was created. The object can be pickled; reading needs the same file.

    Attributes:
        path: the absolute path.
        size: the size in bytes.
        inode, changed: the inode number and the modification time in nanoseconds. With the size they identify the file:
            another machine's file at this path, or a replacement, differs.
        sha256: the hash of the bytes, empty if it is unknown. A replacement with this hash is accepted.
    """

    path: Path
    size: int
    inode: int
    changed: int
    sha256: str = ""

    @classmethod
    def of(cls, path: Path, sha256: str = "") -> "FileBytes":
        """Record a file; raise ArtifactError if it does not exist."""
        try:
            status = path.stat()
        except OSError:
            raise ArtifactError(f"{path}: is missing") from None
        return cls(path.absolute(), status.st_size, status.st_ino, status.st_mtime_ns, sha256)

    def is_here(self) -> bool:
        """Return whether this machine has the file, unchanged."""
        try:
            return self._is(os.stat(self.path))
        except OSError:
            return False

    def read(self, start: int, count: int) -> bytes:
        """Read ``count`` bytes from ``start`` on.

        Raises:
            ArtifactError: the file is missing, has been replaced, or has fewer bytes.
        """
        try:
            with open(self.path, "rb") as file:  # buffered, as a single call of Linux reads at most 2 GiB
                if not self._is(os.fstat(file.fileno())):
                    raise ArtifactError(f"{self.path}: has been replaced since it was opened; start again")
                if start + count > self.size:
                    raise ArtifactError(f"{self.path}: is truncated: {self.size} bytes, not {start + count}")
                file.seek(start)
                return file.read(count)
        except OSError as error:
            raise ArtifactError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    def _is(self, status: os.stat_result) -> bool:
        if (status.st_size, status.st_ino, status.st_mtime_ns) == (self.size, self.inode, self.changed):
            return True
        if not self.sha256 or status.st_size != self.size:
            return False
        return _sha256(self.path, status.st_ino, status.st_mtime_ns) == self.sha256  # DVC replaces a file by a link


@cache
def _sha256(path: Path, inode: int, changed: int) -> str:
    """Hash a file's bytes; ``inode`` and ``changed`` are part of the cache's key, since a file may be replaced."""
    return sha256(path)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, blob: bytes) -> None:
    """Write a file completely or not at all, even if the power fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        refuse_full_disk(error, path)
        raise


def refuse_full_disk(error: OSError, path: Path) -> None:
    """Raise a UserError if ``error`` means that the disk is full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise UserError(f"{path}: the disk is full; nothing was written") from error


def read_error(error: OSError, path: Path) -> DataError:
    """Return the error that explains why a file cannot be opened."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return DataError(f"{brief(path)}: is missing")
    if isinstance(error, IsADirectoryError):
        return DataError(f"{brief(path)}: is a folder, must be a file")
    return DataError(f"{brief(path)}: cannot be read ({error.strerror or error})")


def require_file(path: Path) -> None:
    """Raise DataError unless ``path`` is a readable file."""
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise read_error(error, path) from None


def require_utf8(path: Path) -> None:
    """Read a whole file in blocks, and check that it is UTF-8 text.

    Raises:
        DataError: the file does not exist or has another encoding. The message names the encoding or the byte, and how
            to convert the file.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with open(path, "rb") as file:
            start = file.read(4)
            file.seek(0)
            for mark, encoding in _MARKS:
                if start.startswith(mark):
                    raise _other_encoding(path, encoding, encoding)
            try:
                while block := file.read(1 << 20):
                    if b"\0" in block:
                        raise _other_encoding(path, f"byte 0x00 in line {_line(path)}", None)
                    decoder.decode(block)
                decoder.decode(b"", final=True)
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                raise _other_encoding(path, f"byte 0x{byte:02X} in line {_line(path)}", "LATIN1") from None
    except OSError as error:
        raise read_error(error, path) from None


def read_text(path: Path) -> str:
    """Read the text of a UTF-8 file.

    Raises:
        DataError: see :func:`require_utf8`.
    """
    require_utf8(path)
    return path.read_text(encoding="utf-8")


def _other_encoding(path: Path, got: str, encoding: str | None) -> DataError:
    way = f" (iconv -f {encoding} -t UTF-8 {path.name} > new)" if encoding else ""
    return DataError(f"{path}: must be UTF-8 text, got {got}; save it as UTF-8{way}")


def _line(path: Path) -> int:
    """Return the number of the first line that is not UTF-8 text or holds a zero byte."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
            if b"\0" in line:
                return number
    return number
