"""The figures, each drawn from stored tables alone.

A figure is drawn in colours that stand for the page's CSS variables, which follow light and dark. Text stays text, and
equal input gives equal bytes.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import matplotlib
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from bdl_pipe.metrics import metric_of
from bdl_pipe.metrics.written import percent
from bdl_pipe.scores import Estimate, Quantity

from .columns import Column
from .tables import COLOURS, Table

STYLE: Final = matplotlib.rc_params_from_file(
    str(Path(__file__).with_name("figures.mplstyle")), use_default_template=False
)
INK, MUTED, LINE = (to_hex(STYLE[name]) for name in ("text.color", "axes.edgecolor", "grid.color"))
METHODS: Final = tuple(map(to_hex, matplotlib.color_sequences["tab10"]))[:COLOURS]
VARIABLES: Final = {INK: "ink", MUTED: "muted", LINE: "line"} | {colour: f"m{i}" for i, colour in enumerate(METHODS)}
"""Colour -> the CSS variable that replaces it, whose values are in ``style.css``."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
DASHES: Final = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (2, 2)))
_styled: Final = matplotlib.rc_context(cast(Any, STYLE))  # As a decorator it holds for one call.
Curves = Mapping[str, list[tuple[int, Estimate]]]
"""Run -> its points, from left to right."""


class Drawing(NamedTuple):
    """A figure as an SVG element in the page's colours, and its width in inches."""

    inline: str
    inches: float


def _look(table: Table, run: str) -> dict[str, Any]:
    """Return the colour, the marker and the dashes that a run has in all figures."""
    colour, shape = table.marks[run]
    return {
        "color": METHODS[colour],
        "marker": MARKERS[shape % len(MARKERS)],
        "linestyle": DASHES[shape % len(DASHES)],
        "elinewidth": 0.9,
    }


@_styled
def reliability(table: Table, run: str) -> Drawing:
    """Draw accuracy against confidence by bin, above the share of predictions in each bin."""
    bins, label, colour = table.bins[run], table.names[run], METHODS[table.marks[run].colour]
    share = bins["count"] / bins["count"].sum()
    figure = Figure(figsize=(2.49, 2.8))
    top, low = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    top.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
    top.plot(bins.confidence, bins.accuracy, color=colour, marker="o", markersize=4, linewidth=1.4)
    low.bar(bins.lower, 100 * share, bins.upper - bins.lower, align="edge", color=colour, alpha=0.55)
    top.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1], title=label)
    low.set(xlabel="confidence", ylabel="%", ylim=(0, 100), yticks=[0, 100])
    gap = float((share * (bins.accuracy - bins.confidence).abs()).sum())
    alt = f"Reliability of {label}: mean gap between confidence and accuracy {percent(gap)} percentage points"
    return _drawing(figure, f"rel-{run}", alt)


@_styled
def draw_curves(table: Table, curves: Curves, metric: str, name: str, alt: str, xlabel: str) -> Drawing:
    """Draw the metric of each run as a line with standard errors; ``alt`` says what the last points are."""
    known = {run: [(x, e) for x, e in points if math.isfinite(e.mean)] for run, points in curves.items()}
    lines = sorted((item for item in known.items() if item[1]), key=lambda item: -item[1][-1][1].mean)
    scale = 100 if metric_of(metric).percent else 1
    figure = Figure(figsize=(5.4, max(3.2, 0.4 + 0.14 * len(lines))))
    axes = figure.subplots()
    for run, points in lines:
        means, errors = [scale * e.mean for _, e in points], [scale * (e.error or 0.0) for _, e in points]
        axes.errorbar([x for x, _ in points], means, errors, label=table.names[run], **_look(table, run))
    axes.set(xticks=sorted({x for _, points in lines for x, _ in points}), xlabel=xlabel)
    axes.set_title(metric_of(metric).label)
    if lines:
        figure.legend(loc="outside right center")
    ends = {run: scale * points[-1][1].mean for run, points in known.items() if points}
    return _drawing(figure, name, f"{alt}: {_list(table.names, ends, lambda value: f'{value:.3g}')}")


@_styled
def costs(table: Table, shown: Sequence[Column]) -> Drawing | None:
    """Draw NLL against each cost, side by side on logarithmic axes; None if no run has an NLL and a cost."""
    scored = table.finite(Quantity("nll"))
    paid = {
        column: {run: e.mean for run in scored if (e := table.estimate(run, column.of)) and 0 < e.mean < math.inf}
        for column in shown
    }
    drawn = {column: at for column, at in paid.items() if at}
    if not drawn:
        return None
    figure = Figure(figsize=(1.7 + 2.6 * len(drawn), max(2.9, 0.4 + 0.14 * len(scored))))
    plots = figure.subplots(1, len(drawn), squeeze=False, sharey=True)[0]
    for axes, (column, at) in zip(plots, drawn.items(), strict=True):
        for run, cost in at.items():
            look = {**_look(table, run), "linestyle": "", "markersize": 6}
            label = table.names[run] if axes is plots[0] else None
            axes.errorbar(cost, scored[run].mean, scored[run].error or 0.0, label=label, **look)
        axes.set(xscale="log", xlabel=column.title)
        axes.margins(0.14)
        low, high = axes.get_xlim()
        if high < 10 * low:  # A logarithmic axis of less than a decade could have no tick with a number.
            axes.set_xlim(math.sqrt(low * high) / 3.3, math.sqrt(low * high) * 3.3)
        axes.xaxis.set_major_formatter(lambda value, _, write=column.write: write(value))
        axes.xaxis.set_minor_formatter(NullFormatter())
    plots[0].set_ylabel("NLL")
    figure.legend(loc="outside right center")
    said = [f"{column.title}: {_list(table.names, at, column.write)}" for column, at in drawn.items()]
    means = _list(table.names, scored, lambda score: f"{score.mean:.3g}")
    return _drawing(figure, f"cost-{table.dataset}", f"NLL against cost: {means}; {'; '.join(said)}")


def _drawing(figure: Figure, name: str, alt: str) -> Drawing:
    """Write a figure as SVG, with ids that begin with ``name``, and ``alt`` for readers who do not see it."""
    buffer, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    slug, text = "".join(c if c.isalnum() else "-" for c in name), buffer.getvalue()
    changes = {'id="': f'id="{slug}-', "url(#": f"url(#{slug}-", 'xlink:href="#': f'href="#{slug}-'}
    changes |= {colour: f"var(--{variable})" for colour, variable in VARIABLES.items()}
    for old, new in changes.items():
        text = text.replace(old, new)
    text = text[text.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(alt, quote=True)}" ', 1)
    return Drawing("\n".join(line.strip() for line in text.splitlines()), float(figure.get_size_inches()[0]))


def _list(names: Mapping[str, str], values: Mapping[str, Any], write: Callable[[Any], str]) -> str:
    return ", ".join(f"{names[key]} {write(value)}" for key, value in values.items())
