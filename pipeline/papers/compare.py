"""Ours beside the paper's: one line for each method of a table, whether it has run or not."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from bdl_pipe import scores
from bdl_pipe.scores import Estimate, Quantity, RunScores

from ..core import places
from ..core.model import Params, Run
from . import PaperTable, Printed

FAR: Final = 3.0  # A difference of more combined standard errors than this is marked.


@dataclass(frozen=True)
class Pair:
    """Our figure in the paper's unit (None: there is no such score), and the paper's (None: it prints none)."""

    ours: Estimate | None = None
    paper: Printed | None = None

    @property
    def difference(self) -> float | None:
        """Return ours − the paper's, in the paper's unit; None where a figure is missing."""
        return None if self.ours is None or self.paper is None else self.ours.mean - float(self.paper.value)

    @property
    def z(self) -> float | None:
        """Return (ours − paper's) / √(our standard error² + the paper's²).

        It is None where an error is unknown or both are 0.
        """
        if self.difference is None or self.ours is None or self.paper is None:
            return None
        if self.ours.error is None or not self.paper.error:
            return None
        combined = math.hypot(self.ours.error, float(self.paper.error))
        return self.difference / combined if combined != 0 else None

    @property
    def far(self) -> bool:
        """Return True if the figures differ by more than ``FAR`` combined standard errors, or by NaN."""
        return self.z is not None and not abs(self.z) <= FAR


@dataclass(frozen=True)
class Line:
    """A method of a table, or one of our runs that the table does not have.

    Attributes:
        method: the paper's name, or our name for a run that the paper does not have.
        run: the run's key; None: no run stands for the method.
        ran: whether the run has scores.
        cells: the paper's metric -> the two figures.
        seconds: mean seconds of one fit, upstream runs included.
    """

    method: str
    run: str | None
    setting: str
    ran: bool
    cells: Mapping[str, Pair]
    seconds: float | None = None


def compare(table: PaperTable, dataset: str, params: Params, evaluated: Collection[str]) -> list[Line]:
    """Return the lines of a table for a data set.

    Args:
        dataset: the paper's name.
        evaluated: keys of the runs that have scores.
    """
    metrics = table.metrics(dataset)
    runs = runs_of(table, dataset, params)
    lines = list[Line]()
    for method, printed in table.figures[dataset].items():
        matching: list[Run | None] = [run for run in runs if stands_for(run, method, table)]
        for run in matching or [None]:
            name = f"{method} ({run.spec.setting})" if run and len(matching) > 1 else method
            lines.append(_line(table, name, method, run, printed, metrics, evaluated))
    used = {line.run for line in lines}
    for run in runs:
        if run.key not in used:
            several = sum(other.method.name == run.method.name for other in runs) > 1
            name = f"{run.method.name} ({run.spec.setting})" if several else run.method.name
            lines.append(_line(table, name, None, run, {}, metrics, evaluated))
    return lines


def runs_of(table: PaperTable, dataset: str, params: Params) -> list[Run]:
    """List the runs on ``dataset`` (the paper's name) of this table, and those that no table of the same runs has."""
    own, others = table.figures[dataset], table.others

    def belongs(run: Run) -> bool:
        is_own = any(stands_for(run, method, table) for method in own)
        return is_own or not any(stands_for(run, method, table) for method in others)

    ours = table.names.datasets[dataset]
    return [run for run in params.of("student") if run.spec.dataset == ours and belongs(run)]


def stands_for(run: Run, method: str, table: PaperTable) -> bool:
    """Return True if a run of ours stands for ``method`` of the paper."""
    ours = table.names.methods[method]
    return run.method.name == ours.method and ours.setting in ("", run.spec.setting)


def _line(
    table: PaperTable,
    name: str,
    method: str | None,
    run: Run | None,
    printed: Mapping[str, Printed],
    metrics: list[str],
    evaluated: Collection[str],
) -> Line:
    """Return a line with our figures where the paper prints one; a run that it does not have has all its figures."""
    stored = None
    if run is not None and run.key in evaluated:
        stored = RunScores(scores.read(places.artifact("evaluate", run.key) / "scores.parquet"))
    pairs = {}
    for metric in metrics:
        ours = None
        if stored is not None and (method is None or metric in printed):
            ours = stored.estimate(table.quantity(metric, method), table.scale(metric))
        pairs[metric] = Pair(ours, printed.get(metric))
    cost = stored.estimate(Quantity("fit_seconds", "cost")) if stored is not None else None
    key, setting = (run.key, run.spec.setting) if run is not None else (None, "")
    return Line(name, key, setting, stored is not None, pairs, cost.mean if cost else None)
