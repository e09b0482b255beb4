"""Figures of scores: calibration, NLL against costs, scores by round.

    drawing = progress(lines, "regret", "rounds")
    drawing.figure.savefig("regret.pdf")
    Path("part.html").write_text(drawing.svg("regret"), encoding="utf-8")

Each figure is a :class:`bdl_pipe.drawing.Drawing`, with an alternative text.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from .drawing import MUTED, Drawing, Mark, styled
from .metrics.table import metric_of
from .metrics.written import listed, writer
from .scores import Estimate

if TYPE_CHECKING:
    import pandas as pd


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
