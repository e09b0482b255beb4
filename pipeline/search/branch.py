"""What searches and studies share: which runs are made, on which rows of data, from what, and how one goes on.

Every trial fits on the training rows alone, and so does what the method is made from: a teacher of a final
fit has seen validation rows, so another one is made here, once.
"""

import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bdl_pipe import artifacts, config
from bdl_pipe.artifacts import State
from bdl_pipe.config import nearest
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes
from bdl_pipe.method import Method, fan_in
from bdl_pipe.seeds import Seed

from ..core import places
from ..core.model import Params, Run
from ..core.settings import Settings
from ..core.storage import Place
from ..plan import sources
from ..plan.plan import one
from ..run import body
from ..stages import fit
from ..tracking import experiments, provenance, trials
from .trial import Chain, Upstream

RECORD: Final = "search.json"


@dataclass(frozen=True)
class Branch:
    """A run and all that it is made from, parted at the first run of the method that is searched.

    Attributes:
        upstream: runs that are made once before the trials, in order.
        chain: runs that every trial makes: that one and what is made from it.
        code: the hash of the code that all of them follow from.
    """

    method: Method
    dataset: str
    upstream: tuple[Run, ...]
    chain: Chain
    code: str

    @property
    def name(self) -> str:
        """Return ``<method>-<data set>``."""
        return f"{self.method.name}-{self.dataset}"

    @property
    def run(self) -> Run:
        """Return the run that predicts, the last of the chain."""
        return self.chain.runs[-1]

    def facts(self) -> list[Any]:
        """Collect what every trial's score depends on, apart from the searched numbers and the data."""
        runs = [[r.kind, r.key, config.to_mapping(r.config)] for r in (*self.upstream, *self.chain.runs)]
        return [runs, self.chain.seed, self.code]

    @property
    def tags(self) -> dict[str, Any]:
        """Collect the tags by which tracked runs are filtered."""
        return {"method": self.method.name, "dataset": self.dataset}


def branch_of(params: Params, method: str, dataset: str, key: str | None, verb: str, settings: Settings) -> Branch:
    """Find the runs that make ``key`` of ``runs``, or the first run on ``dataset`` that ``method`` is in.

    Args:
        verb: who asks; the seeds' addresses differ by it.

    Raises:
        UserError: there is no such method, data set or run.
    """
    methods = {run.method.name: run.method for run in params.runs.values()}
    if dataset not in params.datasets:
        raise UserError(f"{dataset}: is not a data set{nearest(dataset, params.datasets)}")
    if method not in methods:
        raise UserError(f"{method}: is not a method of any run{nearest(method, methods)}")
    lineage = _lineage(params, method, dataset, key)
    chain = [next(run for run in lineage if run.method.name == method)]
    for run in lineage[lineage.index(chain[0]) + 1 :]:
        if any((other.kind, other.key) in run.sources.items() for other in chain):
            chain.append(run)
    upstream = tuple(run for run in lineage if run not in chain)
    if others := sorted({run.spec.dataset for run in lineage} - {dataset}):
        step = f"a search fits all on {dataset}; search on the first step, and set what is found for all"
        raise UserError(f"{lineage[-1].key}: is made from runs on {', '.join(others)}: {step}")
    made = Chain(tuple(chain), method, params.seed, settings.threads, verb)
    code = provenance.digest([sources.fit_digest(run.method.name, params) for run in lineage])
    return Branch(methods[method], dataset, upstream, made, code)


def load_data(branch: Branch, params: Params, settings: Settings) -> FitData:
    """Load split 0 with its validation rows apart; the data are prepared here unless they are up to date.

    Raises:
        UserError: there are none, or the data cannot be prepared.
    """
    from bdl_pipe.data import prepared

    body.ensure(one("prepare", branch.dataset, params), params, Settings.read(executor="inline"))
    data = prepared.load_fit(places.artifact("prepare", branch.dataset), 0, final=False)
    if len(data.validation) == 0:
        raise UserError(f"datasets.{branch.dataset}.validation: must leave rows to score a search on, got none")
    if params.datasets[branch.dataset].splits > 1:
        also = "some of split 0's validation rows are test rows of others"
        print(f"warning: {branch.dataset} has several splits: {also}")
    return data.on(settings.device)


def data_hash(branch: Branch) -> str:
    """Hash the prepared data's manifest."""
    return artifacts.sha256(places.artifact("prepare", branch.dataset) / artifacts.MANIFEST)


