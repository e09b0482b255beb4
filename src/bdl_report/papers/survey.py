"""Count the printed cells that we have made, the cells that can be made here and how, and the other cells' needs.

A cell is made if a page's CSV file has it, so a fresh clone counts the cells of its pages. A cell can be made here if
its data set is in ``AT_HAND``, or its stand-in is there or has a note, and a params file that needs no GPU has a run of
its method.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bdl_pipe.data.catalog import HELD_OUT
from bdl_pipe.metrics.written import seconds

from . import PaperTable, load, tables
from .comparison import Ours
from .stored import stored

STAND_INS: Final = "-stand_ins"  # ends the name of a params file with a table's stand-ins
# The sets of our results. Other sets are the user's files, or downloads: CIFAR, MNIST, SVHN, STL-10.
_PAIRS: Final = frozenset({"fashion_digits", "fashion_digits-18k"})  # no params file has them as OOD sets
AT_HAND: Final = _PAIRS | {"boston", "concrete", "digits", "fashion_mnist", "mnist5k", "noise", "wine"}
# A params file's head states the time of the runs after the command.
_SAYS: Final = re.compile(r"^#.*# (about .*(?:minute|hour).*)$", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A params file, and the command by which its runs are made and shown.

    Attributes:
        command: the command, with ``{table}`` and ``{dataset}`` in place of the names.
        says: the time of the runs, from the file's head; empty if the head states none.
        only: the name of the params file, if the file is for some tables; empty if it is for all tables.
    """

    path: Path
    command: str
    runs: Sequence[Ours]
    only: str = ""
    says: str = ""


@dataclass
class Missing:
    """The cells of a table's data set that are not made.

    Attributes:
        cells: command -> the number of cells that it would make; no cell is counted twice.
        runs: command -> the runs that it would make for them.
        says: command -> the time in the head of its params file; empty if the head states none.
        needs: a missing requirement -> the number of cells that need it.
    """

    cells: Counter[str] = field(default_factory=Counter)
    runs: dict[str, set[str]] = field(default_factory=dict)
    says: dict[str, str] = field(default_factory=dict)
    needs: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Row:
    """The counts of a table's data set.

    Attributes:
        made: the cells made on the paper's own data.
        stand_in: the cells made on a stand-in but not on the paper's data.
    """

    table: PaperTable
    dataset: str
    printed: int
    made: int
    stand_in: int
    missing: Missing


def sources(params: Path, folder: Path, read: Callable[[Path], Mapping[str, Any]]) -> list[Source]:
    """Read the runs of ``params``, of the overlays in ``folder`` and of the tables' own params files, unchecked.

    Args:
        read: reads the content of a params file.
    """
    sources = [_source(params, read(params), "python -m pipeline repro, then paper all")]
    for path in sorted(folder.glob("*.yaml")):
        sources.append(_source(path, read(path), f"python -m pipeline apply {path}, then repro and paper all"))
    for path in sorted((folder / "paper").glob("*.yaml")):
        command = "python -m pipeline paper {table} --dataset '{dataset}'"
        command += " --stand-in" if path.stem.endswith(STAND_INS) else ""
        sources.append(_source(path, read(path), command, path.stem))
    return sources


def _source(path: Path, content: Mapping[str, Any], command: str, only: str = "") -> Source:
    runs = content.get("runs") or {}
    whole = {key: run for key, run in runs.items() if "method" in run}  # an overlay may have only a run's changes
    ours = [Ours(key, run["dataset"], run["method"], run["setting"]) for key, run in whole.items()]
    says = _SAYS.search(path.read_text(encoding="utf-8"))
    return Source(path, command, ours, only, says[1] if says else "")


def survey(results: Path, known: Sequence[Source]) -> list[Row]:
    """Count the cells of every table and data set, and find the ``known`` files that could make the missing ones."""
    on_data, on_stand_in = set[tuple[str, ...]](), set[tuple[str, ...]]()
    for _, comparison in stored(results):
        cells_of_page = on_stand_in if comparison.stand_in else on_data
        about = (str(comparison.table), comparison.dataset)
        cells_of_page |= {(*about, *cell) for cell, pair in comparison.cells.items() if pair.ours}
    rows = []
    for table in map(load, tables()):
        for dataset, methods in table.figures.items():
            cells = [(str(table), dataset, name, metric) for name, figures in methods.items() for metric in figures]
            missing = Missing()
            for cell in cells:
                if cell not in on_data and cell not in on_stand_in:
                    _sort(table, *cell[1:], known, missing)
            count = len(on_data & {*cells}), len((on_stand_in - on_data) & {*cells})
            rows.append(Row(table, dataset, len(cells), *count, missing))
    return rows


