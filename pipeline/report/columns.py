"""The headline table's columns: what is shown of each run, how it is written, and which end is better."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from .means import Mean
from .tables import Paper, RunInfo, Table, corrupted

NOTHING: Final = "—"


@dataclass(frozen=True)
class Column:
    """One column: its title, where its figure comes from, ``better`` +1 (higher) or -1 (lower)."""

    title: str
    metric: str
    split: str | Callable[[str], bool]
    better: int
    write: Callable[[float], str]
    about: str


@dataclass(frozen=True)
class Cell:
    """A figure as it is written; ``best`` of its column; ``paper`` is what a paper prints for it."""

    text: str
    error: str = ""
    value: float | None = None
    best: bool = False
    paper: str = ""


@dataclass(frozen=True)
class Headline:
    """One data set's table as text.

    Attributes:
        rows: the head first; the best figure of a column stands between ``**``.
        notes: Markdown items below the table: where a paper's figures stand, remarks with the runs that have them.
    """

    title: str
    rows: list[list[str]]
    notes: list[str]


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def places(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}"


def count(value: float) -> str:
    return f"{value:.0f}" if value < 1000 else f"{value / 1e3:.3g} k" if value < 999_500 else f"{value / 1e6:.3g} M"


def size(value: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def seconds(value: float) -> str:
    """About three digits: 12 ms, 4.21 s, 131 s, 20 min."""
    if value >= 600:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.2g} ms"


CLEAN: Final = (  # of rows of the data set itself
    Column("Accuracy %", "accuracy", "test", +1, percent, "share of test inputs that are classified correctly"),
    Column("RMSE", "rmse", "test", -1, places(3), "root mean squared error, original units"),
    Column("NLL", "nll", "test", -1, places(3), "mean negative log predictive density, natural log"),
    Column("Brier", "brier", "test", -1, places(3), "squared distance to the one-hot label, summed over classes"),
    Column("ECE %", "ece", "test", -1, percent, "expected calibration error, equal-width bins"),
)


def columns(table: Table, dataset: str) -> list[Column]:
    """The columns for which at least one run on ``dataset`` has a figure."""
    shifted = [
        Column("Corrupted acc. %", "accuracy", corrupted, +1, percent, "mean over all corruptions and severities"),
        Column("Corrupted NLL", "nll", corrupted, -1, places(3), "mean over all corruptions and severities"),
    ]
    ood = [
        Column(f"AUROC {s[4:]}", "auroc", s, +1, places(3), f"{dataset} against {s[4:]} by max probability")
        for s in table.splits(dataset, "ood:")
    ]
    transfer = [
        Column(f"{title} {s[9:]}", metric, s, better, write, f"on the rows of {s[9:]} whose classes {dataset} has")
        for s in table.splits(dataset, "transfer:")
        for title, metric, better, write in (("Acc. %", "accuracy", +1, percent), ("NLL", "nll", -1, places(3)))
    ]
    cost = [
        Column("Parameters", "parameters", "cost", -1, count, "numbers stored for prediction"),
        Column("Size", "bytes", "cost", -1, size, "bytes stored for prediction"),
        Column("Fit", "fit_seconds", "cost", -1, seconds, "time of one member, with all that it was made from"),
        Column("Per 1,000", "seconds_per_1000", "cost", -1, seconds, "time of 1,000 predictions"),
        Column("Peak memory", "peak_bytes", "cost", -1, size, "peak memory of the fitting process"),
    ]
    shown, keys = [*CLEAN, *shifted, *transfer, *ood, *cost], [run.key for run in table.of(dataset)]
    return [c for c in shown if any(table.stat(k, c.metric, c.split) for k in keys)]


def cells(table: Table, runs: Sequence[RunInfo], column: Column, paper: Paper) -> list[Cell]:
    """One cell a run, the best of them marked (all that share the best value)."""
    stats = [table.stat(run.key, column.metric, column.split) for run in runs]
    values = {column.better * s.value for s in stats if s and math.isfinite(s.value)}
    best = max(values) if len(values) > 1 else math.nan  # nothing is best where all are equal
    known = paper if column.split == "test" else {}
    printed = [known.get((r.dataset, r.method, r.setting, column.metric)) for r in runs]
    return [_cell(s, column, best, p.figure if p else "") for s, p in zip(stats, printed, strict=True)]


def sources(runs: Sequence[RunInfo], paper: Paper) -> list[str]:
    """Where the papers' figures beside ``runs`` stand."""
    keys = {(r.dataset, r.method, r.setting) for r in runs}
    return sorted({printed.source for key, printed in paper.items() if key[:3] in keys})


