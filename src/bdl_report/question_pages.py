"""The pages that each answer one question: for each data set, sentences that its scores support, figures, tables.

The page of unseen rows has every OOD score on every set; the stage ``scores`` computes each run's figures from the rows
that ``evaluate`` stores, and they are read here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final

from bdl_pipe.metrics import DETECTION, ood
from bdl_pipe.metrics.metric import Question
from bdl_pipe.metrics.ood.rows import label_of
from bdl_pipe.metrics.ood.table import GROUPS, Figure, Group, Result, scores_in
from bdl_pipe.scores import DEFAULT_SCORE, Quantity

from . import charts, columns
from .columns import NOTHING, Cell, Column, Grid
from .questions import SENTENCES
from .tables import Table
from .vega import Chart

SHOWN: Final = {"auroc": "AUROC %", "fpr95": "FPR95 %"}
Answer = tuple[list[str], list[Grid]]
Drawn = list[Chart]


@dataclass(frozen=True)
class Page:
    """A page of a question.

    Attributes:
        title: the question.
        answer: returns the sentences and the tables of one data set. Without tables the page omits the data set.
        draw: returns the figures of one data set.
    """

    title: str
    answer: Callable[[Table], Answer]
    draw: Callable[[Table], Drawn]


def answers(table: Table, question: Question) -> Mapping[str, object] | None:
    """Return a page's contents for each data set that has scores for its question; None if none has."""
    page, parts = PAGES[question], {}
    for dataset, whole in table.by_dataset().items():
        part = whole.done
        sentences, grids = page.answer(part)
        if grids:
            parts[dataset] = {"sentences": sentences, "figures": page.draw(part), "grids": grids, "table": part}
    return {"parts": parts} if parts else None


def by_metrics(table: Table, question: Question) -> Answer:
    """Return the sentences on a question, and the table of the metrics that are registered for it."""
    return SENTENCES[question](table.candidates()), columns.asked(table, question)


def reliability(table: Table) -> Drawn:
    """Draw the reliability diagrams."""
    return [charts.reliability(table, key, bins) for key, bins in _drawn(table, "calibration").items()]


def pit(table: Table) -> Drawn:
    """Draw the coverage of intervals at each level, and the histograms of F(y)."""
    counts = _drawn(table, "pit")
    first = [charts.coverage(table, counts)] if counts else []
    return [*first, *(charts.pit(table, key, count) for key, count in counts.items())]


def risk(table: Table) -> Drawn:
    """Draw the risk against coverage, and the cost of decisions, of all runs together."""
    risks, wrong = _drawn(table, "risk"), Quantity("accuracy") in table.quantities()
    points = {key: [(100 * x, y * (100 if wrong else 1), 0.0) for x, y in of.items()] for key, of in risks.items()}
    what = "wrong answers among the accepted, %" if wrong else "mean squared error of the accepted"
    titles, alt = (
        ("Risk of the accepted rows", "accepted rows, %", what),
        f"{what}, at 80 %",
    )
    drawn = (
        [charts.lines(charts.runs(table, points), points, titles, alt, log=wrong, at=80, rules=(1, 5) * wrong)]
        if points
        else []
    )
    return [*drawn, *([cost] if (cost := charts.rejection(table, _drawn(table, "calibration"))) else [])]


def seen(table: Table) -> Drawn:
    """Draw the AUROC of each score of each run, on near and on far sets."""
    drawn = []
    for group in GROUPS:
        found = {
            key: {label_of(score): (100 * f.mean("auroc"), 100 * f.error("auroc")) for score, f in of.items()}
            for key, one in _drawn(table, "ood").items()
            if (of := one.figures.get(group))
        }
        drawn += [charts.detection(table, found, f"AUROC on {group} sets by each score")] if found else []
    return drawn


def _drawn(table: Table, name: str) -> dict[str, Any]:
    return {run.key: table.drawn[name][run.key] for run in table.runs if run.key in table.drawn[name]}


def unseen(table: Table) -> Answer:
    """Return sentences on all scores together, then tables: all scores on near and on far sets, then set by set."""
    stored = table.drawn["ood"]
    results = {r.key: replace(stored[r.key], name=table.names[r.key]) for r in table.runs if r.key in stored}
    groups = [group for group in GROUPS if any(one.figures.get(group) for one in results.values())]
    sentences = []
    for group in groups:  # a sentence begins with the sets, as others begin with their subject
        sets, rest = ood.sentence([*results.values()], group).removeprefix(f"On {group} sets (").split("), ", 1)
        sentences.append(f"{group.capitalize()} sets ({sets}): {rest}")
    part = table.only(run for run in table.runs if run.key in results)
    grids = [_of_group(part, [*results.values()], group, metric) for metric, group in product(SHOWN, groups)]
    return sentences, [*grids, *_by_set(table)]


def _of_group(table: Table, results: Sequence[Result], group: Group, metric: str) -> Grid:
    """Return the table of runs by scores, averaged over a group's sets; the best run by a score is bold."""
    scores, found, by_score = scores_in(results), [one.figures.get(group, {}) for one in results], list[list[Cell]]()
    for score in scores:
        means = [of[score].mean(metric) * (1 if metric == "auroc" else -1) if score in of else math.nan for of in found]
        different = {mean for mean in means if not math.isnan(mean)}
        best = max(different) if len(different) > 1 else math.nan
        by_score.append([_cell(of.get(score), metric, best=m == best) for of, m in zip(found, means, strict=True)])
    rows = [[column[i] for column in by_score] for i in range(len(found))]
    sets = ", ".join(dict.fromkeys(name for one in results for name in one.sets.get(group, ())))
    title = f"{SHOWN[metric]} by each score, on {group} sets ({sets})"
    return columns.by_run(table, [label_of(score) for score in scores], rows, title=title)


def _cell(figure: Figure | None, metric: str, *, best: bool) -> Cell:
    if figure is None:
        return Cell(NOTHING)
    mean, error = 100 * figure.mean(metric), 100 * figure.error(metric)
    return Cell(f"{mean:.1f}", f"± {error:.1f}" if error < float("inf") else "", mean, best)


def _by_set(table: Table) -> list[Grid]:
    """Return a table for each other set: every metric of out-of-distribution detection by each score."""
    scores = {of.score for of in table.quantities() if of.set == "ood" and of.score is not None}
    grids = []
    for other in table.sets("ood"):
        shown, groups = list[Column](), list[tuple[str, int]]()
        for score in sorted(scores, key=lambda score: (score != DEFAULT_SCORE, score)):
            wanted = [Column(m.label, Quantity(m.name, "ood", other, score=score)) for m in DETECTION]
            some = columns.with_figures(table, wanted)
            shown += some
            groups += [(f"score: {score.replace('_', ' ')}", len(some))] if some else []
        grids.append(columns.by_score(table, shown, title=f"against {other}", groups=groups, folded=True))
    return grids


PAGES: Final[Mapping[Question, Page]] = {
    "trust": Page("Can I trust its probabilities?", partial(by_metrics, question="trust"), reliability),
    "intervals": Page("Are its intervals right?", partial(by_metrics, question="intervals"), pit),
    "refuse": Page("Which predictions should I reject?", partial(by_metrics, question="refuse"), risk),
    "unseen": Page("Does it know what it has not seen?", unseen, seen),
}
