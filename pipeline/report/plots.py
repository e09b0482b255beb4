"""The figures, each drawn from stored tables alone; see :mod:`.svg` for how they reach the page."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import matplotlib
import matplotlib.ticker
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..core.scores import Quantity
from . import columns
from .cross import Cross
from .estimates import Estimate
from .svg import INK, MUTED, PAPER, STYLE, Look, render
from .tables import RunInfo, Table, merged_bins
from .which import Ranks

FEW: Final = 0.005  # a bin with a smaller share of the predictions is drawn hollow
COSTS: Final = {"bytes": "size", "fit_seconds": "fit, seconds", "seconds_per_1000": "seconds per 1,000 predictions"}
_AXES: Final = {"accuracy": "accuracy", "nll": "NLL"}
Point = tuple[float, float]
Curves = Mapping[str, list[tuple[int, Estimate]]]  # run -> its points, from left to right


def reliability(table: Table, run: RunInfo, label: str, look: Look, dpi: int) -> str:
    """Draw accuracy against confidence by bin, above the share of predictions in each bin."""
    bins = merged_bins(table, run.key)
    share = bins["count"] / bins["count"].sum()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.49, 2.8), layout="constrained")
        top, low = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        top.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
        _bins(top, bins, share.to_numpy(), look.colour(run.key))
        low.bar(bins.lower, 100 * share, bins.upper - bins.lower, align="edge", color=look.colour(run.key), alpha=0.55)
        top.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        ece = table.estimate(run.key, Quantity("ece"))
        top.set_title(label)
        if ece:
            text = f"ECE {columns.figure(ece, columns.percent)[0]} %"
            top.text(0.05, 0.95, text, color=MUTED, va="top", transform=top.transAxes)
        low.set(xlabel="confidence", ylabel="%", ylim=(0, 100), yticks=[0, 100])
    gap = float((share * (bins.accuracy - bins.confidence).abs()).sum())
    alt = f"Reliability of {label}: mean gap between confidence and accuracy {columns.percent(gap)} percentage points"
    return render(figure, f"rel-{_slug(run.key)}", alt, dpi)


def _bins(axes: Axes, bins: pd.DataFrame, share: np.ndarray, colour: str) -> None:
    full = bins[share > 0]
    axes.vlines(full.confidence, full.confidence, full.accuracy, color=colour, linewidth=1.0, alpha=0.6)
    many, few = bins[share >= FEW], bins[(share > 0) & (share < FEW)]
    axes.plot(many.confidence, many.accuracy, color=colour, marker="o", markersize=4, linewidth=1.4)
    axes.plot(few.confidence, few.accuracy, color=colour, marker="o", markersize=4, linestyle="", mfc=PAPER)


def critical_difference(found: Ranks, dpi: int) -> str:
    """Draw mean ranks on a line, and a bar over methods that cannot be told apart (Demšar 2006, figure 1)."""
    names, count, groups = list(found.means), len(found.means), found.groups
    below, deepest = 0.5 * len(groups) + 0.8, 0.5 * len(groups) + 0.8 + (count + 1) // 2  # in lines of text
    margin = 0.28 * (count - 1)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 0.7 + 0.19 * deepest), layout="constrained")
        axes = figure.subplots()
        axes.axis("off")
        axes.hlines(0, 1, count, color=MUTED, linewidth=0.8)
        for tick in range(1, count + 1):
            axes.vlines(tick, 0, 0.25, color=MUTED, linewidth=0.6)
            axes.annotate(str(tick), (tick, 0.4), ha="center", color=MUTED, fontsize=7.5)
        axes.hlines(2.0, 1, 1 + found.critical, color=INK, linewidth=1)
        axes.vlines([1, 1 + found.critical], 1.8, 2.2, color=INK, linewidth=1)
        axes.annotate(f"critical difference {found.critical:.2f}", (1, 2.4), fontsize=7.5)
        for line, group in enumerate(groups, start=1):
            low, high = found.means[group[0]], found.means[group[-1]]
            axes.hlines(-0.5 * line, low - 0.05, high + 0.05, color=INK, linewidth=2.4)
        for place, name in enumerate(names):
            _leader(axes, name, found.means[name], place, count, below)
        axes.set(xlim=(1 - margin, count + margin), ylim=(-deepest, 3.4))
    ends = [f"{name} ({found.means[name]:.2f})" for name in (names[0], names[-1])]
    alt = f"Mean ranks of {count} methods, from {ends[0]} to {ends[1]}"
    return render(figure, "critical-difference", alt, dpi)


def _leader(axes: Axes, name: str, rank: float, place: int, count: int, below: float) -> None:
    """Draw the line from a rank to its name: the better half stands on the left, the others on the right."""
    left, words = place < (count + 1) // 2, name.replace("_", " ")
    depth = -(below + (place if left else count - 1 - place))
    end = 1 - 0.06 * (count - 1) if left else count + 0.06 * (count - 1)
    axes.plot([rank, rank, end], [0, depth, depth], color=MUTED, linewidth=0.7)
    text, side = (f"{words}  {rank:.2f}", "right") if left else (f"{rank:.2f}  {words}", "left")
    axes.annotate(text, (end, depth), (-4 if left else 4, 0), textcoords="offset points", va="center", ha=side)


def severity(table: Table, runs: Sequence[RunInfo], names: dict[str, str], metric: str, look: Look, dpi: int) -> str:
    """Draw the metric, mean over corruptions, against severity 0 (clean) to 5; standard errors over seeds."""
    levels = table.severities(runs[0].dataset)
    at = {0: Quantity(metric)} | {level: Quantity(metric, "corrupted", severity=level) for level in levels}
    curves = {}
    for run in runs:
        estimates = [(level, table.estimate(run.key, of)) for level, of in at.items()]
        points = [(level, e) for level, e in estimates if e and math.isfinite(e.mean)]
        if len(points) > 1:
            curves[run.key] = points
    limits = (-0.1, levels[-1] + 0.15)
    figure, ends = _curves(curves, names, metric, look, [0, *levels], limits, "severity (0: clean test set)")
    alt = f"{metric} at severity {levels[-1]} of corruption: " + _list(names, ends, lambda v: f"{v:.3g}")
    return render(figure, f"sev-{_slug(runs[0].dataset)}-{metric}", alt, dpi)


def increments(curves: Curves, names: dict[str, str], metric: str, look: Look, dpi: int, name: str) -> str:
    """Draw the metric against the number of classes so far; standard errors over orders of the classes."""
    drawn = {run: points for run, points in curves.items() if points}
    counts = sorted({count for points in drawn.values() for count, _ in points})
    limits = (0.0, counts[-1] * 1.03) if counts else (0.0, 1.0)
    figure, ends = _curves(drawn, names, metric, look, counts, limits, "classes so far")
    alt = f"{metric} after the last step: " + _list(names, ends, lambda v: f"{v:.3g}")
    return render(figure, f"{name}-{metric}", alt, dpi)


def _curves(
    curves: Curves,
    names: dict[str, str],
    metric: str,
    look: Look,
    ticks: Sequence[int],
    limits: tuple[float, float],
    xlabel: str,
) -> tuple[Figure, dict[str, float]]:
    """Draw a line a run, each with its name at its end; return the ends, too."""
    scale = 100 if metric == "accuracy" else 1
    ends = {run: scale * points[-1][1].mean for run, points in curves.items()}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.2))
        beside = 0.08 + 0.0128 * max((len(names[run]) for run in curves), default=0)  # of the names, at 8 points
        axes = figure.add_axes((0.09, 0.135, min(0.59, max(0.25, 0.91 - beside)), 0.775))
        for run, points in curves.items():
            _line(axes, points, scale, run, look)
        axes.set(xlim=limits, xticks=ticks, xlabel=xlabel)
        axes.set_title("Accuracy, %" if metric == "accuracy" else "NLL")
        _end_labels(axes, ends, names, look)
    return figure, ends


def _line(axes: Axes, points: list[tuple[int, Estimate]], scale: float, run: str, look: Look) -> None:
    x, mean = [p[0] for p in points], [scale * p[1].mean for p in points]
    error = [scale * (p[1].error or 0.0) for p in points]
    axes.plot(x, mean, color=look.colour(run), marker=look.marker(run), linestyle=look.dashes(run))
    if any(error):
        axes.errorbar(x, mean, error, color=look.colour(run), linestyle="", elinewidth=0.9)


def _end_labels(axes: Axes, ends: dict[str, float], names: dict[str, str], look: Look) -> None:
    """Write names at the right ends of the lines, moved apart until none overlap, tied to them by hairlines."""
    low, high = axes.get_ylim()
    gap = 0.058 * (high - low)
    order = sorted(ends, key=lambda key: (ends[key], key))
    for key, place in zip(order, spread([ends[k] for k in order], gap, low, high), strict=True):
        right = axes.get_xlim()[1]
        span = right * 0.06
        axes.plot([right, right + span], [ends[key], place], color=look.colour(key), linewidth=0.7, clip_on=False)
        axes.text(right + 1.3 * span, place, names[key], color=look.colour(key), va="center", fontsize=8)


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move sorted ``values`` until they are ``gap`` apart within [low, high], by one sweep up and one down."""
    places = list(values)
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    excess = places[-1] - high if places else 0.0
    if excess > 0:
        places[-1] -= excess
        for i in range(len(places) - 2, -1, -1):
            places[i] = min(places[i], places[i + 1] - gap)
    return places


