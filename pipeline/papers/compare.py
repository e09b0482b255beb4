"""Ours beside the paper's: one line for each method of a table, run or not."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..core import places, scores
from ..core.params import Params, Run
from ..core.scores import Estimate, Quantity, RunScores
from . import PaperTable, Printed

FAR: Final = 3.0  # combined standard errors; beyond them a difference is marked


@dataclass(frozen=True)
class Cell:
    """A figure of ours in the paper's unit (None: no such score), and the paper's (None: it prints none)."""

    ours: Estimate | None = None
    paper: Printed | None = None

    @property
    def difference(self) -> float | None:
        """Return ours − the paper's, in its unit; None where either is missing."""
        return None if self.ours is None or self.paper is None else self.ours.mean - float(self.paper.value)

    @property
    def z(self) -> float | None:
        """Return (ours − paper's) / √(our standard error² + the paper's²).

        It is None where an error is unknown or both are 0.
        """
        if self.ours is None or self.paper is None or self.ours.error is None or not self.paper.error:
            return None
        combined = math.hypot(self.ours.error, float(self.paper.error))
        return (self.ours.mean - float(self.paper.value)) / combined if combined != 0 else None

    @property
    def far(self) -> bool:
        """Say whether the two differ by more than ``FAR`` combined standard errors, or by NaN."""
        return self.z is not None and not abs(self.z) <= FAR


@dataclass(frozen=True)
class Line:
    """A method of a table, or one of our runs that the table does not have.

    Attributes:
        method: the paper's name; ours, for a run that the paper does not have.
        run: the run's key, or None: there is no run for it.
        ran: whether the run's scores are there.
        cells: the paper's metric -> figure.
        seconds: of one fit, with all that it was made from; the mean.
    """

    method: str
    run: str | None
    setting: str
    ran: bool
    cells: Mapping[str, Cell]
    seconds: float | None = None


def compare(table: PaperTable, dataset: str, params: Params, evaluated: Collection[str]) -> list[Line]:
    """Return the lines of a table for a data set.

    Args:
        dataset: the paper's name.
        evaluated: keys of runs whose scores are there.
    """
    metrics = table.metrics(dataset)
    runs = runs_of(table, dataset, params)
    lines, used = list[Line](), set[str]()
    for method, printed in table.figures[dataset].items():
        matching = [row for row in runs if stands_for(row, method, table)]
        used |= {row.key for row in matching}
        unrun: list[Run | None] = [None]
        for row in matching or unrun:
            name = f"{method} ({row.spec.setting})" if row and len(matching) > 1 else method
            lines.append(_line(table, name, method, row, printed, metrics, evaluated))
    for row in runs:
        if row.key not in used:
            lines.append(_line(table, _name(row, runs), None, row, {}, metrics, evaluated))
    return lines


def runs_of(table: PaperTable, dataset: str, params: Params) -> list[Run]:
    """List the runs on ``dataset`` (the paper's name) of this table, and those that no table of the same runs has."""
    runs = [row for row in params.of("student") if row.spec.dataset == table.names.datasets[dataset]]
    return [r for r in runs if _of(r, table.figures[dataset], table) or not _of(r, table.others, table)]


def _of(row: Run, methods: Iterable[str], table: PaperTable) -> bool:
    return any(stands_for(row, method, table) for method in methods)


def stands_for(row: Run, method: str, table: PaperTable) -> bool:
    """Say whether a run is ours for ``method`` of the paper."""
    ours = table.names.methods[method]
    return row.method.name == ours.method and ours.setting in ("", row.spec.setting)


def _line(
    table: PaperTable,
    name: str,
    method: str | None,
    row: Run | None,
    printed: Mapping[str, Printed],
    metrics: list[str],
    evaluated: Collection[str],
) -> Line:
    """Return a line. Ours is shown where the paper prints a figure; for a run that it does not have, everywhere."""
    ran = row is not None and row.key in evaluated
    stored = _scores(row.key) if row is not None and ran else None
    cells = {}
    for metric in metrics:
        ours = None
        if stored is not None and (method is None or metric in printed):
            ours = stored.estimate(table.quantity(metric, method), table.scale(metric))
        cells[metric] = Cell(ours, printed.get(metric))
    cost = stored.estimate(Quantity("fit_seconds", "cost")) if stored is not None else None
    key, setting = (row.key, row.spec.setting) if row is not None else (None, "")
    return Line(name, key, setting, ran, cells, cost.mean if cost else None)


def _scores(run: str) -> RunScores:
    return RunScores(scores.read(places.artifact("evaluate", run) / "scores.parquet"))


def _name(row: Run, runs: list[Run]) -> str:
    several = len([r for r in runs if r.method.name == row.method.name]) > 1
    return f"{row.method.name} ({row.spec.setting})" if several else row.method.name
