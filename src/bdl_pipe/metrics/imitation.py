"""Compare a student with the posterior that it imitates, by the stored scores of both.

    stored = {name: RunScores(scores.read(Path(f"work/evaluate/{name}/scores.parquet"))) for name in ("gp", "student")}
    beside(stored["student"], stored["gp"], Quantity("nll")).lost

Student and teacher are evaluated on the same splits, so that a loss is the mean of their differences on each split.
Seeds of one split are averaged first. With one split a loss has no error.
"""

from dataclasses import dataclass

from ..scores import Estimate, Quantity, RunScores, estimate
from .table import metric_of


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
    own = student.estimate(wanted) if student is not None else None
    theirs = teacher.estimate(wanted) if teacher is not None else None
    if student is None or teacher is None or own is None or theirs is None or student.splits != teacher.splits:
        return Beside(own, theirs, None)
    sign = -1 if metric_of(wanted.metric).better > 0 else 1
    if student.splits == 1:
        return Beside(own, theirs, Estimate(sign * (own.mean - theirs.mean), None, 1))
    pairs = zip(student.values(wanted), teacher.values(wanted), strict=True)
    return Beside(own, theirs, estimate([sign * (one - other) for one, other in pairs]))