def begin(folder: Path, identity: str, name: str, resume: bool | None, away: Place | None = None) -> dict[str, Any]:
    """Read the record of an unfinished search that is resumed; return {} for a new one.

    Args:
        resume: None: if there is one of this identity.
        away: its place in storage that machines share, whose record is the one that holds.

    Raises:
        UserError: there is one and ``resume`` is not asked for, or the other way round, or it
            was a search of something else.
    """
    if away is not None and (there := away.read(RECORD)):
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / RECORD, json.dumps(there).encode())
    record, unfinished = _record(folder), is_unfinished(folder)
    resume = unfinished if resume is None else resume
    places = str(folder) if away is None else f"{folder} and BDL_SEARCHES' {away.path}"
    if not resume:
        if unfinished:
            raise UserError(f"{folder}: holds an unfinished search; go on with --resume, or remove {places}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if away is not None:
            away.clear()
        return {}
    if not unfinished:
        elsewhere = "" if away is None else ", nor does BDL_SEARCHES, with these params, data and code"
        raise UserError(f"{folder}: holds no unfinished search of {name}{elsewhere}; leave out --resume")
    if record["identity"] != identity:
        changed = "was a search with other params, data, grid, code or --samples"
        raise UserError(f"{folder}: {changed}; remove the folder to start anew")
    return record


def is_unfinished(folder: Path) -> bool:
    """Tell whether a search was begun there and has not been finished."""
    record = _record(folder)
    return bool(record) and not record.get("finished")


def _record(folder: Path) -> dict[str, Any]:
    place = folder / RECORD
    found: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
    return found


def finish(folder: Path, identity: str, away: Place | None = None) -> None:
    """Forget the record of a search that is finished."""
    _write(folder, away, {"identity": identity, "finished": True})


def _write(folder: Path, away: Place | None, record: Mapping[str, Any]) -> None:
    write_bytes(folder / RECORD, json.dumps(record).encode())
    if away is not None:
        away.write(RECORD, record)


def make_upstream(branch: Branch, data: FitData, params: Params, settings: Settings) -> Upstream:
    """Make what the chain is made from, fitted on training rows alone; it is kept, so that it is made once."""
    from ..work.base import Task
    from ..work.choose import choose
    from ..work.display import Display
    from ..work.store import Store

    executor, made, verb = choose(settings), dict[tuple[str, str], list[State]](), branch.chain.verb
    prepared = places.artifact("prepare", branch.dataset)
    counts = _seeds_needed(branch)
    for run in branch.upstream:
        lineage = params.lineage(run)
        above = [fit.facts(source, params) for source in lineage[:-1]]
        code = [sources.fit_digest(source.method.name, params) for source in lineage]
        about = {"for": verb, "made from": above, "code": code, **fit.facts(run, params)}
        store = Store(places.checkpoints(verb, f"{run.kind}-{run.key}"), fit.identity(about, settings, [prepared]))
        store.open()
        sources = {kind: made[kind, key] for kind, key in run.sources.items()}
        shared: dict[str, Any] = {"data": data}
        shared |= {f"{kind}-{i}": state for kind, states in sources.items() for i, state in enumerate(states)}
        tasks = []
        for number in range(counts[run.kind, run.key]):
            inputs = {
                kind: tuple(f"{kind}-{i}" for i in fan_in(run.stage.needs[kind], number, len(states)))
                for kind, states in sources.items()
            }
            rng = Seed(params.seed).fold(verb, run.kind, run.key, 0, number)
            payload = fit.SeedTask(run.stage.fit_one, run.config, "data", inputs, rng)
            tasks.append(Task(str(number), payload, ("data", *itertools.chain(*inputs.values()))))
        with Display(f"{run.kind} {run.key}, on training rows alone") as display:
            done = executor.map(fit.make, tasks, shared=shared, display=display, store=store)
        made[run.kind, run.key] = [d.result for d in done]
    return made


def _seeds_needed(branch: Branch) -> dict[tuple[str, str], int]:
    """Count the seeds of each upstream run that a trial, which is of one seed, is made from."""
    counts: dict[tuple[str, str], int] = {(run.kind, run.key): 1 for run in (*branch.upstream, *branch.chain.runs)}
    for run in (*branch.chain.runs[::-1], *branch.upstream[::-1]):
        for kind, key in run.sources.items():
            if (source := next((r for r in branch.upstream if (r.kind, r.key) == (kind, key)), None)) is not None:
                rule = run.stage.needs[kind]
                most = source.spec.seeds if rule == "all" else counts[run.kind, run.key]
                counts[kind, key] = min(source.spec.seeds, max(counts[kind, key], most))
    return counts


@contextmanager
def tracked(
    name: str,
    tags: Mapping[str, Any],
    begun: Mapping[str, Any],
    folder: Path,
    identity: str,
    away: Place | None = None,
) -> Iterator[None]:
    """Open the search's own MLflow run, the same one after a resume; its id is kept beside the trials."""
    outer = os.environ.get(experiments.PARENT)
    run_id = experiments.start_parent(name, tags, begun.get("parent"))
    commits = sorted({*begun.get("commits", ()), provenance.commit()})
    _write(folder, away, {"identity": identity, "parent": run_id, "commits": commits})
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        print(f"{name.split()[0]}: stopped; go on with --resume (trials in {folder})", file=sys.stderr)
        raise
    finally:
        trials.end_all(run_id, status)
        experiments.end_parent(run_id, status)
        if outer:
            os.environ[experiments.PARENT] = outer


def _lineage(params: Params, method: str, dataset: str, key: str | None) -> tuple[Run, ...]:
    """List all that a run is made from, and the run itself, each after what it is made from."""
    runs = [params.run("student", key)] if key else [r for r in params.of("student") if r.spec.dataset == dataset]
    for run in runs:
        lineage = params.lineage(run)
        if run.spec.dataset == dataset and method in [r.method.name for r in lineage]:
            return tuple(lineage)
    where = f"run {key}" if key else f"any run on {dataset}"
    raise UserError(f"{method}: is not in {where}; add one to runs in params.yaml")
