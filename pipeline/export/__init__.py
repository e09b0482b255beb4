"""Exports of results: predictions, models and coresets. An export's folder is written completely or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bdl_pipe import artifacts
from bdl_pipe.errors import UserError


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``target``, which replaces it when the block ends without an error.

    Raises:
        UserError: ``target`` is neither new nor an empty folder, or cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: exists; --to must be a new or an empty folder")
    try:
        with artifacts.replacing(target.absolute()) as folder:
            yield folder
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror or error})") from None
