"""Read a tutorial: a Python script in jupytext's percent format.

``# %% [markdown]`` opens a cell of text, ``# %%`` a cell of code, and ``# %% tags=["check"]`` a cell of code that the
page leaves out: its assertions test the claims of the text.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs/tutorials"
HELPER: Final = FOLDER / "scratch.py"  # the module that several tutorials import
_HEAD: Final = re.compile(r"^# %%(.*)$")
_STAMP: Final = "<!-- Made of {name} ({digest}) by make tutorials: edit the script. -->"


@dataclass(frozen=True)
class Cell:
    """A cell of a script.

    Attributes:
        kind: ``markdown``, ``code``, or ``check``, which is code that the page leaves out.
        text: its text, without the comment signs of markdown.
        line: the line of the script on which the text begins, counted from 1.
    """

    kind: Literal["markdown", "code", "check"]
    text: str
    line: int


def scripts() -> list[Path]:
    """List the tutorials in their order."""
    return sorted(FOLDER.glob("[0-9]*.py"))


def cells(text: str) -> list[Cell]:
    """Split a script into its cells; lines before the first mark are left out.

    Raises:
        ValueError: a line of a cell of text is no comment.
    """
    return [cell for cell in _cells(text) if cell.text]


def _cells(text: str) -> Iterator[Cell]:
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if _HEAD.match(line)]
    for head, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        title, body = lines[head][4:].strip(), lines[head + 1 : end]
        if title == "[markdown]":
            wrong = [line for line in body if line and not line.startswith("#")]
            if wrong:
                raise ValueError(f"line {head + 1}: a cell of text must have comments alone, got {wrong[0]!r}")
            yield Cell(
                "markdown", "\n".join(line.removeprefix("#").removeprefix(" ") for line in body).strip(), head + 2
            )
        else:
            blank = next((n for n, line in enumerate(body) if line.strip()), len(body))
            text = "\n".join(body[blank:]).rstrip()
            yield Cell("check" if '"check"' in title else "code", text, head + 2 + blank)


def stamp(script: Path) -> str:
    """Return the first line of a tutorial's page: the script's name, and the digest of the page's sources."""
    parts = [script, *([HELPER] if "from scratch import" in script.read_text() else [])]
    digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:16]
    return _STAMP.format(name=script.name, digest=digest)
