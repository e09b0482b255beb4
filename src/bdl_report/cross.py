"""Coresets: the scores of each coreset under each protocol, beside random images as the floor.

A cell is a run that predicts from a coreset. Its protocol is the run's method; methods that make a coreset and fit the
same student to it share one protocol. If a coreset has several runs of one protocol, such as with other networks, the
first run of each protocol stands in the coreset's first row, the second in its second.

Every distilled coreset starts from random training rows, with the same number for each class. ``random_coreset`` has
such rows, drawn with another seed. So the floor of a coreset is the random coreset with the same number of images per
class, in the same place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Final

from bdl_pipe.metrics import written
from bdl_pipe.registry import METHODS
from bdl_pipe.scores import Estimate, Quantity

from . import columns, tables
from .columns import NOTHING, Cell, Column, Grid
from .tables import CoresetInfo, RunInfo, Table

START: Final = "random_coreset"  # All other methods' coresets start from such random images.
MARK: Final = "†"  # This marks a figure that is no better than the floor's.
SCORES: Final = tuple(Column(columns.short(name), Quantity(name)) for name in ("accuracy", "nll", "batch_nll"))
ABOUT: Final = ("dataset", "coreset", "method", "ipc", "seconds", "protocol", "run")
CSV: Final = (*ABOUT, "metric", "mean", "error", "n", "floor")


@dataclass(frozen=True)
class Row:
    """A coreset with its runs.

    Attributes:
        label: the coreset's name, with the settings of its runs if the coreset has several rows.
        place: the number of this row among the rows of the coreset.
        runs: protocol -> run.
        floors: protocol -> the run of the random coreset that is the floor, if there is one.
    """

    coreset: CoresetInfo
    label: str
    place: int
    runs: dict[str, RunInfo]
    floors: dict[str, RunInfo]

    def scores(self, table: Table, protocol: str, column: Column) -> tuple[Estimate | None, Estimate | None]:
        """Return the score under a protocol and its floor; None if there is no such run or score."""
        both = [runs.get(protocol) for runs in (self.runs, self.floors)]
        score, floor = (table.estimate(run.key, column.of) if run else None for run in both)
        return score, floor

    def is_lost(self, table: Table, protocol: str, column: Column) -> bool:
        """Return whether a score exists and is no better than an existing floor; NaN is no better than any floor."""
        (score, floor), better = self.scores(table, protocol, column), column.metric.better
        return floor is not None and score is not None and not better * score.mean > better * floor.mean


def of(table: Table) -> list[Row]:
    """Return the rows of a data set's coresets; none if it has only one coreset and one protocol."""
    named, coresets = protocols(table), table.coresets()
    names = list(dict.fromkeys(named.values()))
    if max(len(names), len(coresets)) < 2:
        return []
    rows, floors = list[Row](), dict[tuple[int | None, int], dict[str, RunInfo]]()
    for coreset in coresets.values():
        of_coreset = [run for run in table.runs if run.coreset == coreset]
        by_protocol = ([run for run in of_coreset if named[run.method] == protocol] for protocol in names)
        places = [{named[run.method]: run for run in together if run} for together in zip_longest(*by_protocol)]
        for place, runs in enumerate(places):
            settings = ", ".join(dict.fromkeys(run.setting for run in runs.values()))
            label = coreset.key.removeprefix(f"{table.dataset}-") + (f" ({settings})" if len(places) > 1 else "")
            rows.append(Row(coreset, label, place, runs, {}))
            if coreset.method == START and coreset.ipc is not None:
                floors[coreset.ipc, place] = runs | floors.get((coreset.ipc, place), {})
    for i, row in enumerate(rows):
        if row.coreset.method != START:
            rows[i] = replace(row, floors=floors.get((row.coreset.ipc, row.place), {}))
    return sorted(rows, key=lambda row: row.coreset.ipc or 0)


