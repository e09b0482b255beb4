"""The figures printed in our methods' papers, with our names for the papers' names, for comparison with estimates.

    table = papers.load("vbll:table2")
    table.figures["Boston"]["VBLL"]["nll"].text    # 1.80 ± 0.04
    papers.Pair(scores.estimate(values), table.figures["Boston"]["VBLL"]["nll"]).z

``<paper>.csv`` has the figures as printed, ``<paper>.yaml`` our names.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

from bdl_pipe import config
from bdl_pipe.config import nearest
from bdl_pipe.data import corrupt
from bdl_pipe.data.catalog import HELD_OUT
from bdl_pipe.errors import UserError, require
from bdl_pipe.scores import DEFAULT_SCORE, Estimate, Quantity, RunScores
from bdl_pipe.yaml_files import read_yaml

from .order import Pair, Printed

__all__ = ["Pair", "Printed"]
HERE: Final = Path(__file__).parent
# A corruption or a severity, as a metric names it after its colon -> our corruption and severity; None means all.
CORRUPTED: Final[dict[str, tuple[str | None, int | None]]] = {
    **{f"sev. {severity}": (None, severity) for severity in range(1, 6)},
    **{name.replace("_", " "): (name, None) for name in corrupt.NAMES},
}


@dataclass(frozen=True)
class Counterpart:
    """Our method for a method of the paper.

    Attributes:
        method: our method; null if we do not have it.
        setting: the setting of our runs of the method; empty for any setting.
        scores: the paper's metric -> the OOD score of this method, if it is not the usual score.
        note: the differences between the two methods; shown below the table.
        absent: the reason that we have no such method; ``--missing`` prints it.
    """

    method: str | None
    setting: str = ""
    scores: dict[str, str] = field(default_factory=dict)
    note: str = ""
    absent: str = ""


@dataclass(frozen=True)
class Metric:
    """Our metric for a metric of the paper.

    Attributes:
        metric: our metric's name in the stored scores.
        title: the heading of the metric's column.
        scale: the paper's figure is ours times this (100 for per cent), plus ``offset``.
        offset: is added to our scaled figure; 100, with the scale −100, turns our accuracy into an error in per cent.
    """

    metric: str
    title: str
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        require(self.scale != 0, "scale", "must not be 0", self.scale)


@dataclass(frozen=True)
class Folds:
    """Our data sets that stand for a set and its near OOD set: the test images of their held-out classes are near.

    Attributes:
        near: the paper's name of the OOD set.
        of: our data sets, each with other classes held out. They count as splits.
    """

    near: str
    of: tuple[str, ...]


@dataclass(frozen=True)
class Names:
    """A paper's file ``<paper>.yaml``: our names for the paper's names.

    Attributes:
        shares: table -> another table that has its fits; a table with its own fits has no entry.
        transfers: the paper's name -> ours, for other labelled test sets; they are scored like the test rows.
        stand_ins: table, or ``all`` for tables without an entry -> a set that we do not have -> our set that replaces
            it, on a separate page.
        stand_in_notes: our set -> what it is beside the set that it replaces, and the limits of its page.
        folds: a set that we do not have -> our folds of held-out classes, on a third page of each table that prints
            scores of its near OOD set.
        default_run: the tables that runs of params.yaml and its overlays fill on the paper's own data sets.
        default_run_note: the limits of a page of such runs, on the paper's data or on a stand-in.
        settings: a setting of ``methods`` -> settings of runs of params.yaml and its overlays that also count for it.
        baselines: table -> the methods to compare the others with on a stand-in, one for each printed setting.
        gpu: the tables with a params file for a GPU.
        folder: the folder of the pages, below ``results``; empty for the paper's name.
    """

    title: str
    datasets: dict[str, str]
    metrics: dict[str, Metric]
    methods: dict[str, Counterpart]
    shares: dict[str, str] = field(default_factory=dict)
    transfers: dict[str, str] = field(default_factory=dict)
    stand_ins: dict[str, dict[str, str]] = field(default_factory=dict)
    stand_in_notes: dict[str, str] = field(default_factory=dict)
    folds: dict[str, Folds] = field(default_factory=dict)
    default_run: tuple[str, ...] = ()
    default_run_note: str = ""
    settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    baselines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    gpu: tuple[str, ...] = ()
    folder: str = ""

    def source(self, table: str) -> str:
        """Return the table that has the fits of ``table``: itself, or another table."""
        return self.shares.get(table, table)


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper.

    Attributes:
        figures: data set -> method -> metric -> figure, all by the paper's names.
        others: the methods of the other tables that share its fits; these may include its own methods.
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
        """Return ``<paper>-<table>`` of the table that has the fits: the name of the fits' params file."""
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

    def on_stand_ins(self, dataset: str) -> "PaperTable | None":
        """Return the table with our stand-ins in place of the sets that we do not have.

        It is None if ``dataset`` has no stand-in, or if the table prints figures of the stand-in itself.
        """
        stand_ins = self.names.stand_ins.get(self.table, self.names.stand_ins.get("all", {}))
        if stand_ins.get(dataset) in (None, *(self.names.datasets[name] for name in self.figures)):
            return None
        others = {name: stand_ins.get(name, ours) for name, ours in self.names.transfers.items()}
        return replace(self, names=replace(self.names, datasets=self.names.datasets | stand_ins, transfers=others))

    def on_folds(self, dataset: str) -> "PaperTable | None":
        """Return the table with our folds of held-out classes in place of a set, and these classes as its near OOD set.

        It is None if ``dataset`` has no folds, or if the table prints no score of the near OOD set.
        """
        folds, table = self.names.folds.get(dataset), self.on_stand_ins(dataset)
        if folds is None or table is None or not any(m.endswith(f":{folds.near}") for m in self.metrics(dataset)):
            return None
        ours = {**table.names.datasets, dataset: folds.of[0], folds.near: HELD_OUT}
        return replace(table, names=replace(table.names, datasets=ours))

    @property
    def folder(self) -> str:
        """Return the folder of its pages, below ``results``."""
        return self.names.folder or self.paper

    def title(self, metric: str) -> str:
        """Return the heading of a metric's column."""
        name, _, where = metric.partition(":")
        return f"{self.names.metrics[name].title} {where}".rstrip()

    def estimate(self, metric: str, method: str | None, stored: RunScores) -> Estimate | None:
        """Estimate a metric of the paper from our scores, in the paper's unit; None if we have no such score.

        Args:
            method: the paper's name of a method, see :meth:`quantity`.
        """
        theirs = self.names.metrics[metric.partition(":")[0]]
        ours = stored.estimate(self.quantity(metric, method), theirs.scale)
        return None if ours is None else replace(ours, mean=theirs.offset + ours.mean)

    def quantity(self, metric: str, method: str | None) -> Quantity:
        """Return the quantity of the stored scores for the paper's ``metric``.

        A metric may name a set after a colon: an OOD set, a set that the run is transferred to, a severity (the mean
        over all corruptions), or a corruption (the mean over all severities).

        Args:
            method: the paper's name of a method, which may have its own OOD score.
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


def tables(folder: Path = HERE) -> list[str]:
    """List ``<paper>:<table>`` of every table, in the order of the files."""
    papers = sorted(path.stem for path in folder.glob("*.yaml"))
    return [f"{paper}:{table}" for paper in papers for table in dict.fromkeys(r["table"] for r in _rows(paper, folder))]


@cache
def _names(paper: str, folder: Path) -> Names:
    return config.read(Names, read_yaml(folder / f"{paper}.yaml"), f"{paper}.yaml")


@cache
def _rows(paper: str, folder: Path) -> list[dict[str, str]]:
    with open(folder / f"{paper}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def load(name: str, folder: Path = HERE) -> PaperTable:
    """Read the table that ``<paper>:<table>`` names.

    Raises:
        UserError: there is no such paper or table.
    """
    paper, _, table = name.partition(":")
    papers = sorted(path.stem for path in folder.glob("*.yaml"))
    if paper not in papers:
        raise UserError(f"{paper or name}: is not a paper{nearest(paper, papers)}")
    names, rows = _names(paper, folder), _rows(paper, folder)
    tables = sorted({row["table"] for row in rows})
    if table not in tables:
        raise UserError(f"{name}: must be <paper>:<table>, and {paper} has no such table{nearest(table, tables)}")
    figures: dict[str, dict[str, dict[str, Printed]]] = {}
    others = set[str]()
    for row in rows:
        if row["table"] == table:
            _check(row, names, f"{paper}.csv")
            method = figures.setdefault(row["dataset"], {}).setdefault(row["method"], {})
            method[row["metric"]] = Printed(row["value"], row["error"], row["setting"])
        elif names.source(row["table"]) == names.source(table):
            others.add(row["method"])
    return PaperTable(paper, table, names, figures, frozenset(others))


def _check(row: Mapping[str, str], names: Names, path: str) -> None:
    metric, _, where = row["metric"].partition(":")
    names_of: tuple[tuple[str, Mapping[str, object]], ...] = (
        (row["dataset"], names.datasets),
        (row["method"], names.methods),
        (metric, names.metrics),
        *([(where, {**names.datasets, **names.transfers, **CORRUPTED})] if where else []),
    )
    for name, there in names_of:
        require(name in there, f"{path}: {name}", "has no counterpart in the paper's yaml")
