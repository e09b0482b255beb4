"""What a study is: points of hyperparameters, each of which is fitted with several seeds.

The points are all combinations of a grid's values or, where there is a ``base``, the base and what differs from it in
one axis alone.

An *axis* of the grid is one dotted key of the method's config or several that vary together, with ``+``
between; a key without a section lies in that of the first: ``weights.rows+cols``.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bdl_pipe.errors import require
from bdl_pipe.method import Task

METRICS: Final[Mapping[Task, tuple[str, ...]]] = {  # what `evaluation.score_clean` says of every posterior
    "classification": ("accuracy", "nll", "brier", "ece"),
    "regression": ("rmse", "nll", "crps", "coverage_90", "width_90"),
}
POINT: Final = "point"  # in what Ray Tune samples, beside the seed
SEED: Final = "seed"
_SCALARS: Final = (int, float, str, bool, type(None))


@dataclass(frozen=True)
class Panel:
    """A column of the figure.

    Attributes:
        x: the axis from left to right.
        lines: the axis whose values are lines; null: one line.
        at: every other axis's value; left out where the study has a base, which has them.
    """

    x: str
    lines: str | None = None
    at: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyConfig:
    """A file of ``params/study``, checked.

    Attributes:
        method, dataset: as in params.yaml; the numbers of the first row of ``method`` vary.
        overlay: on params.yaml, as ``apply`` takes it.
        grid: axis -> its values; every combination is tried, or with a base one axis at a time.
        seeds: how many fits of each point; they differ from the method's first row on.
        metrics: those of the figure, from top to bottom.
        figure: its columns, from left to right.
        names: axis -> how the figure and the table call it.
        run: the row of runs whose branch is studied; null: the first on the data set that the method is in.
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
        taken: list[str] = []
        for axis, values in self.grid.items():
            keys = keys_of(axis)
            require(all(keys) and SEED not in keys, f"grid.{axis}", f"must be keys with + between, none of them {SEED}")
            twice = next((key for key in keys if key in taken or keys.count(key) > 1), None)
            require(twice is None, f"grid.{axis}", "must not vary a key twice", twice)
            _check_values(axis, values)
            taken += keys
        if self.base:
            _check_values_of(self.base, self.grid, list(self.grid), "base")
        require(len(self.metrics) > 0, "metrics", "must name one")
        require(len(self.figure) > 0, "figure", "must have a panel")
        for axis in self.names:
            require(axis in self.grid, f"names.{axis}", f"must be an axis ({', '.join(self.grid)})")
        for i, panel in enumerate(self.figure):
            _check_panel(panel, self.grid, f"figure[{i}]", bool(self.base))

    def points(self) -> Iterator[dict[str, Any]]:
        """List every point: axis -> value; the last axis varies fastest, or the base is first."""
        if not self.base:
            for values in itertools.product(*self.grid.values()):
                yield dict(zip(self.grid, values, strict=True))
            return
        yield self._based({})
        for axis in self.grid:
            yield from (point for point in self.departures(axis) if point != self._based({}))

    def departures(self, axis: str) -> list[dict[str, Any]]:
        """List the points of one axis of a study with a base, in the order of the axis's values."""
        return [self._based({axis: value}) for value in self.grid[axis]]

    def held(self, panel: Panel) -> dict[str, Any]:
        """Return what the other axes are in a panel."""
        return panel.at or {axis: value for axis, value in self.base.items() if axis != panel.x}

    def called(self, sampled: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the terminal calls a trial: what it has that the base has not, and its seed."""
        point = sampled[POINT]
        changed = {axis: value for axis, value in point.items() if axis not in self.base or value != self.base[axis]}
        return {**{self.title(axis): value for axis, value in changed.items()}, SEED: sampled[SEED]}

    def _based(self, change: Mapping[str, Any]) -> dict[str, Any]:
        return {axis: {**self.base, **change}[axis] for axis in self.grid}

    def title(self, axis: str) -> str:
        """Return how the figure and the table call an axis."""
        return self.names.get(axis, axis)


@dataclass(frozen=True)
class Trial:
    """A fit: a point, a seed, and the scores of validation rows; none where the fit diverged."""

    point: Mapping[str, Any]
    seed: int
    scores: Mapping[str, float]
    seconds: float


def keys_of(axis: str) -> tuple[str, ...]:
    """Split an axis into its keys: ``weights.rows+cols`` -> (``weights.rows``, ``weights.cols``)."""
    first, *others = (part.strip() for part in axis.split("+"))
    section = first.rpartition(".")[0]
    return (first, *(f"{section}.{key}" if section and key and "." not in key else key for key in others))


def numbers(point: Mapping[str, Any]) -> dict[str, Any]:
    """Write a point as dotted keys of the method's config."""
    return {key: value for axis, value in point.items() for key in keys_of(axis)}


def sampled_numbers(sampled: Mapping[str, Any]) -> dict[str, Any]:
    """Write what Ray Tune sampled as dotted keys of the method's config, and the seed."""
    return {**numbers(sampled[POINT]), SEED: sampled[SEED]}


def written(value: Any) -> str:
    """Write a value as YAML has it."""
    if value is None:
        return "null"
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:.12g}" if isinstance(value, float) else str(value)
    )


def _check_values(axis: str, values: tuple[Any, ...]) -> None:
    path = f"grid.{axis}"
    require(len(values) > 0, path, "must list values")
    for value in values:
        require(isinstance(value, _SCALARS), path, "must list numbers, texts, true, false or null", value)
    texts = [written(value) for value in values]
    require(len({*texts}) == len(texts), path, "must not list a value twice", list(values))


def _check_panel(panel: Panel, grid: Mapping[str, tuple[Any, ...]], path: str, based: bool) -> None:
    known = ", ".join(grid)
    require(panel.x in grid, f"{path}.x", f"must be an axis ({known})", panel.x)
    if based:
        require(panel.lines is None, f"{path}.lines", "must be left out: the points of a base differ in x", panel.lines)
        require(not panel.at, f"{path}.at", "must be left out: the base has it", panel.at)
        return
    require(panel.lines is None or panel.lines in grid, f"{path}.lines", f"must be an axis ({known})", panel.lines)
    require(panel.lines != panel.x, f"{path}.lines", "must be another axis than x", panel.lines)
    rest = [axis for axis in grid if axis not in (panel.x, panel.lines)]
    _check_values_of(panel.at, grid, rest, f"{path}.at")


def _check_values_of(
    values: Mapping[str, Any], grid: Mapping[str, tuple[Any, ...]], axes: list[str], path: str
) -> None:
    others = ", ".join(axes) or "no axis"
    require(sorted(values) == sorted(axes), path, f"must have a value of {others}", list(values))
    for axis, value in values.items():
        there = written(value) in [written(v) for v in grid[axis]]
        require(there, f"{path}.{axis}", f"must be one of {', '.join(map(written, grid[axis]))}", value)
