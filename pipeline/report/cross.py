"""Coresets × protocols: how any coreset does under any protocol, beside the floor of images drawn at random.

A cell is a run that predicts from a coreset. The protocol is the run's method or, of one with a coreset of its own, the
method that is its student alone: VBPC's is ``coreset_vi``. Where a coreset has several runs of one protocol, such as
with other networks, its first ones stand in its first row, its second ones in its second.

Every distilled coreset starts from random training rows, equally many of each class. ``random_coreset`` is such rows,
drawn at its own address. So the floor of a coreset is the random one with as many images a class, in the same place.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from bdl_pipe.registry import METHODS

from ..core.scores import Quantity
from . import columns, images, tables
from .columns import NOTHING, Cell, Column, Headline
from .estimates import Estimate, average
from .images import CoresetInfo
from .tables import RunInfo, Table

START: Final = "random_coreset"  # the method whose coresets are what all others start from
MARK: Final = "†"  # of a figure that is no better than the floor's
SCORES: Final = (
    Column("acc. %", Quantity("accuracy"), +1, columns.percent, ""),
    Column("NLL", Quantity("nll"), -1, columns.places(3), ""),
    Column("batch NLL", Quantity("batch_nll"), -1, columns.places(3), ""),
)
ABOUT: Final = ("dataset", "coreset", "method", "ipc", "seconds", "protocol", "run")
CSV: Final = (*ABOUT, "metric", "mean", "error", "n", "floor")


@dataclass(frozen=True)
class Row:
    """A coreset with its runs.

    Attributes:
        place: of the runs among those of the coreset and a protocol.
        ipc: images a class; None where the coreset is absent.
        seconds: of distillation, with the experts that it was made from; None where they are not recorded.
        runs: protocol -> run.
    """

    coreset: CoresetInfo
    place: int
    ipc: int | None
    seconds: float | None
    runs: dict[str, RunInfo]


@dataclass(frozen=True)
class Cross:
    """A data set's coresets under each protocol."""

    dataset: str
    protocols: list[str]
    rows: list[Row]

    def floor(self, table: Table, row: Row, protocol: str, of: Quantity) -> Estimate | None:
        """Return the score of the random coreset that ``row`` has to beat; None where there is none."""
        if row.coreset.method == START or row.ipc is None:
            return None
        for other in self.rows:
            alike = (other.ipc, other.place) == (row.ipc, row.place) and other.coreset.method == START
            if alike and protocol in other.runs:
                return table.estimate(other.runs[protocol].key, of)
        return None

    def label(self, row: Row) -> str:
        """Name a row: the coreset, with the settings of its runs where it has several rows."""
        name = row.coreset.key.removeprefix(f"{self.dataset}-")
        several = sum(other.coreset.key == row.coreset.key for other in self.rows) > 1
        return f"{name} ({', '.join(dict.fromkeys(r.setting for r in row.runs.values()))})" if several else name


def of(table: Table, dataset: str) -> Cross | None:
    """Return the coresets of a data set under each protocol; None where there is one of each, or none.

    Raises:
        ArtifactError: a coreset that is there is altered or truncated.
    """
    runs = [run for run in table.of(dataset) if run.coreset is not None]
    named = _protocols([run.method for run in runs])
    protocols = list(dict.fromkeys(named[run.method] for run in runs))
    coresets = {run.coreset.key: run.coreset for run in runs if run.coreset is not None}
    if max(len(protocols), len(coresets)) < 2:
        return None
    rows = list[Row]()
    for coreset in coresets.values():
        own = [r for r in runs if r.coreset == coreset]
        ipc, seconds = images.per_class(coreset), _seconds(coreset)
        by_protocol = ([r for r in own if named[r.method] == protocol] for protocol in protocols)
        for place, together in enumerate(zip_longest(*by_protocol)):
            rows.append(Row(coreset, place, ipc, seconds, {named[r.method]: r for r in together if r is not None}))
    return Cross(dataset, protocols, sorted(rows, key=lambda row: row.ipc or 0))


def _protocols(methods: Sequence[str]) -> dict[str, str]:
    """Map methods to protocols: itself, or of a method with a coreset of its own, the one that is its student alone.

    Without such a one, methods with a coreset and one student are one protocol, named by the first.
    """
    named = {name: name for name in methods}
    alike = dict[Any, list[str]]()
    for name in named:
        if name in METHODS:
            student = METHODS[name].stages["student"]
            alike.setdefault(student.fit or student.fit_many, []).append(name)
    for names in alike.values():
        alone = [name for name in names if len(METHODS[name].stages) == 1]
        named |= {name: (alone or names)[0] for name in names if name not in alone}
    return named


