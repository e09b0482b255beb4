"""How well runs tell rows of other sets from test rows: the best score, and every score on every set.

The stage ``scores`` computes each run's figures from the rows that ``evaluate`` stores; they are read here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from bdl_pipe.metrics import DETECTION, ood
from bdl_pipe.metrics.ood.rows import label_of
from bdl_pipe.metrics.ood.sets import GROUPS, Group
from bdl_pipe.metrics.ood.table import Figure, Result, scores_in
from bdl_pipe.scores import DEFAULT_SCORE, Quantity

from . import columns
from .columns import NOTHING, Cell, Column, Grid
from .tables import Table

SHOWN: Final = {"auroc": "AUROC %", "fpr95": "FPR95 %"}


def answer(table: Table) -> tuple[list[str], list[Grid]]:
    """Return sentences on all scores together, then tables: all scores on near and on far sets, then set by set."""
    known = table.drawn["ood"]
    found = {r.key: replace(known[r.key], name=table.names[r.key]) for r in table.runs if r.key in known}
    results = list(found.values())
    groups = [group for group in GROUPS if any(one.figures.get(group) for one in results)]
    said = [_said(results, group) for group in groups]
    part = table.only(run for run in table.runs if run.key in found)
    grids = [_of_group(part, found, group, metric) for metric, group in product(SHOWN, groups)]
    return said, [*grids, *_by_set(table)]


def _said(results: Sequence[Result], group: Group) -> str:
    """Return the sentence on a group of sets; it begins with the sets, as other sentences begin with their subject."""
    sets, rest = ood.sentence(results, group).removeprefix(f"On {group} sets (").split("), ", 1)
    return f"{group.capitalize()} sets ({sets}): {rest}"


def _of_group(table: Table, found: Mapping[str, Result], group: Group, metric: str) -> Grid:
    """Return the table of runs by scores, averaged over a group's sets; each run's best AUROC scores are bold."""
    scores, rows = scores_in(list(found.values())), list[list[Cell]]()
    for run in table.runs:
        figures, one = found[run.key].figures.get(group, {}), found[run.key]
        best = set(one.tied(group)) if figures and metric == "auroc" else set[str]()
        rows.append([_cell(figures.get(score), metric, best=score in best) for score in scores])
    sets = ", ".join(dict.fromkeys(name for one in found.values() for name in one.sets.get(group, ())))
    title = f"{SHOWN[metric]} by each score, on {group} sets ({sets})"
    return columns.by_run(table, [label_of(score) for score in scores], rows, title=title)


def _cell(figure: Figure | None, metric: str, *, best: bool) -> Cell:
    if figure is None:
        return Cell(NOTHING)
    mean, error = 100 * figure.mean(metric), 100 * figure.error(metric)
    return Cell(f"{mean:.1f}", f"± {error:.1f}" if error < float("inf") else "", mean, best)


def _by_set(table: Table) -> list[Grid]:
    """Return a table for each other set: every metric of out-of-distribution detection by each score."""
    known = {of.score for of in table.quantities() if of.set == "ood" and of.score is not None}
    grids = []
    for other in table.sets("ood"):
        shown, groups = list[Column](), list[tuple[str, int]]()
        for score in sorted(known, key=lambda score: (score != DEFAULT_SCORE, score)):
            wanted = [Column(m.label, Quantity(m.name, "ood", other, score=score)) for m in DETECTION]
            some = columns.with_figures(table, wanted)
            shown += some
            groups += [(f"score: {score.replace('_', ' ')}", len(some))] if some else []
        grids.append(columns.by_score(table, shown, title=f"against {other}", groups=groups))
    return grids
