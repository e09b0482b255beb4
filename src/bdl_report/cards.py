"""The first lines on a data set: its best run, the cheapest run that ties with it, and what to beware of."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bdl_pipe.metrics.standings import SEEDS, Candidate
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.metrics.written import seconds, writer
from bdl_pipe.scores import Quantity

from .choice import Choice, choose, fit_seconds, loss

_PREDICT: Final = Quantity("seconds_per_1000", "cost")
OPEN: Final = f"not established (one split, fewer than {SEEDS} seeds)"


class Card(NamedTuple):
    """A card: what it is about, its answer, and notes on it."""

    title: str
    answer: str
    notes: list[str]


def cards(candidates: Sequence[Candidate], warnings: Sequence[str], absent: int) -> list[Card]:
    """Return the cards of a data set; none if no run has a finite NLL.

    Args:
        warnings: the warnings, each with its runs.
        absent: the number of runs without scores.
    """
    nll = choose(candidates, "nll")
    if nll is None:
        return []
    metric = "accuracy" if any(one.scores.values(Quantity("accuracy")) for one in candidates) else "rmse"
    other, cheap = choose(candidates, metric), min(nll.tied, key=fit_seconds)
    best = [f"NLL {_score(nll)}; {_standing(nll)}"]
    if other is not None:
        label = metric_of(metric).label.removesuffix(" %")
        best.append(f"Best {label}: {other.best.name}, {_score(other)}; {_standing(other)}")
    price, predicts = [f"{cheap.name} fits in {seconds(fit_seconds(cheap))}"], cheap.scores.estimate(_PREDICT)
    if predicts is not None:
        price.append(f"predicts 1,000 rows in {seconds(predicts.mean)}")
    ties = [
        f"{', '.join(price)}.",
        "It has the best NLL itself." if cheap is nll.best else "Tied with the best by NLL.",
    ]
    if unknown := [one for one in nll.ordered[1:] if one.key not in nll.gaps]:
        ties.append(f"For {len(unknown)} others a tie is not established (fewer than {SEEDS} seeds).")
    limits = [f"The winner was picked by its test score among {len(nll.ordered)} runs, so that score is optimistic."]
    limits += ["With a single split, another split could give another ranking."] if nll.best.scores.splits == 1 else []
    limits += [f"{absent} runs have no result."] if absent else []
    count = f"{len(warnings)} warning{'s' if len(warnings) != 1 else ''}" if warnings else "no warning from a fit"
    cheapest = cheap.name if not nll.best.few_seeds else "not established"
    return [
        Card("Best", nll.best.name, best),
        Card("Cheapest that ties", cheapest, ties),
        Card("Caution", count, limits),
    ]


def _score(choice: Choice) -> str:
    of = metric_of(choice.metric)
    return f"{writer(of)(-of.better * loss(choice.best, choice.metric))}{' %' if of.percent else ''}"


def _standing(choice: Choice) -> str:
    """Write whether the best run is shown to be better than the others."""
    if len(choice.ordered) == 1:
        return "the only run"
    if choice.best.few_seeds or not choice.gaps:
        return OPEN
    tied = len(choice.tied) - 1
    if not tied and len(choice.gaps) == len(choice.ordered) - 1:
        return "better than all others"
    return f"tied with {tied} of {len(choice.ordered) - 1} others"
