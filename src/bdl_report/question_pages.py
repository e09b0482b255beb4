"""The pages that each answer one question: for each data set, sentences that its scores support, figures, tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bdl_pipe import drawing, figures
from bdl_pipe.drawing import INK, LINE, MUTED, Drawing
from bdl_pipe.metrics.metric import Question
from bdl_pipe.metrics.pit import band
from bdl_pipe.scores import Quantity

from . import columns, unseen
from .columns import Grid
from .questions import SENTENCES
from .tables import Table

COLOURS: Final = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)"} | {
    colour: f"var(--m{number})" for number, colour in enumerate(drawing.COLOURS)
}
"""Colour of a figure -> the CSS variable that replaces it, whose values for light and dark are in ``style.css``."""
Answer = tuple[list[str], list[Grid]]
Drawn = list[Mapping[str, Any]]


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


def answers(table: Table, question: Question) -> Mapping[str, Any]:
    """Return a page's contents for each data set that has scores for its question."""
    page, parts = PAGES[question], {}
    for dataset, whole in table.by_dataset().items():
        part = whole.done
        said, grids = page.answer(part)
        if grids:
            parts[dataset] = {"sentences": said, "figures": page.draw(part), "grids": grids}
    return {"parts": parts}


def by_metrics(table: Table, question: Question) -> Answer:
    """Return the sentences on a question, and the table of the metrics that are registered for it."""
    return SENTENCES[question](table.candidates()), columns.asked(table, question)


def reliability(table: Table) -> Drawn:
    """Draw the reliability diagrams."""
    bins = table.drawn["calibration"]
    drawn = (run for run in table.runs if run.key in bins)
    return [
        inline(figures.reliability(bins[r.key], table.names[r.key], table.marks[r.key]), f"rel-{r.key}") for r in drawn
    ]


def pit(table: Table) -> Drawn:
    """Draw the histograms of F(y)."""
    drawn = []
    for run in table.runs:
        if (count := table.drawn["pit"].get(run.key)) is not None:
            low, high = band(int(count.sum()), len(count))
            one = figures.pit(count, low, high, table.names[run.key], table.marks[run.key])
            drawn.append(inline(one, f"pit-{run.key}"))
    return drawn


def risk(table: Table) -> Drawn:
    """Draw the risk against coverage, all runs together."""
    runs, known = [run for run in table.runs if run.key in table.drawn["risk"]], table.drawn["risk"]
    lines = {table.names[run.key]: known[run.key] for run in runs}
    wrong = Quantity("accuracy") in table.quantities()
    marks = [table.marks[run.key] for run in runs]
    return [inline(figures.risk(lines, marks, wrong=wrong), f"risk-{table.dataset}")] if lines else []


def inline(figure: Drawing, name: str) -> Mapping[str, Any]:
    """Return a figure as an element of the page, in the page's colours, and its width."""
    return {"inline": figure.svg(name, COLOURS), "inches": figure.inches}


PAGES: Final[Mapping[Question, Page]] = {
    "trust": Page("Can I trust its probabilities?", partial(by_metrics, question="trust"), reliability),
    "intervals": Page("Are its intervals right?", partial(by_metrics, question="intervals"), pit),
    "refuse": Page("Which answers should I refuse?", partial(by_metrics, question="refuse"), risk),
    "unseen": Page("Does it know what it has not seen?", unseen.answer, lambda _: []),
}
