"""A study's figure: a row a metric, a column a panel, in the report's style."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...report.plots import INK, STYLE, Drawing, mark
from . import Panel, StudyConfig, Trial, written
from .table import column, of, over_seeds


def draw(name: str, config: StudyConfig, trials: Sequence[Trial]) -> bytes:
    """Draw an SVG file: mean and standard error over seeds, each seed as a faint dot; diverged fits are left out."""
    wide, high = len(config.figure), len(config.metrics)
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(
            figsize=(0.5 + 2.5 * wide, 0.9 + 1.8 * high),
        )
        grid = figure.subplots(high, wide, sharex="col", sharey="row", squeeze=False)
        for i, metric in enumerate(config.metrics):
            for j, panel in enumerate(config.figure):
                _panel(grid[i, j], panel, metric, config, trials)
            grid[i, 0].set_ylabel(column(metric).label, color=INK)
        for j, panel in enumerate(config.figure):
            _around(grid[0, j], grid[-1, j], panel, config)
    return Drawing(figure, name, _said(config, trials)).file()


def _panel(axes: Axes, panel: Panel, metric: str, config: StudyConfig, trials: Sequence[Trial]) -> None:
    scale = column(metric).scale
    values = config.grid[panel.x]
    for k, line in enumerate(_lines(panel, config)):
        at = config.held(panel) | ({panel.lines: line} if panel.lines else {})
        found = [of(trials, at | {panel.x: value}) for value in values]
        estimates = [(x, e) for x, there in enumerate(found) if (e := over_seeds(there, metric))]
        shift = 0.06 * (k - (len(_lines(panel, config)) - 1) / 2)  # bars beside each other
        look = mark(k, k)
        for x, each in enumerate(found):
            dots = [scale * t.scores[metric] for t in each if math.isfinite(t.scores.get(metric, math.nan))]
            axes.plot([x + shift] * len(dots), dots, "o", color=look.colour, alpha=0.3, markersize=3, mew=0)
        axes.errorbar(
            [x + shift for x, _ in estimates],
            [scale * e.mean for _, e in estimates],
            [scale * (e.error or 0.0) for _, e in estimates],
            color=look.colour,
            marker=look.marker,
            linestyle=look.dashes,
            elinewidth=0.9,
            label=written(line),
        )
    axes.set(xlim=(-0.3, len(values) - 0.7), xticks=range(len(values)))
    axes.set_xticklabels([written(value) for value in values])


def _around(top: Axes, low: Axes, panel: Panel, config: StudyConfig) -> None:
    """Write the values that are held above a column, the name of its axis below it, and the lines' names."""
    held = ", ".join(f"{config.title(axis)} = {written(value)}" for axis, value in panel.at.items())
    top.set_title(held)
    low.set_xlabel(config.title(panel.x))
    if panel.lines:
        top.legend(title=config.title(panel.lines), frameon=False, fontsize=7.5, title_fontsize=7.5)


def _lines(panel: Panel, config: StudyConfig) -> tuple[Any, ...]:
    return config.grid[panel.lines] if panel.lines else (None,)


def _said(config: StudyConfig, trials: Sequence[Trial]) -> str:
    """Say where each metric is best, for those who do not see the figure."""
    parts = []
    for metric in config.metrics:
        means = [(e.mean, p) for p in config.points() if (e := over_seeds(of(trials, p), metric))]
        if means:
            best = (max if column(metric).better > 0 else min)(means, key=lambda pair: pair[0])
            where = ", ".join(f"{config.title(axis)} {written(value)}" for axis, value in best[1].items())
            parts.append(f"{column(metric).label} {column(metric).write(best[0])} at {where}")
    return f"{config.method} on {config.dataset}, the best points: {'; '.join(parts) or 'none'}"
