"""The description of a data set that is published as original files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..raw import Raw

FOLDER_VARIABLE: Final = "BDL_DATA_DIR"


@dataclass(frozen=True)
class File:
    """One original file: its URL, size and SHA-256; ``content`` is the SHA-256 of the decompressed content."""

    url: str
    bytes: int
    sha256: str
    content: str = ""

    @property
    def name(self) -> str:
        """Return the file's name, the last part of its URL."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Archive:
    """A set made of original files.

    Attributes:
        files: the original files.
        shape: the shape of an image, (channel, height, width).
        parse: the folder of the files -> raw rows.
        system: the name of a system package, and the folder with its copy of the files.
    """

    name: str
    files: tuple[File, ...]
    shape: tuple[int, int, int]
    parse: Callable[[Path], Raw]
    system: tuple[str, Path] | None = None
