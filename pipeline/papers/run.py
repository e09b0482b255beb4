"""``python -m pipeline paper PAPER:TABLE``: our methods under a paper's protocol, beside the paper's figures.

``params/paper/<paper>-<table>.yaml`` is a whole params file of its own, and the artifacts lie in a tree of their own,
``work/paper/<paper>-<table>``. Tables of the same runs share both (``shares`` in ``papers/<paper>.yaml``). DVC has no
part in it. A stage that is up to date is not run again (see :mod:`pipeline.plan.fresh`), so an interrupted run goes on
from where it stopped. A benchmark or a study makes the tables of costs and of settings (``elsewhere``).
"""

import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bdl_pipe import artifacts
from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.files import write_bytes

from .. import papers
from ..core import places, records
from ..core.load import load
from ..core.model import FIT_KINDS, Params, Run
from ..core.settings import Settings
from ..plan.plan import Plan, matching, plan
from ..run import pool
from ..tracking import provenance
from . import PaperTable, compare, show

PARAMS: Final = Path("params/paper")
RESULTS: Final = Path("results")
_UNKNOWN: Final = "—"


@dataclasses.dataclass(frozen=True)
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
    runs: Sequence[Run]
    splits: int | None
    path: Path

    @property
    def suffix(self) -> str:
        """Return what another number of splits adds to names, so that a quick look overwrites no results."""
        return f"-{self.splits}-splits" if self.splits else ""

    @property
    def name(self) -> str:
        """Return the name of the artifacts' folder."""
        return self.table.tree + self.suffix

    @property
    def root(self) -> Path:
        """Return the folder of the artifacts."""
        return places.WORK / "paper" / self.name


def paper(table: str, datasets: str | None, methods: str | None, splits: int | None, executor: str | None) -> int:
    """Bring a table's runs up to date, print ours beside the paper's, write it to ``results``, and return 0.

    A benchmark or a study that makes the table is run instead, and its exit code is returned.

    Raises:
        UserError: a name or a number is wrong (nothing has run then), or a stage fails.
    """
    if command := papers.elsewhere(table):
        options = {"dataset": datasets, "method": methods, "splits": splits, "executor": executor}
        if given := [f"--{name}" for name, value in options.items() if value is not None]:
            raise UserError(f"{table}: takes no {', '.join(given)}: it is made by python {command}")
        print(f"python {command}", file=sys.stderr, flush=True)
        return subprocess.run([sys.executable, *command.split()]).returncode
    from rich.console import Console

    request, settings = read(table, datasets, methods, splits), Settings.read(executor=executor)
    console = Console()
    with places.rooted(request.root):
        _update(request, settings)
        why = pool.stale(plan(request.params))
        for dataset in request.datasets:
            runs = compare.runs_of(request.table, dataset, request.params)
            done = [run for run in runs if f"evaluate@{run.key}" not in why]
            lines = compare.compare(request.table, dataset, request.params, {run.key for run in done})
            show.terminal(request.table, dataset, lines, console)
            for path in _write(request, dataset, lines, _facts(request, dataset, done, settings)):
                console.print(f"written: {path}", highlight=False, soft_wrap=True)
    ours = request.table.names.datasets
    if absent := [name for name in request.table.figures if ours[name] not in request.params.datasets]:
        console.print(f"of this table, not in {request.path}: {', '.join(absent)}", highlight=False)
    return 0


def read(table: str, datasets: str | None, methods: str | None, splits: int | None) -> Request:
    """Check a request for a table, and return it.

    Raises:
        UserError: the paper, the table, its params file, a data set or a method is not known here.
    """
    known = papers.load(table)
    path = PARAMS / f"{known.paper}-{known.source}.yaml"
    if not path.is_file():
        others = [str(p) for p in sorted(PARAMS.glob(f"{known.paper}-*.yaml"))]
        raise UserError(f"{table}: there is no {path} to run it with (there are: {', '.join(others) or 'none'})")
    try:
        params = load(path)
    except ConfigError as error:
        raise UserError(f"{path}: {error}") from None
    if splits:
        params = _with_splits(params, splits)
    chosen = _datasets(known, params, datasets, path)
    runs = [run for name in chosen for run in compare.runs_of(known, name, params)]
    return Request(known, params, chosen, _methods(known, runs, methods, path), splits, path)


