"""Our runs beside a paper's figures: a line for each method, with or without a run; as a table, Markdown and CSV."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bdl_pipe import scores
from bdl_pipe.metrics.written import seconds
from bdl_pipe.papers import FAR, Pair, PaperTable
from bdl_pipe.scores import Quantity, RunScores

from ..core import places
from ..core.model import Params, Run
from ..report import Grid
from ..report.columns import NOTHING, Cell

_COLUMNS: Final = (
    *("dataset", "method", "run", "setting", "metric"),
    *("ours", "error", "n", "paper", "paper_error", "z", "fit_seconds"),
)


@dataclass(frozen=True)
class Line:
    """A method of a table, or one of our runs that the table does not have.

    Attributes:
        method: the paper's name, or our name for a run that the paper does not have.
        run: the run's key; None: no run stands for the method.
        ran: whether the run has scores.
        cells: the paper's metric -> the two figures.
        seconds: mean seconds of one fit, upstream runs included.
    """

    method: str
    run: str | None
    setting: str
    ran: bool
    cells: Mapping[str, Pair]
    seconds: float | None = None

    def ours(self, metric: str) -> str:
        """Write our figure of a metric, with its error, and a mark if it is far from the paper's."""
        pair = self.cells[metric]
        if not self.ran:
            return "not run" if pair.paper or self.run else NOTHING
        if pair.ours is None:
            return NOTHING
        error = "" if pair.ours.error is None else f" ± {pair.ours.error:.{pair.digits}f}"
        return f"{pair.ours.mean:.{pair.digits}f}{error}" + (" !" if pair.far else "")


def compare(table: PaperTable, dataset: str, params: Params, evaluated: Collection[str]) -> list[Line]:
    """Return the lines of a table for a data set.

    Args:
        dataset: the paper's name.
        evaluated: keys of the runs that have scores.
    """
    runs, lines = runs_of(table, dataset, params), list[Line]()
    for method in table.figures[dataset]:
        matching: list[Run | None] = [run for run in runs if stands_for(run, method, table)]
        lines += [_line(table, dataset, method, run, len(matching) > 1, evaluated) for run in matching or [None]]
    used = {line.run for line in lines}
    for run in (run for run in runs if run.key not in used):
        several = sum(other.method.name == run.method.name for other in runs) > 1
        lines.append(_line(table, dataset, None, run, several, evaluated))
    return lines


def runs_of(table: PaperTable, dataset: str, params: Params) -> list[Run]:
    """List the runs on ``dataset`` (the paper's name) of this table, and those that no table of the same runs has."""
    own, others = table.figures[dataset], table.others

    def belongs(run: Run) -> bool:
        is_own = any(stands_for(run, method, table) for method in own)
        return is_own or not any(stands_for(run, method, table) for method in others)

    ours = table.names.datasets[dataset]
    return [run for run in params.of("student") if run.spec.dataset == ours and belongs(run)]


def stands_for(run: Run, method: str, table: PaperTable) -> bool:
    """Return True if a run of ours stands for ``method`` of the paper."""
    ours = table.names.methods[method]
    return run.method.name == ours.method and ours.setting in ("", run.spec.setting)


def _line(
    table: PaperTable, dataset: str, method: str | None, run: Run | None, several: bool, evaluated: Collection[str]
) -> Line:
    """Return a line with our figures where the paper prints one; a run that it does not have has all its figures.

    Args:
        several: other runs have a line of the same name, so that the setting tells them apart.
    """
    printed, pairs, stored = table.figures[dataset][method] if method else {}, {}, None
    if run is not None and run.key in evaluated:
        stored = RunScores(scores.read(places.artifact("evaluate", run.key) / "scores.parquet"))
    for metric in table.metrics(dataset):
        ours = None
        if stored is not None and (method is None or metric in printed):
            ours = stored.estimate(table.quantity(metric, method), table.scale(metric))
        pairs[metric] = Pair(ours, printed.get(metric))
    cost = stored.estimate(Quantity("fit_seconds", "cost")) if stored is not None else None
    key, name, setting = (run.key, run.method.name, run.spec.setting) if run is not None else (None, "", "")
    title = f"{method or name} ({setting})" if several else method or name
    return Line(title, key, setting, stored is not None, pairs, cost.mean if cost else None)


