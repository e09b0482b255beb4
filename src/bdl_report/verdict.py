"""The verdict on a data set: which run to take, whether a Bayesian network is better, and the benefit of more time.

Each sentence is a function of stored scores. docs/reading-the-report.md has the rules, :mod:`.choice` the figures.

On one split a difference from a run of fewer than three seeds is not established: another seed, or another processor
with the same seed, makes another fit, and one or two fits do not show by how much fits differ. Splits are repeats of
the fit, so that one seed for each split is enough.
"""

import math
from collections.abc import Sequence
from typing import Final

from bdl_pipe.metrics.comparison import Difference
from bdl_pipe.metrics.standings import BASELINE, SEEDS, Candidate, difference
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.metrics.written import seconds
from bdl_pipe.registry import METHODS
from bdl_pipe.scores import Quantity, average

from .choice import LEVEL, Choice, choose, coverage, finite, fit_seconds, half_width, loss, split_seconds

FEW_SEEDS: Final = f"not established (fewer than {SEEDS} seeds)"
_PREDICT: Final = Quantity("seconds_per_1000", "cost")
_MOST_SPLITS: Final = 20
_NUMBERS: Final = ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")


def optimal(method: str) -> bool:
    """Return whether the method's fits end at an optimum, whatever their seed; False for an unknown method."""
    return method in METHODS and METHODS[method].optimal


def verdict(candidates: Sequence[Candidate]) -> list[str]:
    """Return sentences on the run to take, on whether a Bayesian network is better, and on the benefit of more time."""
    by_accuracy = "accuracy" if any(one.scores.values(Quantity("accuracy")) for one in candidates) else "rmse"
    accuracy, nll = choose(candidates, by_accuracy), choose(candidates, "nll")
    if nll is None:
        return ["Verdict: none, because no run has a finite NLL."] if candidates else []
    sentences = [f"Accuracy: {taking(accuracy)}"] if accuracy else []
    what = "Intervals" if by_accuracy == "rmse" else "Probabilities"
    sentences += [f"{what}: {taking(nll)}{calibration(nll.taken)}", f"Cost: {cheapest(nll)}"]
    for metric in ("nll", by_accuracy):
        better = "more accurate" if metric == "accuracy" else f"better by {_label(metric)}"
        sentences.append(f"Is a Bayesian network {better}? {worth(candidates, metric)}")
    sentences.append(f"Would longer training help? {hour(candidates, nll.taken)}")
    limits = []
    if len(nll.ordered) > 1:
        picked = f"the winner was picked by its test score among {len(nll.ordered)} runs"
        limits.append(f"{picked}, so that score is optimistic.")
    if nll.best.scores.splits == 1:
        limits.append("With a single train/test split, another split could give another ranking.")
    if few := sum(one.few_seeds for one in nll.ordered):
        lacking = f"{few} of {len(nll.ordered)} runs have fewer than {SEEDS} seeds"
        limits.append(f"{lacking}: give them {SEEDS} (seeds: {SEEDS}) to compare them.")
    return [*sentences, *([f"Caution: {' '.join(limits)}"] if limits else [])]


def taking(choice: Choice) -> str:
    """Write which run to take by a metric, and why."""
    best, taken, label = choice.best, choice.taken, _label(choice.metric)
    value = _value(best, choice.metric)
    if len(choice.ordered) == 1:
        return f"{best.name} is the only run with a finite {label}, {value}."
    if taken is not best:
        tie = f"{_runs(len(choice.near))} tie on {label} (within one standard error of the best)"
        cheap = f"{taken.name} is the cheapest of them to fit ({seconds(fit_seconds(taken))})"
        text = f"use {taken.name}. {tie}, and {cheap}. Its {label} is {_value(taken, choice.metric)}"
        return f"{text}; {best.name} has the best, {value} ({_of(choice, taken)})."
    end = "highest" if metric_of(choice.metric).better > 0 else "lowest"
    if best.few_seeds:
        return f"{FEW_SEEDS}: {best.name} has the {end} {label}, {value}."
    text, faster = f"use {best.name}: its {label}, {value}, is the {end}", choice.faster(best)
    if not math.isfinite(fit_seconds(best)):
        return f"{text}; the time of its fit is not recorded."
    if not faster:
        return f"{text}, and no run is cheaper to fit ({seconds(fit_seconds(best))})."
    if unknown := [one for one in faster if one.key not in choice.gaps]:
        return f"{text}; {_runs(len(unknown), 'cheaper').lower()} cannot be compared with it in pairs."
    return f"{text}, and no cheaper run is within one standard error of it."


