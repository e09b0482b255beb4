"""``python -m pipeline paper PAPER:TABLE``: our methods under a paper's protocol, compared with the paper's results.

``params/paper/<paper>-<table>.yaml``, with its base, is a complete params file, and its artifacts are in
``work/paper/<paper>-<table>``. Tables that use the same fits share both. ``<paper>-<table>-stand_ins.yaml`` has our
stand-ins for data sets that we do not have. DVC is not used. Stages that are up to date
are not run again (see :mod:`pipeline.plan.plan`), so an interrupted run continues where it stopped. Benchmarks and
studies make the tables of costs and settings (``commands.yaml``). :mod:`bdl_report.papers.comparison` compares.
``python -m pipeline paper all`` runs no stage and does not check whether results are up to date: it writes all pages
with available scores, from the comparison or from stored CSV files; a page states the commit of its scores.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final, TypeVar

from bdl_pipe import config, scores
from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.scores import RunScores
from bdl_pipe.yaml_files import read_yaml
from bdl_report import Grid, papers, show
from bdl_report.columns import Cell
from bdl_report.papers import PaperTable, stored, survey
from bdl_report.papers.comparison import KEYS, Comparison, Kind, Ours, compare, runs_of
from bdl_report.papers.pages import stem

from .. import tracking
from ..core import places, provenance, records
from ..core.load import typed
from ..core.model import Params
from ..core.params_files import read_params
from ..core.settings import Settings
from ..plan.plan import matching, plan
from ..run import pool

PARAMS: Final = Path("params/paper")
RESULTS: Final = Path("results")
COMMANDS: Final = Path(__file__).parent / "commands.yaml"  # name of a table of costs or settings -> arguments of python
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """A checked request for a paper's table.

    Attributes:
        datasets: the data sets, by the paper's names.
        runs: the runs to bring up to date.
        splits: the number of splits of each data set; None means the params file's number.
        kind: whether ``table`` is on our stand-ins.
        path: the params file.
    """

    table: PaperTable
    params: Params
    datasets: Sequence[str]
    runs: Sequence[Ours]
    splits: int | None
    path: Path
    kind: Kind = "protocol"

    @property
    def suffix(self) -> str:
        """Return the suffix of names for another number of splits, so that a quick test overwrites no results."""
        return f"-{self.splits}-splits" if self.splits else ""

    @property
    def root(self) -> Path:
        """Return the folder of the artifacts."""
        return places.WORK / "paper" / (self.path.stem + self.suffix)


def paper(table: str, datasets: str | None, methods: str | None, splits: int | None, stand_in: bool = False) -> int:
    """Bring a table's runs up to date, print and write the comparison with the paper, and return 0.

    If a benchmark or a study makes the table, run the benchmark or study instead and return its exit code.

    Raises:
        UserError: a name or a number is wrong, and nothing was run; or a stage failed.
    """
    from rich.console import Console

    if command := read_yaml(COMMANDS).get(table):
        options = {"dataset": datasets, "method": methods, "splits": splits, "stand-in": stand_in or None}
        if options_of_ours := [f"--{name}" for name, value in options.items() if value is not None]:
            raise UserError(f"{table}: is made by python {command}; leave out {', '.join(options_of_ours)}")
        print(f"python {command}", file=sys.stderr, flush=True)
        return subprocess.run([sys.executable, *command.split()]).returncode
    request, settings = read(papers.load(table), datasets, methods, splits, stand_in), Settings.read()
    paper_table = request.table
    with places.rooted(request.root):
        _update(request, settings)
        why = pool.stale(plan(request.params))
        for dataset in request.datasets:
            runs = runs_of(paper_table, dataset, ours(request.params))
            done = [run for run in runs if f"evaluate@{run.key}" not in why]
            made = compared(paper_table, dataset, request.params, {run.key for run in done}, request.kind)
            place = RESULTS / paper_table.folder / f"{stem(paper_table, dataset, request.kind)}{request.suffix}.csv"
            here = [run.key for run in runs if places.identity("evaluate", run.key).is_file()]
            comparison, facts = stored.completed(place, made, _facts(request, dataset, done, settings), here)
            show([grid(comparison)], Console(), in_report=False)
            for path in stored.write(place, comparison, facts):
                print(f"written: {path}")
    there = request.params.datasets
    if absent := [name for name in paper_table.figures if paper_table.names.datasets[name] not in there]:
        print(f"of this table, not in {request.path}: {', '.join(absent)}")
    return 0


def ours(params: Params) -> list[Ours]:
    """Return the data set, method and setting of each entry of ``runs``."""
    return [Ours(run.key, run.spec.dataset, run.method.name, run.spec.setting) for run in params.of("student")]


def compared(
    table: PaperTable, dataset: str, params: Params, evaluated: Collection[str], kind: Kind = "protocol"
) -> Comparison:
    """Compare the entries of ``runs`` with a table; only runs whose key is in ``evaluated`` have scores."""
    runs = runs_of(table, dataset, ours(params))
    return compare(table, dataset, [_scored(run.key) if run.key in evaluated else run for run in runs], kind)


def grid(comparison: Comparison) -> Grid:
    """Return a comparison as a table for the terminal."""
    title = f"{comparison.table}, {comparison.dataset}, ours ± standard error ({comparison.counts})"
    rows = [[Cell(text) for text in row] for row in comparison.rows]
    return Grid(comparison.head, rows, title, remarks=comparison.remarks())


def read(
    table: PaperTable, datasets: str | None, methods: str | None, splits: int | None, stand_in: bool = False
) -> Request:
    """Check a request for a table, and return it.

    Raises:
        UserError: the table's params file, a data set or a method is not known here.
    """
    kind: Kind = "stand-in" if stand_in else "protocol"
    path = PARAMS / f"{table.source}{survey.STAND_INS if stand_in else ''}.yaml"
    if stand_in:
        table = next(filter(None, map(table.on_stand_ins, table.figures)), table)
    if not path.is_file():
        others = [str(p) for p in sorted(PARAMS.glob(f"{table.paper}-*.yaml"))]
        raise UserError(f"{table}: needs {path}, which does not exist (available: {', '.join(others) or 'none'})")
    raw = read_params(path)
    try:
        params = typed(raw)
    except ConfigError as error:
        raise UserError(f"{path}: {error}") from None
    if splits:
        params = typed(config.merge(params.raw, {"datasets": {key: {"splits": splits} for key in params.datasets}}))
    chosen = chosen_datasets(table, params.datasets, datasets, path)
    runs = [run for name in chosen for run in runs_of(table, name, ours(params))]
    return Request(table, params, chosen, chosen_runs(table, runs, methods, path), splits, path, kind)


def chosen_datasets(table: PaperTable, there: Collection[str], names: str | None, path: Path) -> list[str]:
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


def chosen_runs(table: PaperTable, runs: Sequence[Ours], names: str | None, path: Path) -> list[Ours]:
    """List the runs of the methods in ``names`` (by the paper's name or ours), or all runs.

    Raises:
        UserError: a name is empty or unknown, or its method has no run in the params file at ``path``.
    """
    if names is None:
        return list(runs)
    theirs = (name for figures in table.figures.values() for name in figures)
    by_name = {name: [run for run in runs if run.stands_for(name, table)] for name in theirs}
    for run in runs:
        by_name.setdefault(run.method, []).append(run)
    chosen = _chosen("--method", names, by_name, path)
    return [run for run in runs if run in chosen]


def _chosen(option: str, names: str, by_name: Mapping[str, Sequence[T]], path: Path) -> list[T]:
    """List the objects that the names of an option choose, ignoring case."""
    chosen = list[T]()
    for wanted in (name.strip() for name in names.split(",")):
        if not wanted:
            raise UserError(f"{option}: must be names with a comma between, got {names!r}")
        same = [values for name, values in by_name.items() if name.lower() == wanted.lower()]
        if not same:
            raise UserError(f"{option} {wanted}: is not in the table or in {path}{nearest(wanted, by_name)}")
        if not any(same):
            has = ", ".join(name for name, values in by_name.items() if values)
            raise UserError(f"{option} {wanted}: has no run in {path} (it has: {has or 'none'})")
        chosen += [value for values in same for value in values]
    return chosen


def _update(request: Request, settings: Settings) -> None:
    """Run the stages that are out of date.

    Raises:
        UserError: a stage failed.
    """
    params, root = request.params, request.root
    stages = matching([f"evaluate@{run.key}" for run in request.runs], plan(params))  # with their upstream runs
    todo = pool.stale(stages)
    if not todo:
        print(f"nothing to run: {len(stages)} stages are up to date", file=sys.stderr, flush=True)
        return
    with tracking.opened(settings, params, f"paper {root.name}", {"paper": str(request.table)}) as tracker:
        outcome = pool.run(stages, todo, params, settings, tracker, jobs=pool.JOBS, root=root)
        if outcome.failed:
            raise UserError("\n".join([f"{name}: {lines[-1]}" for name, lines in outcome.failed.items()]))
    print(f"{len(outcome.done)} stages run, {len(stages) - len(outcome.done)} up to date", file=sys.stderr, flush=True)


def _facts(request: Request, dataset: str, runs: Sequence[Ours], settings: Settings) -> Mapping[str, object]:
    """Collect the provenance of a table's values."""
    command = f"python -m pipeline paper {request.table} --dataset {quote(dataset)}"
    command += " --stand-in" if request.kind == "stand-in" else ""
    return {
        "command": command + (f" --splits {request.splits}" if request.splits else ""),
        "params": f"{request.path}, sha256 {provenance.digest(request.params.raw)}",
        "seed": request.params.seed,
        "threads of a task": settings.threads,
        **_made([run.key for run in runs], request.table.names.datasets[dataset]),
    }


def every(missing: bool) -> int:
    """Write all pages with available scores or CSV files, or print the missing cells; return 0."""
    if missing:
        params_files = survey.sources(Path("params.yaml"), Path("params"), read_params)
        fitted = [path.name.removesuffix(".run.json") for path in places.artifact("student", "").glob("*.run.json")]
        seconds = {run: sum(records.read("student", run)["total_seconds"].values()) for run in fitted}
        print(*survey.report(survey.survey(RESULTS, params_files), seconds), sep="\n")
        return 0
    done = places.identity("evaluate", "any").parent.glob("*.json")  # written last, by finished stages
    runs = [_scored(path.stem) for path in sorted(done)]
    for path, comparison in stored.of_default_run(runs):
        whole = stored.completed(RESULTS / path, comparison, _page_facts(comparison), [run.key for run in runs])
        stored.write(RESULTS / path, *whole)
    print(*(f"written: {path}" for path in stored.rewrite(RESULTS)), sep="\n")
    return 0


def _scored(key: str) -> Ours:
    """Return a run, as described by its stored scores."""
    table = scores.read(places.artifact("evaluate", key) / "scores.parquet")
    of = table.slice(0, 1).to_pylist()[0]
    return Ours(key, of["dataset"], of["method"], of["setting"], RunScores(table))


def _page_facts(comparison: Comparison) -> dict[str, object]:
    """Collect the provenance of a page of the comparison from its records."""
    keys = list(
        dict.fromkeys(key for line in comparison.lines if line.ran and line.run for key in line.run.split(KEYS))
    )
    of = {key: json.loads(places.identity("evaluate", key).read_text(encoding="utf-8"))["params"] for key in keys}
    return {
        "command": "python -m pipeline paper all",
        "runs": ", ".join(keys),
        "params": f"params.yaml, sha256 of what these evaluations read of it {provenance.digest(of)}",
        "seed": ", ".join(sorted({str(params["seed"]) for params in of.values()})),
        **_made(keys, *_datasets(comparison)),
    }


def _datasets(comparison: Comparison) -> tuple[str, ...]:
    """List our data sets of a page: one, or the folds of held-out classes."""
    names = comparison.table.names
    if comparison.kind == "held-out classes":
        return names.folds[comparison.dataset].of
    return (names.datasets[comparison.dataset],)


def _made(keys: Sequence[str], *datasets: str) -> dict[str, object]:
    """Collect facts from the records of runs. Equal results have equal facts, independent of the time of writing.

    Args:
        keys: the keys of the runs with scores.
        datasets: the data sets' names in params.yaml.
    """
    records_of = {key: records.read("student", key) for key in keys}
    fits = {(key, seed): took for key, record in records_of.items() for seed, took in record.get("seconds", {}).items()}
    for record in records_of.values():
        for above in record.get("made_from", {}).values():
            fits |= above
    return {
        "commit": _joined(record.get("commit") for record in records_of.values()),
        "data sha256": ", ".join(map(records.data_hash, datasets)),
        "device": _joined(record.get("device") for record in records_of.values()),
        "torch": _joined(record.get("versions", {}).get("torch") for record in records_of.values()),
        "seconds of fitting": round(sum(fits.values()), 1),
    }


def _joined(values: Iterable[str | None]) -> str:
    """Return the different values of a fact as a text."""
    return ", ".join(sorted({"—" if value is None else value for value in values})) or "—"
