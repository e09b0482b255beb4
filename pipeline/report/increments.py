"""Class-incremental learning: scores after each step, over orders of the classes; only where there are such runs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from ..core.scores import Quantity
from . import columns, plots
from .estimates import Estimate, average, estimate
from .svg import Look
from .tables import RunInfo, Step, Table

TITLE: Final = "Class by class"
ANCHOR: Final = "class.by.class"  # no data set's: a key has no dot
METRICS: Final = {"accuracy": ("Accuracy, %", columns.percent), "nll": ("NLL", columns.places(3))}


@dataclass(frozen=True)
class Group:
    """All runs on the steps of one data set, of all orders.

    Attributes:
        names: the first run of each method and setting -> how it is called.
        alike: the same run -> the number of a step -> the runs of that step, by order.
    """

    step: Step
    names: dict[str, str]
    alike: Mapping[str, Mapping[int, Mapping[int, Sequence[str]]]]

    def scores(self, table: Table, run: str, metric: str) -> list[tuple[int, Estimate]]:
        """Return (classes so far, the mean over orders) of each step; seeds and splits are averaged first."""
        found = []
        for number, orders in sorted(self.alike[run].items()):
            known = [[table.estimate(key, Quantity(metric)) for key in keys] for keys in orders.values()]
            means = [[e.mean for e in of_order if e is not None] for of_order in known]
            over_orders = estimate([average(values) for values in means if values])
            if over_orders is not None:
                found.append(((number + 1) * self.step.classes, over_orders))
        return found


def groups(runs: Sequence[RunInfo]) -> Iterator[Group]:
    """Yield the groups of the runs on steps, in their order."""
    steps = {run.key: run.step for run in runs if run.step is not None}
    for name in dict.fromkeys(step.group for step in steps.values()):
        own = [run for run in runs if run.key in steps and steps[run.key].group == name]
        first: dict[tuple[str, str], RunInfo] = {}
        alike: dict[str, dict[int, dict[int, list[str]]]] = {}
        for run in own:
            line = first.setdefault((run.method, run.setting), run).key
            at = steps[run.key]
            alike.setdefault(line, {}).setdefault(at.number, {}).setdefault(at.order, []).append(run.key)
        yield Group(steps[own[0].key], columns.labels(list(first.values())), alike)


def section(table: Table, look: Look, dpi: int) -> str:
    """Return the tables and figures of all groups; nothing where there are none."""
    parts = [_group(table, group, i, look, dpi) for i, group in enumerate(groups(table.runs))]
    if not parts:
        return ""
    about = (
        "Classes come a few at a time. After each step the score is on the test rows of all classes so far, the "
        "largest of all outputs being the answer. Mean over orders of the classes, with its standard error."
    )
    return f'<section id="{ANCHOR}"><h2>{TITLE}</h2><p class="read">{about}</p>{"".join(parts)}</section>'


def _group(table: Table, group: Group, number: int, look: Look, dpi: int) -> str:
    tables, figures = [], []
    for metric, (title, write) in METRICS.items():
        scores = {run: group.scores(table, run, metric) for run in group.alike}
        tables.append(f"<h4>{title}</h4>{_table(scores, group, write)}")
        drawn = {run: [(x, e) for x, e in points if math.isfinite(e.mean)] for run, points in scores.items()}
        figures.append(plots.increments(drawn, group.names, metric, look, dpi, f"increments-{number}"))
    heading = f"<h3>{escape(group.step.source)}, {group.step.classes} classes a step</h3>"
    return f'{heading}<div class="figures wide">{"".join(figures)}</div>{"".join(tables)}'


def _table(scores: Mapping[str, list[tuple[int, Estimate]]], group: Group, write: columns.Write) -> str:
    counts = sorted({count for points in scores.values() for count, _ in points})
    heads = "".join(f'<th scope="col">{count} classes</th>' for count in counts)
    rows = []
    for run, points in scores.items():
        known = dict(points)
        cells = "".join(_cell(known.get(count), write) for count in counts)
        orders = len({order for by_order in group.alike[run].values() for order in by_order})
        rows.append(f'<tr><th scope="row">{escape(group.names[run])}</th><td>{orders}</td>{cells}</tr>')
    head = f'<thead><tr><th scope="col">Method</th><th scope="col">Orders</th>{heads}</tr></thead>'
    return f'<div class="scroll" tabindex="0"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _cell(known: Estimate | None, write: columns.Write) -> str:
    text, error = columns.figure(known, write)
    return f"<td>{text}{f' <small>± {error}</small>' if error else ''}</td>"