def headlines(table: Table) -> list[Headline]:
    """Return the tables of coresets under each protocol, one a data set that has any."""
    return [headline(table, cross) for dataset in table.datasets() if (cross := of(table, dataset))]


def headline(table: Table, cross: Cross) -> Headline:
    """Return the table of a data set, and as its remarks which coresets are no better than the floor."""
    about = [
        [
            Cell(cross.label(row)),
            Cell(row.coreset.method),
            Cell(NOTHING if row.ipc is None else str(row.ipc), value=row.ipc),
            Cell(NOTHING if row.seconds is None else columns.seconds(row.seconds), value=row.seconds),
        ]
        for row in cross.rows
    ]
    shown = [
        (protocol, column) for protocol in cross.protocols for column in SCORES if _has(table, cross, protocol, column)
    ]
    grid = [_cells(table, cross, protocol, column) for protocol, column in shown]
    head = ["Coreset", "Method", "ipc", "Distilled in", *(f"{protocol} {column.title}" for protocol, column in shown)]
    rows = [[*cells, *(column[i] for column in grid)] for i, cells in enumerate(about)]
    title = f"{cross.dataset}: coresets under each protocol"
    return Headline(title, head, rows, remarks=_remarks(table, cross, shown))


def write_csv(table: Table, path: Path) -> None:
    """Write every cell, one figure a row. ``floor`` is the mean of the random coreset; what there is not is empty."""
    with open(path, "w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(CSV)
        for cross in filter(None, (of(table, dataset) for dataset in table.datasets())):
            for row in cross.rows:
                about = (cross.dataset, row.coreset.key, row.coreset.method, row.ipc, row.seconds)
                for protocol, run in row.runs.items():
                    for column in SCORES:
                        known, floor = table.estimate(run.key, column.of), cross.floor(table, row, protocol, column.of)
                        if known:
                            figures = (known.mean, known.error, known.n, floor.mean if floor else None)
                            lines.writerow((*about, protocol, run.key, column.of.metric, *figures))


def _has(table: Table, cross: Cross, protocol: str, column: Column) -> bool:
    return any(table.estimate(row.runs[protocol].key, column.of) for row in cross.rows if protocol in row.runs)


def _cells(table: Table, cross: Cross, protocol: str, column: Column) -> list[Cell]:
    """Return one cell a row. The best is marked among coresets of one size, and what is no better than the floor."""
    by_run = dict[str, Cell]()
    for ipc in {row.ipc for row in cross.rows}:
        alike = [row.runs[protocol] for row in cross.rows if row.ipc == ipc and protocol in row.runs]
        cells = columns.cells(table, alike, column, {})
        by_run |= {run.key: cell for run, cell in zip(alike, cells, strict=True)}
    cells = [by_run[row.runs[protocol].key] if protocol in row.runs else Cell(NOTHING) for row in cross.rows]
    lost = [_no_better(table, cross, row, protocol, column) for row in cross.rows]
    return [replace(c, text=f"{MARK} {c.text}") if bad else c for c, bad in zip(cells, lost, strict=True)]


def _no_better(table: Table, cross: Cross, row: Row, protocol: str, column: Column) -> bool:
    """Say whether a coreset has a floor and a score that is not beyond it. NaN is no better than anything."""
    floor = cross.floor(table, row, protocol, column.of)
    known = table.estimate(row.runs[protocol].key, column.of) if protocol in row.runs else None
    if floor is None or known is None:
        return False
    return not column.better * known.mean > column.better * floor.mean


def _remarks(table: Table, cross: Cross, shown: Sequence[tuple[str, Column]]) -> list[str]:
    remarks, alone = [], list[str]()
    for row in cross.rows:
        lost = [f"{p} {c.title}" for p, c in shown if _no_better(table, cross, row, p, c)]
        if lost:
            remarks.append(f"{MARK} {cross.label(row)} is no better than random images of its size: {', '.join(lost)}")
        met = {p for p, c in shown if cross.floor(table, row, p, c.of)}
        unmet = [protocol for protocol in row.runs if protocol not in met]
        if row.coreset.method != START and unmet:
            alone.append(f"{cross.label(row)} ({', '.join(unmet)})")
    if alone:
        remarks.append(f"no {START} of the same size is under the same protocol, to be beaten: {', '.join(alone)}")
    return remarks


def _seconds(coreset: CoresetInfo) -> float | None:
    record = tables.read_record(coreset.record) if coreset.record else {}
    seconds = list(record.get("total_seconds", {}).values())
    return average(seconds) if seconds else None
