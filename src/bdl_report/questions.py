"""Write conclusions from stored scores: on probabilities, on intervals and sets, and on answers to refuse.

A difference is more than chance if its 95 % interval excludes 0; the intervals of one sentence hold together
(:func:`bdl_pipe.metrics.standings.difference`). A run with a p-value of at most 5 % counts as wrong; one in twenty
right runs has such a p-value. The p-values of several fits share rows; twice their mean is a p-value whatever their
dependence is (Rüschendorf 1982; Vovk & Wang 2020).
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from bdl_pipe.metrics.metric import Question
from bdl_pipe.metrics.standings import SEEDS, Candidate, difference
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.metrics.written import writer
from bdl_pipe.scores import Quantity, average

from .choice import coverage, finite, loss, off_by_width

FALSE_ALARMS: Final = 0.05
TESTS: Final = ("ece_adaptive_p", "ece_class_wise_p", "ece_smooth_p")


def trust(candidates: Sequence[Candidate]) -> list[str]:
    """Name the runs without detected miscalibration by any of three tests, and the run with the smallest error."""
    scored = finite(candidates, "ece_adaptive")
    if not scored:
        return []
    best = min(scored, key=lambda one: loss(one, "ece_adaptive"))
    chance, p = _written(best, "ece_adaptive_expected"), p_value(best, "ece_adaptive_p")
    smallest = f"{best.name} has the smallest adaptive ECE, {_written(best, 'ece_adaptive')} %"
    return [
        f"Probabilities: {_shown(scored, TESTS, 'adaptive, class-wise or smooth ECE above chance')}",
        f"Smallest error: {smallest}; by chance alone it would be {chance} % (p = {p:.2g}).",
    ]


def intervals(candidates: Sequence[Candidate]) -> list[str]:
    """Name the runs with intervals without detected miscalibration, and the narrowest at equal coverage.

    For classes, name only the run with the smallest sets.
    """
    sized = finite(candidates, "set_size_lac")
    if sized:
        return [f"Smallest sets at 90 % coverage: {first(candidates, 'set_size_lac')}"]
    scored = finite(candidates, "pit_p")
    if not scored:
        return []
    off = [(one.name, gap) for one in candidates if (gap := coverage(one)) is not None]
    few, many = ([name for name, gap in off if gap.apart and gap.mean * sign > 0] for sign in (-1, 1))
    wrong = [f"too {x} targets inside for {', '.join(names)}" for x, names in (("few", few), ("many", many)) if names]
    rest = f"a share that agrees with 90 % for all {'others' if wrong else 'runs'}"
    return [
        f"Distributions: {_shown(scored, ('pit_p',), 'F(y) not uniform')}",
        f"90 % intervals: {'; '.join([*wrong, rest])}.",
        *(f"{one.name}: {warning}." for one in candidates if (warning := off_by_width(one))),
        f"Narrowest at equal coverage: {first(candidates, 'width_at_90')}",
    ]


def refuse(candidates: Sequence[Candidate]) -> list[str]:
    """Name the run with the lowest cost of refusal, and the shares that it answers with at most 1 and 5 % wrong."""
    scored = finite(candidates, "augrc")
    if not scored:
        return []
    best = min(scored, key=lambda one: loss(one, "augrc"))
    sentences = [f"Lowest cost of rejection: {first(candidates, 'augrc')}"]
    if best.scores.values(Quantity("coverage_at_1")):
        shares = [f"{_written(best, f'coverage_at_{r}')} % of the rows with at most {r} % wrong" for r in (1, 5)]
        sentences.append(f"Accepted: {best.name} accepts {' and '.join(shares)}.")
    return [*sentences, f"Best order of rejection: {first(candidates, 'refusal_gain')}"]


SENTENCES: Final[dict[Question, Callable[[Sequence[Candidate]], list[str]]]] = {
    "trust": trust,
    "intervals": intervals,
    "refuse": refuse,
}


def first(candidates: Sequence[Candidate], metric: str) -> str:
    """Name the best run by a metric, and the runs that do not differ from it by more than chance."""
    ordered = sorted(finite(candidates, metric), key=lambda one: loss(one, metric))
    if not ordered:
        return "no run has such a score."
    best, *others = ordered
    of = metric_of(metric)
    value = f"{_written(best, metric)}{' %' if of.percent else ''}"
    text = f"{best.name} has the {'highest' if of.better > 0 else 'lowest'} {of.label.removesuffix(' %')}, {value}."
    if metric == "refusal_gain":
        text = f"{best.name} ranks its own errors best: {value} of the ideal."
    if not others:
        return text
    differences = {one.name: difference(one, best, len(others), metric) for one in others}
    gaps = {name: gap for name, gap in differences.items() if gap is not None and math.isfinite(gap.error)}
    if not gaps:
        return f"{text} The errors of differences are unknown: there is one split, without scores by row."
    known = {name: gap for name, gap in gaps.items() if math.isfinite(gap.half)}
    if few := len(gaps) - len(known):
        text += f" Fewer than {SEEDS} seeds: {few} of {len(gaps)} differences from it are not established."
    gaps = known
    tied = [name for name, gap in gaps.items() if not gap.apart]
    if not gaps:
        return text
    if len(gaps) + few < len(differences):
        text += f" {len(differences) - len(gaps) - few} others cannot be compared with it in pairs."
    if not tied:
        return f"{text} All others that can be compared are significantly worse."
    worse = f"{len(gaps) - len(tied)} of {len(gaps)} others are significantly worse"
    return f"{text} It is statistically tied with {', '.join(tied)}; {worse}."


def p_value(one: Candidate, *metrics: str) -> float:
    """Return the joint p-value of all fits of a run, see the module; NaN if no fit has one.

    Of several tests it is the smallest p-value times their number (Bonferroni), so that a run counts as miscalibrated
    by any of them with at most the error rate of one.
    """
    if len(metrics) > 1:
        of_tests = [p for metric in metrics if not math.isnan(p := p_value(one, metric))]
        return min(1.0, len(of_tests) * min(of_tests)) if of_tests else math.nan
    (metric,) = metrics
    of_fits = [p for group in one.scores.groups(Quantity(metric)) for p in group]
    return math.nan if not of_fits else of_fits[0] if len(of_fits) == 1 else min(1.0, 2 * average(of_fits))


def _shown(scored: Sequence[Candidate], tests: Sequence[str], error: str) -> str:
    """Write how many runs the tests with these p-values show to be miscalibrated, and the names of the others."""
    right, test = [one.name for one in scored if p_value(one, *tests) > FALSE_ALARMS], f"{error}, 5 % level"
    if not right:
        return f"all {len(scored)} runs are miscalibrated ({test})."
    wrong = len(scored) - len(right)
    if not wrong:
        return f"no miscalibration was detected in {len(scored)} runs ({test})."
    miscalibrated = f"{wrong} of {len(scored)} runs are miscalibrated ({test})"
    return f"{miscalibrated}. No miscalibration was detected for: {', '.join(right)}."


def _written(one: Candidate, metric: str) -> str:
    of = metric_of(metric)
    return writer(of)(average(one.scores.values(Quantity(metric))))