def calibration(one: Candidate) -> str:
    """Write whether 90 % of the targets are in a run's 90 % intervals; for classes, write the ECE."""
    off, ece = coverage(one), one.scores.values(Quantity("ece"))
    if off is not None:
        answer = "this agrees with 90 %" if not off.apart else "too few" if off.mean < 0 else "too many"
        share = f"{100 * (LEVEL + off.mean):.1f} ± {100 * off.error:.1f} %"
        return f" Its 90 % intervals cover {share} of the test targets: {FEW_SEEDS if one.few_seeds else answer}."
    return f" Its ECE is {100 * average(ece):.2f} %." if ece and math.isfinite(average(ece)) else ""


def cheapest(choice: Choice) -> str:
    """Write which run is the cheapest to fit among the runs that are statistically tied with the best."""
    taken, label, splits = min(choice.tied, key=fit_seconds), _label(choice.metric), choice.best.scores.splits
    over = f"Over {splits} splits" if splits > 1 else "Over the test rows"
    if not math.isfinite(fit_seconds(taken)):
        return "the times of the fits are not recorded."
    predicts = taken.scores.estimate(_PREDICT)
    named = f"{FEW_SEEDS}: {taken.name}, with the best {label}," if taken.few_seeds else taken.name
    text = f"{named} fits in {seconds(fit_seconds(taken))}"
    text += f" and predicts 1,000 rows in {seconds(predicts.mean)}" if predicts and math.isfinite(predicts.mean) else ""
    if taken is not choice.best:
        text += f". {over} its {label} is statistically tied with the best ({_of(choice, taken)})"
    faster = choice.faster(taken)
    worse = sum(one.key in choice.gaps for one in faster)
    if worse:
        all_worse = "is cheaper, but it is" if worse == 1 else "are cheaper, but all of them are"
        text += f". {_runs(worse)} {all_worse} significantly worse"
    if worse < len(faster):
        text += f". {_runs(len(faster) - worse, 'cheaper')} cannot be compared with the best in pairs"
    if len(choice.ordered) > 1 and any(one.method == "constant" for one in choice.tied):
        text += ". No run is significantly better than constant, so it is not established that the inputs help"
    return f"{text}."


def worth(candidates: Sequence[Candidate], metric: str) -> str:
    """Write whether the best Bayesian network is better than each rival or, without rivals, than its plain network.

    A network is Bayesian if its method says so (``Method.bayesian``): it has a posterior over weights. An ensemble of
    networks that are trained apart has none.
    """
    scored = finite(candidates, metric)
    networks = [one for one in scored if one.network and one.method in METHODS and METHODS[one.method].bayesian]
    if not networks:
        return "No Bayesian network has a finite score."
    best = min(networks, key=lambda one: loss(one, metric))
    named = [method.name for method in METHODS.values() if method.rival]
    without = not any(one.method in named for one in candidates)
    plain = [one for one in scored if one.method == BASELINE and one.network == best.network]
    rivals = plain if without else [one for one in scored if one.method in named]
    worse, tied, better, single = list[str](), list[str](), list[str](), list[str]()
    for rival in rivals:
        gap = difference(best, rival, len(networks), metric)  # the interval allows for the choice of the best network
        group = tied if gap is None or not gap.apart else better if gap.mean < 0 else worse
        group = single if best.few_seeds or rival.few_seeds else group
        group.append(f"{rival.name} ({_gap(gap, metric)})")
    verbs = {"is worse than": worse, "is statistically tied with": tied, "is better than": better}
    verbs[f"differs, with fewer than {SEEDS} seeds, from"] = single
    parts = [f"{verb} {', '.join(names)}" for verb, names in verbs.items() if names]
    answer = "No" if worse else "Not established" if tied else FEW_SEEDS.capitalize() if single else "Yes"
    answer += ", against a plain network" if without else ""
    many = f"the best of {len(networks)}"
    of = f"{best.name}, {many} Bayesian networks," if len(networks) > 1 else best.name
    corrected = f", after correcting for choosing {many}" if len(networks) > 1 and (worse or tied or better) else ""
    text = f"{answer}: {of} {' and '.join(parts)}{corrected}." if parts else f"no run can be compared with {best.name}."
    return f"{text} This comparison has no {', '.join(named[:-1])} or {named[-1]} baseline." if without else text


