"""Coresets: the scores of each one under each protocol, beside random images as the floor; and their images.

A cell is a run that predicts from a coreset. Its protocol is the run's method or, for a method with a coreset of its
own, the method that only has the same student: VBPC's is ``coreset_vi``. If a coreset has several runs of one protocol,
such as with other networks, the first run of each protocol stands in the coreset's first row, the second in its second.

Every distilled coreset starts from random training rows, equally many of each class. ``random_coreset`` is such rows,
drawn with another seed. So the floor of a coreset is the random one with as many images a class, in the same place.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError
from bdl_pipe.registry import METHODS
from bdl_pipe.scores import Estimate, Quantity, average

from . import columns, tables
from .columns import NOTHING, Cell, Column, Grid
from .tables import CoresetInfo, RunInfo, Table

START: Final = "random_coreset"  # All other methods' coresets start from the images of this one.
MARK: Final = "†"  # It marks a figure that is no better than the floor's.
SCORES: Final = tuple(Column(columns.short(name), Quantity(name)) for name in ("accuracy", "nll", "batch_nll"))
SHOWN: Final = 10  # A row of a coreset's picture shows at most this many images of a class.
ABOUT: Final = ("dataset", "coreset", "method", "ipc", "seconds", "protocol", "run")
CSV: Final = (*ABOUT, "metric", "mean", "error", "n", "floor")


@dataclass(frozen=True)
class Row:
    """A coreset with its runs.

    Attributes:
        place: the number of this row among the rows of the coreset.
        ipc: images a class; None if the coreset is absent.
        seconds: the time of distillation with the experts; None if it is not recorded.
        runs: protocol -> run.
    """

    coreset: CoresetInfo
    place: int
    ipc: int | None
    seconds: float | None
    runs: dict[str, RunInfo]

    def estimate(self, table: Table, protocol: str, of: Quantity) -> Estimate | None:
        """Return the score under a protocol; None if there is no such run or score."""
        return table.estimate(self.runs[protocol].key, of) if protocol in self.runs else None


@dataclass(frozen=True)
class Cross:
    """A data set's coresets under each protocol."""

    dataset: str
    protocols: list[str]
    rows: list[Row]

    def floor(self, table: Table, row: Row, protocol: str, of: Quantity) -> Estimate | None:
        """Return the score of the random coreset that ``row`` has to beat; None if there is none."""
        if row.coreset.method == START or row.ipc is None:
            return None
        for other in self.rows:
            alike = (other.ipc, other.place) == (row.ipc, row.place) and other.coreset.method == START
            if alike and protocol in other.runs:
                return other.estimate(table, protocol, of)
        return None

    def is_lost(self, table: Table, row: Row, protocol: str, column: Column) -> bool:
        """Say whether a coreset has a floor and a score that is no better. NaN is no better than anything."""
        floor, known = self.floor(table, row, protocol, column.of), row.estimate(table, protocol, column.of)
        better = column.metric.better
        return floor is not None and known is not None and not better * known.mean > better * floor.mean

    def label(self, row: Row) -> str:
        """Name a row: the coreset, with the settings of its runs if the coreset has several rows."""
        name = row.coreset.key.removeprefix(f"{self.dataset}-")
        several = sum(other.coreset.key == row.coreset.key for other in self.rows) > 1
        return f"{name} ({', '.join(dict.fromkeys(r.setting for r in row.runs.values()))})" if several else name


def of(table: Table, dataset: str) -> Cross | None:
    """Return the coresets of a data set under each protocol; None unless there are two coresets or two protocols.

    Raises:
        ArtifactError: a coreset that exists is altered or truncated.
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
        ipc, seconds = per_class(coreset), _seconds(coreset)
        by_protocol = ([r for r in own if named[r.method] == protocol] for protocol in protocols)
        for place, together in enumerate(zip_longest(*by_protocol)):
            rows.append(Row(coreset, place, ipc, seconds, {named[r.method]: r for r in together if r is not None}))
    return Cross(dataset, protocols, sorted(rows, key=lambda row: row.ipc or 0))


def _protocols(methods: Sequence[str]) -> dict[str, str]:
    """Map methods to protocols.

    A method's protocol is the method itself or, if it has a coreset of its own, the method that only has its student.
    Without the latter, methods with a coreset and one student are one protocol, named by the first of them.
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


def headlines(table: Table) -> list[Grid]:
    """Return the tables of coresets under each protocol, one for each data set that has one."""
    return [headline(table, cross) for dataset in table.datasets() if (cross := of(table, dataset))]


