"""The verdict on a data set: which method to take, whether a Bayesian network pays off, and the benefit of more time.

Each sentence is a function of stored scores; docs/reading-the-report.md has the rules, :mod:`.choice` the figures.
"""

import math
from collections.abc import Sequence
from typing import Final

from ..metrics.comparison import Difference
from ..metrics.standings import BASELINE, Candidate, difference
from ..metrics.table import metric_of
from ..metrics.written import seconds
from ..scores import Quantity, average
from .choice import LEVEL, Choice, choose, coverage, finite, fit_seconds, half_width, loss, split_seconds

RIVALS: Final = ("boosting", "linear", "constant")
OPTIMAL: Final = ("linear", "constant")  # methods with fits that end at an optimum
POINTS: Final = (BASELINE, "swa", "coreset_nn")  # networks with one value of the weights, and no posterior
_PREDICT: Final = Quantity("seconds_per_1000", "cost")
_MOST_SPLITS: Final = 20


def verdict(candidates: Sequence[Candidate]) -> list[str]:
    """Return the sentences on the run to take, on the worth of a Bayesian network, and on one more hour."""
    by_accuracy = "accuracy" if any(one.scores.values(Quantity("accuracy")) for one in candidates) else "rmse"
    accuracy, nll = choose(candidates, by_accuracy), choose(candidates, "nll")
    if nll is None:
        return ["Verdict: no run has a finite NLL, and nothing can be concluded."] if candidates else []
    said = [f"Accuracy: {taking(accuracy)}"] if accuracy else []
    what = "Intervals" if by_accuracy == "rmse" else "Probabilities"
    said += [f"{what}: {taking(nll)}{calibration(nll.taken)}", f"Cost: {cheapest(nll)}"]
    said += [f"Bayesian network by {_label(metric)}: {worth(candidates, metric)}" for metric in ("nll", by_accuracy)]
    said.append(f"One more hour: {hour(candidates, nll.taken)}")
    limits = []
    if len(nll.ordered) > 1:
        limits.append(f"the best of {len(nll.ordered)} runs is chosen on the rows that score it, which flatters it.")
    if nll.best.scores.splits == 1:
        limits.append("There is one split: another draw of training rows could order the runs otherwise.")
    return [*said, *([f"Beware: {' '.join(limits)}"] if limits else [])]


def taking(choice: Choice) -> str:
    """Write which run to take by a metric, and why."""
    best, taken, label = choice.best, choice.taken, _label(choice.metric)
    value = _value(best, choice.metric)
    if len(choice.ordered) == 1:
        return f"{best.name} is the only run with a finite {label}, {value}."
    if taken is not best:
        beside = f"{_value(taken, choice.metric)} beside {value} of {best.name} ({_of(choice, taken)})"
        of = f"{len(choice.near)} runs within one standard error of the best {label}"
        return f"take {taken.name}, the cheapest to fit ({seconds(fit_seconds(taken))}) of {of}: {beside}."
    end = "higher" if metric_of(choice.metric).better > 0 else "lower"
    said, faster = f"take {best.name}: no run has a {end} {label} than {value}", choice.faster(best)
    if not math.isfinite(fit_seconds(best)):
        return f"{said}; the time of its fit is not recorded."
    if not faster:
        return f"{said}, and none is cheaper to fit ({seconds(fit_seconds(best))})."
    if unknown := [one for one in faster if one.key not in choice.gaps]:
        return f"{said}; {_many(len(unknown), 'cheaper run')} cannot be compared with it in pairs."
    return f"{said}, and none that is cheaper to fit is within one standard error of it."


def calibration(one: Candidate) -> str:
    """Write whether the intervals of a run hold as many targets as they should, or the error of its probabilities."""
    off, ece = coverage(one), one.scores.values(Quantity("ece"))
    if off is not None:
        how = "as many as they should, within the error" if not off.apart else "too few" if off.mean < 0 else "too many"
        return f" Its 90 % intervals hold {100 * (LEVEL + off.mean):.1f} ± {100 * off.error:.1f} % of test rows: {how}."
    return f" Its ECE is {100 * average(ece):.2f} %." if ece and math.isfinite(average(ece)) else ""


def cheapest(choice: Choice) -> str:
    """Write which run is the cheapest to fit among the runs that do not differ from the best run."""
    taken, label, over = min(choice.tied, key=fit_seconds), _label(choice.metric), _over(choice.best)
    if not math.isfinite(fit_seconds(taken)):
        return "the times of the fits are not recorded."
    predicts = taken.scores.estimate(_PREDICT)
    said = f"{taken.name} fits in {seconds(fit_seconds(taken))}"
    said += f" and predicts 1,000 rows in {seconds(predicts.mean)}" if predicts and math.isfinite(predicts.mean) else ""
    if taken is not choice.best:
        said += f"; {over} its {label} cannot be told apart from the best ({_of(choice, taken)})"
    faster = choice.faster(taken)
    known = sum(one.key in choice.gaps for one in faster)
    said += f"; {_many(known, 'cheaper run')} can be told apart from the best" if known else ""
    said += f"; {_many(len(faster) - known, 'cheaper run')} cannot be compared in pairs" if known < len(faster) else ""
    if len(choice.ordered) > 1 and any(one.method == "constant" for one in choice.tied):
        said += f". No run is shown to be better than constant: {over} the inputs are not shown to help"
    return f"{said}."


