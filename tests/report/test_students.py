"""The loss of a student against its teacher, by hand."""

import math

import pytest

from bdl_pipe import scores
from bdl_pipe.scores import Quantity, RunScores, Score
from bdl_report.students import beside

NLL, ACCURACY, SIZE = Quantity("nll"), Quantity("accuracy"), Quantity("bytes", "cost")


def run(of: Quantity, values: list[list[float]]) -> RunScores:
    """A run with these values [split][seed]."""
    figures = [Score(s, k, of, value, 10) for s, seeds in enumerate(values) for k, value in enumerate(seeds)]
    return RunScores(scores.table("d", "m", "s", figures))


def test_a_loss_is_a_mean_over_pairs_of_splits_with_seeds_averaged_first() -> None:
    """Differences .1, .3 and .2: mean .2, standard error .1/√3; the figures' own errors are ten times as large."""
    student, teacher = run(NLL, [[1.0, 1.2], [3.3, 3.3], [5.1, 5.3]]), run(NLL, [[1.0], [3.0], [5.0]])
    pair = beside(student, teacher, NLL)
    assert pair.student == student.estimate(NLL) and pair.teacher == teacher.estimate(NLL)
    assert pair.lost is not None and pair.lost.error is not None and pair.student is not None
    assert (pair.lost.mean, pair.lost.n) == (pytest.approx(0.2), 3)
    assert pair.lost.error == pytest.approx(0.1 / math.sqrt(3))
    assert pair.student.error is not None and pair.student.error > 10 * pair.lost.error
    assert pair.ratio == pytest.approx(3.0 / 3.2)


def test_a_lower_accuracy_is_a_loss_and_one_split_has_no_error_and_the_numbers_of_seeds_may_differ() -> None:
    pair = beside(run(ACCURACY, [[0.9], [0.8]]), run(ACCURACY, [[0.92], [0.84]]), ACCURACY)
    assert pair.lost is not None and pair.lost.mean == pytest.approx(0.03)
    pair = beside(run(NLL, [[0.3, 0.5]]), run(NLL, [[0.1]]), NLL)
    assert pair.lost is not None and pair.lost.mean == pytest.approx(0.3) and pair.lost.error is None
    assert beside(run(SIZE, [[200.0]]), run(SIZE, [[900.0]]), SIZE).ratio == 4.5


def test_runs_that_cannot_be_compared_have_no_loss() -> None:
    one, two = run(NLL, [[0.3]]), run(NLL, [[0.3], [0.5]])
    assert beside(one, two, NLL).lost is None and beside(one, None, NLL).lost is None
    missing = beside(one, two, ACCURACY)
    assert (missing.student, missing.teacher, missing.lost, missing.ratio) == (None, None, None, None)
    assert beside(one, None, NLL).student == one.estimate(NLL) and beside(one, None, NLL).ratio is None
