"""The loop that all decisions share: fit, ask, choose, observe."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bdl_pipe.errors import DataError, NothingToFit
from bdl_pipe.seeds import Seed

from .ascent import around_best
from .question import Belief, Problem, Question
from .rules import Rule, uniform

Fit = Callable[[np.ndarray, np.ndarray, Seed], Belief | None]  # (rows, targets, address) -> the belief


def play(
    problem: Problem, fit: Fit, rule: Rule, rng: Seed, *, width: float = 1.0, region: float | None = None
) -> dict[str, list[tuple[int, float]]]:
    """Play a problem to its end, and return its curves: metric -> pairs of a round and a value.

    A belief is fitted to all known rows at each of the problem's ``refits``. Between refits it answers all rounds in
    one call, or one round at a time if it learns row by row. While there is nothing to fit, as on a plateau of equal
    numbers, choices are uniform until the next refit.

    Args:
        fit: is called with the known rows, their targets and the address of the fit.
        width: the number of standard deviations in the rule ``ucb``.
        region: the largest distance of a proposed point from the best one so far, in each input; None: none.

    Raises:
        DataError: the problem's rows or targets are not finite.
    """
    for start, stop in pairwise([*problem.refits, problem.rounds]):
        rows, targets = problem.known()
        _require_finite(rows, targets, start)
        try:
            belief, choose = fit(rows, targets, rng.fold("fit", start)), rule.choose
        except NothingToFit:
            belief, choose = None, uniform if rule.needs_posterior else rule.choose
        problem.fitted(belief, rng.fold("fitted", start))
        learns = belief is not None and belief.learns
        step = 1 if learns else max(1, stop - start)
        for at in range(start, stop, step):
            question, address = problem.question(min(step, stop - at)), rng.fold("round", at)
            if question.continuous and rule.propose is not None and choose is rule.choose:
                if region is not None:
                    question = around_best(question, region, address.fold("region"))
                points = rule.propose(belief, question, width, address)
                _check_points(points, question)
                question = replace(question, candidates=points[None])
                chosen = np.arange(len(points))[None]
            else:
                chosen = choose(belief, question, width, address)
            _check(chosen, question.candidates.shape, question.count)
            rows, targets = problem.answer(question, chosen)
            _require_finite(rows, targets, at)
            if learns and belief is not None:
                belief.learn(rows, targets)
    return problem.curves()


def refits(rounds: int, first: int, growth: float) -> tuple[int, ...]:
    """Return the rounds of the refits: 0, and each time the known rows, ``first`` at the start, grew by ``growth``."""
    at = [0]
    while (after := max(round((first + at[-1]) * growth) - first, at[-1] + 1)) < rounds:
        at.append(after)
    return tuple(at)


def _require_finite(rows: np.ndarray, targets: np.ndarray, at: int) -> None:
    """Raise DataError if an observation is missing or infinite, which no method fits."""
    for name, values in (("rows", rows), ("values", targets)):
        wrong = values[~np.isfinite(values)]
        if len(wrong):
            rule = f"must be finite, got {wrong[0]} in round {at}"
            raise DataError(f"problem: its {name} {rule}; give a failed evaluation the worst value that you know")


def _check_points(points: np.ndarray, question: Question) -> None:
    """Check the points that a rule, which may come from a plugin, proposes in the unit cube."""
    shape = (question.count, question.candidates.shape[2])
    if points.shape != shape or not bool(((points >= 0) & (points <= 1)).all()):
        raise ValueError(f"a rule must propose {list(shape)} numbers in [0, 1], got {list(points.shape)}: {points}")


def _check(chosen: np.ndarray, shape: tuple[int, ...], count: int) -> None:
    """Check the choices of a rule, which may come from a plugin."""
    good = (
        chosen.shape == (shape[0], count)
        and chosen.dtype.kind == "i"
        and bool(((chosen >= 0) & (chosen < shape[1])).all())
    )
    if not good or any(len({*row}) < count for row in chosen.tolist()):
        got = f"{chosen.dtype} {list(chosen.shape)}"
        raise ValueError(
            f"a rule must choose {count} different of {shape[1]} candidates in {shape[0]} groups, got {got}"
        )
