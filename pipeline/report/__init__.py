"""The report stage's work: tables, figures and pages, from stored tables only.

``report/`` holds ``comparison.{csv,parquet,md}``, ``coresets.csv``, ``metrics.json`` and the pages, ``index.html``.
Restyling it needs no fit; equal inputs give equal bytes.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError

from ..core.scores import COLUMNS
from . import columns, cross, page, tables
from .columns import Grid
from .images import CoresetInfo
from .tables import RunInfo, Step

__all__ = ["COLUMNS", "CoresetInfo", "Grid", "RunInfo", "Step", "build", "headlines", "partial"]


def build(
    runs: Sequence[RunInfo], coresets: Sequence[CoresetInfo], out: Path, *, provenance: Mapping[str, Any], dpi: int
) -> None:
    """Write the report into ``out``, wholly or not at all.

    Args:
        runs: the runs to compare, in the order in which they are shown.
        coresets: coresets whose images are shown with their data set.
        provenance: facts for the page's head, in order (commit, params, data, device, date, ...).
        dpi: CSS pixels an inch of figure.

    Raises:
        ArtifactError: a table that exists is altered, truncated or of an older version.
    """
    table = tables.gather(runs, coresets)
    with _whole(out) as folder:
        tables.write_comparison(table, folder)
        cross.write_csv(table, folder / "coresets.csv")
        (folder / "comparison.md").write_text(columns.markdown(_headlines(table)))
        (folder / "metrics.json").write_text(json.dumps(columns.metrics(table), indent=1, sort_keys=True) + "\n")
        for name, html in page.render(table, provenance, dpi).items():
            (folder / name).write_text(html)


def headlines(runs: Sequence[RunInfo]) -> list[Grid]:
    """Return the headline tables of runs, from their stored scores.

    Raises:
        ArtifactError: as :func:`build`.
    """
    return _headlines(tables.gather(runs))


def partial(runs: Sequence[RunInfo]) -> tuple[list[Grid], dict[str, str]]:
    """Return the headline tables of the runs that have whole scores, and why each other run is not in them."""
    whole, missing = list[RunInfo](), dict[str, str]()
    for run in runs:
        try:
            absent = tables.gather([run]).notes.get(run.key)
        except ArtifactError as error:
            absent = (str(error),)
        if absent:
            missing[run.key] = absent[0]
        else:
            whole.append(run)
    return headlines(whole), missing


def _headlines(table: tables.Table) -> list[Grid]:
    """Return the headline table of each data set, then the tables of its coresets under each protocol."""
    return [*columns.headlines(table), *cross.headlines(table)]


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces ``out`` if the block succeeds; otherwise ``out`` stays as it was."""
    new = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        yield new
        artifacts.swap(new, out)
    finally:
        shutil.rmtree(new, ignore_errors=True)
