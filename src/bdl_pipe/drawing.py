"""How figures look: the style, the marks of methods, and a figure as an SVG element with an alternative text.

SVG files store text as text, and equal input gives equal bytes.
"""

import io
from dataclasses import dataclass
from html import escape
from typing import Any, Final, NamedTuple

import matplotlib
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

INK, MUTED, LINE = "#1c1d1f", "#6a6c70", "#e3e2dd"
COLOURS: Final = tuple(map(to_hex, matplotlib.color_sequences["tab10"]))
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
DASHES: Final = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (2, 2)))
STYLE: Final[dict[str, Any]] = {
    "text.color": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": LINE,
    "svg.fonttype": "none",
    "svg.hashsalt": "bdl-pipe",
    "font.family": "sans-serif",
    "font.sans-serif": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "auto",
    "figure.constrained_layout.use": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 1.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.labelspacing": 0.25,
    "legend.title_fontsize": 7.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "lines.solid_capstyle": "round",
}
styled: Final = matplotlib.rc_context(STYLE)  # As a decorator, the style holds for one call.


class Mark(NamedTuple):
    """A method's colour number, and one number for its marker and dashes; they are the same in all figures."""

    colour: int = 0
    shape: int = 0

    def line(self) -> dict[str, Any]:
        """Return the colour and the dashes as matplotlib's ``plot`` takes them."""
        return {"color": COLOURS[self.colour % len(COLOURS)], "linestyle": DASHES[self.shape % len(DASHES)]}

    def look(self) -> dict[str, Any]:
        """Return the colour, the dashes and the marker as matplotlib's ``errorbar`` takes them."""
        return {**self.line(), "marker": MARKERS[self.shape % len(MARKERS)], "elinewidth": 0.9}


@dataclass(frozen=True)
class Drawing:
    """A figure.

    Attributes:
        alt: the alternative text, for readers who cannot see the figure.
    """

    figure: Figure
    alt: str

    @property
    def inches(self) -> float:
        """Return the figure's width."""
        return float(self.figure.get_size_inches()[0])

    def _repr_html_(self) -> str:
        return self.svg("figure")

    @styled
    def svg(self, name: str) -> str:
        """Write the figure as an SVG element for a page.

        Args:
            name: the prefix of the ids in the element; it must be unique on the page.
        """
        buffer, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self.figure.savefig(buffer, format="svg", metadata=nothing)
        slug, text = "".join(c if c.isalnum() else "-" for c in name), buffer.getvalue()
        changes = {'id="': f'id="{slug}-', "url(#": f"url(#{slug}-", 'xlink:href="#': f'href="#{slug}-'}
        for old, new in changes.items():
            text = text.replace(old, new)
        label = f'<svg role="img" aria-label="{escape(self.alt, quote=True)}" '
        text = text[text.index("<svg") :].replace("<svg ", label, 1)
        return "\n".join(line.strip() for line in text.splitlines())
