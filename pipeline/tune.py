"""A search: ``python -m pipeline tune METHOD --dataset D --samples N``; Ray Tune, ASHA and Optuna.

Over ``Method.search``, by the negative log-likelihood of *validation* rows: every trial fits on the
training rows alone, and so does what the method is made from (a teacher of a final fit has seen
validation rows, so another one is made here, once). The numbers in force are the first sample, so
the winner is never worse than they are, on those rows. It is written as an overlay on the rows that
were searched, ``params/tuned/<method>-<dataset>.yaml``; ``--apply`` merges it into params.yaml.

A data set's split 0 is searched. Where there are several splits, its validation rows are test rows
of others: a warning says so.
"""

import argparse
import datetime
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bdl_pipe import artifacts, config
from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes
from bdl_pipe.method import Method
from bdl_pipe.seeds import Seed

from . import apply, places, provenance, searching, stage, tracking
from .params import SECTIONS, Params, Row, load, nearest
from .settings import Settings
from .trial import DIVERGED, MILESTONES, Chain, nested, rounded

OVERLAYS: Final = Path("params/tuned")


@dataclass(frozen=True)
class Search:
    """What is searched.

    Attributes:
        upstream: rows that are made once before the trials, in order.
        chain: rows that every trial makes.
        space: dotted key -> (low, high, scale).
        present: the numbers in force.
    """

    method: Method
    dataset: str
    samples: int
    upstream: tuple[Row, ...]
    chain: Chain
    space: Mapping[str, tuple[float, float, str]]
    present: Mapping[str, float]

    @property
    def name(self) -> str:
        return f"{self.method.name}-{self.dataset}"

    @property
    def run(self) -> Row:
        return self.chain.rows[-1]

    def identity(self, data: str) -> str:
        """A hash of everything that a trial's score depends on, but the code."""
        rows = [[r.kind, r.key, config.to_mapping(r.config)] for r in (*self.upstream, *self.chain.rows)]
        facts = [rows, self.chain.seed, dict(self.space), self.samples, data]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def main(args: argparse.Namespace) -> int:
    """Search, write the overlay, and with ``--apply`` merge it."""
    settings = Settings.read()
    params = load()
    search = plan(params, args.method, args.dataset, args.samples, vars(args).get("run"), settings)
    data = load_data(search, params, settings)
    folder = places.STATE / "tune" / search.name
    identity = search.identity(artifacts.sha256(places.artifact("prepare", search.dataset) / artifacts.MANIFEST))
    begun = begin(folder, identity, search, bool(args.resume))
    with searching.ray_of(settings), _parent(search, begun, folder, identity):
        upstream = make_upstream(search, data, params, settings)
        scores = searching.search(search, data, upstream, folder, settings, vars(args).get("max_concurrent"))
    path = conclude(search, scores)
    write_bytes(folder / "search.json", json.dumps({"identity": identity, "finished": True}).encode())
    if args.apply:
        for line in apply.apply(path):
            print(f"params.yaml: {line}")
    else:
        print(f"python -m pipeline apply {path}   # to use it")
    return 0


def plan(params: Params, method: str, dataset: str, samples: int, run: str | None, settings: Settings) -> Search:
    """Which rows a search of ``method`` on ``dataset`` makes: those of ``run``, or of the first run that it is in.

    Raises:
        UserError: there is no such method, data set or run, or nothing to search.
    """
    methods = {row.method.name: row.method for row in params.rows.values()}
    if dataset not in params.datasets:
        raise UserError(f"{dataset}: is not a data set{nearest(dataset, params.datasets)}")
    if method not in methods:
        raise UserError(f"{method}: is not a method of any row{nearest(method, methods)}")
    space = methods[method].search
    if not space:
        known = ", ".join(sorted(name for name, m in methods.items() if m.search))
        raise UserError(f"{method}: declares nothing to search (methods that do: {known or 'none'})")
    rows = _rows(params, method, dataset, run)
    first = next(i for i, row in enumerate(rows) if row.method.name == method)
    present = {key: _at(config.to_mapping(rows[first].config), key) for key in space}
    chain = Chain(rows[first:], method, params.seed, settings.threads)
    return Search(methods[method], dataset, samples, rows[:first], chain, space, present)


def load_data(search: Search, params: Params, settings: Settings) -> FitData:
    """Split 0 with its validation rows apart.

    Raises:
        UserError: there are none.
        ArtifactError: the data set is not prepared.
    """
    from bdl_pipe.data import prepare

    data = prepare.load_fit(places.artifact("prepare", search.dataset), 0, final=False)
    if len(data.validation) == 0:
        raise UserError(f"datasets.{search.dataset}.validation: must leave rows to score a search on, got none")
    if params.datasets[search.dataset].splits > 1:
        print(
            f"warning: {search.dataset} has several splits: some of split 0's validation rows are test rows of others"
        )
    return data.on(settings.device)


def begin(folder: Path, identity: str, search: Search, resume: bool) -> dict[str, Any]:
    """The record of an unfinished search that is gone on from; {} for a new one.

    Raises:
        UserError: there is one and ``resume`` is not asked for, or the other way round, or it
            was a search of something else.
    """
    place = folder / "search.json"
    record: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
    unfinished = bool(record) and not record.get("finished")
    if not resume:
        if unfinished:
            raise UserError(f"{folder}: holds an unfinished search; go on with --resume, or remove the folder")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return {}
    if not unfinished:
        raise UserError(f"{folder}: holds no unfinished search of {search.name}; leave out --resume")
    if record["identity"] != identity:
        raise UserError(f"{folder}: was a search with other params, data or --samples; remove the folder to start anew")
    return record


