"""The headline table's columns: what is shown of each run, how it is written, and which end is better."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..core.scores import DEFAULT_SCORE, Quantity
from . import which
from .estimates import Estimate
from .tables import Paper, RunInfo, Table

NOTHING: Final = "—"
Write = Callable[[float], str]


@dataclass(frozen=True)
class Column:
    """A column: its title, the quantity ``of`` its figures, ``better`` +1 (higher) or -1 (lower)."""

    title: str
    of: Quantity
    better: int
    write: Callable[[float], str]
    about: str


@dataclass(frozen=True)
class Cell:
    """A figure as it is written. It may be the ``best`` of its column; ``paper`` is what a paper prints for it."""

    text: str
    error: str = ""
    value: float | None = None
    best: bool = False
    paper: str = ""

    @property
    def figure(self) -> str:
        """Return the figure with its error."""
        return self.text + (f" ± {self.error}" if self.error else "")


@dataclass(frozen=True)
class Headline:
    """A data set's headline table.

    Attributes:
        head: the columns' titles; the first three are the method, the setting and the count of independent values, the
            last is the network.
        rows: the cells of each run.
        sources: where the papers' figures among the cells stand.
        remarks: what is said of runs, and of which.
        verdict: what can be concluded, in sentences.
    """

    title: str
    head: list[str]
    rows: list[list[Cell]]
    sources: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    verdict: list[str] = field(default_factory=list)


def percent(value: float) -> str:
    """Write a share as per cent, with two digits."""
    return f"{100 * value:.2f}"


def places(digits: int) -> Callable[[float], str]:
    """Return a function that writes a number with so many digits after the point."""
    return lambda value: f"{value:.{digits}f}"


def count(value: float) -> str:
    """Write a count with about three digits: 999, 1.23 k, 4.5 M."""
    return f"{value:.0f}" if value < 1000 else f"{value / 1e3:.3g} k" if value < 999_500 else f"{value / 1e6:.3g} M"


def size(value: float) -> str:
    """Write bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def seconds(value: float) -> str:
    """Write seconds with about three digits: 12 ms, 4.21 s, 131 s, 20 min."""
    if value >= 600:
        return f"{value / 60:.0f} min"
    if value >= 0.1:
        return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"
    return f"{1000 * value:.0f} ms" if value >= 0.01 else f"{1000 * value:.2g} ms"


CLEAN: Final = (  # of rows of the data set itself
    Column("Accuracy %", Quantity("accuracy"), +1, percent, "share of test inputs that are classified correctly"),
    Column("RMSE", Quantity("rmse"), -1, places(3), "root mean squared error, original units"),
    Column("NLL", Quantity("nll"), -1, places(3), "mean negative log predictive density, natural log"),
    Column("Brier", Quantity("brier"), -1, places(3), "squared distance to the one-hot label, summed over classes"),
    Column("ECE %", Quantity("ece"), -1, percent, "expected calibration error, equal-width bins"),
)


def columns(table: Table, dataset: str) -> list[Column]:
    """List the columns for which at least one run on ``dataset`` has a figure."""
    everywhere = "mean over all corruptions and severities"
    shifted = [
        Column("Corrupted acc. %", Quantity("accuracy", "corrupted"), +1, percent, everywhere),
        Column("Corrupted NLL", Quantity("nll", "corrupted"), -1, places(3), everywhere),
    ]
    ood = [
        Column(f"AUROC {name}", of, +1, places(3), f"{dataset} against {name} by max probability")
        for name in table.names(dataset, "ood")
        for of in (Quantity("auroc", "ood", name, score=DEFAULT_SCORE),)
    ]
    transfer = [
        Column(f"{title} {name}", of, better, write, f"on the rows of {name} whose classes {dataset} has")
        for name in table.names(dataset, "transfer")
        for title, metric, better, write in (("Acc. %", "accuracy", +1, percent), ("NLL", "nll", -1, places(3)))
        for of in (Quantity(metric, "transfer", name),)
    ]
    cost = [
        Column("Parameters", Quantity("parameters", "cost"), -1, count, "numbers stored for prediction"),
        Column("Size", Quantity("bytes", "cost"), -1, size, "bytes stored for prediction"),
        Column(
            "Fit",
            Quantity("fit_seconds", "cost"),
            -1,
            seconds,
            "time of one fit, with all that it was made from; of the processor, with one thread on a CPU",
        ),
        Column("Per 1,000", Quantity("seconds_per_1000", "cost"), -1, seconds, "time of 1,000 predictions"),
        Column("Peak memory", Quantity("peak_bytes", "cost"), -1, size, "peak memory of the fitting process"),
    ]
    shown, keys = [*CLEAN, *shifted, *transfer, *ood, *cost], [run.key for run in table.of(dataset)]
    return [c for c in shown if any(table.estimate(k, c.of) for k in keys)]


