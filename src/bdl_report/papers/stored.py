"""The pages of the papers' tables below ``results``, each a Markdown file and a CSV file of the same figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bdl_pipe.files import write_bytes

from . import PaperTable, load, tables
from .comparison import KINDS, Comparison, Kind, Ours, compare, read
from .pages import counted, facts_of, markdown, stem


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


def poorer(path: Path, comparison: Comparison) -> bool:
    """Return True if the stored CSV at ``path`` has more of our cells, from runs that this folder lacks."""
    if not path.is_file():
        return False
    before, now = counted(read(load(str(comparison.table)), path.read_text(encoding="utf-8"))), counted(comparison)
    return now.made + now.stand_in < before.made + before.stand_in


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
        if kind == "protocol" or (kind == "default run" and table.table not in table.names.default_run):
            continue
        wanted = [run for run in runs if any(run.stands_for(method, table) for method in table.figures[dataset])]
        comparison = compare(table, dataset, wanted, kind)
        if any(pair.ours for pair in comparison.cells.values()):
            yield Path(table.folder) / f"{stem(table, dataset, kind)}.csv", comparison


def _possible() -> Iterator[tuple[PaperTable, str, Kind]]:
    """List every possible page: its table (on stand-ins for a page of stand-ins), its data set and its kind."""
    for table in map(load, tables()):
        for dataset in table.figures:
            for kind in KINDS:
                of = table.on_stand_ins(dataset) if kind == "stand-in" else table
                if of is not None:
                    yield of, dataset, kind