def cost(
    table: Table, runs: Sequence[RunInfo], names: dict[str, str], column: columns.Column, look: Look, dpi: int
) -> str:
    """Draw NLL against one cost on a logarithmic axis; towards the lower left is better."""
    found = {r.key: (table.estimate(r.key, column.of), table.estimate(r.key, Quantity("nll"))) for r in runs}
    points = {k: (c.mean, s) for k, (c, s) in found.items() if c and s and c.mean > 0 and math.isfinite(s.mean)}
    if not points:
        return ""
    write = columns.size if column.of.metric == "bytes" else _plainly
    figure = _against(points, names, look, COSTS[column.of.metric], "NLL", write)
    alt = f"NLL against {COSTS[column.of.metric]}: "
    alt += _list(names, points, lambda p: f"{p[1].mean:.3g} at {column.write(p[0])}")
    return render(figure, f"cost-{_slug(runs[0].dataset)}-{column.of.metric}", alt, dpi)


def distilled(table: Table, rows: Cross, protocol: str, column: columns.Column, look: Look, dpi: int) -> str:
    """Draw a score under a protocol against the seconds of distillation, a coreset a point; nothing for one alone."""
    shown = [(rows.label(row), row.seconds, row.runs[protocol].key) for row in rows.rows if protocol in row.runs]
    names = {key: label for label, _, key in shown}
    found = {key: (seconds or 0.0, table.estimate(key, column.of)) for _, seconds, key in shown}
    points = {k: (x, s) for k, (x, s) in found.items() if x > 0 and s and math.isfinite(s.mean)}
    if len(points) < 2:
        return ""
    title = f"{protocol}: {_AXES[column.of.metric]}"
    figure = _against(points, names, look, "distillation, seconds", title, _plainly)
    alt = f"{title} against seconds of distillation: "
    alt += _list(names, points, lambda p: f"{p[1].mean:.3g} at {columns.seconds(p[0])}")
    return render(figure, f"coresets-{_slug(rows.dataset)}-{_slug(protocol)}-{column.of.metric}", alt, dpi)