def grid(table: PaperTable, dataset: str, lines: Sequence[Line]) -> Grid:
    """Return the comparison as a table: two columns for each metric, and the seconds of a fit."""
    metrics = table.metrics(dataset)
    head = [f"{table.title(metric)} {whose}" for metric in metrics for whose in ("ours", "paper")]
    rows = []
    for line in lines:
        texts = [line.method]
        for metric, paper in ((metric, line.cells[metric].paper) for metric in metrics):
            texts += [line.ours(metric), paper.text if paper else NOTHING]
        rows.append([*map(Cell, texts), Cell(NOTHING if line.seconds is None else seconds(line.seconds))])
    notes = [f"{', '.join(methods)}: {note}" for note, methods in table.notes(dataset).items()]
    title = f"{table}, {dataset}, ours ± standard error ({_splits(lines)})"
    return Grid(["method", *head, "seconds"], rows, title, remarks=[*agreement(table, lines), *notes])


def agreement(table: PaperTable, lines: Sequence[Line]) -> list[str]:
    """Write ours − paper, also in combined standard errors: a line for each method with errors on both sides."""
    verdicts = []
    for line in lines:
        parts = [
            f"{table.title(metric)} {pair.difference:+.{pair.digits}f} ({pair.z:+.1f}{' !' if pair.far else ''})"
            for metric, pair in line.cells.items()
            if pair.z is not None
        ]
        verdict = "disagrees" if any(pair.far for pair in line.cells.values()) else "agrees"
        verdicts += [f"{line.method} {verdict}: {', '.join(parts)}"] if parts else []
    if not verdicts:
        return ["agreement: no method has figures with a standard error on both sides"]
    pairs = [pair for line in lines for pair in line.cells.values() if pair.z is not None]
    marked = f"! beyond {FAR:g}: {sum(pair.far for pair in pairs)} of {len(pairs)}"
    return [f"ours − paper (in combined standard errors; {marked})", *verdicts]


def markdown(table: PaperTable, dataset: str, lines: Sequence[Line], facts: Mapping[str, Any]) -> str:
    """Return the comparison as Markdown, with ``facts`` below it."""
    shown = grid(table, dataset, lines)
    rule = [":---", *["---:"] * (len(shown.head) - 1)]
    rows = [shown.head, rule, *([cell.text for cell in row] for row in shown.rows)]
    return "\n".join(
        [
            f"# {table.names.title}: {table.table}, {dataset}",
            "",
            f"Ours: mean ± standard error ({_splits(lines)}); seconds to fit one seed with all that it is made from. "
            "The paper's ± is as printed there and is taken as a standard error. "
            f"A mark (!) says: further apart than {FAR:g} combined standard errors.",
            "",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            *(f"- {remark}" for remark in shown.remarks),
            "",
            "| | |",
            "|---|---|",
            *(f"| {key} | {value} |" for key, value in facts.items()),
            "",
        ]
    )


def comma_separated(dataset: str, lines: Sequence[Line]) -> str:
    """Return the comparison as CSV: one row a figure, in full precision and in the paper's unit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for line in lines:
        for metric, pair in line.cells.items():
            ours = (pair.ours.mean, pair.ours.error, pair.ours.n) if pair.ours else (None, None, None)
            paper = (pair.paper.value, pair.paper.error) if pair.paper else (None, None)
            about = (dataset, line.method, line.run, line.setting, metric)
            writer.writerow([*about, *ours, *paper, pair.z, line.seconds])
    return text.getvalue()


def _splits(lines: Sequence[Line]) -> str:
    counts = sorted({pair.ours.n for line in lines for pair in line.cells.values() if pair.ours})
    return f"n = {' or '.join(map(str, counts))}" if counts else "none run"
