"""Scores against hyperparameters: the points of a grid, and the table and the figure of the fits' scores.

    grid = {"weights.rows+cols": (16, 32, 64), "kl_weight": (0.0, 1.0)}
    config = GridConfig(grid, seeds=3, metrics=("nll",), figure=(Panel("weights.rows+cols", lines="kl_weight"),))
    results = [Result(sample, fit_and_score(sample)) for sample in config.samples()]
    draw(config, results).savefig("grid.svg")

The points of a grid are all combinations of its values. With a ``base`` they are the base and the points that differ
from it in one axis. An *axis* is one dotted key of a method's config, or several keys joined by ``+``, which get the
same value; a key without a section is in the section of the first: ``weights.rows+cols``.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bdl_pipe.errors import require
from bdl_pipe.scores import Estimate, estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED: Final = "seed"
Scalar = bool | int | float | str | None
Point = Mapping[str, Scalar]  # axis -> value


@dataclass(frozen=True)
class Panel:
    """A column of a grid's figure.

    Attributes:
        x: the horizontal axis.
        lines: the axis that has a line for each of its values. null draws one line.
        at: axis -> its value, for every other axis; omitted if the grid has a base.
    """

    x: str
    lines: str | None = None
    at: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class GridConfig:
    """A grid of hyperparameters and how its scores are shown.

    Attributes:
        grid: axis -> its values.
        seeds: the number of fits of each point.
        metrics: the metrics of the figure's rows, from top to bottom.
        figure: the figure's columns, from left to right.
        names: axis -> its name in the figure and the table.
        base: axis -> its value at the base point. If empty, every combination of values is fitted.
    """

    grid: dict[str, tuple[Scalar, ...]]
    seeds: int
    metrics: tuple[str, ...]
    figure: tuple[Panel, ...]
    names: dict[str, str] = field(default_factory=dict)
    base: dict[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.seeds >= 1, "seeds", "must be >= 1", self.seeds)
        for name in ("grid", "metrics", "figure"):
            require(len(getattr(self, name)) > 0, name, "must not be empty")
        taken: list[str] = []
        for axis, values in self.grid.items():
            keys, path = keys_of(axis), f"grid.{axis}"
            require(all(keys) and SEED not in keys, path, f"must be keys with + between, none of them {SEED}")
            twice = next((key for key in keys if key in taken or keys.count(key) > 1), None)
            require(twice is None, path, "must not vary a key twice", twice)
            require(
                len({*map(written, values)}) == len(values) > 0, path, "must list values, none of them twice", values
            )
            taken += keys
        if self.base:
            self._check_chosen(self.base, list(self.grid), "base")
        rule = f"must be an axis ({', '.join(self.grid)})"
        for axis in self.names:
            require(axis in self.grid, f"names.{axis}", rule)
        for i, panel in enumerate(self.figure):
            for name, shown in (("x", panel.x), ("lines", panel.lines)):
                require(shown is None or shown in self.grid, f"figure[{i}].{name}", rule, shown)
            require(panel.lines != panel.x, f"figure[{i}].lines", "must be another axis than x", panel.lines)
            if self.base:
                require(not (panel.lines or panel.at), f"figure[{i}]", "must have x alone: the base has the others")
            else:
                others = [axis for axis in self.grid if axis not in (panel.x, panel.lines)]
                self._check_chosen(panel.at, others, f"figure[{i}].at")

    def points(self) -> list[Point]:
        """List every point. Without a base the last axis varies fastest; otherwise the base is first."""
        if not self.base:
            return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        base = {axis: self.base[axis] for axis in self.grid}
        around = [base | {axis: value} for axis, values in self.grid.items() for value in values]
        return [base, *(point for point in around if point != base)]

    def samples(self) -> list[dict[str, Any]]:
        """List the fits: each point with each seed, as dotted keys of the method's config."""
        return [{**values_of(point), SEED: seed} for point in self.points() for seed in range(self.seeds)]

    def title(self, axis: str) -> str:
        """Return an axis's name in the figure and the table."""
        return self.names.get(axis, axis)

    def label(self, point: Point) -> str:
        """Name a point by its values, or by the values that differ from the base if there is one."""
        changed = {axis: value for axis, value in point.items() if not self.base or value != self.base[axis]}
        return ", ".join(f"{self.title(axis)} {written(value)}" for axis, value in changed.items()) or "base"

    def _check_chosen(self, chosen: Point, axes: list[str], path: str) -> None:
        others = ", ".join(axes) or "no axis"
        require(sorted(chosen) == sorted(axes), path, f"must have a value of {others}", list(chosen))
        for axis, value in chosen.items():
            listed = ", ".join(map(written, self.grid[axis]))
            require(value in self.grid[axis], f"{path}.{axis}", f"must be one of {listed}", value)


