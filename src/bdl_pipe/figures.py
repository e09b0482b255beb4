"""Figures of stored scores: reliability, scores against severity or classes so far or costs, traces, P(Y₁ = Y₂).

    bins = scores.merged_bins(Path("work/evaluate/houses-gp/calibration.parquet"))
    drawing = reliability(bins, "gp")
    drawing.figure.savefig("reliability.pdf")
    Path("part.html").write_text(drawing.svg("gp"), encoding="utf-8")

Each figure has an alternative text. SVG files store text as text, and equal input gives equal bytes.
"""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import matplotlib
import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from .metrics.table import metric_of
from .metrics.written import percent, writer
from .scores import Estimate

if TYPE_CHECKING:
    import pandas as pd

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
_COLUMNS: Final = 7  # The most plots beside each other.
_LINEAR: Final = 0.01  # Above this value the axis of a difference of probabilities is logarithmic.
_styled: Final = matplotlib.rc_context(STYLE)  # As a decorator, the style holds for one call.


class Mark(NamedTuple):
    """A method's colour number, and one number for its marker and dashes; they are the same in all figures."""

    colour: int = 0
    shape: int = 0

    def look(self) -> dict[str, Any]:
        """Return the colour, the marker and the dashes as matplotlib's ``errorbar`` takes them."""
        return {
            "color": COLOURS[self.colour % len(COLOURS)],
            "marker": MARKERS[self.shape % len(MARKERS)],
            "linestyle": DASHES[self.shape % len(DASHES)],
            "elinewidth": 0.9,
        }


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
        """Show the figure in a notebook."""
        return self.svg("figure")

    @_styled
    def svg(self, name: str, colours: Mapping[str, str] | None = None) -> str:
        """Write the figure as an SVG element for a page.

        Args:
            name: the prefix of the ids in the element; it must be unique on the page.
            colours: colour -> its replacement, such as a variable of the page's style sheet.
        """
        buffer, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self.figure.savefig(buffer, format="svg", metadata=nothing)
        slug, text = "".join(c if c.isalnum() else "-" for c in name), buffer.getvalue()
        changes = {'id="': f'id="{slug}-', "url(#": f"url(#{slug}-", 'xlink:href="#': f'href="#{slug}-'}
        for old, new in {**changes, **(colours or {})}.items():
            text = text.replace(old, new)
        label = f'<svg role="img" aria-label="{escape(self.alt, quote=True)}" '
        text = text[text.index("<svg") :].replace("<svg ", label, 1)
        return "\n".join(line.strip() for line in text.splitlines())


@dataclass(frozen=True)
class Curve:
    """A method's scores, as a line.

    Attributes:
        name: names the method in the legend.
        mark: how the line is drawn.
        points: pairs of a place on the horizontal axis and a score, from left to right.
    """

    name: str
    mark: Mark
    points: Sequence[tuple[int, Estimate]]


@dataclass(frozen=True)
class Progress:
    """A player's mean score after each round of a decision.

    Attributes:
        name: names the player in the legend.
        mark: how the line is drawn.
        points: index: the round; columns ``mean`` and ``error``, the standard error over problems, which may be NaN.
    """

    name: str
    mark: Mark
    points: "pd.DataFrame"


@dataclass(frozen=True)
class Priced:
    """A method's NLL beside its costs.

    Attributes:
        name: names the method in the legend.
        mark: how the method is drawn.
        costs: a cost's name, see :data:`bdl_pipe.metrics.COSTS`, -> its mean.
    """

    name: str
    mark: Mark
    nll: Estimate
    costs: Mapping[str, float]


@dataclass(frozen=True)
class Segment:
    """A method's P(Y₁ = Y₂) for the middle of a line between two inputs and each input on the line.

    Attributes:
        name: names the method in the title.
        points: as :func:`bdl_pipe.scores.mean_same_class` returns them.
    """

    name: str
    mark: Mark
    points: "pd.DataFrame"


