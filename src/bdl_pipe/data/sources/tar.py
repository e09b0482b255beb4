"""Members of a gzipped tar archive, without unpacking it."""

import tarfile
import zlib
from pathlib import Path

from ...errors import DataError


def members(path: Path, wanted: list[str]) -> dict[str, bytes]:
    """The contents of some members; only regular files are read, nothing is extracted to disk.

    It stops at the last of them: what follows (STL-10 has 2.8 GB without labels) is not looked at.

    Raises:
        DataError: the archive is truncated before that, is not one, or lacks a member.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                stream = archive.extractfile(member) if name in wanted and member.isfile() else None
                if stream is not None:
                    found[name] = stream.read()
                if len(found) == len(wanted):
                    break
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is truncated or not a gzipped tar archive ({error})") from None
    for name in wanted:
        if name not in found:
            raise DataError(f"{path}: must contain {name}")
    return found
