"""``python -m pipeline paper PAPER:TABLE``: our methods under a paper's protocol, beside what it prints.

The numbers are those of ``params/paper/<paper>-<table>.yaml``, a whole params file of its own, and the artifacts lie in
a tree of their own, ``work/paper/<paper>-<table>``; tables of the same runs share both (``shares`` of
``papers/<paper>.yaml``). DVC has no part in it. What is up to date is not run again (see :mod:`pipeline.plan.fresh`),
so an interrupted run goes on where it was. Tables of costs and of settings are a benchmark or a study (``elsewhere``).
"""

import dataclasses
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bdl_pipe import artifacts
from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.files import write_bytes

from .. import papers, tracking
from ..core import places, provenance, records
from ..core.params import FIT_KINDS, Params, Run, load
from ..core.settings import Settings
from ..plan.plan import Plan, matching, plan
from ..run import pool
from . import PaperTable, compare, show

PARAMS: Final = Path("params/paper")
RESULTS: Final = Path("results")
NONE: Final = "—"


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for a paper's table, checked.

    Attributes:
        datasets: by the paper's names.
        runs: those to bring up to date.
        name: of the tree of artifacts; another number of splits has its own, so that a quick look costs no results.
    """

    table: PaperTable
    params: Params
    datasets: tuple[str, ...]
    runs: tuple[Run, ...]
    splits: int | None
    path: Path

    @property
    def name(self) -> str:
        """Return the name of the tree of artifacts."""
        return self.table.tree + self.suffix

    @property
    def root(self) -> Path:
        """Return the folder of the artifacts."""
        return places.WORK / "paper" / self.name

    @property
    def suffix(self) -> str:
        """Return what the number of splits adds to names, where it is not the params file's."""
        return f"-{self.splits}-splits" if self.splits else ""


def main(args: Namespace) -> None:
    """Bring the runs up to date, print the tables, and write them to ``results/<paper>/``, or where its yaml says.

    Raises:
        UserError: a name or a number is wrong (nothing has run then), or a stage fails.
    """
    if command := papers.elsewhere(args.table):
        _run_elsewhere(command, args)
        return
    from rich.console import Console

    asked, settings = read(args.table, args.dataset, args.method, args.splits), Settings.read(executor=args.executor)
    console = Console()
    with places.rooted(asked.root):
        _bring(asked, args.executor)
        why = pool.stale(plan(asked.params))
        for dataset in asked.datasets:
            rows = compare.runs_of(asked.table, dataset, asked.params)
            there = [run for run in rows if f"evaluate@{run.key}" not in why]
            lines = compare.compare(asked.table, dataset, asked.params, {run.key for run in there})
            show.terminal(asked.table, dataset, lines, console)
            for path in _write(asked, dataset, lines, _facts(asked, dataset, there, settings)):
                console.print(f"written: {path}", highlight=False, soft_wrap=True)
    absent = [name for name in asked.table.figures if asked.table.names.datasets[name] not in asked.params.datasets]
    if absent:
        console.print(f"of this table, not in {asked.path}: {', '.join(absent)}", highlight=False)


def _run_elsewhere(command: str, args: Namespace) -> None:
    """Run the command that makes a table which is not of our runs' scores; it ends as the command does."""
    given = [f"--{name}" for name in ("dataset", "method", "splits", "executor") if getattr(args, name) is not None]
    if given:
        raise UserError(f"{args.table}: takes no {', '.join(given)}: it is made by python {command}")
    print(f"python {command}", file=sys.stderr, flush=True)
    if code := subprocess.run([sys.executable, *command.split()]).returncode:
        sys.exit(code)


def read(table: str, datasets: str | None, methods: str | None, splits: int | None) -> Request:
    """Check all that was asked for, and return it.

    Raises:
        UserError: the paper, the table, its params file, a data set or a method is not known here.
    """
    paper = papers.load(table)
    path = PARAMS / f"{paper.paper}-{paper.source}.yaml"
    if not path.is_file():
        known = [f"{p}" for p in sorted(PARAMS.glob(f"{paper.paper}-*.yaml"))]
        raise UserError(f"{table}: there is no {path} to run it with (there are: {', '.join(known) or 'none'})")
    try:
        params = load(path)
    except ConfigError as error:
        raise UserError(f"{path}: {error}") from None
    if splits:
        params = _with_splits(params, splits)
    chosen = _datasets(paper, params, datasets, path)
    runs = [run for name in chosen for run in compare.runs_of(paper, name, params)]
    return Request(paper, params, tuple(chosen), tuple(_methods(paper, runs, methods, path)), splits, path)


