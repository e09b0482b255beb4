"""Students beside the posteriors that they imitate: size, speed, losses, and the joint of several inputs.

Student and teacher are evaluated on the same splits, so that a loss is the mean of their differences on each split.
Seeds of one split are averaged first. With one split a loss has no error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bdl_pipe.metrics.joint import SIZES, names
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.scores import Estimate, Quantity, RunScores, estimate

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


@dataclass(frozen=True)
class Beside:
    """A student's figure beside its teacher's.

    Attributes:
        student, teacher: the figures; None if a score is missing.
        lost: the student's loss, above 0 if the student is worse: its figure minus the teacher's, or the teacher's
            minus the student's if higher values are better. Its error is the standard error over splits, and None on
            one split. ``lost`` is None if a figure is missing, or if the two have different numbers of splits.
    """

    student: Estimate | None
    teacher: Estimate | None
    lost: Estimate | None

    @property
    def ratio(self) -> float | None:
        """Return the teacher's figure over the student's: how many times smaller or faster the student is."""
        if self.student is None or self.teacher is None or self.student.mean == 0:
            return None
        return self.teacher.mean / self.student.mean


def beside(student: RunScores | None, teacher: RunScores | None, wanted: Quantity) -> Beside:
    """Return a quantity of a student beside the same quantity of its teacher; None stands for a run without scores."""
    figures = (student.estimate(wanted) if student else None), (teacher.estimate(wanted) if teacher else None)
    if not (student and teacher and figures[0] and figures[1]) or student.splits != teacher.splits:
        return Beside(*figures, None)
    sign = -1 if metric_of(wanted.metric).better > 0 else 1
    if student.splits == 1:
        return Beside(*figures, Estimate(sign * (figures[0].mean - figures[1].mean), None, 1))
    pairs = zip(student.values(wanted), teacher.values(wanted), strict=True)
    return Beside(*figures, estimate([sign * (one - other) for one, other in pairs]))


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


CELLS: Final[dict[str, Callable[[Beside, Column], Cell]]] = {
    "student": lambda pair, column: figure(pair.student, column),
    "teacher": lambda pair, column: figure(pair.teacher, column),
    "lost": _lost,
    "ratio": lambda pair, _: Cell(NOTHING) if pair.ratio is None else Cell(f"{pair.ratio:.3g} ×", value=pair.ratio),
}
