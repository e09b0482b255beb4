"""Figures of stored scores: reliability, scores against severity or classes so far or costs, traces, P(Y₁ = Y₂).

    bins = scores.merged_bins(Path("work/evaluate/houses-gp/calibration.parquet"))
    drawing = reliability(bins, "gp")
    drawing.figure.savefig("reliability.pdf")
    Path("part.html").write_text(drawing.svg("gp"), encoding="utf-8")

Each figure is a :class:`bdl_pipe.drawing.Drawing`, with an alternative text.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from .drawing import COLOURS, MUTED, Drawing, Mark, listed, styled
from .metrics.table import metric_of
from .metrics.written import percent, writer
from .scores import Estimate

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS: Final = 7  # The most plots beside each other.
_LINEAR: Final = 0.01  # Above this value the axis of a difference of probabilities is logarithmic.


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
class Series:
    """The values of a method or a player, as a table.

    Attributes:
        name: names it in the legend or the title.
        mark: how the line is drawn.
        points: see the function that draws them.
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


@styled
def reliability(bins: "pd.DataFrame", name: str, mark: Mark = Mark()) -> Drawing:
    """Draw accuracy against confidence by bin, above the share of predictions in each bin.

    Args:
        bins: as :func:`bdl_pipe.scores.merged_bins` returns them.
        name: names the method in the title.
    """
    share, colour = bins["count"] / bins["count"].sum(), mark.line()["color"]
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


@styled
def curves(lines: Iterable[Curve], metric: str, xlabel: str, alt: str) -> Drawing:
    """Draw the metric of each method as a line with standard errors.

    Args:
        lines: the methods; the figure omits points that are not finite.
        alt: the description of the last points in the alternative text, such as ``accuracy at severity 5``.
    """
    finite = [(curve, [(x, score) for x, score in curve.points if math.isfinite(score.mean)]) for curve in lines]
    shown = [(curve, points) for curve, points in finite if points]
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
    return Drawing(figure, f"{alt}: {listed(ends)}")


@styled
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


@styled
def same_class(lines: Sequence[Series]) -> Drawing:
    """Draw P(Y₁ = Y₂) along a line between two inputs, under the joint minus under the product, a plot for each method.

    The axis is linear up to 0.01 and logarithmic above. Points are as :func:`bdl_pipe.scores.mean_same_class` returns
    them.
    """
    columns = min(_COLUMNS, len(lines))
    rows = -(-len(lines) // columns)
    figure = Figure(figsize=(0.6 + 1.5 * columns, 0.5 + 1.25 * rows))
    gaps = [one.points["joint"] - one.points["product"] for one in lines]
    plots = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in plots.flat[len(lines) :]:
        axes.set_axis_off()
    for number, (axes, one, gap) in enumerate(zip(plots.flat, lines, gaps, strict=False)):
        axes.plot(gap.index, gap, color=one.mark.line()["color"])
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


@styled
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
    for (name, line), mark in sorted(zip(lines.items(), marks, strict=True), key=lambda item: -item[0][1].mean()):
        axes.plot(100 * line.index, (scale * line).where(line > 0), label=name, linewidth=1.2, **mark.line())
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
    return Drawing(figure, f"Risk against coverage; risk at 80 % coverage: {listed(at)}")


@styled
def progress(lines: Sequence[Series], title: str, xlabel: str, *, higher: bool = False, log: bool = False) -> Drawing:
    """Draw the scores of players by round with bands of one standard error, the best at the end first in the legend.

    Args:
        lines: each player's mean scores; index: the round; columns ``mean`` and ``error``, the standard error over
            problems, which may be NaN.
        title: names the score.
        xlabel: names the unit of the rounds.
        higher: whether a higher score is better.
        log: whether the axis of the score is logarithmic.
    """
    figure = Figure(figsize=(6.4, max(3.4, 0.4 + 0.17 * len(lines))))
    axes, ends = figure.subplots(), {one.name: float(one.points["mean"].iloc[-1]) for one in lines}
    for one in sorted(lines, key=lambda one: -ends[one.name] if higher else ends[one.name]):
        mean, error = one.points["mean"], one.points["error"].fillna(0.0)
        axes.plot(one.points.index, mean, label=one.name, linewidth=1.2, **one.mark.line())
        colour = one.mark.line()["color"]
        axes.fill_between(one.points.index, mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)
    axes.set(xlabel=xlabel, title=title)
    if log:
        axes.set_yscale("log")
    figure.legend(loc="outside right center")
    ordered = sorted(ends.items(), key=lambda end: -end[1] if higher else end[1])
    return Drawing(figure, f"{title} by {xlabel}; at the end: {listed(ordered)}")


@styled
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
    axes.bar((np.arange(bins) + 0.5) / bins, count, 0.9 / bins, color=mark.line()["color"], alpha=0.75)
    axes.set(xlim=(0, 1), xticks=[0, 0.5, 1], xlabel="F(y)", ylim=(0, 1.05 * max(high, int(count.max()))))
    axes.set_title(fill(name, 28))
    outside = int(((count < low) | (count > high)).sum())
    shares = ", ".join(percent(value / total) for value in count)
    return Drawing(figure, f"F(y) of {name} in {bins} bins, %: {shares}; {outside} outside of the band of chance")


@styled
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
        texts.append(f"{cost.label}: {listed([(one.name, one.costs[cost.name]) for one in some], writer(cost))}")
    plots[0].set_ylabel("NLL")
    figure.legend(loc="outside right center")
    means = listed([(one.name, one.nll.mean) for one in priced])
    return Drawing(figure, f"NLL against cost: {means}; {'; '.join(texts)}")


@styled
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
        axes.plot(*np.array(points).T, label=name, marker=mark.look()["marker"], **mark.line())
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=xlabel, ylabel=ylabel, aspect="equal")
    figure.legend(loc="outside right center")
    gaps = [(name, float(np.mean([abs(claimed - seen) for claimed, seen in points]))) for name, points in lines.items()]
    return Drawing(figure, f"{ylabel} against {xlabel}; mean gap: {listed(gaps)}")
