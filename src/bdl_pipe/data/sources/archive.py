"""Data sets as original files: the search for the files, and the check of their hashes.

Files are searched in the user's folder ``$BDL_DATA_DIR/<set>/``, then in a system package's folder, and then downloaded
by ``fetch``. The SHA-256 hashes come from TFDS's checksum lists; if copies of a file differ only in their gzip
header, the hash is of the decompressed content.
"""

import gzip
import hashlib
import os
import tarfile
import zlib
from pathlib import Path

from ...errors import DataError
from ...files import sha256
from ..raw import Raw
from .fetch import fetch
from .files import FOLDER_VARIABLE, Archive, File


def read_archive(archive: Archive) -> Raw:
    """Read a set of original files, from a folder that has them or else by TFDS.

    Raises:
        UserError: the files are not on this machine and cannot be downloaded.
        DataError: a file is missing or is not the published file.
    """
    folder = locate(archive)
    if folder is None:
        return fetch(archive)
    for file in archive.files:
        verify(folder / file.name, file)
    return archive.parse(folder)


def manual_folder(name: str) -> Path | None:
    """Return ``$BDL_DATA_DIR/<set>`` if the variable is set and the folder exists."""
    root = os.environ.get(FOLDER_VARIABLE)
    folder = Path(root) / name if root else None
    return folder if folder is not None and folder.is_dir() else None


def locate(archive: Archive) -> Path | None:
    """Return the user's folder if it exists, else the system package's folder if it holds any of the files.

    Raises:
        DataError: a file is missing in this folder.
    """
    folders = [manual_folder(archive.name), archive.system[1] if archive.system else None]
    for folder in folders:
        present = [f for f in archive.files if folder is not None and (folder / f.name).is_file()]
        if folder is None or (not present and folder != folders[0]):
            continue
        for file in archive.files:
            if file not in present:
                raise DataError(f"{folder / file.name}: is missing; {archive.name} needs it from {file.url}")
        return folder
    return None


def verify(path: Path, file: File) -> None:
    """Raise DataError if ``path`` is not the published file."""
    expected, mode = (file.content, "decompressed ") if file.content else (file.sha256, "")
    digest = content_sha256(path) if file.content else sha256(path)
    if digest != expected:
        raise DataError(f"{path}: {mode}SHA-256 must be {expected}, got {digest}; download it again from {file.url}")


def content_sha256(path: Path) -> str:
    """Compute the SHA-256 of a gzip file's decompressed content.

    Raises:
        DataError: the file is truncated or not gzip.
    """
    try:
        with gzip.open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is truncated or not a gzip file ({error})") from None


def members(path: Path, wanted: list[str]) -> dict[str, bytes]:
    """Read some members of a gzipped tar archive; only regular files are read, and nothing is extracted to disk.

    Reading stops after the last wanted member and skips the rest, such as STL-10's 2.8 GB without labels.

    Raises:
        DataError: the archive is truncated before the last wanted member, is not an archive, or lacks a member.
    """
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                stream = archive.extractfile(member) if name in wanted and member.isfile() else None
                if stream is not None:
                    contents[name] = stream.read()
                if len(contents) == len(wanted):
                    break
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is truncated or not a gzipped tar archive ({error})") from None
    for name in wanted:
        if name not in contents:
            raise DataError(f"{path}: must contain {name}")
    return contents