def _datasets(paper: PaperTable, params: Params, names: str | None, path: Path) -> list[str]:
    """List the paper's names of the data sets that were named (by the paper's name or ours), or of all."""
    ours = {name: paper.names.datasets[name] for name in paper.figures}
    available = [name for name, key in ours.items() if key in params.datasets]
    if names is None:
        return available
    chosen = []
    for given in _split(names, "--dataset"):
        found = [name for name, key in ours.items() if given.lower() in (name.lower(), key.lower())]
        if not found:
            raise UserError(f"--dataset {given}: is not a data set of {paper}{nearest(given, ours)}")
        if found[0] not in available:
            raise UserError(f"--dataset {given}: has no run in {path} (it has: {', '.join(available) or 'none'})")
        chosen += found
    return list(dict.fromkeys(chosen))


def _methods(paper: PaperTable, runs: Sequence[Run], names: str | None, path: Path) -> list[Run]:
    """List the runs of the methods that were named (by the paper's name or ours), or all."""
    if names is None:
        return list(runs)
    theirs = {name.lower(): name for figures in paper.figures.values() for name in figures}
    known = [*theirs.values(), *dict.fromkeys(run.method.name for run in runs)]
    chosen: dict[str, Run] = {}
    for given in _split(names, "--method"):
        name = theirs.get(given.lower())
        found = [r for r in runs if r.method.name == given.lower() or (name and compare.stands_for(r, name, paper))]
        if not found and name is None:
            raise UserError(f"--method {given}: is not a method of {paper} or of {path}{nearest(given, known)}")
        if not found:
            have = ", ".join(dict.fromkeys(run.method.name for run in runs))
            raise UserError(f"--method {given}: has no run in {path} (it has: {have or 'none'})")
        chosen |= {run.key: run for run in found}
    return [run for run in runs if run.key in chosen]


def _split(names: str, option: str) -> list[str]:
    parts = [name.strip() for name in names.split(",")]
    if not all(parts):
        raise UserError(f"{option}: must be names with a comma between, got {names!r}")
    return parts


def _with_splits(params: Params, splits: int) -> Params:
    """Return ``params`` with ``splits`` in every data set, also in the sections as they are written."""
    datasets = {key: dataclasses.replace(dataset, splits=splits) for key, dataset in params.datasets.items()}
    written = {key: {**section, "splits": splits} for key, section in params.raw["datasets"].items()}
    return dataclasses.replace(params, datasets=datasets, raw={**params.raw, "datasets": written})


def _update(request: Request, settings: Settings) -> None:
    """Run the stages that are out of date.

    Raises:
        UserError: a stage failed.
    """
    stages = _stages(request.params, request.runs)
    todo = pool.stale(stages)
    if not todo:
        print(f"nothing to run: {len(stages)} stages are up to date", file=sys.stderr, flush=True)
        return
    with _tracked(request):
        if settings.executor == "inline":
            outcome = pool.in_process(stages, todo, request.params, settings)
        else:
            outcome = pool.run(stages, todo, request.params, settings, jobs=pool.JOBS, root=request.root)
        if outcome.failed:
            raise UserError("\n".join([f"{name}: {lines[-1]}" for name, lines in outcome.failed.items()]))
    count = len(outcome.done)
    print(f"{count} stages run, {len(stages) - count} up to date", file=sys.stderr, flush=True)


def _stages(params: Params, runs: Sequence[Run]) -> Plan:
    """Plan the stages of ``runs`` and of all runs that these are made from."""
    return matching([f"evaluate@{run.key}" for run in runs], plan(params))


@contextmanager
def _tracked(request: Request) -> Iterator[None]:
    """Open the tracked run, tagged with the paper's table, that is the parent of every stage's run."""
    from ..tracking import experiments

    experiments.initialise()
    tags = {"paper": str(request.table)}
    parent, status = experiments.start_parent(f"paper {request.name}", tags), "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        experiments.end_parent(parent, status)


def _facts(request: Request, dataset: str, runs: Sequence[Run], settings: Settings) -> dict[str, Any]:
    """Collect the origin of a table's figures. Equal results have equal facts, whenever the table is written."""
    made = [records.read("student", run.key) for run in runs]
    manifest = places.artifact("prepare", request.table.names.datasets[dataset]) / artifacts.MANIFEST
    command = f"python -m pipeline paper {request.table} --dataset {dataset}"
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


def _write(request: Request, dataset: str, lines: Sequence[compare.Line], facts: dict[str, Any]) -> list[Path]:
    """Write a table as Markdown and as CSV, and return the two files."""
    name = f"{request.table.table}-{request.table.names.datasets[dataset]}{request.suffix}"
    folder = RESULTS / request.table.folder
    folder.mkdir(parents=True, exist_ok=True)
    texts = {".md": show.markdown(request.table, dataset, lines, facts), ".csv": show.comma_separated(dataset, lines)}
    paths = [folder / (name + suffix) for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_bytes(path, text.encode())
    return paths
