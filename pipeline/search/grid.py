"""A file of ``params/study``: points of hyperparameters, each of which is fitted with several seeds.

The points are all combinations of the grid's values. With a ``base`` they are the base and the points that differ from
it in one axis. An *axis* is one dotted key of the method's config, or several keys with ``+`` between that get the same
value; a key without a section lies in the section of the first: ``weights.rows+cols``.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bdl_pipe.errors import require
from bdl_pipe.method import Task

from .trial import SEED

METRICS: Final[Mapping[Task, tuple[str, ...]]] = {  # the scores of every posterior, by `evaluation.score_clean`
    "classification": ("accuracy", "nll", "brier", "ece"),
    "regression": ("rmse", "nll", "crps", "coverage_90", "width_90"),
}
_SCALARS: Final = (int, float, str, bool, type(None))
Point = Mapping[str, Any]  # axis -> value


@dataclass(frozen=True)
class Panel:
    """A column of the figure.

    Attributes:
        x: the axis from left to right.
        lines: the axis whose values are lines; null: one line.
        at: the value of every other axis; left out if the study has a base.
    """

    x: str
    lines: str | None = None
    at: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyConfig:
    """A file of ``params/study``, checked.

    Attributes:
        method, dataset: as in params.yaml; hyperparameters of the first run of ``method`` vary.
        overlay: on params.yaml, as ``apply`` takes it.
        grid: axis -> its values.
        seeds: the number of fits of each point; they differ from the method's first run on.
        metrics: the metrics of the figure, from top to bottom.
        figure: its columns, from left to right.
        names: axis -> its name in the figure and the table.
        run: the run whose branch is studied; null: the first on the data set in which the method takes part.
        base: axis -> the one of its values from which the others depart; empty: every combination is tried.
    """

    method: str
    dataset: str
    overlay: dict[str, Any]
    grid: dict[str, tuple[Any, ...]]
    seeds: int
    metrics: tuple[str, ...]
    figure: tuple[Panel, ...]
    names: dict[str, str] = field(default_factory=dict)
    run: str | None = None
    base: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.seeds >= 1, "seeds", "must be >= 1", self.seeds)
        require(len(self.grid) > 0, "grid", "must have an axis")
        require(len(self.metrics) > 0, "metrics", "must name one")
        require(len(self.figure) > 0, "figure", "must have a panel")
        taken: list[str] = []
        for axis, values in self.grid.items():
            keys = keys_of(axis)
            require(all(keys) and SEED not in keys, f"grid.{axis}", f"must be keys with + between, none of them {SEED}")
            twice = next((key for key in keys if key in taken or keys.count(key) > 1), None)
            require(twice is None, f"grid.{axis}", "must not vary a key twice", twice)
            _check_values(axis, values)
            taken += keys
        if self.base:
            self._check_chosen(self.base, list(self.grid), "base")
        for axis in self.names:
            require(axis in self.grid, f"names.{axis}", f"must be an axis ({', '.join(self.grid)})")
        for i, panel in enumerate(self.figure):
            self._check_panel(panel, f"figure[{i}]")

    def points(self) -> list[Point]:
        """List every point; the last axis varies fastest, or the base is first."""
        if not self.base:
            return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        base = self.around_base({})
        return [base, *(point for axis in self.grid for point in self.departures(axis) if point != base)]

    def departures(self, axis: str) -> list[Point]:
        """List the points of one axis of a study with a base, in the order of the axis's values."""
        return [self.around_base({axis: value}) for value in self.grid[axis]]

    def around_base(self, change: Point) -> Point:
        """Return the base with ``change``, in the grid's order."""
        return {axis: {**self.base, **change}[axis] for axis in self.grid}

    def held(self, panel: Panel) -> Point:
        """Return the values of the axes that a panel does not show."""
        return panel.at or {axis: value for axis, value in self.base.items() if axis != panel.x}

    def samples(self) -> list[dict[str, Any]]:
        """List what Ray Tune tries: each point with each seed, as dotted keys of the method's config."""
        return [{**values_of(point), SEED: seed} for point in self.points() for seed in range(self.seeds)]

    def title(self, axis: str) -> str:
        """Return an axis's name in the figure and the table."""
        return self.names.get(axis, axis)

    def _check_panel(self, panel: Panel, path: str) -> None:
        known = f"must be an axis ({', '.join(self.grid)})"
        require(panel.x in self.grid, f"{path}.x", known, panel.x)
        if self.base:
            require(panel.lines is None, f"{path}.lines", "must be left out: a base has points in x", panel.lines)
            require(not panel.at, f"{path}.at", "must be left out: the base has it", panel.at)
            return
        require(panel.lines is None or panel.lines in self.grid, f"{path}.lines", known, panel.lines)
        require(panel.lines != panel.x, f"{path}.lines", "must be another axis than x", panel.lines)
        self._check_chosen(panel.at, [axis for axis in self.grid if axis not in (panel.x, panel.lines)], f"{path}.at")

    def _check_chosen(self, chosen: Point, axes: list[str], path: str) -> None:
        others = ", ".join(axes) or "no axis"
        require(sorted(chosen) == sorted(axes), path, f"must have a value of {others}", list(chosen))
        for axis, value in chosen.items():
            listed = [written(v) for v in self.grid[axis]]
            require(written(value) in listed, f"{path}.{axis}", f"must be one of {', '.join(listed)}", value)


def keys_of(axis: str) -> tuple[str, ...]:
    """Split an axis into its keys: ``weights.rows+cols`` -> (``weights.rows``, ``weights.cols``)."""
    first, *others = (part.strip() for part in axis.split("+"))
    section = first.rpartition(".")[0]
    return (first, *(f"{section}.{key}" if section and key and "." not in key else key for key in others))


def values_of(point: Point) -> dict[str, Any]:
    """Write a point as dotted keys of the method's config."""
    return {key: value for axis, value in point.items() for key in keys_of(axis)}


def written(value: Any) -> str:
    """Write a value as YAML does."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _check_values(axis: str, values: tuple[Any, ...]) -> None:
    path = f"grid.{axis}"
    require(len(values) > 0, path, "must list values")
    for value in values:
        require(isinstance(value, _SCALARS), path, "must list numbers, texts, true, false or null", value)
    texts = [written(value) for value in values]
    require(len({*texts}) == len(texts), path, "must not list a value twice", list(values))
