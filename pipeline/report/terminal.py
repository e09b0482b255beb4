"""The comparison in a terminal: whole columns, the first ones that fit; the report has them all."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..core.model import Params
    from .columns import Headline

_GAP: Final = 2  # cells between columns


def fitting(table: "Headline", width: int) -> list[int]:
    """List the numbers of the columns to show: the first ones whose widest cells fit side by side."""
    shown, used = list[int](), 0
    for column, title in enumerate(table.head):
        used += max(cell_len(text) for text in (title, *(row[column].figure for row in table.rows))) + _GAP
        if used > width:
            break
        shown.append(column)
    return shown


def show(tables: "Sequence[Headline]", console: Console) -> None:
    """Print tables of the report at the console's width, best figures in bold, and say what was left out.

    Where nobody looks, all columns are printed, as ``comparison.md`` has them.
    """
    from . import columns

    if not console.is_terminal:
        console.print(columns.markdown(tables), markup=False, emoji=False, highlight=False, soft_wrap=True)
        return
    for table in tables:
        left = _show_table(table, console)
        if left:
            console.print(f"[dim]in the report: {', '.join(left)}[/dim]", highlight=False)
        if table.verdict:
            console.print(" ".join(table.verdict), markup=False, highlight=False)
        if table.remarks:
            console.print(f"[yellow]warnings: {len(table.remarks)}, in report/comparison.md[/yellow]", highlight=False)
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
        console.print(columns.markdown(tables), markup=False, emoji=False, highlight=False, soft_wrap=True)
    for table in tables if console.is_terminal else ():
        left = _show_table(table, console)
        remarks = [f"- {remark}" for remark in table.remarks]
        lines = [*remarks, *([f"too narrow for: {', '.join(left)}"] if left else [])]
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
        console.print(
            "\n".join([head, *lines]), style="yellow", markup=False, emoji=False, highlight=False, soft_wrap=True
        )


def _show_table(headline: "Headline", console: Console) -> list[str]:
    """Print the columns that fit, without the papers' figures, and return the titles of the others."""
    shown = fitting(headline, console.width)
    table = Table(box=None, title=headline.title, title_justify="left", pad_edge=False, padding=(0, _GAP, 0, 0))
    for column in shown:
        table.add_column(headline.head[column], justify="left" if column < 2 else "right", no_wrap=True)
    for row in headline.rows:
        table.add_row(*(Text(row[c].figure, style="bold" if row[c].best else "") for c in shown))
    console.print(table)
    return headline.head[len(shown) :]