def protocols(table: Table) -> dict[str, str]:
    """Map the methods of runs that predict from coresets to protocols.

    A method's protocol is the method itself. Methods that make a coreset and fit the same student to it are one
    protocol, named after the first method.
    """
    named = {run.method: run.method for run in table.runs if run.coreset is not None}
    alike = dict[object, list[str]]()
    for name in named:
        if name in METHODS and len(METHODS[name].stages) > 1:
            student = METHODS[name].stages["student"]
            alike.setdefault(student.fit or student.fit_many, []).append(name)
    for names in alike.values():
        named |= dict.fromkeys(names, names[0])
    return named


def headline(table: Table, coresets: Sequence[Row]) -> Grid:
    """Return the table of a data set, with remarks on the coresets that are no better than the floor."""
    shown = [
        (protocol, column)
        for protocol in dict.fromkeys(protocols(table).values())
        for column in SCORES
        if any(row.scores(table, protocol, column)[0] for row in coresets)
    ]
    grid = [_cells(table, coresets, protocol, column) for protocol, column in shown]
    rows = []
    for i, row in enumerate(coresets):
        ipc, seconds = row.coreset.ipc, row.coreset.seconds
        size = Cell(NOTHING if ipc is None else str(ipc), value=ipc)
        time = Cell(NOTHING if seconds is None else written.seconds(seconds), value=seconds)
        rows.append([Cell(row.label), Cell(row.coreset.method), size, time, *(column[i] for column in grid)])
    head = ["Coreset", "Method", "ipc", "Distilled in", *(f"{protocol} {column.title}" for protocol, column in shown)]
    title = f"{table.dataset}: coresets under each protocol"
    return Grid(head, rows, title, remarks=_remarks(table, coresets, shown))


def write_csv(table: Table, path: Path) -> None:
    """Write every cell, a row for each figure. ``floor`` is the random coreset's mean; None is an empty field."""
    lines = list[tuple[object, ...]]()
    for dataset, part in table.by_dataset().items():
        for row in of(part):
            about = (dataset, row.coreset.key, row.coreset.method, row.coreset.ipc, row.coreset.seconds)
            for protocol, run in row.runs.items():
                for column in SCORES:
                    score, floor = row.scores(table, protocol, column)
                    if score:
                        figures = (score.mean, score.error, score.n, floor.mean if floor else None)
                        lines.append((*about, protocol, run.key, column.of.metric, *figures))
    tables.write_csv(path, CSV, lines)


def _cells(table: Table, rows: Sequence[Row], protocol: str, column: Column) -> list[Cell]:
    """Return a cell for each row. Mark the best among coresets of one size, and cells that do not beat their floor."""
    by_run = dict[str, Cell]()
    for ipc in {row.coreset.ipc for row in rows}:
        same = (row for row in rows if row.coreset.ipc == ipc and protocol in row.runs)
        alike = table.only(row.runs[protocol] for row in same)
        by_run |= {run.key: cell for run, cell in zip(alike.runs, columns.cells(alike, column), strict=True)}
    cells = [by_run[row.runs[protocol].key] if protocol in row.runs else Cell(NOTHING) for row in rows]
    lost = [row.is_lost(table, protocol, column) for row in rows]
    return [replace(c, text=f"{MARK} {c.text}") if bad else c for c, bad in zip(cells, lost, strict=True)]


def _remarks(table: Table, rows: Sequence[Row], shown: Sequence[tuple[str, Column]]) -> list[str]:
    remarks, alone = [], list[str]()
    for row in rows:
        lost = [f"{p} {c.title}" for p, c in shown if row.is_lost(table, p, c)]
        if lost:
            remarks.append(f"{MARK} {row.label} is no better than random images of its size: {', '.join(lost)}")
        met = {p for p, c in shown if row.scores(table, p, c)[1]}
        unmet = [protocol for protocol in row.runs if protocol not in met]
        if row.coreset.method != START and unmet:
            alone.append(f"{row.label} ({', '.join(unmet)})")
    if alone:
        remarks.append(f"no random baseline of the same size to compare with: {', '.join(alone)}")
    return remarks
