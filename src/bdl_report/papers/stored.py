"""The pages of the papers' tables below ``results``, each a Markdown file and a CSV file of the same figures."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bdl_pipe.files import write_bytes

from . import PaperTable, load, tables
from .comparison import KINDS, Comparison, Kind, Line, Ours, compare, of_kind, over_folds, read
from .pages import facts_of, markdown, stem

EARLIER: Final = "rows of an earlier page"  # a fact of a page: these rows, and where their figures come from
_ORIGIN: Final = ("params", "commit", "device", "torch", "seconds of fitting")
_THEN: Final = " // "  # between groups of rows with different origins


def stored(results: Path) -> Iterator[tuple[Path, Comparison]]:
    """Yield the CSV file and the comparison of every existing page of a table."""
    for table, dataset, kind in _possible():
        path = results / table.folder / f"{stem(table, dataset, kind)}.csv"
        if path.is_file():
            yield path, read(load(str(table)), path.read_text(encoding="utf-8"))


def write(path: Path, comparison: Comparison, facts: Mapping[str, object]) -> list[Path]:
    """Write a comparison as Markdown and as CSV, and return the two files.

    Args:
        path: the CSV file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path.with_suffix(".md"), markdown(comparison, facts).encode())
    write_bytes(path, comparison.comma_separated().encode())
    return [path.with_suffix(".md"), path]


def completed(
    path: Path, comparison: Comparison, facts: Mapping[str, object], runs_here: Collection[str]
) -> tuple[Comparison, Mapping[str, object]]:
    """Add the figures of a stored page for runs that this folder never made, with their origin, and return both.

    So a run that is added to a table's params file does not need the other runs again.

    Args:
        path: the page's CSV file; without it nothing is added.
        runs_here: the keys of the runs that this folder made, now or earlier. If one of them is out of date, its stored
            figures are not used.
    """
    if not path.is_file():
        return comparison, facts
    before = read(load(str(comparison.table)), path.read_text(encoding="utf-8"))
    earlier = [line for line in before.lines if line.ran and line.run not in runs_here]
    by_run, by_name = {line.run: line for line in earlier}, {line.method: line for line in earlier}
    lines, added = list[Line](), list[str]()
    for line in comparison.lines:
        kept = None if line.ran else by_run.get(line.run) if line.run else by_name.get(line.method)
        lines.append(kept or line)
        added += [line.method] if kept else []
    if not added:
        return comparison, facts
    stored_facts = facts_of(path.with_suffix(".md").read_text(encoding="utf-8"))
    groups: dict[str, list[str]] = {}
    for method in added:
        groups.setdefault(_origin(method, stored_facts), []).append(method)
    earlier_rows = _THEN.join(f"{', '.join(methods)}: {origin}" for origin, methods in groups.items())
    return replace(comparison, lines=lines), {**facts, EARLIER: earlier_rows}


def _origin(method: str, facts: Mapping[str, str]) -> str:
    """Return the origin of a method's row on a stored page: of an earlier page, or else the page's own facts."""
    # older pages have a group of an earlier page inside the next page's group
    groups = facts.get(EARLIER, "").replace(f"; {EARLIER} ", _THEN).split(_THEN)
    for group in reversed(groups):
        methods, _, origin = group.partition(f": {_ORIGIN[0]} ")
        if f", {method}, " in f", {methods}, ":
            return f"{_ORIGIN[0]} {origin}"
    return "; ".join(f"{name} {facts[name]}" for name in _ORIGIN if name in facts)


def rewrite(results: Path) -> Iterator[Path]:
    """Write the Markdown of every page again from its CSV, and keep the page's facts."""
    for path, comparison in stored(results):
        page = path.with_suffix(".md")
        write_bytes(page, markdown(comparison, facts_of(page.read_text(encoding="utf-8"))).encode())
        yield page


def of_default_run(runs: Sequence[Ours]) -> Iterator[tuple[Path, Comparison]]:
    """Compare runs of params.yaml and its overlays with every table that they fill; pages without a cell are left out.

    Returns:
        For each page its CSV file, below ``results``, and the comparison.
    """
    for table, dataset, kind in _possible():
        if kind == "protocol":
            continue
        ours = over_folds(table, dataset, runs) if kind == "held-out classes" else runs
        wanted = [run for run in ours if any(run.stands_for(method, table) for method in table.figures[dataset])]
        comparison = compare(table, dataset, wanted, kind)
        if any(pair.ours for pair in comparison.cells.values()):
            yield Path(table.folder) / f"{stem(table, dataset, kind)}.csv", comparison


def _possible() -> Iterator[tuple[PaperTable, str, Kind]]:
    """List every possible page: its table with our names of the sets there, its data set and its kind."""
    for table in map(load, tables()):
        for dataset in table.figures:
            for kind in KINDS:
                if (of := of_kind(table, dataset, kind)) is not None:
                    yield of, dataset, kind