def worth(candidates: Sequence[Candidate], metric: str) -> str:
    """Write whether the best Bayesian network is better than each rival or, without rivals, than its plain network."""
    known = finite(candidates, metric)
    networks = [one for one in known if one.network and one.method not in POINTS]
    if not networks:
        return "no run of one has a finite score."
    best = min(networks, key=lambda one: loss(one, metric))
    without = not any(one.method in RIVALS for one in candidates)
    plain = [one for one in known if one.method == BASELINE and one.network == best.network]
    rivals = plain if without else [one for one in known if one.method in RIVALS]
    worse, tied, better = list[str](), list[str](), list[str]()
    for rival in rivals:
        gap = difference(best, rival, len(networks), metric)  # the interval allows for the choice of the best network
        how = tied if gap is None or not gap.apart else better if gap.mean < 0 else worse
        how.append(f"{rival.name} ({_gap(gap, metric)})")
    verbs = ("is worse than", "cannot be told apart from", "is better than")
    parts = [f"{verb} {', '.join(names)}" for verb, names in zip(verbs, (worse, tied, better), strict=True) if names]
    answer = "no" if worse else "not shown" if tied else "yes"
    of = f"{best.name}, the best of {len(networks)}," if len(networks) > 1 else best.name
    said = f"{answer}; {of} {' and '.join(parts)}" if parts else "there is nothing to compare it with"
    missing = f" There is no run of {', '.join(RIVALS[:-1])} or {RIVALS[-1]}."
    return f"{'against a plain network, ' if parts else ''}{said}.{missing}" if without else f"{said}."


def hour(candidates: Sequence[Candidate], taken: Candidate) -> str:
    """Write the benefit of longer fits of a run, the other fits that were too short, and the benefit of more splits."""
    name, ended = taken.name, taken.ended
    if taken.method in OPTIMAL:
        said = [f"the fits of {name} end at an optimum, so more time buys nothing."]
    elif "chains" in ended:
        said = [f"the chains behind {name} are too short, and longer ones may change its figures."]
    elif late := ended.count("steps"):
        many = f"{late} of {len(ended)} fits of {name}"
        said = [f"{many} were still improving on validation rows as their steps ended: more steps may help."]
    elif "validation" in ended:
        said = [f"validation rows stopped the fits of {name}, so more steps buy nothing."]
    elif "schedule" in ended:
        said = [f"{name} ran the steps of its schedule, and no record says whether more would help."]
    else:
        said = [f"no record says whether longer fits of {name} would help."]
    for how, why in (("steps", "Still improving as their steps ended"), ("chains", "From chains that are too short")):
        names = [one.name for one in candidates if one is not taken and how in one.ended]
        said += [f"{why}: {', '.join(names)}."] if names else []
    splits, a_split = taken.scores.splits, math.fsum(map(split_seconds, candidates))
    more = min(_MOST_SPLITS - splits, int(3600 / a_split)) if splits > 1 and 0 < a_split < math.inf else 0
    if more > 0:
        what = f"{_many(more, 'more split')} would take {seconds(more * a_split)} of fits"
        percent = 100 * (1 - half_width(splits + more) / half_width(splits))
        said.append(f"{what} and shorten the intervals of differences by about {percent:.0f} %.")
    return " ".join(said)


def _of(choice: Choice, one: Candidate) -> str:
    return _gap(choice.gaps.get(one.key), choice.metric)


def _gap(gap: Difference | None, metric: str) -> str:
    """Write a difference of losses as a difference of scores and its standard error, which has two digits."""
    if gap is None:
        return "not comparable"
    of, known = metric_of(metric), 1e-6 * abs(gap.mean) < gap.error < math.inf  # a smaller error is rounding
    mean, error, unit = -of.better * gap.mean, gap.error, ""
    if of.percent:
        mean, error, unit = 100 * mean, 100 * error, " %"
    digits = max(0, 1 - math.floor(math.log10(error))) if known else 3
    said = f"{_label(metric)} {'−' if mean < 0 else '+'}{abs(mean):,.{digits}f}"
    return f"{said} ± {error:,.{digits}f}{unit}" if math.isfinite(error) else f"{said}{unit}, error unknown"


def _value(one: Candidate, metric: str) -> str:
    value = -metric_of(metric).better * loss(one, metric)
    if metric_of(metric).percent:
        return f"{100 * value:.2f} %"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:#.4g}"


def _label(metric: str) -> str:
    return "accuracy" if metric == "accuracy" else metric_of(metric).label


def _over(one: Candidate) -> str:
    return f"over {one.scores.splits} splits" if one.scores.splits > 1 else "over the test rows"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"