def headline(table: Table, cross: Cross) -> Grid:
    """Return the table of a data set, and as its remarks which coresets are no better than the floor."""
    shown = [
        (protocol, column)
        for protocol in cross.protocols
        for column in SCORES
        if any(row.estimate(table, protocol, column.of) for row in cross.rows)
    ]
    grid = [_cells(table, cross, protocol, column) for protocol, column in shown]
    rows = []
    for i, row in enumerate(cross.rows):
        ipc = NOTHING if row.ipc is None else str(row.ipc)
        seconds = NOTHING if row.seconds is None else columns.seconds(row.seconds)
        about = Cell(cross.label(row)), Cell(row.coreset.method), Cell(ipc, value=row.ipc)
        rows.append([*about, Cell(seconds, value=row.seconds), *(column[i] for column in grid)])
    head = ["Coreset", "Method", "ipc", "Distilled in", *(f"{protocol} {column.title}" for protocol, column in shown)]
    title = f"{cross.dataset}: coresets under each protocol"
    return Grid(head, rows, title, remarks=_remarks(table, cross, shown))


def write_csv(table: Table, path: Path) -> None:
    """Write every cell, one figure a row. ``floor`` is the random coreset's mean; None is written as nothing."""
    lines = list[tuple[object, ...]]()
    for cross in filter(None, (of(table, dataset) for dataset in table.datasets())):
        for row in cross.rows:
            about = (cross.dataset, row.coreset.key, row.coreset.method, row.ipc, row.seconds)
            for protocol, run in row.runs.items():
                for column in SCORES:
                    known, floor = table.estimate(run.key, column.of), cross.floor(table, row, protocol, column.of)
                    if known:
                        figures = (known.mean, known.error, known.n, floor.mean if floor else None)
                        lines.append((*about, protocol, run.key, column.of.metric, *figures))
    tables.write_csv(path, CSV, lines)


def _cells(table: Table, cross: Cross, protocol: str, column: Column) -> list[Cell]:
    """Return one cell a row. The best among coresets of one size is marked, and each that does not beat its floor."""
    by_run = dict[str, Cell]()
    for ipc in {row.ipc for row in cross.rows}:
        alike = [row.runs[protocol] for row in cross.rows if row.ipc == ipc and protocol in row.runs]
        by_run |= {run.key: cell for run, cell in zip(alike, columns.cells(table, alike, column), strict=True)}
    cells = [by_run[row.runs[protocol].key] if protocol in row.runs else Cell(NOTHING) for row in cross.rows]
    lost = [cross.is_lost(table, row, protocol, column) for row in cross.rows]
    return [replace(c, text=f"{MARK} {c.text}") if bad else c for c, bad in zip(cells, lost, strict=True)]


def _remarks(table: Table, cross: Cross, shown: Sequence[tuple[str, Column]]) -> list[str]:
    remarks, alone = [], list[str]()
    for row in cross.rows:
        lost = [f"{p} {c.title}" for p, c in shown if cross.is_lost(table, row, p, c)]
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


def per_class(coreset: CoresetInfo) -> int | None:
    """Count the rows of the first seed that started from one class, the most of any; None without the coreset."""
    if coreset.is_absent:
        return None
    folder = artifacts.load(coreset.path, "coreset")
    names = _members(folder)
    tensors = folder.open(names[0]).tensors if names else {}
    return int(tensors["classes"].bincount().max()) if "classes" in tensors else None


def picture(coreset: CoresetInfo) -> bytes | None:
    """Draw the first images of each learned label as one PNG, of the first seed that has any; None if none has.

    Raises:
        ArtifactError: the coreset is altered or truncated, or its images and labels have other shapes.
    """
    folder = artifacts.load(coreset.path, "coreset")
    for name in _members(folder):
        tensors = folder.state(name).tensors
        if {"raw", "labels"} <= tensors.keys():
            images, labels = (tensors[key].float().numpy() for key in ("raw", "labels"))
            if images.ndim != 4 or len(images) != len(labels):
                rule = "raw must be [n, c, h, w], labels [n, k]"
                raise ArtifactError(f"{coreset.path}/{name}: {rule}; got {images.shape} and {labels.shape}")
            return sheet(images, labels.argmax(1), labels.shape[1], SHOWN)
    return None


def sheet(images: np.ndarray, classes: np.ndarray, count: int, most: int | None = None) -> bytes:
    """Draw images [n, c, h, w] as one PNG, a row for each of ``count`` classes, ``most`` in a row, magnified."""
    rows = [np.flatnonzero(classes == k)[:most] for k in range(count)]
    channels, height, width = images.shape[1:]
    whole = np.ones((channels, len(rows) * (height + 1), max(map(len, rows)) * (width + 1)), dtype=np.float32)
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            top, left = i * (height + 1), j * (width + 1)
            whole[:, top : top + height, left : left + width] = images[number]
    return png(whole.repeat(4, 1).repeat(4, 2))


def png(image: np.ndarray) -> bytes:
    """Encode an image [c, h, w] in [0, 1] (cut off beyond) as PNG, one pixel a pixel."""
    pixels = np.rint(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    shown = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels[:3], 0, -1)
    buffer = io.BytesIO()
    Image.fromarray(shown).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _members(folder: artifacts.Artifact) -> list[str]:
    """List the names ``<split>-<seed>`` of an artifact's states, in their order."""
    parts = {name: name.split("-") for name in folder.names()}
    members = [name for name, two in parts.items() if len(two) == 2 and all(part.isdigit() for part in two)]
    return sorted(members, key=lambda name: tuple(map(int, parts[name])))
