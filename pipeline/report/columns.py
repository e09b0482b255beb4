"""The report's metrics, columns and tables: what is shown of each run, how it is written, and which end is better."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bdl_pipe.metrics import DETECTION, METRICS, Metric
from bdl_pipe.scores import DEFAULT_SCORE, Estimate, Quantity

from . import which
from .tables import RunInfo, Table, is_finite

NOTHING: Final = "—"
Write = Callable[[float], str]


def percent(value: float) -> str:
    """Write a share as per cent, with two digits."""
    return f"{100 * value:.2f}"


def plain(value: float) -> str:
    """Write a number with three digits after the point."""
    return f"{value:.3f}"


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


HEADLINE: Final = ("accuracy", "rmse", "nll", "brier", "ece")  # The table of all runs has a column for each.
SHIFTED: Final = ("accuracy", "nll")  # It has these on corrupted rows and on other data sets, too.
COSTS: Final = (
    Metric("parameters", "Parameters", "numbers stored for prediction", better=-1),
    Metric("bytes", "Size", "bytes stored for prediction", better=-1),
    Metric(
        "fit_seconds",
        "Fit",
        "time of one fit with all upstream stages; on a CPU with one thread, seconds of the processor",
        better=-1,
    ),
    Metric("seconds_per_1000", "Per 1,000", "time of 1,000 predictions", better=-1),
    Metric("peak_bytes", "Peak memory", "peak memory of the fitting process", better=-1),
)
_OTHERS: Final = {metric.name: metric for metric in (*DETECTION, *COSTS)}
_WRITE: Final[Mapping[str, Write]] = {
    "parameters": count,
    "bytes": size,
    "fit_seconds": seconds,
    "seconds_per_1000": seconds,
    "peak_bytes": size,
}
_SHORT: Final = {"accuracy": "acc. %", "batch_nll": "batch NLL"}  # names after another word, such as a protocol's


def metric(name: str) -> Metric:
    """Return the metric of test rows, of out-of-distribution detection or of cost that has this name."""
    return _OTHERS[name] if name in _OTHERS else METRICS[name]


def short(name: str) -> str:
    """Return a metric's title after another word."""
    return _SHORT.get(name, metric(name).label)


@dataclass(frozen=True)
class Column:
    """A column of one quantity."""

    title: str
    of: Quantity

    @property
    def metric(self) -> Metric:
        """Return what the column measures and which end is better."""
        return metric(self.of.metric)

    @property
    def write(self) -> Write:
        """Return the function that writes its figures."""
        return percent if self.metric.percent else _WRITE.get(self.of.metric, plain)


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: the figure or the name.
        small: what follows in small letters: an error, an interval, a setting.
        value: sorts the column; None sorts last.
        best: the figure is the best of its column.
        paper: what a paper prints for this figure.
        colour: of a dot beside a name; a CSS colour.
        hint: shown while the pointer is over the cell.
    """

    text: str
    small: str = ""
    value: float | None = None
    best: bool = False
    paper: str = ""
    colour: str = ""
    hint: str = ""

    @property
    def figure(self) -> str:
        """Return the figure with its error."""
        return f"{self.text} {self.small}" if self.small else self.text


@dataclass(frozen=True)
class Grid:
    """A table for a page, for Markdown or for a terminal.

    Attributes:
        head: the columns' titles.
        rows: the cells of each row, as many as titles.
        title: names the table where it stands alone.
        hints: title -> what is shown while the pointer is over it.
        groups: titles over several columns, from the second column on, each with its number of columns.
        sources: where the papers' figures among the cells stand.
        remarks: notes and warnings, each with the runs that it is about.
        verdict: what can be concluded, in sentences.
    """

    head: list[str]
    rows: list[list[Cell]]
    title: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)
    groups: list[tuple[str, int]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    verdict: list[str] = field(default_factory=list)


def headline_metrics() -> list[str]:
    """List the metrics of test rows in the table of all runs: some of the library's, and all that plugins add."""
    return [*HEADLINE, *(name for name in METRICS if METRICS.module_of(name) is not None)]


def columns(table: Table, dataset: str) -> list[Column]:
    """List the columns for which at least one run on ``dataset`` has a figure."""
    shown = [Column(metric(name).label, Quantity(name)) for name in headline_metrics()]
    shown += [Column(f"Corrupted {short(name)}", Quantity(name, "corrupted")) for name in SHIFTED]
    for other in table.names(dataset, "transfer"):
        for name in SHIFTED:
            title = f"{short(name)} {other}"
            shown.append(Column(title[0].upper() + title[1:], Quantity(name, "transfer", other)))
    for other in table.names(dataset, "ood"):
        shown.append(Column(f"AUROC {other}", Quantity("auroc", "ood", other, score=DEFAULT_SCORE)))
    shown += [Column(cost.label, Quantity(cost.name, "cost")) for cost in COSTS]
    return with_figures(table, table.of(dataset), shown)


def with_figures(table: Table, runs: Sequence[RunInfo], shown: Iterable[Column]) -> list[Column]:
    """List the columns for which at least one of ``runs`` has a figure."""
    return [column for column in shown if any(table.estimate(run.key, column.of) for run in runs)]


