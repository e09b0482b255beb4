"""Files that are either wholly there or not at all. Imports nothing heavy."""

import errno
import os
from pathlib import Path

from .errors import UserError


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
        refuse_full_disk(error, path)
        raise


def refuse_full_disk(error: OSError, path: Path) -> None:
    """Raise a UserError where ``error`` says that the disk is full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise UserError(f"{path}: the disk is full; nothing was written") from error