@dataclass(frozen=True)
class Result:
    """The scores of a finished fit.

    Attributes:
        sampled: one of :meth:`GridConfig.samples`.
        scores: metric -> score; a fit that diverged has none.
    """

    sampled: Mapping[str, Any]
    scores: Mapping[str, float]


R = TypeVar("R", bound=Result)


def rows(config: GridConfig, results: Sequence[Result], metrics: Sequence[str]) -> list[list[str]]:
    """Return a table: a header, then a row for each point with the mean and the standard error of each metric."""
    table = [["Point", "fits", *metrics]]
    for point in config.points():
        of_point = results_of(results, point)
        count = f"{sum(bool(result.scores) for result in of_point)} of {len(of_point)}"
        table.append([config.label(point), count, *(_written_mean(mean_of(of_point, name)) for name in metrics)])
    return table


def draw(config: GridConfig, results: Sequence[Result]) -> "Figure":
    """Draw a row for each metric and a column for each panel: means with standard errors over seeds."""
    from matplotlib.figure import Figure

    wide, high = len(config.figure), len(config.metrics)
    figure = Figure(figsize=(1 + 3 * wide, 1 + 2 * high), layout="constrained")
    grid = figure.subplots(high, wide, sharex="col", sharey="row", squeeze=False)
    for i, j in itertools.product(range(high), range(wide)):
        panel, axes = config.figure[j], grid[i, j]
        for line in config.grid[panel.lines] if panel.lines else (None,):
            at = {**config.base, **panel.at, **({panel.lines: line} if panel.lines else {})}
            of_points = [results_of(results, {**at, panel.x: value}) for value in config.grid[panel.x]]
            means = [mean_of(of_point, config.metrics[i]) for of_point in of_points]
            heights = [mean.mean if mean else math.nan for mean in means]
            errors = [mean.error or 0.0 if mean else math.nan for mean in means]
            axes.errorbar([*map(written, config.grid[panel.x])], heights, errors, marker="o", label=written(line))
        grid[i, 0].set_ylabel(config.metrics[i])
        grid[0, j].set_title(", ".join(f"{config.title(axis)} = {written(v)}" for axis, v in panel.at.items()))
        grid[-1, j].set_xlabel(config.title(panel.x))
        if panel.lines:
            axes.legend(title=config.title(panel.lines))
    return figure


def keys_of(axis: str) -> tuple[str, ...]:
    """Split an axis into its keys: ``weights.rows+cols`` -> (``weights.rows``, ``weights.cols``)."""
    first, *others = (part.strip() for part in axis.split("+"))
    section = first.rpartition(".")[0]
    return (first, *(f"{section}.{key}" if section and key and "." not in key else key for key in others))


def values_of(point: Point) -> dict[str, Scalar]:
    """Write a point as dotted keys of the method's config."""
    return {key: value for axis, value in point.items() for key in keys_of(axis)}


def written(value: Scalar) -> str:
    """Write a value as YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def results_of(results: Iterable[R], point: Point) -> list[R]:
    """List the results of a point, by seed."""
    values = values_of(point).items()
    same = [result for result in results if values <= result.sampled.items()]
    return sorted(same, key=lambda result: int(result.sampled[SEED]))


def mean_of(results: Sequence[Result], metric: str) -> Estimate | None:
    """Estimate the mean of a metric over the seeds whose score is finite."""
    scores = (result.scores.get(metric, math.nan) for result in results)
    return estimate([score for score in scores if math.isfinite(score)])


def _written_mean(mean: Estimate | None) -> str:
    if mean is None:
        return "—"
    return f"{mean.mean:.4f}" + (f" ± {mean.error:.4f}" if mean.error is not None else "")
