"""Take results away: predictions, models and coresets. An export's folder is there whole, or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bdl_pipe.errors import UserError


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``target``, which takes its place when the block ends well.

    Raises:
        UserError: ``target`` is neither new nor an empty folder, or cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: exists already; --to must be a new or an empty folder")
    temporary = target.absolute().with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if target.exists():
            target.rmdir()
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
