"""The comparison in a terminal: whole columns, the first ones that fit; the report has them all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

_GAP = 2  # cells between columns


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
        shown = fitting(part.rows, console.width)
        table = Table(box=None, title=part.title, title_justify="left", pad_edge=False, padding=(0, _GAP, 0, 0))
        for column in shown:
            table.add_column(part.rows[0][column], justify="left" if column < 2 else "right", no_wrap=True)
        for row in part.rows[1:]:
            table.add_row(*(f"[bold]{_bare(row[c])}[/bold]" if "**" in row[c] else _bare(row[c]) for c in shown))
        console.print(table)
        left = part.rows[0][len(shown) :]
        if left:
            console.print(f"[dim]in the report: {', '.join(left)}[/dim]", highlight=False)
        warned = len([note for note in part.notes if not note.startswith("- [paper]")])
        if warned:
            console.print(f"[yellow]warnings: {warned}, in report/comparison.md[/yellow]", highlight=False)
        console.print()


def _bare(cell: str) -> str:
    """Without emphasis and without the paper's figure, which the report sets beside it."""
    return cell.split(" [paper")[0].replace("**", "")
