"""``python -m pipeline paper PAPER:TABLE``: our methods under a paper's protocol, beside the paper's figures.

``params/paper/<paper>-<table>.yaml`` is a whole params file of its own, and the artifacts lie in a tree of their own,
``work/paper/<paper>-<table>``. Tables of the same fits share both. DVC has no part in it. A stage that is up to date is
not run again (see :mod:`pipeline.plan.plan`), so an interrupted run goes on from where it stopped. A benchmark or a
study makes the tables of costs and of settings (``commands.yaml``). :mod:`bdl_pipe.papers.comparison` compares.
"""

import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, Final, TypeVar

from bdl_pipe import artifacts, config, papers, scores
from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.files import write_bytes
from bdl_pipe.papers import PaperTable
from bdl_pipe.papers.comparison import Comparison, Ours, compare, runs_of
from bdl_pipe.scores import RunScores
from bdl_pipe.yaml_files import read_yaml

from .. import tracking
from ..core import places, provenance, records
from ..core.load import load, typed
from ..core.model import FIT_KINDS, Params
from ..core.settings import Settings
from ..plan.plan import Plan, matching, plan
from ..report import Grid, show
from ..report.columns import Cell
from ..run import pool

PARAMS: Final = Path("params/paper")
RESULTS: Final = Path("results")
COMMANDS: Final = Path(__file__).parent / "commands.yaml"  # table of costs or settings -> the arguments of python
FOLDERS: Final = {"ciber": "collapsed"}  # paper -> the folder of its results, where it is not the paper's name
_UNKNOWN: Final = "—"
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """A checked request for a paper's table.

    Attributes:
        datasets: the paper's names.
        runs: the runs to bring up to date.
        splits: splits of each data set; None: the params file's number.
        path: the params file.
    """

    table: PaperTable
    params: Params
    datasets: Sequence[str]
    runs: Sequence[Ours]
    splits: int | None
    path: Path

    @property
    def suffix(self) -> str:
        """Return what another number of splits adds to names, so that a quick look overwrites no results."""
        return f"-{self.splits}-splits" if self.splits else ""

    @property
    def root(self) -> Path:
        """Return the folder of the artifacts."""
        return places.WORK / "paper" / (self.table.source + self.suffix)


def paper(table: str, datasets: str | None, methods: str | None, splits: int | None) -> int:
    """Bring a table's runs up to date, print ours beside the paper's, write it to ``results``, and return 0.

    A benchmark or a study that makes the table is run instead, and its exit code is returned.

    Raises:
        UserError: a name or a number is wrong (nothing has run then), or a stage fails.
    """
    from rich.console import Console

    if command := read_yaml(COMMANDS).get(table):
        options = {"dataset": datasets, "method": methods, "splits": splits}
        if given := [f"--{name}" for name, value in options.items() if value is not None]:
            raise UserError(f"{table}: takes no {', '.join(given)}: it is made by python {command}")
        print(f"python {command}", file=sys.stderr, flush=True)
        return subprocess.run([sys.executable, *command.split()]).returncode
    known = papers.load(table)
    request, settings = read(known, datasets, methods, splits), Settings.read()
    with places.rooted(request.root):
        _update(request, settings)
        why = pool.stale(plan(request.params))
        for dataset in request.datasets:
            runs = runs_of(known, dataset, ours(request.params))
            done = [run for run in runs if f"evaluate@{run.key}" not in why]
            comparison = compared(known, dataset, request.params, {run.key for run in done})
            show([grid(comparison)], Console(), in_report=False)
            for path in _write(request, comparison, _facts(request, dataset, done, settings)):
                print(f"written: {path}")
    if absent := [name for name in known.figures if known.names.datasets[name] not in request.params.datasets]:
        print(f"of this table, not in {request.path}: {', '.join(absent)}")
    return 0


def ours(params: Params) -> list[Ours]:
    """Say which data set, method and setting each entry of ``runs`` has."""
    return [Ours(run.key, run.spec.dataset, run.method.name, run.spec.setting) for run in params.of("student")]


def compared(table: PaperTable, dataset: str, params: Params, evaluated: Collection[str]) -> Comparison:
    """Compare the entries of ``runs`` with a table; only runs whose key is in ``evaluated`` have scores."""

    def with_scores(run: Ours) -> Ours:
        stored = scores.read(places.artifact("evaluate", run.key) / "scores.parquet")
        return replace(run, scores=RunScores(stored))

    runs = runs_of(table, dataset, ours(params))
    return compare(table, dataset, [with_scores(run) if run.key in evaluated else run for run in runs])


def grid(comparison: Comparison) -> Grid:
    """Return a comparison as a table for the terminal."""
    title = f"{comparison.table}, {comparison.dataset}, ours ± standard error ({comparison.counts})"
    rows = [[Cell(text) for text in row] for row in comparison.rows]
    return Grid(comparison.head, rows, title, remarks=comparison.remarks())


def read(table: PaperTable, datasets: str | None, methods: str | None, splits: int | None) -> Request:
    """Check a request for a table, and return it.

    Raises:
        UserError: the table's params file, a data set or a method is not known here.
    """
    path = PARAMS / f"{table.source}.yaml"
    if not path.is_file():
        others = [str(p) for p in sorted(PARAMS.glob(f"{table.paper}-*.yaml"))]
        raise UserError(f"{table}: there is no {path} to run it with (there are: {', '.join(others) or 'none'})")
    try:
        params = load(path)
    except ConfigError as error:
        raise UserError(f"{path}: {error}") from None
    if splits:
        params = typed(config.merge(params.raw, {"datasets": {key: {"splits": splits} for key in params.datasets}}))
    chosen = _datasets(table, params, datasets, path)
    runs = [run for name in chosen for run in runs_of(table, name, ours(params))]
    return Request(table, params, chosen, _methods(table, runs, methods, path), splits, path)


