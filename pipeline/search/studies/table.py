"""A study's result as CSV, a line a trial, and as Markdown, a line a point of the grid."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bdl_pipe.method import Task

from ...core.scores import Estimate, estimate
from ...report.columns import METRICS as WRITTEN
from ...report.columns import Metric, figure, places
from . import METRICS, SEED, StudyConfig, Trial, written


def comma_separated(config: StudyConfig, task: Task, trials: Sequence[Trial]) -> str:
    """Return every trial as CSV, by the grid and the seeds, in full precision; no scores where a fit diverged."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*config.grid, SEED, *METRICS[task], "seconds"])
    for point in config.points():
        for t in of(trials, point):
            scores = [t.scores.get(name, "") for name in METRICS[task]]
            writer.writerow([*map(written, point.values()), t.seed, *scores, f"{t.seconds:.2f}"])
    return text.getvalue()


def markdown(
    title: str, config: StudyConfig, task: Task, trials: Sequence[Trial], picture: str, facts: Mapping[str, Any]
) -> str:
    """Return the figure, the table of the points and where they come from, as Markdown."""
    figures = ["fits", *(column(name).label for name in METRICS[task]), "seconds"]
    if config.base:
        tables = [
            _table([config.title(axis), *figures], [(point[axis],) for point in points], points, trials, task)
            for axis, points in ((axis, config.departures(axis)) for axis in config.grid)
        ]
        said = ["Each table departs from this point in one number alone: " + _pairs(config, config.base) + ".", ""]
    else:
        points = list(config.points())
        heads = [*map(config.title, config.grid), *figures]
        tables, said = [_table(heads, [tuple(p.values()) for p in points], points, trials, task)], []
    told = "mean ± standard error over the seeds that did not diverge" if config.seeds > 1 else "one seed"
    return "\n".join(
        [
            f"# {title}: {config.method} on {config.dataset}",
            "",
            f"Scores of validation rows of split 0, which no fit has seen; {told}. Test rows were not read.",
            "",
            f"![{title}]({picture})",
            "",
            *said,
            *(line for table in tables for line in table),
            "| | |",
            "|---|---|",
            *(_pipes([str(key), str(value)]) for key, value in facts.items()),
            "",
        ]
    )


def of(trials: Sequence[Trial], point: Mapping[str, Any]) -> list[Trial]:
    """List the trials of a point, by seed."""
    same = [written(value) for value in point.values()]
    return sorted((t for t in trials if [written(t.point[axis]) for axis in point] == same), key=lambda t: t.seed)


def over_seeds(trials: Sequence[Trial], metric: str) -> Estimate | None:
    """Estimate the mean over the seeds whose fit gave a finite score."""
    return estimate([t.scores[metric] for t in trials if math.isfinite(t.scores.get(metric, math.nan))])


def column(metric: str) -> Metric:
    """Return the metric's name and how it is written, as in the report."""
    return WRITTEN.get(metric) or Metric(metric, 0, places(3))


def _table(
    head: Sequence[str],
    values: Sequence[tuple[Any, ...]],
    points: Sequence[Mapping[str, Any]],
    trials: Sequence[Trial],
    task: Task,
) -> list[str]:
    rows = [_line(value, of(trials, point), task) for value, point in zip(values, points, strict=True)]
    return [_pipes(head), _pipes(["---:"] * len(head)), *map(_pipes, rows), ""]


def _line(values: Sequence[Any], trials: Sequence[Trial], task: Task) -> list[str]:
    whole = sum(bool(t.scores) for t in trials)
    fits = str(whole) if whole == len(trials) else f"{whole} of {len(trials)}"
    cells = [figure(over_seeds(trials, name), column(name).write).figure for name in METRICS[task]]
    seconds = sum(t.seconds for t in trials) / max(len(trials), 1)
    return [*map(written, values), fits, *cells, f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"]


def _pairs(config: StudyConfig, point: Mapping[str, Any]) -> str:
    return ", ".join(f"{config.title(axis)} {written(point[axis])}" for axis in config.grid)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
