"""Students beside the posteriors that they imitate: size, speed, losses, and the joint of several inputs."""

from collections.abc import Callable
from typing import Final

from bdl_pipe.metrics.imitation import Beside, beside
from bdl_pipe.metrics.joint import SIZES, names
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.scores import Quantity

from .columns import NOTHING, Cell, Column, Grid, figure
from .tables import Table

_BOTH: Final = ("student", "teacher")
_SHOWN: Final[tuple[tuple[Quantity, tuple[str, ...]], ...]] = (  # a quantity, and which of its figures are shown
    (Quantity("bytes", "cost"), (*_BOTH, "ratio")),
    (Quantity("seconds_per_1000", "cost"), _BOTH),
    (Quantity("nll"), (*_BOTH, "lost")),
    (Quantity("accuracy"), ("lost",)),
    (Quantity("rmse"), ("lost",)),
    *((Quantity(names(size)[0]), _BOTH) for size in SIZES),
    (Quantity(names(SIZES[-1])[1]), _BOTH),
)


def of(table: Table) -> Table:
    """Return the results of the runs that imitate a posterior."""
    return table.only(run for run in table.done.runs if run.imitates is not None)


def grid(table: Table) -> Grid:
    """Return a row for each run of :func:`of`, without the run's name and without quantities that no student has."""
    students = of(table)
    shown = [(q, parts) for q, parts in _SHOWN if any(students.estimate(run.key, q) for run in students.runs)]
    rows = []
    for run in students.runs:
        cells = [Cell(table.names.get(run.imitates or "", run.imitates or NOTHING), hint=run.imitates or "")]
        for quantity, parts in shown:
            pair = beside(table.scores[run.key], table.scores.get(run.imitates or ""), quantity)
            cells += [CELLS[part](pair, Column(part, quantity)) for part in parts]
        rows.append(cells)
    groups = [("", 1), *((metric_of(quantity.metric).label, len(parts)) for quantity, parts in shown)]
    return Grid(["teacher", *(part for _, parts in shown for part in parts)], rows, groups=groups)


def _lost(pair: Beside, column: Column) -> Cell:
    cell = figure(pair.lost, column)
    return Cell(f"+{cell.text}", cell.small, cell.value) if cell.value is not None and cell.value > 0 else cell


def _ratio(pair: Beside, column: Column) -> Cell:
    return Cell(NOTHING) if pair.ratio is None else Cell(f"{pair.ratio:.3g} ×", value=pair.ratio)


CELLS: Final[dict[str, Callable[[Beside, Column], Cell]]] = {
    "student": lambda pair, column: figure(pair.student, column),
    "teacher": lambda pair, column: figure(pair.teacher, column),
    "lost": _lost,
    "ratio": _ratio,
}
