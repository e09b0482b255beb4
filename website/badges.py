"""README's badges: small pictures from files of the repository, without a service."""

import re
import tomllib
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from bdl_pipe.registry import METHODS

from . import stored

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = Path("docs/images/badges")
COLOUR: Final = "#3f51b5"
WIDTH: Final = 6.4  # pixels per letter, at a font size of 11 px


def pages() -> dict[Path, str]:
    """Return the badges by their path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = (stored.RESULTS / "comparison/README.md").read_text()
    seconds = re.search(r"^\| stages \|.* in ([\d,]+) s", about, re.M)
    assert seconds, "results/comparison/README.md must say in how many seconds its stages ran"
    minutes = round(int(seconds[1].replace(",", "")) / 60)
    shown = {
        "python": ("python", project["requires-python"]),
        "licence": ("licence", project["license"]),
        "methods": ("methods", str(len(METHODS))),
        "comparison": ("comparison", f"{len(stored.runs())} runs, {minutes} min on two cores"),
    }
    return {FOLDER / f"{name}.svg": badge(*words) for name, words in shown.items()}


def badge(label: str, value: str) -> str:
    """Return a badge as SVG."""
    left, right = (round(WIDTH * len(text) + 12) for text in (label, value))
    words = "".join(
        f'<text x="{x}" y="14" fill="white" text-anchor="middle">{escape(text)}</text>'
        for x, text in ((left / 2, label), (left + right / 2, value))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(label)}: {escape(value)}" font-family="Verdana,sans-serif" font-size="11">'
        f'<rect width="{left}" height="20" fill="#555"/><rect x="{left}" width="{right}" height="20" fill="{COLOUR}"/>'
        f"{words}</svg>\n"
    )
