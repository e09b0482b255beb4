"""A comparison with a paper: in a terminal, as Markdown, as CSV."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from bdl_pipe.metrics.written import seconds

from . import PaperTable
from .compare import FAR, Line, Pair

NOTHING: Final = "—"
NOT_RUN: Final = "not run"
_GAP: Final = 2  # cells between columns
_COLUMNS: Final = (
    *("dataset", "method", "run", "setting", "metric"),
    *("ours", "error", "n", "paper", "paper_error", "z", "fit_seconds"),
)


def terminal(table: PaperTable, dataset: str, lines: Sequence[Line], console: Console) -> None:
    """Print one table, or several with some of the metrics each where the terminal is too narrow for all."""
    metrics = table.metrics(dataset)
    for i, part in enumerate(_parts(table, metrics, lines, console.width)):
        title = f"{table}, {dataset}, ours ± standard error ({_splits(lines)})" if i == 0 else None
        shown = Table(box=None, title=title, title_justify="left", pad_edge=False, padding=(0, _GAP, 0, 0))
        for j, name in enumerate(_head(table, part, "\n")):
            shown.add_column(name, justify="left" if j == 0 else "right", no_wrap=True)
        for line in lines:
            shown.add_row(*_cells(line, part), style=None if line.ran else "dim")
        console.print(shown)
    console.print(agreement(table, lines, console.width), highlight=False, markup=False)
    for note in _notes(table, dataset):
        console.print(note, highlight=False, markup=False)
    console.print()


def agreement(table: PaperTable, lines: Sequence[Line], width: int | None = None) -> str:
    """Write ours − paper, also in combined standard errors: a line for each method with errors on both sides."""
    verdicts = []
    for line in lines:
        parts = [
            f"{table.title(metric)} {pair.difference:+.{_digits(pair)}f} ({pair.z:+.1f}{' !' if pair.far else ''})"
            for metric, pair in line.cells.items()
            if pair.z is not None
        ]
        verdict = "disagrees" if any(pair.far for pair in line.cells.values()) else "agrees"
        verdicts += [f"  {line.method} {verdict}: {', '.join(parts)}"] if parts else []
    if not verdicts:
        return "agreement: no method has figures with a standard error on both sides"
    pairs = [pair for line in lines for pair in line.cells.values() if pair.z is not None]
    marked = f"! beyond {FAR:g}: {sum(pair.far for pair in pairs)} of {len(pairs)}"
    head = f"ours − paper (in combined standard errors; {marked})"
    if width is not None and cell_len(head) > width:
        head = f"ours − paper (in standard errors; {marked})"
    return "\n".join([head, *verdicts])


def markdown(table: PaperTable, dataset: str, lines: Sequence[Line], facts: Mapping[str, Any]) -> str:
    """Return the comparison as Markdown, with ``facts`` below it."""
    metrics = table.metrics(dataset)
    head = _head(table, metrics)
    rule = [":---", *["---:"] * (len(head) - 1)]
    body = [_pipes(_cells(line, metrics)) for line in lines]
    return "\n".join(
        [
            f"# {table.names.title}: {table.table}, {dataset}",
            "",
            f"Ours: mean ± standard error ({_splits(lines)}); seconds to fit one seed with all that it is made from. "
            "The paper's ± is as printed there and is taken as a standard error. "
            f"A mark (!) says: further apart than {FAR:g} combined standard errors.",
            "",
            _pipes(head),
            _pipes(rule),
            *body,
            "",
            *(f"- {text.strip()}" for text in agreement(table, lines).splitlines()),
            *(f"- {note}" for note in _notes(table, dataset)),
            "",
            "| | |",
            "|---|---|",
            *(_pipes([str(key), str(value)]) for key, value in facts.items()),
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
            writer.writerow(["" if v is None else v for v in (*about, *ours, *paper, pair.z, line.seconds)])
    return text.getvalue()


def _notes(table: PaperTable, dataset: str) -> list[str]:
    return [f"{', '.join(methods)}: {note}" for note, methods in table.notes(dataset).items()]


def _head(table: PaperTable, metrics: Sequence[str], between: str = " ") -> list[str]:
    pairs = (f"{table.title(metric, between)}{between}{whose}" for metric in metrics for whose in ("ours", "paper"))
    return ["method", *pairs, "seconds"]


def _cells(line: Line, metrics: Sequence[str]) -> list[str]:
    """Write a line: two cells for each metric, and the seconds of a fit."""
    cells = [line.method]
    for pair in (line.cells[metric] for metric in metrics):
        cells += [_ours(line, pair), pair.paper.text if pair.paper else NOTHING]
    return [*cells, NOTHING if line.seconds is None else seconds(line.seconds)]


def _ours(line: Line, pair: Pair) -> str:
    if not line.ran:
        return NOT_RUN if pair.paper or line.run else NOTHING
    if pair.ours is None:
        return NOTHING
    digits = _digits(pair)
    error = "" if pair.ours.error is None else f" ± {pair.ours.error:.{digits}f}"
    return f"{pair.ours.mean:.{digits}f}{error}" + (" !" if pair.far else "")


def _digits(pair: Pair) -> int:
    """Return the number of digits to show: as many as the paper prints, and at least two."""
    return max(2, pair.paper.digits) if pair.paper else 2


def _splits(lines: Sequence[Line]) -> str:
    counts = sorted({pair.ours.n for line in lines for pair in line.cells.values() if pair.ours})
    return f"n = {' or '.join(map(str, counts))}" if counts else "none run"


def _parts(table: PaperTable, metrics: list[str], lines: Sequence[Line], width: int) -> Iterator[list[str]]:
    """Yield the metrics that fit side by side, in order; each part has at least one."""
    part: list[str] = []
    for metric in metrics:
        if part and _width(table, [*part, metric], lines) > width:
            yield part
            part = []
        part.append(metric)
    yield part


def _width(table: PaperTable, metrics: list[str], lines: Sequence[Line]) -> int:
    rows = [_head(table, metrics, "\n"), *(_cells(line, metrics) for line in lines)]
    columns = zip(*rows, strict=True)
    return sum(_GAP + max(cell_len(part) for cell in column for part in cell.split("\n")) for column in columns)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