def rows(
    table: Table, runs: Sequence[RunInfo], shown: Sequence[Column], *, with_paper: bool = False
) -> list[list[Cell]]:
    """Return a row of cells for each run, ``with_paper``: beside each figure, what a paper prints for it."""
    made = [cells(table, runs, column, with_paper=with_paper) for column in shown]
    return [[column[i] for column in made] for i in range(len(runs))]


def cells(table: Table, runs: Sequence[RunInfo], column: Column, *, with_paper: bool = False) -> list[Cell]:
    """Return one cell for each run. All that share the best value are marked, but none where all are equal."""
    estimates, better = [table.estimate(run.key, column.of) for run in runs], column.metric.better
    values = {better * e.mean for e in estimates if e and math.isfinite(e.mean)}
    best, made = max(values) if len(values) > 1 else math.nan, []
    for run, estimate in zip(runs, estimates, strict=True):
        cell = figure(estimate, column.write, with_error=column.of.set != "cost")
        if estimate is not None and better * estimate.mean == best:
            cell = replace(cell, best=True)
        key = (run.dataset, run.method, run.setting, column.of.metric)
        if with_paper and column.of.set == "test" and key in table.paper:
            cell = replace(cell, paper=table.paper[key][0])
        made.append(cell)
    return made


def figure(estimate: Estimate | None, write: Write, *, with_error: bool = True) -> Cell:
    """Write an estimate and its error; a dash for None, and NaN or infinity as themselves."""
    if estimate is None:
        return Cell(NOTHING)
    if not is_finite(estimate):
        return Cell("NaN" if math.isnan(estimate.mean) else "∞" if estimate.mean > 0 else "−∞")
    error = f"± {write(estimate.error)}" if with_error and estimate.error is not None else ""
    return Cell(write(estimate.mean), error, estimate.mean)


def seeds(table: Table, run: str) -> int:
    """Count the independent values whose means the figures of a run are."""
    known = (table.estimate(run, Quantity(metric)) for metric in ("nll", "accuracy", "rmse"))
    return next((estimate.n for estimate in known if estimate), 0)


def headlines(table: Table) -> list[Grid]:
    """Return the headline tables, one for each data set."""
    return [headline(table, dataset) for dataset in table.datasets()]


def headline(table: Table, dataset: str) -> Grid:
    """Return a data set's table: method, setting, count of independent values, a column a quantity, network."""
    runs, shown = table.of(dataset), columns(table, dataset)
    made = []
    for run, figures in zip(runs, rows(table, runs, shown, with_paper=True), strict=True):
        n = seeds(table, run.key)
        count = Cell(str(n), value=n) if n else Cell(NOTHING)
        made.append([Cell(run.method), Cell(run.setting), count, *figures, Cell(run.network or NOTHING)])
    remarks: dict[str, list[str]] = {}
    for run in runs:
        for _, text in table.remarks(run.key):
            remarks.setdefault(text, []).append(run.key)
    keys = {(run.dataset, run.method, run.setting) for run in runs}
    verdict = which.verdict(table, dataset)
    return Grid(
        ["Method", "Setting", "Seeds", *(column.title for column in shown), "Network"],
        made,
        dataset,
        {column.title: column.metric.about for column in shown} | {"Network": "the architecture that predicts"},
        sources=sorted({source for key, (_, source) in table.paper.items() if key[:3] in keys}),
        remarks=[f"{text} [{', '.join(keys)}]" for text, keys in remarks.items()],
        verdict=verdict.sentences if verdict else [],
    )


def metrics(table: Table) -> dict[str, dict[str, float | None]]:
    """Return each run's figures for ``dvc metrics``; None for one that is not finite."""
    wanted = [name for name in headline_metrics() if name != "brier"]
    runs = {run.key: {name: table.estimate(run.key, Quantity(name)) for name in wanted} for run in table.runs}
    return {
        key: {name: known.mean if math.isfinite(known.mean) else None for name, known in figures.items() if known}
        for key, figures in runs.items()
    }


def markdown(tables: Sequence[Grid]) -> str:
    """Write tables as Markdown, with their titles, verdicts, sources and remarks."""
    return "\n".join(map(_markdown, tables))


def _markdown(table: Grid) -> str:
    rule = ["---"] * 2 + ["---:"] * (len(table.head) - 2)
    lines = [table.head, rule, *([_marked(cell) for cell in row] for row in table.rows)]
    notes = [f"- [paper]: {source}, as printed there" for source in table.sources]
    notes += [f"- {remark}" for remark in table.remarks]
    verdict = [" ".join(table.verdict), ""] if table.verdict else []
    parts = [f"## {table.title}", "", *(f"| {' | '.join(line)} |" for line in lines), "", *verdict]
    return "\n".join([*parts, *notes, *([""] if notes else [])])


def _marked(cell: Cell) -> str:
    text = f"**{cell.figure}**" if cell.best else cell.figure
    return f"{text} [paper {cell.paper}]" if cell.paper else text