@_styled
def reliability(bins: "pd.DataFrame", name: str, mark: Mark = Mark()) -> Drawing:
    """Draw accuracy against confidence by bin, above the share of predictions in each bin.

    Args:
        bins: as :func:`bdl_pipe.scores.merged_bins` returns them.
        name: names the method in the title.
    """
    share, colour = bins["count"] / bins["count"].sum(), mark.look()["color"]
    figure = Figure(figsize=(2.49, 2.8))
    top, low = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    top.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
    top.plot(bins.confidence, bins.accuracy, color=colour, marker="o", markersize=4, linewidth=1.4)
    low.bar(bins.lower, 100 * share, bins.upper - bins.lower, align="edge", color=colour, alpha=0.55)
    top.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1], title=name)
    low.set(xlabel="confidence", ylabel="%", ylim=(0, 100), yticks=[0, 100])
    gap = float((share * (bins.accuracy - bins.confidence).abs()).sum())
    alt = f"Reliability of {name}: mean gap between confidence and accuracy {percent(gap)} percentage points"
    return Drawing(figure, alt)


@_styled
def curves(lines: Iterable[Curve], metric: str, xlabel: str, alt: str) -> Drawing:
    """Draw the metric of each method as a line with standard errors.

    Args:
        lines: the methods; the figure omits points that are not finite.
        alt: the description of the last points in the alternative text, such as ``accuracy at severity 5``.
    """
    known = [(curve, [(x, score) for x, score in curve.points if math.isfinite(score.mean)]) for curve in lines]
    shown = [(curve, points) for curve, points in known if points]
    scale = 100 if metric_of(metric).percent else 1
    figure = Figure(figsize=(5.4, max(3.2, 0.4 + 0.14 * len(shown))))
    axes = figure.subplots()
    for curve, points in sorted(shown, key=lambda item: -item[1][-1][1].mean):
        means, errors = [scale * e.mean for _, e in points], [scale * (e.error or 0.0) for _, e in points]
        axes.errorbar([x for x, _ in points], means, errors, label=curve.name, **curve.mark.look())
    axes.set(xticks=sorted({x for _, points in shown for x, _ in points}), xlabel=xlabel)
    axes.set_title(metric_of(metric).label)
    if shown:
        figure.legend(loc="outside right center")
    ends = [(curve.name, scale * points[-1][1].mean) for curve, points in shown]
    return Drawing(figure, f"{alt}: {_listed(ends)}")


@_styled
def traces(functionals: Mapping[str, Sequence[Sequence[float]]], name: str) -> Drawing:
    """Draw the trace of each chain, a plot for each functional.

    Args:
        functionals: title -> values [chain][draw].
        name: names the chains.
    """
    figure = Figure(figsize=(2.2 * len(functionals), 1.9))
    plots = figure.subplots(1, len(functionals), squeeze=False)[0]
    for axes, (title, chains) in zip(plots, functionals.items(), strict=True):
        for number, values in enumerate(chains):
            axes.plot(range(1, len(values) + 1), values, color=COLOURS[number % len(COLOURS)], linewidth=0.8)
        axes.set(title=title, xlabel="draw")
    figure.suptitle(name, x=0.01, ha="left", fontsize=9)
    ranges = [(title, min(map(min, chains)), max(map(max, chains))) for title, chains in functionals.items()]
    return Drawing(figure, f"Traces of {name}: " + ", ".join(f"{t} {low:.3g} to {high:.3g}" for t, low, high in ranges))