def _datasets(paper: PaperTable, params: Params, names: str | None, path: Path) -> list[str]:
    """List the paper's names of the data sets that were named (by its name or ours), or of all that there are."""
    ours = {name: paper.names.datasets[name] for name in paper.figures}
    there = [name for name, key in ours.items() if key in params.datasets]
    if names is None:
        return there
    chosen = []
    for given in _split(names, "--dataset"):
        found = [name for name, key in ours.items() if given.lower() in (name.lower(), key.lower())]
        if not found:
            raise UserError(f"--dataset {given}: is not a data set of {paper}{nearest(given, ours)}")
        if found[0] not in there:
            raise UserError(f"--dataset {given}: has no run in {path} (it has: {', '.join(there) or 'none'})")
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
    found = [name.strip() for name in names.split(",")]
    if not all(found):
        raise UserError(f"{option}: must be names with a comma between, got {names!r}")
    return found


def _with_splits(params: Params, splits: int) -> Params:
    """Return ``params`` with ``splits`` in every data set, also in the numbers as they are written."""
    datasets = {key: dataclasses.replace(dataset, splits=splits) for key, dataset in params.datasets.items()}
    written = {key: {**section, "splits": splits} for key, section in params.raw["datasets"].items()}
    return dataclasses.replace(params, datasets=datasets, raw={**params.raw, "datasets": written})


def _bring(asked: Request, executor: str | None) -> None:
    stages = _stages(asked.params, asked.runs)
    todo = pool.stale(stages)
    if not todo:
        print(f"nothing to run: {len(stages)} stages are up to date", file=sys.stderr, flush=True)
        return
    settings = Settings.read(executor=executor)
    with tracking.opened(settings, asked.params, f"paper {asked.name}", {"paper": str(asked.table)}) as tracker:
        if settings.executor == "inline":
            outcome = pool.in_process(stages, todo, asked.params, settings, tracker)
        else:
            outcome = pool.run(stages, todo, asked.params, settings, jobs=pool.JOBS, root=asked.root, watcher=tracker)
        if outcome.failed:
            raise UserError("\n".join([f"{name}: {lines[-1]}" for name, lines in outcome.failed.items()]))
    ran = len(outcome.done)
    print(f"{ran} stages run, {len(stages) - ran} up to date", file=sys.stderr, flush=True)


def _stages(params: Params, runs: Sequence[Run]) -> Plan:
    """Plan the stages of ``runs``, and of all that they are made from."""
    return matching([f"evaluate@{run.key}" for run in runs], plan(params))


def _facts(asked: Request, dataset: str, there: Sequence[Run], settings: Settings) -> dict[str, Any]:
    """Collect where the figures come from; the same for equal results, whenever they are written."""
    made = [records.read("student", run.key) for run in there]
    prepared = places.artifact("prepare", asked.table.names.datasets[dataset]) / artifacts.MANIFEST
    again = f"python -m pipeline paper {asked.table} --dataset {dataset}"
    return {
        "command": again + (f" --splits {asked.splits}" if asked.splits else ""),
        "params": f"{asked.path}, sha256 {provenance.digest(asked.params.raw)}",
        "seed": asked.params.seed,
        "commit": ", ".join(sorted({record.get("commit", NONE) for record in made})) or NONE,
        "data sha256": artifacts.sha256(prepared)[:16] if prepared.is_file() else NONE,
        "device": ", ".join(sorted({record.get("device", NONE) for record in made})) or NONE,
        "threads of a task": settings.threads,
        "torch": ", ".join(sorted({record.get("versions", {}).get("torch", NONE) for record in made})) or NONE,
        "seconds of fitting": round(sum(_seconds(asked.params, there)), 1),
    }


def _seconds(params: Params, there: Sequence[Run]) -> Iterator[float]:
    """Yield the seconds of every stage that fits, each stage once."""
    for stage in _stages(params, there).values() if there else ():
        if stage.kind in FIT_KINDS:
            yield from records.read(stage.kind, stage.key).get("seconds", {}).values()


def _write(asked: Request, dataset: str, lines: Sequence[compare.Line], facts: dict[str, Any]) -> list[Path]:
    stem = RESULTS / asked.table.folder / f"{asked.table.table}-{asked.table.names.datasets[dataset]}{asked.suffix}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    texts = {".md": show.markdown(asked.table, dataset, lines, facts), ".csv": show.comma_separated(dataset, lines)}
    for suffix, text in texts.items():
        write_bytes(stem.with_name(stem.name + suffix), text.encode())
    return [stem.with_name(stem.name + suffix) for suffix in texts]
