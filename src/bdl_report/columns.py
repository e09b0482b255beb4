"""The report's metrics, columns and tables: the figures of each run, their format, and which end is better."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from bdl_pipe.metrics import COSTS, METRICS, Metric
from bdl_pipe.metrics.metric import Question
from bdl_pipe.metrics.table import LIBRARY, OF_TEST_ROWS, metric_of, stored_metrics
from bdl_pipe.metrics.written import writer
from bdl_pipe.scores import DEFAULT_SCORE, Estimate, Quantity

from .tables import ChainsInfo, RunInfo, Table, paper_figures
from .verdict import verdict

NOTHING: Final = "—"
SHIFTED: Final = ("accuracy", "nll")  # The table also has these metrics on corrupted rows and on other data sets.
DIAGNOSTICS: Final = {  # a metric of chains -> its title and explanation
    "rhat_prediction": ("R-hat", "rank-normalised split R-hat of predictions; the worst row"),
    "rhat_log_likelihood": ("R-hat of log-likelihood", "rank-normalised split R-hat of the rows' log-likelihood"),
    "ess_prediction": ("Bulk ESS", "effective draws of predictions in the bulk; the worst row"),
    "ess_tail_prediction": ("Tail ESS", "effective draws of predictions in the tails; the worst row"),
    "noise_mean": ("Noise", "variance of the minibatches' noise over that of the kernel's own, mean over directions"),
    "noise_worst": ("Noise, stiffest", "the same in the direction where it is largest"),
}


def short(name: str) -> str:
    """Return a metric's short title, for use after another word."""
    return metric_of(name).short or metric_of(name).label


