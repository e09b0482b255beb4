"""The printed figures of the papers of our methods, with our names for theirs, to compare an estimate with.

    table = papers.load("vbll:table2")
    table.figures["Boston"]["VBLL"]["nll"].text    # 1.80 ± 0.04
    papers.Pair(scores.estimate(values), table.figures["Boston"]["VBLL"]["nll"]).z

``<paper>.csv`` has the figures as they are printed, ``<paper>.yaml`` our names.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from .. import config
from ..config import nearest
from ..data import corrupt
from ..data.corrupted import SEVERITIES
from ..errors import UserError, require
from ..scores import DEFAULT_SCORE, Estimate, Quantity, RunScores
from ..yaml_files import read_yaml

HERE: Final = Path(__file__).parent
FAR: Final = 3.0  # A difference of more combined standard errors than this is marked.
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
        setting: the setting of our runs of the method; empty: any.
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
        scale: the paper's figure is ours times this (100 for per cent), plus ``offset``.
        offset: 100, with the scale −100, for an error in per cent where ours is an accuracy.
    """

    metric: str
    title: str
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        require(self.scale != 0, "scale", "must not be 0", self.scale)


@dataclass(frozen=True)
class Names:
    """A paper's file ``<paper>.yaml``: our names for the paper's names.

    Attributes:
        shares: table -> the table whose fits it shows, where that is another one.
        transfers: other labelled test sets, the paper's name -> ours; they are scored as the test rows are.
    """

    title: str
    datasets: dict[str, str]
    metrics: dict[str, Metric]
    methods: dict[str, Counterpart]
    shares: dict[str, str] = field(default_factory=dict)
    transfers: dict[str, str] = field(default_factory=dict)

    def source(self, table: str) -> str:
        """Return the table whose fits ``table`` shows: itself, or another."""
        return self.shares.get(table, table)


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
class Pair:
    """Our figure in the paper's unit (None: there is no such score), and the paper's (None: it prints none)."""

    ours: Estimate | None = None
    paper: Printed | None = None

    @property
    def difference(self) -> float | None:
        """Return ours − the paper's, in the paper's unit; None where a figure is missing."""
        return None if self.ours is None or self.paper is None else self.ours.mean - float(self.paper.value)

    @property
    def z(self) -> float | None:
        """Return (ours − paper's) / √(our standard error² + the paper's²).

        It is None where an error is unknown or both are 0.
        """
        if self.difference is None or self.ours is None or self.paper is None:
            return None
        if self.ours.error is None or not self.paper.error:
            return None
        combined = math.hypot(self.ours.error, float(self.paper.error))
        return self.difference / combined if combined != 0 else None

    @property
    def far(self) -> bool:
        """Return True if the figures differ by more than ``FAR`` combined standard errors, or by NaN."""
        return self.z is not None and not abs(self.z) <= FAR

    @property
    def digits(self) -> int:
        """Return the number of digits to show: as many as the paper prints, and at least two."""
        return max(2, self.paper.digits) if self.paper else 2


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper.

    Attributes:
        figures: data set -> method -> metric -> figure, all by the paper's names.
        others: the methods of all tables that share its fits; its own methods may be among them.
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
        """Return ``<paper>-<table>`` of the table whose fits it shows, the name of the params file of these fits."""
        return f"{self.paper}-{self.names.source(self.table)}"

    def metrics(self, dataset: str) -> list[str]:
        """List the metrics that the paper prints for a data set, all by the paper's names."""
        return list(dict.fromkeys(metric for row in self.figures[dataset].values() for metric in row))

    def notes(self, dataset: str) -> dict[str, list[str]]:
        """Return the notes on a data set's methods, in order: note -> the methods, by the paper's names."""
        notes: dict[str, list[str]] = {}
        for method in self.figures[dataset]:
            notes.setdefault(self.names.methods[method].note, []).append(method)
        return {note: methods for note, methods in notes.items() if note}

    def title(self, metric: str) -> str:
        """Return the heading of a metric's column."""
        name, _, where = metric.partition(":")
        return f"{self.names.metrics[name].title} {where}".rstrip()

    def estimate(self, metric: str, method: str | None, stored: RunScores) -> Estimate | None:
        """Estimate a metric of the paper from our scores, in the paper's unit; None where there is no such score.

        Args:
            method: the paper's name of a method, as for :meth:`quantity`.
        """
        known = self.names.metrics[metric.partition(":")[0]]
        ours = stored.estimate(self.quantity(metric, method), known.scale)
        return None if ours is None else replace(ours, mean=known.offset + ours.mean)

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
    paper, _, table = name.partition(":")
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if paper not in known:
        raise UserError(f"{paper or name}: is not a paper{nearest(paper, known)}")
    names = config.read(Names, read_yaml(folder / f"{paper}.yaml"), f"{paper}.yaml")
    with open(folder / f"{paper}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    tables = sorted({row["table"] for row in rows})
    if table not in tables:
        raise UserError(f"{name}: must be <paper>:<table>, and {paper} has no such table{nearest(table, tables)}")
    figures: dict[str, dict[str, dict[str, Printed]]] = {}
    others = set[str]()
    for row in rows:
        if row["table"] == table:
            _check(row, names, f"{paper}.csv")
            method = figures.setdefault(row["dataset"], {}).setdefault(row["method"], {})
            method[row["metric"]] = Printed(row["value"], row["error"])
        elif names.source(row["table"]) == names.source(table):
            others.add(row["method"])
    return PaperTable(paper, table, names, figures, frozenset(others))


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
