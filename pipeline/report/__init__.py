"""The report stage's work: tables, figures and one page, from stored tables only.

``report/`` holds ``comparison.{csv,parquet,md}``, ``index.html`` and ``metrics.json``. Restyling it
needs no fit; equal inputs give equal bytes.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import columns, page, tables
from .images import CoresetInfo
from .tables import COLUMNS, RunInfo

__all__ = ["COLUMNS", "CoresetInfo", "RunInfo", "build"]


def build(
    runs: Sequence[RunInfo], coresets: Sequence[CoresetInfo], out: Path, *, provenance: Mapping[str, Any], dpi: int
) -> None:
    """Write the report into ``out``, wholly or not at all.

    Args:
        runs: the rows to compare, in the order in which they are shown.
        coresets: coresets whose images are shown with their data set.
        provenance: facts for the page's head, in order (commit, params, data, device, date, ...).
        dpi: CSS pixels an inch of figure.

    Raises:
        ArtifactError: a table that is there is altered, truncated or lacks a column.
    """
    table, paper = tables.gather(runs), tables.paper_figures()
    with _whole(out) as folder:
        tables.write_comparison(tables.comparison(table), folder)
        (folder / "comparison.md").write_text(columns.markdown(table, paper))
        metrics = json.dumps(tables.headline_metrics(table), indent=1, sort_keys=True)
        (folder / "metrics.json").write_text(metrics + "\n")
        (folder / "index.html").write_text(page.render(table, coresets, provenance, paper, dpi))


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A temporary sibling that takes ``out``'s place when the block ends well; else ``out`` stays as it was."""
    new, old = (out.with_name(f".{out.name}.{os.getpid()}.{end}") for end in ("tmp", "old"))
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        yield new
        if out.exists():
            os.replace(out, old)
        os.replace(new, out)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