def _datasets(table: PaperTable, params: Params, names: str | None, path: Path) -> list[str]:
    """List the paper's names of the data sets that were named (by the paper's name or ours), or of all."""
    keys = {name: table.names.datasets[name] for name in table.figures}
    known = {name: [name] if key in params.datasets else [] for name, key in keys.items()}
    if names is None:
        return [name for found in known.values() for name in found]
    return list(dict.fromkeys(_chosen("--dataset", names, known | {keys[name]: known[name] for name in keys}, path)))


def _methods(table: PaperTable, runs: Sequence[Ours], names: str | None, path: Path) -> list[Ours]:
    """List the runs of the methods that were named (by the paper's name or ours), or all."""
    if names is None:
        return list(runs)
    theirs = dict.fromkeys(name for figures in table.figures.values() for name in figures)
    known = {name: [run for run in runs if run.stands_for(name, table)] for name in theirs}
    for run in runs:
        known.setdefault(run.method, []).append(run)
    chosen = _chosen("--method", names, known, path)
    return [run for run in runs if run in chosen]


def _chosen(option: str, names: str, known: Mapping[str, Sequence[T]], path: Path) -> list[T]:
    """List what the names of an option stand for; capital letters do not matter.

    Raises:
        UserError: a name is empty or not known, or stands for nothing in the params file at ``path``.
    """
    chosen = list[T]()
    for given in (name.strip() for name in names.split(",")):
        if not given:
            raise UserError(f"{option}: must be names with a comma between, got {names!r}")
        same = [values for name, values in known.items() if name.lower() == given.lower()]
        if not same:
            raise UserError(f"{option} {given}: is not in the table or in {path}{nearest(given, known)}")
        if not any(same):
            has = ", ".join(name for name, values in known.items() if values)
            raise UserError(f"{option} {given}: has no run in {path} (it has: {has or 'none'})")
        chosen += [value for values in same for value in values]
    return chosen


def _update(request: Request, settings: Settings) -> None:
    """Run the stages that are out of date.

    Raises:
        UserError: a stage failed.
    """
    params, root, stages = request.params, request.root, _stages(request.params, request.runs)
    todo = pool.stale(stages)
    if not todo:
        print(f"nothing to run: {len(stages)} stages are up to date", file=sys.stderr, flush=True)
        return
    with tracking.opened(settings, params, f"paper {root.name}", {"paper": str(request.table)}) as tracker:
        outcome = pool.run(stages, todo, params, settings, tracker, jobs=pool.JOBS, root=root)
        if outcome.failed:
            raise UserError("\n".join([f"{name}: {lines[-1]}" for name, lines in outcome.failed.items()]))
    count = len(outcome.done)
    print(f"{count} stages run, {len(stages) - count} up to date", file=sys.stderr, flush=True)


def _stages(params: Params, runs: Sequence[Ours]) -> Plan:
    """Plan the stages of ``runs`` and of all runs that these are made from."""
    return matching([f"evaluate@{run.key}" for run in runs], plan(params))


def _facts(request: Request, dataset: str, runs: Sequence[Ours], settings: Settings) -> dict[str, Any]:
    """Collect the origin of a table's figures. Equal results have equal facts, whenever the table is written."""
    made = [records.read("student", run.key) for run in runs]
    manifest = places.artifact("prepare", request.table.names.datasets[dataset]) / artifacts.MANIFEST
    command = f"python -m pipeline paper {request.table} --dataset {quote(dataset)}"
    stages = _stages(request.params, runs).values() if runs else ()
    fits = [records.read(stage.kind, stage.key) for stage in stages if stage.kind in FIT_KINDS]
    return {
        "command": command + (f" --splits {request.splits}" if request.splits else ""),
        "params": f"{request.path}, sha256 {provenance.digest(request.params.raw)}",
        "seed": request.params.seed,
        "commit": _all(record.get("commit") for record in made),
        "data sha256": artifacts.sha256(manifest)[:16] if manifest.is_file() else _UNKNOWN,
        "device": _all(record.get("device") for record in made),
        "threads of a task": settings.threads,
        "torch": _all(record.get("versions", {}).get("torch") for record in made),
        "seconds of fitting": round(sum(s for record in fits for s in record.get("seconds", {}).values()), 1),
    }


def _all(values: Iterable[str | None]) -> str:
    """Write the different values of a fact."""
    return ", ".join(sorted({_UNKNOWN if value is None else value for value in values})) or _UNKNOWN


def _write(request: Request, comparison: Comparison, facts: Mapping[str, Any]) -> list[Path]:
    """Write a comparison as Markdown and as CSV, and return the two files."""
    table, dataset = request.table, request.table.names.datasets[comparison.dataset]
    stem = RESULTS / FOLDERS.get(table.paper, table.paper) / f"{table.table}-{dataset}{request.suffix}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    texts = {".md": comparison.markdown(facts), ".csv": comparison.comma_separated()}
    for suffix, text in texts.items():
        write_bytes(stem.with_name(stem.name + suffix), text.encode())
    return [stem.with_name(stem.name + suffix) for suffix in texts]