def cells(table: Table, runs: Sequence[RunInfo], column: Column, paper: Paper) -> list[Cell]:
    """Return one cell a run, with the best of them marked (all that share the best value)."""
    estimates = [table.estimate(run.key, column.of) for run in runs]
    values = {column.better * e.mean for e in estimates if e and math.isfinite(e.mean)}
    best = max(values) if len(values) > 1 else math.nan  # nothing is best where all are equal
    known = paper if column.of.set == "test" else {}
    printed = [known.get((r.dataset, r.method, r.setting, column.of.metric)) for r in runs]
    return [_cell(e, column, best, p.figure if p else "") for e, p in zip(estimates, printed, strict=True)]


def sources(runs: Sequence[RunInfo], paper: Paper) -> list[str]:
    """List where the papers' figures beside ``runs`` stand."""
    keys = {(r.dataset, r.method, r.setting) for r in runs}
    return sorted({printed.source for key, printed in paper.items() if key[:3] in keys})


def figure(estimate: Estimate | None, write: Callable[[float], str]) -> tuple[str, str]:
    """Write an estimate as (value, error); a dash for what is absent, and NaN or infinity as themselves."""
    if estimate is None:
        return NOTHING, ""
    if not math.isfinite(estimate.mean):
        return ("NaN" if math.isnan(estimate.mean) else "∞" if estimate.mean > 0 else "−∞"), ""
    return write(estimate.mean), "" if estimate.error is None else write(estimate.error)


def _cell(estimate: Estimate | None, column: Column, best: float, paper: str) -> Cell:
    text, error = figure(estimate, column.write)
    timed = column.of.set == "cost"
    is_best = estimate is not None and column.better * estimate.mean == best
    return Cell(text, "" if timed else error, estimate.mean if estimate else None, is_best, paper)


def labels(runs: Sequence[RunInfo]) -> dict[str, str]:
    """Return the name of each run on plots: the method, with its setting where it has more than one."""
    several = {run.method for run in runs if len({r.setting for r in runs if r.method == run.method}) > 1}
    return {r.key: r.method.replace("_", " ") + (f" {r.setting}" if r.method in several else "") for r in runs}


def seeds(table: Table, run: str) -> int:
    """Count the independent values that the figures of a run are means of."""
    known = (table.estimate(run, Quantity(metric)) for metric in ("nll", "accuracy", "rmse"))
    return next((estimate.n for estimate in known if estimate), 0)


def headlines(table: Table, paper: Paper) -> list[Headline]:
    """Return the headline tables, one a data set."""
    return [_headline(table, dataset, paper) for dataset in table.datasets()]


def markdown(tables: Sequence[Headline]) -> str:
    """Write headline tables as Markdown."""
    return "\n".join(map(_markdown, tables))


def _markdown(table: Headline) -> str:
    rule = _row(["---", "---", *["---:"] * (len(table.head) - 2)])
    rows = [_row([_plain(cell) for cell in row]) for row in table.rows]
    notes = [f"- [paper]: {source}, as printed there" for source in table.sources]
    notes += [f"- {remark}" for remark in table.remarks]
    verdict = [" ".join(table.verdict), ""] if table.verdict else []
    lines = [f"## {table.title}", "", _row(table.head), rule, *rows, "", *verdict, *notes, *([""] if notes else [])]
    return "\n".join(lines)


def _headline(table: Table, dataset: str, paper: Paper) -> Headline:
    runs, shown = table.of(dataset), columns(table, dataset)
    grid = [cells(table, runs, column, paper) for column in shown]
    rows = []
    for i, run in enumerate(runs):
        n = seeds(table, run.key)
        about = (run.method, run.setting, str(n) if n else NOTHING)
        rows.append([*map(Cell, about), *(column[i] for column in grid), Cell(run.network or NOTHING)])
    remarks: dict[str, list[str]] = {}
    for run in runs:
        for _, text in table.remarks(run.key):
            remarks.setdefault(text, []).append(run.key)
    head = ["Method", "Setting", "Seeds", *(column.title for column in shown), "Network"]
    found = which.verdict(table, dataset)
    said = [f"{text} [{', '.join(keys)}]" for text, keys in remarks.items()]
    return Headline(dataset, head, rows, sources(runs, paper), said, found.said if found else [])


def _plain(cell: Cell) -> str:
    text = cell.figure
    return (f"**{text}**" if cell.best else text) + (f" [paper {cell.paper}]" if cell.paper else "")


def _row(parts: Sequence[str]) -> str:
    return "| " + " | ".join(parts) + " |"
