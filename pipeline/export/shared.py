"""Exports and predictions read a run's artifact and test scores here, and write a folder completely or not at all."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import jinja2
import pyarrow.compute as pc

from bdl_pipe import artifacts
from bdl_pipe import scores as stored_scores
from bdl_pipe.errors import UserError
from bdl_pipe.scores import Quantity, RunScores

from ..core import places
from ..core.load import load
from ..plan.plan import plan, was_made_from
from ..run import pool

TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "targets/templates"),
    trim_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``target``, which replaces it when the block ends without an error.

    Raises:
        UserError: ``target`` is neither new nor an empty folder, or cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: exists; --to must be a new or an empty folder")
    try:
        with artifacts.replacing(target.absolute()) as folder:
            yield folder
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror or error})") from None


def student_of(run: str, paper: str | None = None) -> Path:
    """Return the artifact of a fitted run of params.yaml or a paper's table.

    A note is printed if params.yaml no longer has the run, or the run is out of date.

    Raises:
        UserError: the run is not fitted.
    """
    root = places.WORK
    if paper:
        from bdl_report import papers  # here: it takes half a second to import

        root = root / "paper" / papers.load(paper).source
    with places.rooted(root):
        students = places.artifact("student", "")
    ready = sorted(manifest.parent.name for manifest in students.glob(f"*/{artifacts.MANIFEST}"))
    if run not in ready:
        known = f"fitted: {', '.join(ready)}" if ready else "none is fitted yet"
        raise UserError(f"{run}: is not a fitted run ({known})")
    if paper is None:
        _note_age(run)
    return students / run


def _note_age(run: str) -> None:
    """Print a line if params.yaml no longer has a run, or the run is out of date."""
    if not Path("params.yaml").is_file():  # the artifact was copied to another place
        return
    try:
        params = load()
        stages = plan(params, [f"student@{run}"] if ("student", run) in params.runs else [])
    except UserError as error:
        print(f"note: whether {run} is up to date is unknown ({error})")
        return
    if not stages:
        print(f"note: {run} is no longer in params.yaml; its stored fit is used")
    elif why := pool.stale(stages):
        first, reason = next(iter(why.items()))
        print(f"note: {run} is out of date ({first}: {reason}); its stored fit is used; to fit it again: make repro")


def scores_of(run: str, split: int, seeds: list[int], metrics: Iterable[str]) -> dict[str, str]:
    """Return the test scores of a run's fits, formatted like the report's.

    They are empty if the run is not evaluated, or an earlier fit of it is, which a note says.
    """
    place = places.artifact("evaluate", run)
    if not (place / artifacts.MANIFEST).is_file():
        return {}
    if not was_made_from("evaluate", run, places.artifact("student", run)):
        print(f"note: {run}: its test scores are left out, as they are of an earlier fit; make repro")
        return {}
    from bdl_report.columns import Column, figure

    rows = stored_scores.read(artifacts.load(place, "evaluate").path / "scores.parquet")
    stored = RunScores(rows.filter((pc.field("split") == split) & pc.field("seed").isin(seeds)))
    columns = [Column(metric, Quantity(metric)) for metric in metrics]
    estimates = {column.title: stored.estimate(column.of) for column in columns}
    return {c.title: figure(estimates[c.title], c).figure for c in columns} if any(estimates.values()) else {}
