"""Tables of papers: the printed figures (``<paper>.csv``), and our names for the paper's (``<paper>.yaml``)."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bdl_pipe import config
from bdl_pipe.config import nearest
from bdl_pipe.data import corrupt
from bdl_pipe.data.corrupted import SEVERITIES
from bdl_pipe.errors import UserError, require
from bdl_pipe.scores import DEFAULT_SCORE, Quantity

from ..core.load import read_yaml

HERE: Final = Path(__file__).parent
# A corruption or a severity, as a metric names it after its colon -> our corruption and severity; None: all.
CORRUPTED: Final[dict[str, tuple[str | None, int | None]]] = {
    **{f"sev. {severity}": (None, severity) for severity in SEVERITIES},
    **{name.replace("_", " "): (name, None) for name in corrupt.NAMES},
}


@dataclass(frozen=True)
class Counterpart:
    """Our method for a method of the paper.

    Attributes:
        method: our method; null: we do not have it.
        setting: the setting of our runs; empty: any.
        scores: the paper's metric -> the OOD score of this method, where it is not the usual one.
        note: in which way the two methods differ; shown below the table.
    """

    method: str | None
    setting: str = ""
    scores: dict[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Metric:
    """Our metric for a metric of the paper.

    Attributes:
        metric: its name in the stored scores.
        title: the heading of its column.
        scale: the paper's unit is our unit times this (100 for per cent).
    """

    metric: str
    title: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        require(self.scale > 0, "scale", "must be > 0", self.scale)


@dataclass(frozen=True)
class Names:
    """A paper's file ``<paper>.yaml``: our names for the paper's names.

    Attributes:
        shares: table -> the table that has its params file and artifacts.
        transfers: other labelled test sets, the paper's name -> ours; they are scored as the test rows are.
        results: the folder of the written tables; empty: the paper's name.
        elsewhere: table of costs or settings -> the arguments of ``python`` that make it without our runs' scores.
    """

    title: str
    datasets: dict[str, str]
    metrics: dict[str, Metric]
    methods: dict[str, Counterpart]
    shares: dict[str, str] = field(default_factory=dict)
    transfers: dict[str, str] = field(default_factory=dict)
    results: str = ""
    elsewhere: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Printed:
    """A figure as the paper prints it, and its ±; empty: the paper prints none."""

    value: str
    error: str = ""

    @property
    def digits(self) -> int:
        """Return the number of digits after the point."""
        return len(self.value.partition(".")[2])

    @property
    def text(self) -> str:
        """Return the figure with its ±, if it has one."""
        return f"{self.value} ± {self.error}" if self.error else self.value


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper.

    Attributes:
        figures: data set -> method -> metric -> figure, all by the paper's names.
        others: the methods of all tables that share its runs; its own methods may be among them.
    """

    paper: str
    table: str
    names: Names
    figures: Mapping[str, Mapping[str, Mapping[str, Printed]]]
    others: frozenset[str]

    def __str__(self) -> str:
        return f"{self.paper}:{self.table}"

    @property
    def source(self) -> str:
        """Return the table that has this table's params file and artifacts: itself, or another."""
        return _source(self.table, self.names)

    @property
    def tree(self) -> str:
        """Return the name of the folder of its artifacts, below ``work/paper``."""
        return f"{self.paper}-{self.source}"

    @property
    def folder(self) -> str:
        """Return the name of the folder of its written tables, below ``results``."""
        return self.names.results or self.paper

    def metrics(self, dataset: str) -> list[str]:
        """List the metrics that the paper prints for a data set, all by the paper's names."""
        return list(dict.fromkeys(metric for row in self.figures[dataset].values() for metric in row))

    def notes(self, dataset: str) -> dict[str, list[str]]:
        """Return the notes on a data set's methods, in order: note -> the methods, by the paper's names."""
        notes: dict[str, list[str]] = {}
        for method in self.figures[dataset]:
            notes.setdefault(self.names.methods[method].note, []).append(method)
        return {note: methods for note, methods in notes.items() if note}

    def title(self, metric: str, between: str = " ") -> str:
        """Return the heading of a metric's column; ``between`` separates the metric from its set."""
        name, _, where = metric.partition(":")
        return self.names.metrics[name].title + (between + where if where else "")

    def scale(self, metric: str) -> float:
        """Return the factor from our unit of a metric to the paper's (100 for per cent)."""
        return self.names.metrics[metric.partition(":")[0]].scale

    def quantity(self, metric: str, method: str | None) -> Quantity:
        """Return the quantity of the stored scores for the paper's ``metric``.

        A metric may name a set after a colon: an OOD set, a set that the run is transferred to, a severity (the mean
        over all corruptions), or a corruption (the mean over all severities).

        Args:
            method: the paper's name of a method, which may have an OOD score of its own.
        """
        name, _, where = metric.partition(":")
        ours = self.names.metrics[name].metric
        if where in self.names.transfers:
            return Quantity(ours, "transfer", self.names.transfers[where])
        if where in CORRUPTED:
            return Quantity(ours, "corrupted", *CORRUPTED[where])
        if where:
            special = self.names.methods[method].scores.get(name) if method else None
            return Quantity(ours, "ood", self.names.datasets[where], score=special or DEFAULT_SCORE)
        return Quantity(ours)


def load(name: str, folder: Path = HERE) -> PaperTable:
    """Read the table that ``<paper>:<table>`` names.

    Raises:
        UserError: there is no such paper or table.
    """
    paper, table, names = _names(name, folder)
    rows = _rows(folder / f"{paper}.csv")
    tables = sorted({row["table"] for row in rows} | names.elsewhere.keys())
    if table not in tables:
        raise UserError(f"{name}: must be <paper>:<table>, and {paper} has no such table{nearest(table, tables)}")
    figures: dict[str, dict[str, dict[str, Printed]]] = {}
    others = set[str]()
    for row in rows:
        if row["table"] == table:
            _check(row, names, f"{paper}.csv")
            method = figures.setdefault(row["dataset"], {}).setdefault(row["method"], {})
            method[row["metric"]] = Printed(row["value"], row["error"])
        elif _source(row["table"], names) == _source(table, names):
            others.add(row["method"])
    return PaperTable(paper, table, names, figures, frozenset(others))


def elsewhere(name: str, folder: Path = HERE) -> str:
    """Return the arguments of ``python`` that make the table ``<paper>:<table>``; empty: our runs' scores make it.

    Raises:
        UserError: there is no such paper.
    """
    _, table, names = _names(name, folder)
    return names.elsewhere.get(table, "")


def _names(name: str, folder: Path) -> tuple[str, str, Names]:
    paper, _, table = name.partition(":")
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if paper not in known:
        raise UserError(f"{paper or name}: is not a paper{nearest(paper, known)}")
    return paper, table, config.read(Names, read_yaml(folder / f"{paper}.yaml"), f"{paper}.yaml")


def _source(table: str, names: Names) -> str:
    return names.shares.get(table, table)


def _rows(path: Path) -> list[dict[str, Any]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _check(row: Mapping[str, str], names: Names, path: str) -> None:
    metric, _, where = row["metric"].partition(":")
    known: tuple[tuple[str, Mapping[str, Any]], ...] = (
        (row["dataset"], names.datasets),
        (row["method"], names.methods),
        (metric, names.metrics),
        *([(where, {**names.datasets, **names.transfers, **CORRUPTED})] if where else []),
    )
    for name, there in known:
        require(name in there, f"{path}: {name}", "has no counterpart in the paper's yaml")