def _sort(table: PaperTable, dataset: str, method: str, metric: str, known: Sequence[Source], missing: Missing) -> None:
    """Count a cell under a command that makes it, or under its missing requirement."""
    at_hand = table.names.datasets[dataset] in AT_HAND
    of = table if at_hand else table.on_stand_ins(dataset)
    gpu = at_hand and table.names.source(table.table) in table.names.gpu
    on_folds = table.on_folds(dataset)
    if on_folds is not None and on_folds.quantity(metric, method).name == HELD_OUT:
        of = on_folds
    theirs = table.names.methods[method]
    if theirs.method is None:
        missing.needs[f"a method that is not built here ({method}: {theirs.absent or theirs.note})"] += 1
    elif of is None or of.names.datasets[dataset] not in AT_HAND | of.names.stand_in_notes.keys():
        own = of is None and dataset in table.names.stand_ins.get("all", {})
        missing.needs[f"the data of {dataset}" + " (the table prints its stand-in, too)" * own] += 1
    elif (where := of.quantity(metric, method)).set in ("ood", "transfer") and where.name not in AT_HAND - _PAIRS | {
        HELD_OUT
    }:
        missing.needs[f"the data of {metric.partition(':')[2]}"] += 1
    elif maker := _maker(of, dataset, method, known, at_hand=at_hand, gpu=gpu):
        source, key = maker
        command = source.command.format(table=table, dataset=dataset)
        missing.cells[command] += 1
        missing.runs.setdefault(command, set()).add(key)
        missing.says[command] = source.says
    else:
        missing.needs["a GPU" if gpu else "a run that no params file has"] += 1


def _maker(
    table: PaperTable, dataset: str, method: str, known: Sequence[Source], *, at_hand: bool, gpu: bool
) -> tuple[Source, str] | None:
    """Return the first params file with a run for a method, and the run; None if this machine can run none.

    Args:
        at_hand: whether the paper's data set is at hand. Otherwise ``table`` is on stand-ins, which may have a params
            file of their own.
        gpu: whether the table's own params file is for a GPU.
    """
    for source in known:
        own = table.source if at_hand else table.source + STAND_INS
        fits = not gpu and source.only == own
        if fits if source.only else not at_hand or table.table in table.names.default_run:
            for run in source.runs:
                if run.dataset == table.names.datasets[dataset] and run.stands_for(method, table):
                    return source, run.key
    return None


def report(rows: Sequence[Row], took: Mapping[str, float]) -> Iterator[str]:
    """Write a survey: a line for each data set of each table, a line for each command or need, and the sum.

    Args:
        took: run -> the recorded seconds of an earlier run with its upstream stages; other times are not estimated.
    """
    for row in rows:
        yield f"{row.table} {row.dataset}: {row.printed} printed, {row.made} made, {row.stand_in} on a stand-in"
        for command, cells in row.missing.cells.items():
            yield f"  {cells} can be made: {command} ({_time(row.missing, command, took)})"
        for need, cells in row.missing.needs.items():
            yield f"  {cells} need {need}"
    can = sum(sum(row.missing.cells.values()) for row in rows)
    needs = sum((row.missing.needs for row in rows), Counter[str]())
    printed, made, stand_in = (sum(getattr(row, what) for row in rows) for what in ("printed", "made", "stand_in"))
    yield f"can still be made here: {can}; need something: {sum(needs.values())}"
    yield f"made: {made + stand_in} of {printed}, {made} on the papers' data and {stand_in} on a stand-in"


def _time(missing: Missing, command: str, took: Mapping[str, float]) -> str:
    """Write the sum of the recorded seconds of a command's runs, or else the time in the params file's head."""
    runs = missing.runs[command]
    recorded = [took[run] for run in sorted(runs) if run in took]
    if not recorded:
        return f"{missing.says[command]} for all of the file" if missing.says[command] else "time unknown"
    rest = f", unknown for {len(runs) - len(recorded)} of {len(runs)} runs" if len(recorded) < len(runs) else ""
    return f"{seconds(sum(recorded))} of fitting as recorded{rest}"
