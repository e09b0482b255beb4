"""The comparison in a terminal: whole columns, the first ones that fit; the report has them all."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..core.params import Params
    from .columns import Headline

_GAP: Final = 2  # cells between columns


@dataclass
class Part:
    """One data set of ``comparison.md``: its title, the table's rows (the head first), the notes below."""

    title: str
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parts(markdown: str) -> Iterator[Part]:
    """The data sets of ``comparison.md``, in order."""
    for section in markdown.split("## ")[1:]:
        title, *lines = section.splitlines()
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
        yield Part(title.strip(), [rows[0], *rows[2:]] if rows else [], [ln for ln in lines if ln.startswith("- ")])


def fitting(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Numbers of the columns to show: the first ones whose widest cells fit side by side."""
    shown, used = list[int](), 0
    for column in range(len(rows[0])):
        used += max(cell_len(_bare(row[column])) for row in rows) + _GAP
        if used > width:
            break
        shown.append(column)
    return shown


def show(markdown: str, console: Console) -> None:
    """Print every table at the console's width, best figures in bold, and say what was left out."""
    for part in parts(markdown):
        if not part.rows:
            continue
        left = _show_table(part, console)
        if left:
            console.print(f"[dim]in the report: {', '.join(left)}[/dim]", highlight=False)
        warned = len(_warnings(part))
        if warned:
            console.print(f"[yellow]warnings: {warned}, in report/comparison.md[/yellow]", highlight=False)
        console.print()


def show_runs(fresh: Collection[str], missing: Mapping[str, str], params: "Params", console: Console) -> None:
    """Print the comparison of some runs from their stored scores, whatever report there is, and what is not in it.

    Args:
        fresh: keys of the runs whose scores are those of ``params``; one without whole scores is told as missing.
        missing: key of a run -> why its scores are not.
    """
    from ..stages.report import run_info
    from . import columns, partial

    runs = [run for run in params.of("student") if run.key in fresh]
    tables, lost = partial([run_info(run, params) for run in runs])
    if tables and not console.is_terminal:
        console.print(columns.markdown(tables), markup=False, highlight=False, soft_wrap=True)
    for table in tables if console.is_terminal else ():
        left = _show_table(table, console)
        lines = [*_warnings(table), *([f"too narrow for: {', '.join(left)}"] if left else [])]
        for line in lines:
            console.print(line, style="dim", markup=False, highlight=False)
        console.print()
    reasons: dict[str, list[str]] = {}
    for key, reason in {**missing, **lost}.items():
        reasons.setdefault(reason, []).append(key)
    if reasons:
        count = len({*missing, *lost})
        head = f"{count} of {len({*fresh, *missing})} runs are not in this comparison:"
        lines = [f"  {', '.join(keys)}: {reason}" for reason, keys in reasons.items()]
        console.print("\n".join([head, *lines]), style="yellow", markup=False, highlight=False, soft_wrap=True)


def _show_table(part: "Part | Headline", console: Console) -> list[str]:
    """Print the columns that fit; the titles of the others."""
    shown = fitting(part.rows, console.width)
    table = Table(box=None, title=part.title, title_justify="left", pad_edge=False, padding=(0, _GAP, 0, 0))
    for column in shown:
        justify = "left" if column < 2 else "right"
        table.add_column(part.rows[0][column], justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in part.rows[1:]:
        table.add_row(*(Text(_bare(row[c]), style="bold" if "**" in row[c] else "") for c in shown))
    console.print(table)
    return part.rows[0][len(shown) :]


def _warnings(part: "Part | Headline") -> list[str]:
    return [note for note in part.notes if not note.startswith("- [paper]")]


def _bare(cell: str) -> str:
    """Without emphasis and without the paper's figure, which the report sets beside it."""
    return cell.split(" [paper")[0].replace("**", "")
