"""Parts of a page that a command writes: the text between two marks, which are comments of Markdown."""

import re
from collections.abc import Mapping
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


def table(head: list[str], rows: list[list[str]], right: tuple[int, ...] = ()) -> str:
    """Return a table of Markdown; ``right``: the columns that are aligned to the right."""
    rule = ["---:" if number in right else "---" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(cell or ' ' for cell in row)} |" for row in [head, rule, *rows])