def figure(stat: Mean | None, write: Callable[[float], str]) -> tuple[str, str]:
    """(value, error) as written; a dash for what is absent, and NaN or infinity as themselves."""
    if stat is None:
        return NOTHING, ""
    if not math.isfinite(stat.value):
        return ("NaN" if math.isnan(stat.value) else "∞" if stat.value > 0 else "−∞"), ""
    return write(stat.value), "" if stat.error is None else write(stat.error)


def _cell(stat: Mean | None, column: Column, best: float, paper: str) -> Cell:
    text, error = figure(stat, column.write)
    timed = column.split == "cost"
    is_best = stat is not None and column.better * stat.value == best
    return Cell(text, "" if timed else error, stat.value if stat else None, is_best, paper)


def labels(runs: Sequence[RunInfo]) -> dict[str, str]:
    """Run key -> the name on plots: the method, with its setting where it has more than one."""
    several = {run.method for run in runs if len({r.setting for r in runs if r.method == run.method}) > 1}
    return {r.key: r.method.replace("_", " ") + (f" {r.setting}" if r.method in several else "") for r in runs}


def seeds(table: Table, run: str) -> int:
    stat = table.stat(run, "nll", "test") or table.stat(run, "accuracy", "test") or table.stat(run, "rmse", "test")
    return stat.n if stat else 0


def headlines(table: Table, paper: Paper) -> list[Headline]:
    """The headline tables, one a data set."""
    return [_headline(table, dataset, paper) for dataset in table.datasets()]


def markdown(tables: Sequence[Headline]) -> str:
    """Headline tables as Markdown."""
    return "\n".join(map(_markdown, tables))


def _markdown(table: Headline) -> str:
    head, *rows = map(_row, table.rows)
    rule = _row(["---", "---", *["---:"] * (len(table.rows[0]) - 2)])
    return "\n".join([f"## {table.title}", "", head, rule, *rows, "", *table.notes, *([""] if table.notes else [])])


def _headline(table: Table, dataset: str, paper: Paper) -> Headline:
    runs, shown = table.of(dataset), columns(table, dataset)
    grid = [cells(table, runs, column, paper) for column in shown]
    rows = [["Method", "Setting", "Seeds", *(c.title for c in shown)]]
    for i, run in enumerate(runs):
        n = seeds(table, run.key)
        rows.append([run.method, run.setting, str(n) if n else NOTHING, *(_plain(c[i]) for c in grid)])
    notes = [f"- [paper]: {source}, as printed there" for source in sources(runs, paper)]
    told: dict[str, list[str]] = {}
    for run in runs:
        for _, text in table.remarks(run.key):
            told.setdefault(text, []).append(run.key)
    notes += [f"- {text} [{', '.join(keys)}]" for text, keys in told.items()]
    return Headline(dataset, rows, notes)


def _plain(cell: Cell) -> str:
    text = cell.text + (f" ± {cell.error}" if cell.error else "")
    return (f"**{text}**" if cell.best else text) + (f" [paper {cell.paper}]" if cell.paper else "")


def _row(parts: Sequence[str]) -> str:
    return "| " + " | ".join(parts) + " |"
