"""A comparison with a paper: in a terminal, as Markdown, as CSV."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from ..core.scores import Estimate
from ..report.columns import seconds
from . import PaperTable
from .compare import FAR, Cell, Line

NOTHING: Final = "—"
NOT_RUN: Final = "not run"
_GAP: Final = 2  # cells between columns
_COLUMNS: Final = (
    *("dataset", "method", "run", "setting", "metric"),
    *("ours", "error", "n", "paper", "paper_error", "z", "fit_seconds"),
)


def terminal(table: PaperTable, dataset: str, lines: Sequence[Line], console: Console) -> None:
    """Print as many tables as the width asks for, each of whole metrics; nothing is left out."""
    metrics = table.metrics(dataset)
    for i, part in enumerate(_parts(table, metrics, lines, console.width)):
        title = f"{table}, {dataset}, ours ± standard error ({_splits(lines)})" if i == 0 else None
        shown = Table(box=None, title=title, title_justify="left", pad_edge=False, padding=(0, _GAP, 0, 0))
        for j, name in enumerate(_head(table, part, "\n")):
            shown.add_column(name, justify="left" if j == 0 else "right", no_wrap=True)
        for line in lines:
            shown.add_row(*_row(line, part), style=None if line.ran else "dim")
        console.print(shown)
    console.print(agreement(table, lines, console.width), highlight=False, markup=False)
    for note in _notes(table, dataset):
        console.print(note, highlight=False, markup=False)
    console.print()


def agreement(table: PaperTable, lines: Sequence[Line], width: int | None = None) -> str:
    """Say how far apart ours and the paper's are: ours − paper, in combined standard errors too.

    There is a line for each method that has such figures.
    """
    told = []
    for line in lines:
        parts = [
            f"{table.title(metric)} {cell.difference:+.{_digits(cell)}f} ({cell.z:+.1f}{' !' if cell.far else ''})"
            for metric, cell in line.cells.items()
            if cell.z is not None
        ]
        verdict = "disagrees" if any(cell.far for cell in line.cells.values()) else "agrees"
        told += [f"  {line.method} {verdict}: {', '.join(parts)}"] if parts else []
    if not told:
        return "agreement: no method has figures with a standard error on both sides"
    count = sum(cell.far for line in lines for cell in line.cells.values())
    whole = sum(cell.z is not None for line in lines for cell in line.cells.values())
    marked = f"! beyond {FAR:g}: {count} of {whole}"
    head = f"ours − paper (in combined standard errors; {marked})"
    if width is not None and cell_len(head) > width:
        head = f"ours − paper (in standard errors; {marked})"
    return "\n".join([head, *told])


def markdown(table: PaperTable, dataset: str, lines: Sequence[Line], facts: Mapping[str, Any]) -> str:
    """Return the comparison as Markdown, with ``facts`` below it."""
    metrics = table.metrics(dataset)
    head = _head(table, metrics)
    rule = [":---", *["---:"] * (len(head) - 1)]
    body = [_pipes(_row(line, metrics)) for line in lines]
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
    """Return the comparison as CSV: one row a figure, empty where there is none.

    Ours is in full precision, in the paper's unit.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for line in lines:
        for metric, cell in line.cells.items():
            ours = (cell.ours.mean, cell.ours.error, cell.ours.n) if cell.ours else (None, None, None)
            paper = (cell.paper.value, cell.paper.error) if cell.paper else (None, None)
            about = (dataset, line.method, line.run, line.setting, metric)
            writer.writerow(["" if v is None else v for v in (*about, *ours, *paper, cell.z, line.seconds)])
    return text.getvalue()


def _notes(table: PaperTable, dataset: str) -> list[str]:
    return [f"{', '.join(methods)}: {note}" for note, methods in table.notes(dataset).items()]


def _head(table: PaperTable, metrics: Sequence[str], between: str = " ") -> list[str]:
    pairs = (f"{table.title(metric, between)}{between}{whose}" for metric in metrics for whose in ("ours", "paper"))
    return ["method", *pairs, "seconds"]


def _row(line: Line, metrics: Sequence[str]) -> list[str]:
    pairs = (text for m in metrics for text in (_ours(line, line.cells[m]), _paper(line.cells[m])))
    return [line.method, *pairs, NOTHING if line.seconds is None else seconds(line.seconds)]


def _ours(line: Line, cell: Cell) -> str:
    if not line.ran:
        return NOT_RUN if cell.paper or line.run else NOTHING
    return NOTHING if cell.ours is None else _estimate(cell.ours, _digits(cell)) + (" !" if cell.far else "")


def _estimate(ours: Estimate, digits: int) -> str:
    return f"{ours.mean:.{digits}f}" + ("" if ours.error is None else f" ± {ours.error:.{digits}f}")


def _digits(cell: Cell) -> int:
    """Return the number of digits to show: as many as the paper prints, and at least two."""
    return max(2, cell.paper.digits) if cell.paper else 2


def _paper(cell: Cell) -> str:
    return cell.paper.text if cell.paper else NOTHING


def _splits(lines: Sequence[Line]) -> str:
    counts = sorted({cell.ours.n for line in lines for cell in line.cells.values() if cell.ours})
    return f"n = {' or '.join(map(str, counts))}" if counts else "none run"


def _parts(table: PaperTable, metrics: list[str], lines: Sequence[Line], width: int) -> Iterator[list[str]]:
    """Yield the metrics that fit side by side, in order; at least one a part."""
    part: list[str] = []
    for metric in metrics:
        if part and _width(table, [*part, metric], lines) > width:
            yield part
            part = []
        part.append(metric)
    yield part


def _width(table: PaperTable, metrics: list[str], lines: Sequence[Line]) -> int:
    rows = [_head(table, metrics, "\n"), *(_row(line, metrics) for line in lines)]
    widest = (max(cell_len(part) for cell in column for part in cell.split("\n")) for column in zip(*rows, strict=True))
    return sum(width + _GAP for width in widest)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
