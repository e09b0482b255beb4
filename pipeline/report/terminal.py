"""The comparison in a terminal: whole columns, the first ones that fit; the report has them all."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from .columns import Grid
    from .tables import RunInfo

_GAP: Final = 2  # So many cells separate two columns.


def show(tables: "Sequence[Grid]", console: Console, *, in_report: bool = True) -> None:
    """Print tables at the console's width, best figures in bold, and name the columns that do not fit.

    Output that is no terminal gets all columns, as ``comparison.md`` has them.

    Args:
        in_report: ``report/`` has these tables, so that their remarks are counted and not printed.
    """
    from . import columns

    if not console.is_terminal:
        if tables:
            console.print(columns.markdown(tables), markup=False, emoji=False, highlight=False, soft_wrap=True)
        return
    for table in tables:
        left_out = ", ".join(_show_table(table, console))
        lines = [] if in_report else [f"- {remark}" for remark in table.remarks]
        lines += [f"{'in the report' if in_report else 'too narrow for'}: {left_out}"] if left_out else []
        for line in lines:
            console.print(line, style="dim", markup=False, highlight=False)
        if in_report and table.verdict:
            console.print(" ".join(table.verdict), markup=False, highlight=False)
        if in_report and table.remarks:
            console.print(f"[yellow]warnings: {len(table.remarks)}, in report/comparison.md[/yellow]", highlight=False)
        console.print()


def show_runs(runs: "Sequence[RunInfo]", missing: Mapping[str, str], console: Console) -> None:
    """Print the comparison of some runs from their stored scores, and which runs are not in it.

    Args:
        runs: the runs whose scores are up to date; one without whole scores is listed as missing.
        missing: key of a run -> why its scores are not up to date.
    """
    from . import partial

    tables, damaged = partial(runs)
    show(tables, console, in_report=False)
    reasons: dict[str, list[str]] = {}
    for key, reason in {**missing, **damaged}.items():
        reasons.setdefault(reason, []).append(key)
    if reasons:
        count, whole = len({*missing, *damaged}), len({run.key for run in runs} | {*missing})
        lines = [f"  {', '.join(keys)}: {reason}" for reason, keys in reasons.items()]
        text = "\n".join([f"{count} of {whole} runs are not in this comparison:", *lines])
        console.print(text, style="yellow", markup=False, emoji=False, highlight=False, soft_wrap=True)


def _show_table(grid: "Grid", console: Console) -> list[str]:
    """Print the first columns that fit side by side, without the papers' figures; return the others' titles."""
    table = Table(box=None, title=grid.title, title_justify="left", pad_edge=False, padding=(0, _GAP, 0, 0))
    shown = used = 0
    for column, title in enumerate(grid.head):
        used += max(cell_len(text) for text in (title, *(row[column].figure for row in grid.rows))) + _GAP
        if used > console.width:
            break
        table.add_column(title, justify="left" if column < 2 else "right", no_wrap=True)
        shown = column + 1
    for row in grid.rows:
        table.add_row(*(Text(cell.figure, style="bold" if cell.best else "") for cell in row[:shown]))
    console.print(table)
    return grid.head[shown:]
