"""The report's metrics, columns and tables: what is shown of each run, how it is written, and which end is better."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ..core.scores import DEFAULT_SCORE, Estimate, Quantity, Set
from . import which
from .tables import RunInfo, Table, is_finite

NOTHING: Final = "—"
Write = Callable[[float], str]


def percent(value: float) -> str:
    """Write a share as per cent, with two digits."""
    return f"{100 * value:.2f}"


def places(digits: int) -> Write:
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


@dataclass(frozen=True)
class Metric:
    """How a metric is called and written.

    Attributes:
        label: the title of its column.
        better: +1 if higher is better, -1 if lower is better.
        write: writes one value.
        about: what it measures.
        short: its name after another word, such as a protocol's; the label if empty.
        set: the set that it is a score of (or ``cost``).
        headline: the table of all runs has a column for it.
        stored: ``metrics.json`` has it, for ``dvc metrics``; equal runs repeat it exactly.
        axis: the name of the axis of a cost, in figures of NLL against it; empty if there is no such figure.
    """

    label: str
    better: int
    write: Write
    about: str = ""
    short: str = ""
    set: Set = "test"
    headline: bool = True
    stored: bool = False
    axis: str = ""

    @property
    def scale(self) -> int:
        """Return the factor of a value in figures: 100 for per cent."""
        return 100 if self.write is percent else 1


METRICS: Final[Mapping[str, Metric]] = {
    "accuracy": Metric(
        "Accuracy %", +1, percent, "share of test inputs that are classified correctly", "acc. %", stored=True
    ),
    "rmse": Metric("RMSE", -1, places(3), "root mean squared error, original units", stored=True),
    "nll": Metric("NLL", -1, places(3), "mean negative log predictive density, natural log", stored=True),
    "brier": Metric("Brier", -1, places(3), "squared distance to the one-hot label, summed over classes"),
    "ece": Metric("ECE %", -1, percent, "expected calibration error, equal-width bins", stored=True),
    "batch_nll": Metric("batch NLL", -1, places(3), "NLL of draws that are mixed by batch", headline=False),
    "crps": Metric("CRPS", -1, places(3), "continuous ranked probability score", headline=False),
    "auroc": Metric("AUROC", +1, places(3), set="ood"),
    "aupr_in": Metric("AUPR-In", +1, places(3), set="ood", headline=False),
    "aupr_out": Metric("AUPR-Out", +1, places(3), set="ood", headline=False),
    "fpr95": Metric("FPR95", -1, places(3), set="ood", headline=False),
    "parameters": Metric("Parameters", -1, count, "numbers stored for prediction", set="cost"),
    "bytes": Metric("Size", -1, size, "bytes stored for prediction", set="cost", axis="size"),
    "fit_seconds": Metric(
        "Fit",
        -1,
        seconds,
        "time of one fit with all upstream stages; on a CPU with one thread, seconds of the processor",
        set="cost",
        axis="fit, seconds",
    ),
    "seconds_per_1000": Metric(
        "Per 1,000", -1, seconds, "time of 1,000 predictions", set="cost", axis="seconds per 1,000 predictions"
    ),
    "peak_bytes": Metric("Peak memory", -1, size, "peak memory of the fitting process", set="cost"),
}
OOD_SCORES: Final = {  # The names that a reader sees; a score that is not listed is shown by its own name.
    "max_prob": "max probability",
    "mutual_information": "mutual information",
    "feature_density": "feature density",
    "refit_density": "refitted feature density",
    "variance": "variance",
}


@dataclass(frozen=True)
class Column:
    """A column of one quantity."""

    title: str
    of: Quantity
    about: str = ""

    @property
    def metric(self) -> Metric:
        """Return how its figures are written and which end is better."""
        return METRICS[self.of.metric]


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: the figure or the name.
        small: what follows in small letters: an error, an interval, a setting.
        value: sorts the column; None sorts last.
        best: the figure is the best of its column.
        paper: what a paper prints for this figure.
        colour: of the background or, beside a name, of a dot; a CSS colour.
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


def columns(table: Table, dataset: str) -> list[Column]:
    """List the columns for which at least one run on ``dataset`` has a figure."""
    shown = [Column(m.label, Quantity(name), m.about) for name, m in of_set("test").items()]
    for name in ("accuracy", "nll"):
        title = f"Corrupted {short(name)}"
        shown.append(Column(title, Quantity(name, "corrupted"), "mean over all corruptions and severities"))
    for other in table.names(dataset, "transfer"):
        for name in ("accuracy", "nll"):
            title, about = f"{short(name)} {other}", f"on the rows of {other} whose classes {dataset} has"
            shown.append(Column(title[0].upper() + title[1:], Quantity(name, "transfer", other), about))
    for other in table.names(dataset, "ood"):
        for name, metric in of_set("ood").items():
            quantity = Quantity(name, "ood", other, score=DEFAULT_SCORE)
            shown.append(Column(f"{metric.label} {other}", quantity, f"{dataset} against {other} by max probability"))
    shown += [Column(m.label, Quantity(name, "cost"), m.about) for name, m in of_set("cost").items()]
    return with_figures(table, table.of(dataset), shown)


def of_set(wanted: Set) -> dict[str, Metric]:
    """Return the metrics of a set that have a column in the table of all runs."""
    return {name: metric for name, metric in METRICS.items() if metric.headline and metric.set == wanted}


def short(metric: str) -> str:
    """Return a metric's name after another word."""
    return METRICS[metric].short or METRICS[metric].label


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
        cell = figure(estimate, column.metric.write, with_error=column.of.set != "cost")
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
        {column.title: column.about for column in shown} | {"Network": "the architecture that predicts"},
        sources=sorted({source for key, (_, source) in table.paper.items() if key[:3] in keys}),
        remarks=[f"{text} [{', '.join(keys)}]" for text, keys in remarks.items()],
        verdict=verdict.sentences if verdict else [],
    )


def metrics(table: Table) -> dict[str, dict[str, float | None]]:
    """Return each run's figures for ``dvc metrics``; None for one that is not finite."""
    wanted = [name for name, metric in METRICS.items() if metric.stored]
    runs = {run.key: {name: table.estimate(run.key, Quantity(name)) for name in wanted} for run in table.runs}
    return {
        key: {name: known.mean if math.isfinite(known.mean) else None for name, known in figures.items() if known}
        for key, figures in runs.items()
    }


def markdown(tables: Sequence[Grid]) -> str:
    """Write tables as Markdown, with their titles, verdicts, sources and remarks."""
    return "\n".join(map(_markdown, tables))


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Write a table as Markdown; the first ``left`` columns are aligned to the left, the others to the right."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _markdown(table: Grid) -> str:
    rows = [[_marked(cell) for cell in row] for row in table.rows]
    notes = [f"- [paper]: {source}, as printed there" for source in table.sources]
    notes += [f"- {remark}" for remark in table.remarks]
    verdict = [" ".join(table.verdict), ""] if table.verdict else []
    parts = [f"## {table.title}", "", markdown_table(table.head, rows, left=2), "", *verdict]
    return "\n".join([*parts, *notes, *([""] if notes else [])])


def _marked(cell: Cell) -> str:
    text = f"**{cell.figure}**" if cell.best else cell.figure
    return f"{text} [paper {cell.paper}]" if cell.paper else text


def _column(quantity: Quantity, title: str) -> Column:
    return Column(title, quantity, METRICS[quantity.metric].about)