@dataclass(frozen=True)
class Column:
    """A column of one quantity."""

    title: str
    of: Quantity

    @property
    def metric(self) -> Metric:
        """Return the column's metric, with its description and the direction that is better."""
        return metric_of(self.of.metric)

    def write(self, value: float) -> str:
        """Write a figure of the column."""
        return writer(self.metric)(value)


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: the figure or the name.
        small: the text that follows in small letters: an error, an interval, a setting.
        value: sorts the column; None sorts last.
        best: whether the figure is the best of its column.
        paper: the paper's figure for this cell, as printed.
        colour: the CSS colour of a dot beside a name.
        hint: the text shown while the pointer is over the cell.
        kinds: the kinds of a run by which a page hides its row, see :meth:`Table.kinds`.
    """

    text: str
    small: str = ""
    value: float | None = None
    best: bool = False
    paper: str = ""
    colour: str = ""
    hint: str = ""
    kinds: str = ""

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
        title: names the table if it stands alone.
        hints: title -> the text shown while the pointer is over it.
        groups: titles over several columns, from the second column on, each with its number of columns.
        sources: the papers and tables with the papers' figures among the cells.
        remarks: notes and warnings, each with its runs.
        verdict: the conclusions, as sentences.
        folded: whether a page shows it on demand.
    """

    head: list[str]
    rows: list[list[Cell]]
    title: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)
    groups: list[tuple[str, int]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    verdict: list[str] = field(default_factory=list)
    folded: bool = False


def headline_metrics() -> list[str]:
    """List the metrics of test rows in the table of all runs."""
    return [name for name, metric in METRICS.items() if metric.headline]


def columns(table: Table) -> list[Column]:
    """List the columns of the table of all runs for which at least one run has a figure."""
    shown = [Column(metric_of(name).label, Quantity(name)) for name in headline_metrics()]
    shown += [Column(f"Corrupted {short(name)}", Quantity(name, "corrupted")) for name in SHIFTED]
    for other in table.sets("transfer"):
        for name in SHIFTED:
            title = f"{short(name)} {other}"
            shown.append(Column(title[0].upper() + title[1:], Quantity(name, "transfer", other)))
    for other in table.sets("ood"):
        shown.append(Column(f"AUROC {other}", Quantity("auroc", "ood", other, score=DEFAULT_SCORE)))
    shown += [Column(cost.label, Quantity(cost.name, "cost")) for cost in COSTS]
    return with_figures(table, shown)


def with_figures(table: Table, shown: Iterable[Column]) -> list[Column]:
    """List the columns for which at least one run has a figure."""
    return [column for column in shown if any(table.estimate(run.key, column.of) for run in table.runs)]


def rows(table: Table, shown: Sequence[Column], *, with_paper: bool = False) -> list[list[Cell]]:
    """Return a row of cells for each run; ``with_paper`` adds the papers' figures."""
    by_column = [cells(table, column, with_paper=with_paper) for column in shown]
    return [[column[i] for column in by_column] for i in range(len(table.runs))]


def cells(table: Table, column: Column, *, with_paper: bool = False) -> list[Cell]:
    """Return a cell for each run. All cells with the best value are marked, but none if all values are equal."""
    estimates, better = [table.estimate(run.key, column.of) for run in table.runs], column.metric.better
    values = [better * max(e.mean, column.metric.least) if e and math.isfinite(e.mean) else math.nan for e in estimates]
    different = {value for value in values if not math.isnan(value)}
    best, shown = max(different) if len(different) > 1 else math.nan, []
    papers = paper_figures() if with_paper and column.of.set == "test" else {}
    for run, estimate, value in zip(table.runs, estimates, values, strict=True):
        printed, _ = papers.get((run.dataset, run.method, run.setting, column.of.metric), ("", ""))
        shown.append(replace(figure(estimate, column), best=value == best, paper=printed))
    return shown


def figure(estimate: Estimate | None, column: Column) -> Cell:
    """Write an estimate, with its error if it has no unit; None is a dash, NaN and infinity are written as such."""
    if estimate is None:
        return Cell(NOTHING)
    if not math.isfinite(estimate.mean):
        return Cell("NaN" if math.isnan(estimate.mean) else "∞" if estimate.mean > 0 else "−∞")
    error = estimate.error if column.metric.unit in ("", "digits") else None
    return Cell(column.write(estimate.mean), "" if error is None else f"± {column.write(error)}", estimate.mean)


def headline(table: Table) -> Grid:
    """Return a data set's table: method, setting, count of independent values, a column for each quantity, network."""
    shown, cells_of_runs = columns(table), []
    for run, figures in zip(table.runs, rows(table, shown, with_paper=True), strict=True):
        n = table.scores[run.key].count if run.key in table.scores else None
        count = Cell(NOTHING if n is None else str(n), value=n)
        cells_of_runs.append([Cell(run.method), Cell(run.setting), count, *figures, Cell(run.network or NOTHING)])
    keys = {(run.dataset, run.method, run.setting) for run in table.runs}
    independent = "Splits" if any(table.scores[run.key].splits > 1 for run in table.done.runs) else "Seeds"
    return Grid(
        ["Method", "Setting", independent, *(column.title for column in shown), "Network"],
        cells_of_runs,
        table.dataset,
        {column.title: column.metric.about for column in shown} | {"Network": "the architecture that predicts"},
        sources=sorted({source for key, (_, source) in paper_figures().items() if key[:3] in keys}),
        remarks=[text for _, text in table.remarks()],
        verdict=verdict(table.candidates()),
    )


def by_run(table: Table, head: Sequence[str], rows: Sequence[list[Cell]], **more: Any) -> Grid:
    """Return a table with a row for each run, which begins with the run's name."""
    cells = [[named(table, run), *row] for run, row in zip(table.runs, rows, strict=True)]
    return Grid(["Method, setting", *head], cells, **more)


def by_score(table: Table, shown: Sequence[Column], **more: Any) -> Grid:
    """Return the table of runs, with the columns for which a run has a figure."""
    shown = with_figures(table, shown)
    hints = {column.title: column.metric.about for column in shown}
    return by_run(table, [column.title for column in shown], rows(table, shown), hints=hints, **more)


def named(table: Table, run: RunInfo) -> Cell:
    """Return the cell that names a run, with its colour in the figures."""
    name, colour = run.method.replace("_", " "), table.looks[run.key].colour
    return Cell(name, run.setting, colour=colour, hint=run.key, kinds=table.kinds(run.key))


def asked(table: Table, question: Question) -> list[Grid]:
    """Return the table of a question's metrics, each followed by its ``beside`` metric, with the best run first."""
    wanted = [one for one in {**LIBRARY, **OF_TEST_ROWS}.values() if one.question == question]
    names = [name for one in wanted for name in (one.name, one.beside) if name]
    shown = with_figures(table, [Column(metric_of(name).label, Quantity(name)) for name in names])
    if not shown:
        return []
    first = next((column for column in shown if column.metric.better), shown[0])
    scores, by_key = table.finite(first.of), {run.key: run for run in table.runs}
    ordered = sorted(scores, key=lambda run: -first.metric.better * scores[run].mean)
    return [by_score(table.only(by_key[key] for key in ordered), shown)]


def of_predictions(table: Table) -> list[Column]:
    """List the columns of all other metrics of stored predictions, for which at least one run has a figure."""
    names = (name for name in stored_metrics() if name not in headline_metrics())
    return with_figures(table, [Column(metric_of(name).label, Quantity(name)) for name in names])


def diagnostics(chains: Mapping[str, ChainsInfo]) -> Grid:
    """Return the table of the chains' diagnostics; its heading states over how many splits each is the worst."""
    lines = []
    for key, one in chains.items():
        line, values = [Cell(key)], one.metrics
        for name in DIAGNOSTICS:
            digits = ".2f" if name.startswith("rhat") else ".3g"
            line.append(Cell(f"{values[name]:{digits}}", value=values[name]) if name in values else Cell(NOTHING))
        lines.append(line)
    hints, splits = dict(DIAGNOSTICS.values()), max((one.splits for one in chains.values()), default=1)
    return Grid([f"Chains, worst of {splits} splits" if splits > 1 else "Chains", *hints], lines, hints=hints)


def metrics(table: Table) -> dict[str, dict[str, float | None]]:
    """Return each run's figures for ``dvc metrics``; None for figures that are not finite."""
    wanted = [name for name in headline_metrics() if name != "brier"]
    figures: dict[str, dict[str, float | None]] = {run.key: {} for run in table.runs}
    for run, name in product(table.runs, wanted):
        if estimate := table.estimate(run.key, Quantity(name)):
            figures[run.key][name] = estimate.mean if math.isfinite(estimate.mean) else None
    return figures
