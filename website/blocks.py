"""Parts of a page that a command writes: the text between two marks, which are comments of Markdown."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bdl_pipe.errors import UserError

BLOCK: Final = re.compile(r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end -->)", re.S)


def filled(page: str, parts: Mapping[str, str]) -> str:
    """Return the page with each of its blocks replaced.

    Args:
        parts: name of a block -> its text.

    Raises:
        UserError: a block has a name that is not in ``parts``.
    """
    for name in names(page):
        if name not in parts:
            raise UserError(f"a page must have blocks of known names, got generated: {name}")
    return BLOCK.sub(lambda match: f"{match[1]}{parts[match[2]].strip()}\n{match[3]}", page)


def names(page: str) -> list[str]:
    """List the names of a page's blocks."""
    return [name for _, name, _ in BLOCK.findall(page)]


def write(pages: Mapping[Path, str]) -> int:
    """Write every page that differs, and name it; with ``--check``, only name it and return 1 if there is one."""
    changed = {path: text for path, text in pages.items() if not path.exists() or path.read_text() != text}
    for path, text in changed.items():
        print(os.path.relpath(path))
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return int(bool(changed) and "--check" in sys.argv)


def table(head: list[str], rows: list[list[str]], right: tuple[int, ...] = ()) -> str:
    """Return a table of Markdown; ``right``: the columns that are aligned to the right."""
    rule = ["---:" if number in right else "---" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(cell or ' ' for cell in row)} |" for row in [head, rule, *rows])