def hour(candidates: Sequence[Candidate], taken: Candidate) -> str:
    """Write whether longer fits of a run would help, which other fits were too short, and what more splits bring."""
    name, ended = taken.name, taken.ended
    if taken.optimal:
        text = f"No: the fits of {name} end at an optimum."
    elif "chains" in ended:
        text = f"Yes: the Markov chains of {name} have not converged."
    elif late := ended.count("steps"):
        many = f"{late} of {len(ended)} fits of {name}"
        text = f"Perhaps: {many} used all their steps while their validation score still improved."
    elif "validation" in ended:
        text = f"No: early stopping ended the fits of {name}."
    elif "schedule" in ended:
        text = f"Unknown for {name}, which always runs a fixed number of steps."
    else:
        text = f"Unknown: how the fits of {name} ended is not recorded."
    whys = {
        "steps": "Perhaps for these runs, which still improved",
        "chains": "Yes for these runs, whose Markov chains",
    }
    for (end, why), last in zip(whys.items(), ("at their last step", "have not converged"), strict=True):
        names = [one.name for one in candidates if one is not taken and end in one.ended]
        text += f" {why} {last}: {', '.join(names)}." if names else ""
    splits, a_split = taken.scores.splits, math.fsum(map(split_seconds, candidates))
    more = min(_MOST_SPLITS - splits, int(3600 / a_split)) if splits > 1 and 0 < a_split < math.inf else 0
    if more > 0:
        what = f"{more} more split{'s' if more > 1 else ''} would take {seconds(more * a_split)} of fitting"
        percent = 100 * (1 - half_width(splits + more) / half_width(splits))
        text += f" {what} and narrow the intervals of differences by about {percent:.0f} %."
    return text


def _of(choice: Choice, one: Candidate) -> str:
    return _gap(choice.gaps.get(one.key), choice.metric)


def _gap(gap: Difference | None, metric: str) -> str:
    """Write a difference of losses as a difference of scores and its standard error, which has two digits."""
    if gap is None:
        return "not comparable"
    of, measured = metric_of(metric), 1e-6 * abs(gap.mean) < gap.error < math.inf  # a smaller error is rounding
    mean, error, unit = -of.better * gap.mean, gap.error, ""
    if of.percent:
        mean, error, unit = 100 * mean, 100 * error, " points"
    digits = max(0, 1 - math.floor(math.log10(error))) if measured else 3
    text = f"{_label(metric)} {'−' if mean < 0 else '+'}{abs(mean):,.{digits}f}"
    return f"{text} ± {error:,.{digits}f}{unit}" if math.isfinite(error) else f"{text}{unit}, error unknown"


def _value(one: Candidate, metric: str) -> str:
    value = -metric_of(metric).better * loss(one, metric)
    if metric_of(metric).percent:
        return f"{100 * value:.2f} %"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:#.4g}"


def _label(metric: str) -> str:
    return "accuracy" if metric == "accuracy" else metric_of(metric).label


def _runs(count: int, kind: str = "") -> str:
    """Write a number of runs at the start of a sentence."""
    number = _NUMBERS[count - 1] if count <= len(_NUMBERS) else f"{count}"
    return f"{number} {kind} run{'s' if count > 1 else ''}".replace("  ", " ")