@_styled
def same_class(lines: Sequence[Segment]) -> Drawing:
    """Draw P(Y₁ = Y₂) along a line between two inputs, under the joint minus under the product, a plot for each method.

    The axis is linear up to 0.01 and logarithmic above.
    """
    columns = min(_COLUMNS, len(lines))
    rows = -(-len(lines) // columns)
    figure = Figure(figsize=(0.6 + 1.5 * columns, 0.5 + 1.25 * rows))
    gaps = [one.points["joint"] - one.points["product"] for one in lines]
    plots = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in plots.flat[len(lines) :]:
        axes.set_axis_off()
    for number, (axes, one, gap) in enumerate(zip(plots.flat, lines, gaps, strict=False)):
        axes.plot(gap.index, gap, color=one.mark.look()["color"])
        axes.set_yscale("symlog", linthresh=_LINEAR)
        axes.set(xlim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, _LINEAR, 0.1, 1], yticklabels=["0", "0.01", "0.1", "1"])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")  # "0" is short enough beside the "1" of the plot on the left.
        axes.set_title(fill(one.name, 22), fontsize=7.5)
        axes.tick_params(labelbottom=number + columns >= len(lines))
    lowest, highest = min(gap.min() for gap in gaps), max(gap.max() for gap in gaps)
    plots.flat[0].set_ylim(min(-0.1 * _LINEAR, 1.2 * lowest), max(0.1, 1.2 * highest))
    figure.supxlabel("place of the second input on the line; the first input is its middle", color=MUTED, fontsize=8.5)
    figure.supylabel("P(Y₁ = Y₂), joint − product", color=MUTED, fontsize=8.5)
    at = [(one.name, one.points.iloc[len(one.points) // 2]) for one in lines]
    texts = (f"{name} {both['joint']:.3f} and {both['product']:.3f}" for name, both in at)
    return Drawing(figure, f"P(Y₁ = Y₂) of the middle twice, by the joint and by the product: {', '.join(texts)}")


@_styled
def risk(lines: Mapping[str, "pd.Series"], marks: Sequence[Mark], *, wrong: bool) -> Drawing:
    """Draw the risk of the accepted rows against their share, a line for each method, least risk last in the legend.

    Args:
        lines: method -> as :func:`bdl_pipe.scores.mean_risk` returns it.
        marks: how each method is drawn.
        wrong: whether the risk is a share of wrong answers, drawn on a logarithmic axis with lines at 1 and 5 %.
            Otherwise it is a mean loss.
    """
    figure = Figure(figsize=(6.4, max(3.4, 0.4 + 0.14 * len(lines))))
    axes, scale = figure.subplots(), 100 if wrong else 1
    looks = [
        {key: value for key, value in mark.look().items() if key not in ("elinewidth", "marker")} for mark in marks
    ]
    for (name, line), look in sorted(zip(lines.items(), looks, strict=True), key=lambda item: -item[0][1].mean()):
        axes.plot(100 * line.index, (scale * line).where(line > 0), label=name, linewidth=1.2, **look)
    for level in (1, 5) if wrong else ():
        axes.axhline(level, color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
    title = "wrong answers among the accepted, %" if wrong else "mean squared error of the accepted"
    axes.set(xlim=(0, 100), xlabel="accepted rows, % (coverage)", title=title)
    if wrong:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(loc="outside right center")
    at = [(name, scale * float(line.iloc[round(0.8 * len(line)) - 1])) for name, line in lines.items()]
    return Drawing(figure, f"Risk against coverage; risk at 80 % coverage: {_listed(at)}")


@_styled
def progress(lines: Sequence[Progress], title: str, xlabel: str, *, higher: bool = False, log: bool = False) -> Drawing:
    """Draw the scores of players by round with bands of one standard error, the best at the end first in the legend.

    Args:
        title: names the score.
        xlabel: names the unit of the rounds.
        higher: whether a higher score is better.
        log: whether the axis of the score is logarithmic.
    """
    figure = Figure(figsize=(6.4, max(3.4, 0.4 + 0.17 * len(lines))))
    axes, ends = figure.subplots(), {one.name: float(one.points["mean"].iloc[-1]) for one in lines}
    for one in sorted(lines, key=lambda one: -ends[one.name] if higher else ends[one.name]):
        look = {key: value for key, value in one.mark.look().items() if key not in ("elinewidth", "marker")}
        mean, error = one.points["mean"], one.points["error"].fillna(0.0)
        axes.plot(one.points.index, mean, label=one.name, linewidth=1.2, **look)
        axes.fill_between(one.points.index, mean - error, mean + error, color=look["color"], alpha=0.12, linewidth=0)
    axes.set(xlabel=xlabel, title=title)
    if log:
        axes.set_yscale("log")
    figure.legend(loc="outside right center")
    ordered = sorted(ends.items(), key=lambda end: -end[1] if higher else end[1])
    return Drawing(figure, f"{title} by {xlabel}; at the end: {_listed(ordered)}")


@_styled
def pit(count: "pd.Series", low: int, high: int, name: str, mark: Mark = Mark()) -> Drawing:
    """Draw the histogram of F(y), the predictive's distribution function at each target, with the band of chance.

    Args:
        count: as :func:`bdl_pipe.scores.counted_pit` returns it.
        low, high: the ends of the band for a bin's count if predictives are right, see
            :func:`bdl_pipe.metrics.pit.band`.
        name: names the method in the title.
    """
    figure = Figure(figsize=(2.2, 1.9))
    axes, bins, total = figure.subplots(), len(count), int(count.sum())
    axes.axhspan(low, high, color=MUTED, alpha=0.25, linewidth=0)
    axes.bar((np.arange(bins) + 0.5) / bins, count, 0.9 / bins, color=mark.look()["color"], alpha=0.75)
    axes.set(xlim=(0, 1), xticks=[0, 0.5, 1], xlabel="F(y)", ylim=(0, 1.05 * max(high, int(count.max()))))
    axes.set_title(fill(name, 28))
    outside = int(((count < low) | (count > high)).sum())
    shares = ", ".join(percent(value / total) for value in count)
    return Drawing(figure, f"F(y) of {name} in {bins} bins, %: {shares}; {outside} outside of the band of chance")


@_styled
def against_costs(priced: Sequence[Priced], costs: Iterable[str]) -> Drawing | None:
    """Draw NLL against each cost, side by side on logarithmic axes; None if no method has one of the costs.

    Args:
        priced: the methods; the figure omits costs that are not finite and above 0.
        costs: the costs' names, from left to right.
    """
    paid = {cost: [one for one in priced if 0 < one.costs.get(cost, 0) < math.inf] for cost in costs}
    drawn = {metric_of(cost): some for cost, some in paid.items() if some}
    if not drawn:
        return None
    figure = Figure(figsize=(1.7 + 2.6 * len(drawn), max(2.9, 0.4 + 0.14 * len(priced))))
    plots, texts = figure.subplots(1, len(drawn), squeeze=False, sharey=True)[0], list[str]()
    for axes, (cost, some) in zip(plots, drawn.items(), strict=True):
        for one in some:
            look = {**one.mark.look(), "linestyle": "", "markersize": 6}
            label = one.name if axes is plots[0] else None
            axes.errorbar(one.costs[cost.name], one.nll.mean, one.nll.error or 0.0, label=label, **look)
        axes.set(xscale="log", xlabel=cost.label)
        axes.margins(0.14)
        low, high = axes.get_xlim()
        if high < 10 * low:  # A logarithmic axis of less than a decade could have no tick with a number.
            axes.set_xlim(math.sqrt(low * high) / 3.3, math.sqrt(low * high) * 3.3)
        axes.xaxis.set_major_formatter(lambda value, _, write=writer(cost): write(value))
        axes.xaxis.set_minor_formatter(NullFormatter())
        texts.append(f"{cost.label}: {_listed([(one.name, one.costs[cost.name]) for one in some], writer(cost))}")
    plots[0].set_ylabel("NLL")
    figure.legend(loc="outside right center")
    means = _listed([(one.name, one.nll.mean) for one in priced])
    return Drawing(figure, f"NLL against cost: {means}; {'; '.join(texts)}")


@_styled
def calibration(
    lines: Mapping[str, Sequence[tuple[float, float]]], marks: Sequence[Mark], xlabel: str, ylabel: str
) -> Drawing:
    """Draw observed against predicted shares, a line for each method; on the diagonal both are equal.

    Args:
        lines: method -> pairs of a predicted and an observed share, from left to right.
        marks: how each method is drawn.
    """
    figure = Figure(figsize=(4.4, 3.2))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
    for (name, points), mark in zip(lines.items(), marks, strict=True):
        look = {key: value for key, value in mark.look().items() if key != "elinewidth"}
        axes.plot(*np.array(points).T, label=name, **look)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=xlabel, ylabel=ylabel, aspect="equal")
    figure.legend(loc="outside right center")
    gaps = [(name, float(np.mean([abs(said - seen) for said, seen in points]))) for name, points in lines.items()]
    return Drawing(figure, f"{ylabel} against {xlabel}; mean gap: {_listed(gaps)}")


def _listed(values: Iterable[tuple[str, float]], write: Callable[[float], str] = "{:.3g}".format) -> str:
    return ", ".join(f"{name} {write(value)}" for name, value in values)
