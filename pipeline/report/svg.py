"""Figures as inline SVG whose colours are the page's: one drawing, right in light and in dark.

A figure is drawn in stand-in colours (``INK``, ``MUTED``, ``GRID`` and one a method), which are then
replaced by CSS variables. Text stays text; ids are prefixed, so that many figures share a page; dates
and tool metadata are dropped, so that equal numbers give equal bytes.
"""

import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.figure import Figure

from .tables import RunInfo

INK, MUTED, GRID, PAPER = "#010203", "#040506", "#070809", "#0a0b0c"
METHODS: Final = tuple(f"#0e0f{i:02x}" for i in range(16, 26))
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
DASHES: Final = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (2, 2)))
STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 1.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "lines.solid_capstyle": "round",
}


class Look:
    """A colour for each method and a mark for each setting, the same in every figure of the page."""

    def __init__(self, runs: Sequence[RunInfo]) -> None:
        methods = list(dict.fromkeys(run.method for run in runs))
        self._rank = {run.key: methods.index(run.method) for run in runs}
        self._turn: dict[str, int] = {}
        for run in runs:
            alike = (r for r in runs if (r.method, r.dataset) == (run.method, run.dataset))
            settings = list(dict.fromkeys(r.setting for r in alike))
            self._turn[run.key] = settings.index(run.setting) + self._rank[run.key] // len(METHODS)

    def colour(self, run: str) -> str:
        """Return the colour of a run's method."""
        return METHODS[self._rank[run] % len(METHODS)]

    def variable(self, run: str) -> str:
        """Return the colour as the page's CSS says it."""
        return f"var(--m{self._rank[run] % len(METHODS)})"

    def marker(self, run: str) -> str:
        """Return the marker of a run's setting."""
        return MARKERS[self._turn[run] % len(MARKERS)]

    def dashes(self, run: str) -> Any:
        """Return the line style of a run's setting."""
        return DASHES[self._turn[run] % len(DASHES)]


def render(figure: Figure, name: str, alt: str, dpi: int) -> str:
    """Return ``figure`` as an SVG element, ``dpi`` CSS pixels an inch wide at most; ``alt`` says what it shows."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1\.1"', "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    text = _colours(text).replace("'DejaVu Sans'", "var(--figure)")
    width = round(float(figure.get_size_inches()[0]) * dpi)
    opening = f'<svg role="img" aria-label="{escape(alt, quote=True)}" style="max-width:{width}px"'
    text = re.sub(r'<svg( (?:height|width)="[^"]*")?', opening, text, count=1)
    text = re.sub(r'^(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    text = re.sub(r'^(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    return re.sub(r"\n\s*", "\n", text).strip()


def standalone(svg: str) -> bytes:
    """Turn what :func:`render` gave into a file of its own: as wide as may be, on white, in the colours for light."""
    page = Path(__file__).with_name("style.css").read_text()
    for name, value in re.findall(r"--([\w-]+): ([^;]+);", page[: page.index("@media")]):
        svg = svg.replace(f"var(--{name})", "sans-serif" if name == "figure" else value)
    opening = r'<svg xmlns="http://www.w3.org/2000/svg" width="\2"\1style="background:#ffffff"'
    return re.sub(r'<svg([^>]*?)style="max-width:(\d+)px"', opening, svg, count=1).encode()


def _colours(text: str) -> str:
    names = {INK: "ink", MUTED: "muted", GRID: "line", PAPER: "page"} | {c: f"m{i}" for i, c in enumerate(METHODS)}
    for colour, name in names.items():
        text = text.replace(colour, f"var(--{name})")
    return text
