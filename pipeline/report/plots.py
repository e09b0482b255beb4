"""The figures, each drawn from stored tables alone.

A figure is drawn in the colours for a light page. On the page its colours are the page's CSS variables, so that they
follow light and dark. Text stays text, and equal input gives equal bytes.
"""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ..core.scores import Estimate, Quantity
from . import columns
from .columns import METRICS, Column
from .cross import Cross
from .tables import RunInfo, Table, is_finite, labels, merged_bins
from .which import Ranks

INK, MUTED, LINE, PAPER = "#1c1d1f", "#6a6c70", "#e3e2dd", "#fbfbf9"
COLOURS: Final = {  # CSS variable -> its colour on a light and on a dark page
    "ink": (INK, "#e8e8e4"),
    "muted": (MUTED, "#9b9da2"),
    "line": (LINE, "#2e3136"),
    "page": (PAPER, "#16181b"),
    "m0": ("#2767c6", "#77a9f7"),
    "m1": ("#c4570c", "#f0985a"),
    "m2": ("#0f7f71", "#45c3b2"),
    "m3": ("#7a46bd", "#b993f5"),
    "m4": ("#c02a63", "#f27fa8"),
    "m5": ("#857000", "#d6bf49"),
    "m6": ("#6b5648", "#bfa898"),
    "m7": ("#12809f", "#62c6e4"),
    "m8": ("#457f1b", "#97cf66"),
    "m9": ("#5a6472", "#a6b0bd"),
}
METHODS: Final = tuple(light for name, (light, _) in COLOURS.items() if name[1:].isdigit())
MARKERS: Final = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚"}  # matplotlib's name -> the same as text
DASHES: Final = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (2, 2)))
STYLE: Final[Mapping[str, Any]] = {
    **matplotlib.rc_params_from_file(str(Path(__file__).with_name("figures.mplstyle")), use_default_template=False),
    **dict.fromkeys(("text.color", "axes.titlecolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), MUTED),
    "grid.color": LINE,
}
FEW: Final = 0.005  # A bin with a smaller share of the predictions is drawn hollow.
Curves = Mapping[str, list[tuple[int, Estimate]]]
"""Run -> its points, from left to right."""


class Mark(NamedTuple):
    """How a run is drawn: as text on the page it is ``glyph`` in the CSS colour ``css``."""

    colour: str
    marker: str
    dashes: Any
    css: str
    glyph: str


def mark(method: int, setting: int) -> Mark:
    """Return the mark of the method and the setting with these numbers."""
    number = method % len(METHODS)
    marker, glyph = list(MARKERS.items())[setting % len(MARKERS)]
    return Mark(METHODS[number], marker, DASHES[setting % len(DASHES)], f"var(--m{number})", glyph)


def marks(runs: Sequence[RunInfo]) -> dict[str, Mark]:
    """Return each run's mark: a colour for its method and a shape for its setting, the same in all figures."""
    methods, found = list(dict.fromkeys(run.method for run in runs)), {}
    for run in runs:
        method = methods.index(run.method)
        alike = (r.setting for r in runs if (r.method, r.dataset) == (run.method, run.dataset))
        setting = list(dict.fromkeys(alike)).index(run.setting)
        found[run.key] = mark(method, setting + method // len(METHODS))
    return found


@dataclass(frozen=True)
class Part:
    """The runs that a figure or a section shows: the runs on one data set or, without its name, all runs."""

    table: Table
    dataset: str
    runs: Sequence[RunInfo]
    names: Mapping[str, str]
    marks: Mapping[str, Mark]

    @property
    def done(self) -> list[RunInfo]:
        """Return the runs that have results."""
        return [run for run in self.runs if run.key not in self.table.notes]


def part(table: Table, dataset: str, looks: Mapping[str, Mark]) -> Part:
    """Return the part of one data set."""
    runs = table.of(dataset)
    return Part(table, dataset, runs, labels(runs, " "), looks)


@dataclass(frozen=True)
class Drawing:
    """A figure with a name that no other figure of a page has, and a text for readers who do not see it."""

    figure: Figure
    name: str
    alt: str

    @property
    def inches(self) -> float:
        """Return the figure's width."""
        return float(self.figure.get_size_inches()[0])

    def file(self) -> bytes:
        """Return the figure as an SVG file, on white."""
        buffer = io.StringIO()
        with matplotlib.rc_context(cast(Any, STYLE)):
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            self.figure.savefig(buffer, format="svg", facecolor="white", metadata=nothing)
        label = f'<svg role="img" aria-label="{escape(self.alt, quote=True)}" '
        return buffer.getvalue().replace("<svg ", label, 1).encode()

    @property
    def inline(self) -> str:
        """Return the figure as an SVG element in the page's colours; its ids begin with its name."""
        text = self.file().decode()
        changes = {'id="': f'id="{self.name}-', "url(#": f"url(#{self.name}-", 'xlink:href="#': f'href="#{self.name}-'}
        changes |= {light: f"var(--{name})" for name, (light, _) in COLOURS.items()}
        for old, new in ({"fill: #ffffff": "fill: none"} | changes).items():
            text = text.replace(old, new)
        return "\n".join(line.strip() for line in text[text.index("<svg") :].splitlines())


def reliability(part: Part, run: str) -> Drawing:
    """Draw accuracy against confidence by bin, above the share of predictions in each bin."""
    bins, label, look = merged_bins(part.table, run), part.names[run], part.marks[run]
    share = bins["count"] / bins["count"].sum()
    with matplotlib.rc_context(cast(Any, STYLE)):
        figure = Figure(figsize=(2.49, 2.8))
        top, low = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        top.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
        many, few = bins[share >= FEW], bins[(share > 0) & (share < FEW)]
        for some in (many, few):
            top.vlines(some.confidence, some.confidence, some.accuracy, color=look.colour, linewidth=1.0, alpha=0.6)
        how: Any = {"color": look.colour, "marker": "o", "markersize": 4}
        top.plot(many.confidence, many.accuracy, linewidth=1.4, **how)
        top.plot(few.confidence, few.accuracy, linestyle="", markerfacecolor=PAPER, **how)
        low.bar(bins.lower, 100 * share, bins.upper - bins.lower, align="edge", color=look.colour, alpha=0.55)
        top.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1], title=label)
        if ece := part.table.estimate(run, Quantity("ece")):
            text = f"ECE {columns.figure(ece, columns.percent).text} %"
            top.text(0.05, 0.95, text, color=MUTED, va="top", transform=top.transAxes)
        low.set(xlabel="confidence", ylabel="%", ylim=(0, 100), yticks=[0, 100])
    gap = float((share * (bins.accuracy - bins.confidence).abs()).sum())
    alt = f"Reliability of {label}: mean gap between confidence and accuracy {columns.percent(gap)} percentage points"
    return Drawing(figure, f"rel-{_slug(run)}", alt)


def severity(part: Part, metric: str) -> Drawing:
    """Draw the metric, mean over corruptions, against severity 0 (clean) to 5; standard errors over seeds."""
    table = part.table
    levels = sorted({of.severity for of in table.quantities(part.dataset) if of.severity is not None})
    at = {0: Quantity(metric)} | {level: Quantity(metric, "corrupted", severity=level) for level in levels}
    curves = {
        run.key: [(level, e) for level, of in at.items() if (e := table.estimate(run.key, of))] for run in part.done
    }
    alt, name = f"{metric} at severity {levels[-1]} of corruption", f"sev-{_slug(part.dataset)}-{metric}"
    return draw_curves(part, curves, metric, name, alt, "severity (0: clean test set)")


def draw_curves(part: Part, curves: Curves, metric: str, name: str, alt: str, xlabel: str) -> Drawing:
    """Draw the metric of each run as a line with standard errors; ``alt`` says what the last points are."""
    known = {run: [(x, e) for x, e in points if is_finite(e)] for run, points in curves.items()}
    lines = sorted((item for item in known.items() if item[1]), key=lambda item: -item[1][-1][1].mean)
    scale = METRICS[metric].scale
    with _axes(5.4, max(3.2, 0.4 + 0.14 * len(lines))) as axes:
        for run, points in lines:
            x, means = [x for x, _ in points], [scale * e.mean for _, e in points]
            errors = [scale * (e.error or 0.0) for _, e in points]
            axes.errorbar(
                x, means, errors, **_drawn(part.marks[run]), linestyle=part.marks[run].dashes, label=part.names[run]
            )
        axes.set(xticks=sorted({x for _, points in lines for x, _ in points}), xlabel=xlabel)
        axes.set_title(METRICS[metric].label)
        if lines:
            _figure(axes).legend(loc="outside right center")
    ends = {run: scale * points[-1][1].mean for run, points in known.items() if points}
    return Drawing(_figure(axes), name, f"{alt}: {_list(part.names, ends, lambda value: f'{value:.3g}')}")


def cost(part: Part, column: Column) -> Drawing | None:
    """Draw NLL against one cost on a logarithmic axis; None without any figures."""
    estimate, axis, metric = part.table.estimate, column.metric.axis, column.of.metric
    known = {r.key: (estimate(r.key, column.of), estimate(r.key, Quantity("nll"))) for r in part.done}
    points = {run: (x.mean, y) for run, (x, y) in known.items() if x and y}
    write = columns.size if metric == "bytes" else None
    name, alt = f"cost-{_slug(part.dataset)}-{metric}", f"NLL against {axis}"
    return _against(part, points, (axis, "NLL"), name, alt, column.metric.write, write)


def distilled(part: Part, cross: Cross, protocol: str, column: Column) -> Drawing | None:
    """Draw a score under a protocol against the seconds of distillation; None for fewer than two coresets."""
    own = {row.runs[protocol].key: row.seconds or 0.0 for row in cross.rows if protocol in row.runs}
    points = {run: (seconds, e) for run, seconds in own.items() if (e := part.table.estimate(run, column.of))}
    if sum(x > 0 and is_finite(score) for x, score in points.values()) < 2:
        return None
    title = f"{protocol}: {'accuracy' if column.of.metric == 'accuracy' else column.metric.label}"
    name = f"coresets-{_slug(cross.dataset)}-{_slug(protocol)}-{column.of.metric}"
    alt = f"{title} against seconds of distillation"
    return _against(part, points, ("distillation, seconds", title), name, alt, columns.seconds)


def _against(
    part: Part,
    points: Mapping[str, tuple[float, Estimate]],
    titles: tuple[str, str],
    name: str,
    alt: str,
    write: columns.Write,
    write_tick: columns.Write | None = None,
) -> Drawing | None:
    """Draw an estimate of each run against a number above 0, on a logarithmic axis of at least one decade."""
    shown = {run: (x, score) for run, (x, score) in points.items() if x > 0 and is_finite(score)}
    if not shown:
        return None
    with _axes(3.5, 2.9) as axes:
        for run, (x, score) in shown.items():
            axes.errorbar(x, score.mean, score.error or 0.0, **_drawn(part.marks[run]) | {"markersize": 6})
        axes.set(xscale="log", xlabel=titles[0], title=titles[1])
        axes.margins(0.14)
        low, high = axes.get_xlim()
        if high < 10 * low:
            axes.set_xlim(math.sqrt(low * high) / 3.3, math.sqrt(low * high) * 3.3)
        axes.xaxis.set_major_formatter(lambda value, _: write_tick(value) if write_tick else f"{value:,.10g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    points_said = _list(part.names, shown, lambda point: f"{point[1].mean:.3g} at {write(point[0])}")
    return Drawing(_figure(axes), name, f"{alt}: {points_said}")


def dots(part: Part, metric: str) -> Drawing:
    """Draw one line for each run: mean and standard error, and every split as a faint dot."""
    known = {run.key: part.table.estimate(run.key, Quantity(metric)) for run in part.done}
    with _axes(3.9, 0.75 + 0.34 * len(known)) as axes:
        for i, (run, estimate) in enumerate(known.items()):
            if estimate is not None and is_finite(estimate):
                values, colour = part.table.groups(run, Quantity(metric)), part.marks[run].colour
                axes.plot(values, [i] * len(values), "o", color=colour, alpha=0.35, markersize=4, markeredgewidth=0)
                axes.errorbar(estimate.mean, i, xerr=estimate.error or 0.0, color=colour, marker="D", elinewidth=2)
        _name_lines(axes, [part.names[run] for run in known])
        axes.set_title(metric.upper())
    means = {run: estimate.mean for run, estimate in known.items() if estimate}
    alt = f"{metric.upper()} by method: {_list(part.names, means, lambda mean: f'{mean:.3f}')}"
    return Drawing(_figure(axes), f"dots-{_slug(part.dataset)}-{metric}", alt)


def critical_difference(found: Ranks) -> Drawing:
    """Draw mean ranks with half the critical difference to each side: bars overlap if methods cannot be told apart."""
    names, means = list(found.means), list(found.means.values())
    with _axes(7.4, 0.75 + 0.22 * len(names)) as axes:
        axes.errorbar(means, range(len(names)), xerr=found.critical / 2, fmt="o", color=INK, elinewidth=1.6)
        _name_lines(axes, [f"{name.replace('_', ' ')}  {rank:.2f}" for name, rank in found.means.items()])
        axes.set(xticks=range(1, len(names) + 1), xlabel=f"mean rank; critical difference {found.critical:.2f}")
    ends = " to ".join(f"{names[end]} ({means[end]:.2f})" for end in (0, -1))
    return Drawing(_figure(axes), "critical-difference", f"Mean ranks of {len(names)} methods, from {ends}")


@contextmanager
def _axes(width: float, height: float) -> Iterator[Axes]:
    """Yield the axes of a new figure, in the figures' style within the block."""
    with matplotlib.rc_context(cast(Any, STYLE)):
        yield Figure(figsize=(width, height)).subplots()


def _figure(axes: Axes) -> Figure:
    return cast(Figure, axes.get_figure(root=True))


def _drawn(look: Mark) -> dict[str, Any]:
    return {"color": look.colour, "marker": look.marker, "elinewidth": 0.9}


def _name_lines(axes: Axes, names: Sequence[str]) -> None:
    """Name the lines 0, 1, … of a figure, from the top."""
    axes.set(yticks=range(len(names)), ylim=(len(names) - 0.5, -0.5))
    axes.set_yticklabels(names, color=INK)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _list(names: Mapping[str, str], values: Mapping[str, Any], write: Callable[[Any], str]) -> str:
    return ", ".join(f"{names[key]} {write(value)}" for key, value in values.items())


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text)