def make_upstream(search: Search, data: FitData, params: Params, settings: Settings) -> list[State]:
    """What the chain is made from, fitted on training rows alone; kept, so that it is made once."""
    from .executors import Task, choose
    from .executors.display import Display
    from .executors.store import Store

    executor, states = choose(settings), list[State]()
    prepared = places.artifact("prepare", search.dataset)
    below = (*search.upstream, search.chain.rows[0])[1:]  # each row's user
    for row, user in zip(search.upstream, below, strict=True):
        about = {"for": "tune", **stage.facts(row, params)}
        store = Store(places.checkpoints("tune", f"{row.kind}-{row.key}"), stage.identity(about, settings, [prepared]))
        store.open()
        shared: dict[str, Any] = {"data": data} | {f"input-{i}": state for i, state in enumerate(states)}
        tasks = []
        for member in range(row.entry.members if user.room.takes == "all" else 1):
            names = [f"input-{i}" for i in range(len(states))]
            names = names[member : member + 1] if row.room.takes == "each" else names
            rng = Seed(params.seed).fold("tune", row.kind, row.key, 0, member)
            payload = stage.Member(row.room.make, row.config, "data", tuple(names), row.input_kind, rng)
            tasks.append(Task(str(member), payload, ("data", *names)))
        with Display(f"{row.kind} {row.key}, on training rows alone") as display:
            states = [d.result for d in executor.map(stage.make, tasks, shared=shared, display=display, store=store)]
    return states


def conclude(search: Search, scores: Sequence[searching.Score]) -> Path:
    """Write the winner's overlay, and say how it compares.

    Raises:
        UserError: no sample was finished.
    """
    finished = [s for s in scores if s.milestone == MILESTONES and s.nll < DIVERGED]
    if not finished:
        raise UserError(f"{search.name}: none of {len(scores)} samples gave a finite likelihood")
    best = min(finished, key=lambda s: s.nll)
    winner = {key: rounded(value) for key, value in best.sampled.items()}
    today = datetime.datetime.now(datetime.UTC).date()
    comments = [
        f"python -m pipeline tune {search.method.name} --dataset {search.dataset} --samples {search.samples}",
        f"validation nll {best.nll:.5g}{_against(search, finished)}; {len(finished)} of {len(scores)} samples finished",
        f"run {search.run.key}, split 0, one member a sample; commit {provenance.commit()}, {today}",
    ]
    path = OVERLAYS / f"{search.name}.yaml"
    apply.write(path, overlay_of(search, winner), comments)
    print(f"{path}:", *comments[1:], *(f"{k} = {v:g}" for k, v in winner.items()), sep="\n  ")
    return path


def overlay_of(search: Search, winner: Mapping[str, float]) -> dict[str, Any]:
    """The searched rows' overrides: other rows and data sets keep their numbers."""
    overlay: dict[str, Any] = {}
    for row in search.chain.rows:
        if row.method.name == search.method.name:
            overlay.setdefault(SECTIONS[row.kind], {})[row.key] = {"override": nested(winner)}
    return overlay


def _against(search: Search, finished: Sequence[searching.Score]) -> str:
    present = [s.nll for s in finished if searching.same(s.sampled, search.present)]
    return f" (present numbers: {present[0]:.5g})" if present else ""


def _rows(params: Params, method: str, dataset: str, run: str | None) -> tuple[Row, ...]:
    """The chain of a run, from the row that is made from data alone to the run itself."""
    runs = [params.row("student", run)] if run else [r for r in params.of("student") if r.entry.dataset == dataset]
    for row in runs:
        chain = [row]
        while chain[0].input_kind != "prepare":
            chain.insert(0, params.row(chain[0].input_kind, chain[0].input_key))
        if row.entry.dataset == dataset and method in [r.method.name for r in chain]:
            return tuple(chain)
    where = f"run {run}" if run else f"any run on {dataset}"
    raise UserError(f"{method}: is not in {where}; add a row to runs in params.yaml")


def _at(mapping: Mapping[str, Any], dotted: str) -> float:
    value: Any = mapping
    for key in dotted.split("."):
        value = value[key]
    return float(value)


@contextmanager
def _parent(search: Search, begun: Mapping[str, Any], folder: Path, identity: str) -> Iterator[None]:
    """The search's own MLflow run, the same one after a resume; its id is kept beside the trials."""
    tags = {"method": search.method.name, "dataset": search.dataset, "stage": "tune", "seed": search.chain.seed}
    outer = os.environ.get(tracking.PARENT)
    run_id = tracking.start_parent(f"tune {search.name}", tags, begun.get("parent"))
    write_bytes(folder / "search.json", json.dumps({"identity": identity, "parent": run_id}).encode())
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        print(f"tune: stopped; go on with --resume (trials in {folder})", file=sys.stderr)
        raise
    finally:
        tracking.end_parent(run_id, status)
        if outer:
            os.environ[tracking.PARENT] = outer
