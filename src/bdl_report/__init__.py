"""The comparison of runs, from stored tables only: a folder of tables and pages, and tables in a terminal.

``report/`` holds ``comparison.{csv,parquet,md}``, ``coresets.csv``, ``metrics.json``, ``index.html`` and the folder
``pages``: a page for each question that the stored scores answer, and the script that draws the figures.
Restyling it needs no fit; equal inputs give equal bytes.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError
from bdl_pipe.scores import DEFAULT_SCORE

from . import columns, cross, page, tables
from .columns import Grid
from .tables import ChainsInfo, CoresetInfo, RunInfo, Step, gather

__all__ = ["ChainsInfo", "CoresetInfo", "Grid", "RunInfo", "Step", "build", "gather", "headlines", "show", "show_runs"]

_GAP: Final = 2  # terminal cells between two columns
_NAMED: Final = 8  # the most runs that a line of the terminal names


def build(
    runs: Sequence[RunInfo],
    out: Path,
    *,
    provenance: Mapping[str, object],
    dpi: int,
    decisions: Mapping[str, Path] | None = None,
) -> None:
    """Write the report into ``out``, completely or not at all.

    Args:
        runs: the runs to compare, in the order in which they are shown.
        provenance: facts for the page's head, in order (commit, params, data, device, date, ...).
        dpi: CSS pixels per inch of a figure.
        decisions: decision -> the folder of its ``decide`` artifact, which may be absent.

    Raises:
        ArtifactError: a table that exists is altered, truncated or of an older version.
    """
    table = replace(gather(runs), decisions=decisions or {})
    with artifacts.replacing(out) as folder:
        tables.write_comparison(table, folder)
        cross.write_csv(table, folder / "coresets.csv")
        (folder / "comparison.md").write_text(page.markdown(headlines(table)) + _elsewhere(table), encoding="utf-8")
        (folder / "metrics.json").write_text(
            json.dumps(columns.metrics(table), indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        pages = page.render(table, provenance, dpi)
        (folder / "index.html").write_text(pages.pop("index"), encoding="utf-8")
        with artifacts.publish(folder / "pages", "report") as inner:
            for name, html in pages.items():
                (inner / f"{name}.html").write_text(html, encoding="utf-8")
            shutil.copyfile(page.VEGA, inner / page.VEGA.name)


def headlines(table: tables.Table) -> list[Grid]:
    """Return each data set's headline table, then its coresets under each protocol."""
    parts = table.by_dataset().values()
    coresets = [cross.headline(part, rows) for part in parts if (rows := cross.of(part))]
    return [*map(columns.headline, parts), *coresets]


def _elsewhere(table: tables.Table) -> str:
    """Name the page of AUROC by other scores, if a run has some: the headline tables show only the default score."""
    more = {of.score for of in table.quantities() if of.score} - {DEFAULT_SCORE}
    return f"\nAUROC here is by {DEFAULT_SCORE}; pages/unseen.html has it by every score, set by set.\n" if more else ""


def show(grids: Sequence[Grid], console: Console, *, in_report: bool = True) -> None:
    """Print tables at the console's width, best figures in bold, and name the columns that do not fit.

    Output that is not a terminal gets all columns, as in ``comparison.md``.

    Args:
        in_report: whether ``report/`` has these tables. Their remarks are then counted, not printed.
    """
    if not console.is_terminal:
        if grids:
            _print(page.markdown(grids), console, soft_wrap=True)
        return
    for grid in grids:
        left_out = ", ".join(_show_columns(grid, console))
        lines = [] if in_report else [f"- {remark}" for remark in grid.remarks]
        lines += [f"{'in the report' if in_report else 'columns that do not fit'}: {left_out}"] if left_out else []
        for line in lines:
            _print(line, console, style="dim")
        if in_report and grid.verdict:
            _print("\n".join(grid.verdict), console)
        if in_report and grid.remarks:
            _print(f"remarks: {len(grid.remarks)}, in report/comparison.md", console, style="yellow")
        console.print()


def show_runs(runs: Sequence[RunInfo], missing: Mapping[str, str], console: Console) -> None:
    """Print the comparison of some runs from their stored scores, and list the runs that it lacks.

    Args:
        runs: the runs with scores up to date; a run without complete scores is listed as missing.
        missing: key of a run -> why its scores are not up to date.
    """
    whole, without = list[RunInfo](), dict(missing)
    for run in runs:
        try:
            if gather([run]).scores:
                whole.append(run)
            else:
                without[run.key] = tables.ABSENT
        except ArtifactError as error:
            without[run.key] = str(error)
    show(headlines(gather(whole)), console, in_report=False)
    if without:
        lines = [f"{len(without)} of {len(whole) + len(without)} runs are not in this comparison:"]
        for reason in dict.fromkeys(without.values()):
            keys = [key for key, why in without.items() if why == reason]
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            lines.append(f"  {', '.join(keys[:_NAMED])}{more}: {reason}")
        _print("\n".join(lines), console, style="yellow", soft_wrap=True)


def _show_columns(grid: Grid, console: Console) -> list[str]:
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


def _print(text: str, console: Console, **look: Any) -> None:
    console.print(text, markup=False, emoji=False, highlight=False, **look)
