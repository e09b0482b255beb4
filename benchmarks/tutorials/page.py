"""Pages of tutorials: Markdown with the output and the pictures of a script's cells."""

import re
import textwrap
from pathlib import Path
from typing import Any, Final

from .script import FOLDER, Cell, cells, scripts, stamp

_WIDTH: Final = 98  # columns of printed lines
_LAST: Final = """
---

This page is made from [{name}]({name}), a script that VS Code, or Jupyter with jupytext, can open as a notebook.
"""
_INTRODUCTION: Final = """\
Each tutorial is a script. Run it, for example with `python docs/tutorials/5_last_layers_in_your_loop.py`, or open it as
a notebook in VS Code, or in Jupyter with jupytext. The page shows the script's output and figures. `make tutorials`
runs all scripts and writes the pages again.
"""


def page_of(script: Path) -> Path:
    """Return the file of a script's page."""
    return script.with_suffix(".md")


def pictures_of(script: Path) -> list[Path]:
    """List the files of a page's pictures."""
    return sorted((FOLDER / "images").glob(f"{script.stem}-*.png"))


def page(script: Path, found: list[dict[str, Any]]) -> str:
    """Return the page of a script, given the output and the pictures of each cell."""
    parts, drawn = [stamp(script), ""], 0
    for cell, result in zip(cells(script.read_text()), found, strict=True):
        names = [f"images/{script.stem}-{drawn + n}.png" for n in range(1, 1 + len(result["pictures"]))]
        parts += _part(cell, result, names)
        drawn += len(names)
    return "\n".join(parts) + _LAST.format(name=script.name)


def _part(cell: Cell, result: dict[str, Any], names: list[str]) -> list[str]:
    if cell.kind == "check":
        return []
    lines = [cell.text] if cell.kind == "markdown" else ["```python", cell.text, "```"]
    if result["printed"]:
        lines += ["", "```text", wrapped(result["printed"]), "```"]
    for picture, name in zip(result["pictures"], names, strict=True):
        lines += ["", f"![{picture['shows']}]({name})"]
    return [*lines, ""]


def wrapped(printed: str) -> str:
    """Break printed lines that a page would cut off; rows of tables stay whole."""
    lines = list[str]()
    for line in printed.splitlines():
        indent = line[: len(line) - len(line.lstrip())] + "    "
        whole = len(line) <= _WIDTH or line.startswith("|")
        lines += (
            [line]
            if whole
            else textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        )
    return "\n".join(lines)


def shape(text: str) -> list[str]:
    """Return the lines of a page that do not depend on the machine: all lines except the cells' output."""
    return re.sub(r"^```text\n.*?^```", "```text", text, flags=re.M | re.S).splitlines()


def index() -> str:
    """Return the overview: each tutorial's title and its first sentence, which names the reader's result."""
    lines = ["# Tutorials", "", _INTRODUCTION]
    for script in scripts():
        opening = cells(script.read_text())[0].text
        title, sentence = opening.splitlines()[0].removeprefix("# "), re.sub(r"\s+", " ", opening.split("\n\n")[1])
        lines.append(f"- **[{title}]({script.stem}.md)**. {sentence}")
    return "\n".join(lines) + "\n"