def _against(
    points: dict[str, tuple[float, Estimate]],
    names: dict[str, str],
    look: Look,
    xlabel: str,
    title: str,
    write: Callable[[float], str],
) -> Figure:
    """Draw an estimate of each run against a number above 0, on a logarithmic axis."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.5, 2.9))
        axes = figure.add_axes((0.13, 0.17, 0.83, 0.73))
        for key, (x, score) in points.items():
            style: Any = {"color": look.colour(key), "marker": look.marker(key), "markersize": 6, "elinewidth": 0.9}
            axes.errorbar(x, score.mean, score.error or 0.0, **style)
        axes.set_xscale("log")
        axes.margins(0.14)
        _whole_decades(axes, write)
        axes.set(xlabel=xlabel, title=title)
        _point_labels(figure, axes, {k: (x, s.mean) for k, (x, s) in points.items()}, names, look)
    return figure


def _plainly(value: float) -> str:
    return f"{value:,.10g}"


def _whole_decades(axes: Axes, write: Callable[[float], str]) -> None:
    """Show at least one decade, written plainly rather than as powers."""
    low, high = axes.get_xlim()
    if high < 10 * low:
        middle = math.sqrt(low * high)
        axes.set_xlim(middle / 3.3, middle * 3.3)
    axes.xaxis.set_major_formatter(lambda value, _: write(value))
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def _point_labels(figure: Figure, axes: Axes, points: dict[str, Point], names: dict[str, str], look: Look) -> None:
    """Write names beside their points, at the first side where they hide nothing; the legend has those left out."""
    to_pixels = axes.transData.transform
    scale = figure.dpi / 72
    marks = [(x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale) for x, y in map(to_pixels, points.values())]
    frame = axes.get_window_extent().extents
    taken = list(marks)
    for key, point in points.items():
        x, y = to_pixels(point)
        wide, tall = 4.6 * scale * len(names[key]), 9 * scale
        beside = [(7, -tall / 2), (-7 - wide, -tall / 2), (-wide / 2, 6), (-wide / 2, -6 - tall)]
        for dx, dy in [*beside, (6, 4), (6, -4 - tall), (-6 - wide, 4), (-6 - wide, -4 - tall)]:
            box = (x + dx, y + dy, x + dx + wide, y + dy + tall)
            inside = box[0] >= frame[0] and box[2] <= frame[2] + 4 and box[1] >= frame[1] and box[3] <= frame[3]
            if inside and not any(overlap(box, other) for other in taken):
                taken.append(box)
                middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
                place = axes.transData.inverted().transform(middle)
                axes.text(
                    place[0], place[1], names[key], color=look.colour(key), fontsize=7.5, ha="center", va="center"
                )
                break


def overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    """Say whether two boxes (left, low, right, high) share an area."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def dots(table: Table, runs: Sequence[RunInfo], names: dict[str, str], metric: str, look: Look, dpi: int) -> str:
    """Draw one row a method: mean and standard error, and every split as a faint dot."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.9, 0.75 + 0.34 * len(runs)), layout="constrained")
        axes = figure.subplots()
        for i, run in enumerate(runs):
            estimate = table.estimate(run.key, Quantity(metric))
            if estimate is None or not math.isfinite(estimate.mean):
                continue
            values = table.groups(run.key, Quantity(metric))
            colour = look.colour(run.key)
            axes.plot(values, [i] * len(values), "o", color=colour, alpha=0.35, markersize=4, markeredgewidth=0)
            axes.errorbar(estimate.mean, i, xerr=estimate.error or 0.0, color=colour, marker="D", elinewidth=2)
        axes.set(yticks=range(len(runs)), ylim=(len(runs) - 0.5, -0.5), title=metric.upper())
        axes.set_yticklabels([names[r.key] for r in runs], color=INK)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    means = {r.key: known.mean for r in runs if (known := table.estimate(r.key, Quantity(metric)))}
    alt = f"{metric.upper()} by method: " + _list(names, means, lambda mean: f"{mean:.3f}")
    return render(figure, f"dots-{_slug(runs[0].dataset)}-{metric}", alt, dpi)


def key_mark(run: str, look: Look) -> str:
    """Draw a line with the run's mark, for legends."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(0.36, 0.14))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        axes.set(xlim=(0, 1), ylim=(-1, 1))
        axes.plot([0.02, 0.98], [0, 0], color=look.colour(run), linestyle=look.dashes(run))
        axes.plot([0.5], [0], color=look.colour(run), marker=look.marker(run))
    return render(figure, f"key-{_slug(run)}", "", 100)


def _list(names: dict[str, str], values: dict, write: Callable) -> str:
    return ", ".join(f"{names[key]} {write(value)}" for key, value in values.items())


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text)
