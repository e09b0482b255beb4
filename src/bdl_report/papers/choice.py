"""The runs of a table that the options ``--dataset`` and ``--method`` choose, by the paper's names or by ours."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from bdl_pipe.config import nearest
from bdl_pipe.errors import UserError

from . import PaperTable
from .comparison import Ours

T = TypeVar("T")


def datasets(table: PaperTable, there: Collection[str], names: str | None, path: Path) -> list[str]:
    """List the paper's names of the data sets in ``names`` (by the paper's name or ours), or of all data sets.

    Args:
        there: our names of the data sets that the params file at ``path`` has.

    Raises:
        UserError: a name is empty or unknown, or its data set is not in the params file.
    """
    keys = {name: table.names.datasets[name] for name in table.figures}
    by_name = {name: [name] if key in there else [] for name, key in keys.items()}
    if names is None:
        return [name for names in by_name.values() for name in names]
    by_name |= {keys[name]: by_name[name] for name in keys}
    return list(dict.fromkeys(_chosen("--dataset", names, by_name, path)))


def methods(table: PaperTable, runs: Sequence[Ours], names: str | None, path: Path) -> list[Ours]:
    """List the runs of the methods in ``names`` (by the paper's name or ours), or all runs.

    Raises:
        UserError: a name is empty or unknown, or its method has no run in the params file at ``path``.
    """
    if names is None:
        return list(runs)
    theirs = dict.fromkeys(name for figures in table.figures.values() for name in figures)
    by_name = {name: [run for run in runs if run.stands_for(name, table)] for name in theirs}
    for run in runs:
        by_name.setdefault(run.method, []).append(run)
    chosen = _chosen("--method", names, by_name, path)
    return [run for run in runs if run in chosen]


def _chosen(option: str, names: str, known: Mapping[str, Sequence[T]], path: Path) -> list[T]:
    """List the objects that the names of an option choose, ignoring case."""
    chosen = list[T]()
    for wanted in (name.strip() for name in names.split(",")):
        if not wanted:
            raise UserError(f"{option}: must be names with a comma between, got {names!r}")
        same = [values for name, values in known.items() if name.lower() == wanted.lower()]
        if not same:
            raise UserError(f"{option} {wanted}: is not in the table or in {path}{nearest(wanted, known)}")
        if not any(same):
            has = ", ".join(name for name, values in known.items() if values)
            raise UserError(f"{option} {wanted}: has no run in {path} (it has: {has or 'none'})")
        chosen += [value for values in same for value in values]
    return chosen
