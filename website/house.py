"""The house in one picture, from the import contracts, and the lines of an addition, from the examples of the docs."""

import re
import tomllib
from pathlib import Path
from typing import Final

from .blocks import table

ROOT: Final = Path(__file__).parents[1]
FLOORS: Final = ("floors: stages, pipeline", "floors of the pipeline")
WIDTH: Final = 74
ADDITIONS: Final = {  # an addition -> the page with the example, the file of the example
    "a method": ("your-method.md", "plugins/snapshots.py"),
    "a network": ("your-own-model.md", "plugins/wave.py"),
    "a data source": ("your-source.md", "plugins/rings.py"),
    "a score": ("your-score.md", "plugins/margin.py"),
    "a rival that another package fits": ("rivals.md", "plugins/ngboost.py"),
}


def blocks() -> dict[str, str]:
    """Return the blocks by name."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    blocks_by_name = {}
    for name, start in zip(("floors", "floors of the pipeline"), FLOORS, strict=True):
        (layers,) = (contract["layers"] for contract in contracts if contract["name"].startswith(start))
        blocks_by_name[name] = f"```text\n{drawn(layers)}\n```"
    return {**blocks_by_name, "additions": additions("docs/")}


def drawn(layers: list[str]) -> str:
    """Draw layers as floors of a house; each may import the floors below it."""
    lines = []
    for layer in layers:
        rooms = [room.strip().removeprefix("bdl_pipe.") for room in layer.split("|")]
        line = ""
        for room in rooms:
            if line and len(line) + len(room) + 3 > WIDTH:
                lines.append(line)
                line = ""
            line += f" · {room}" if line else room
        lines += [line, "─" * WIDTH]
    edge = "═" * WIDTH
    return "\n".join([f"╔{edge}╗", *(f"║{line:<{WIDTH}}║" for line in lines[:-1]), f"╚{edge}╝"])


def additions(folder: str) -> str:
    """Return a table of the additions, with the number of lines of each example and its page."""
    rows = []
    for what, (page, file) in ADDITIONS.items():
        text = (ROOT / "docs" / page).read_text()
        (block,) = re.findall(rf"^```python\n# {re.escape(file)}\n(.*?)^```", text, re.M | re.S)
        count = sum(bool(line.strip()) for line in block.splitlines())
        rows.append([what, f"`{file}`", str(count), f"[{page.removesuffix('.md').replace('-', ' ')}]({folder}{page})"])
    return table(["you add", "a file like", "lines of code and docstrings", "shown in"], rows, right=(2,))
