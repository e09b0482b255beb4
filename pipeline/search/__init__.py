"""Searches by Ray Tune and studies over grids: trials on training rows, scored on validation rows.

A trial is fitted to the training rows alone. Its inputs must not use validation rows either, but a final fit may have
used them. So a search fits the inputs again, to the training rows.

The folder of a search holds its record (its identity, and whether it is finished) and Ray Tune's trials. It is
``.state/<verb>/<name>`` in the project, or ``<verb>/<name>`` in BDL_SEARCHES. A lock on a file in ``.state`` lets one
process at a time work on a search; the lock ends with its process.
"""

import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from pyarrow import fs

from bdl_pipe.artifacts import State
from bdl_pipe.config import nearest
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import UserError
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.fitting import Fits, seeds_of
from bdl_pipe.method import Task
from bdl_pipe.metrics.table import always, stored_metrics
from bdl_pipe.seeds import Seed

from .. import tracking
from ..core import places, provenance, records, signals, storage
from ..core.model import Params, Run
from ..core.settings import Settings
from ..plan import sources
from ..plan.code import shipped
from ..plan.plan import one
from ..prepared import folders
from ..run import body
from ..stages import fit
from ..work import choose, cluster
from ..work.display import Display
from ..work.store import Store
from .trial import METRIC, Branch, Upstream

RECORD: Final = "search.json"


def scores_of(task: Task) -> tuple[str, ...]:
    """Return the names of all scores that a trial can report."""
    return (*always(task), *stored_metrics(task))


cluster.prepare_environment()  # before Ray is imported, so that our heads listen only on 127.0.0.1


def branch_of(
    params: Params,
    method: str,
    dataset: str,
    key: str | None,
    settings: Settings,
    evaluate: EvaluateConfig | None = None,
    metrics: tuple[str, ...] = (METRIC,),
    verb: str = "tune",
) -> Branch:
    """Return the run ``key`` with its upstream runs, or the first run on ``dataset`` that uses ``method``.

    Args:
        evaluate, metrics, verb: see :class:`Branch`.

    Raises:
        UserError: the method, the data set or the run does not exist.
    """
    methods = {run.method.name for run in params.runs.values()}
    if dataset not in params.datasets:
        raise UserError(f"{dataset}: is not a data set{nearest(dataset, params.datasets)}")
    if method not in methods:
        raise UserError(f"{method}: is not a method of any run{nearest(method, methods)}")
    runs = [params.run("student", key)] if key else params.of("student")
    lineages = [params.lineage(run) for run in runs if run.spec.dataset == dataset]
    lineage = next((each for each in lineages if method in [run.method.name for run in each]), None)
    if lineage is None:
        where = f"run {key}" if key else f"any run on {dataset}"
        raise UserError(f"{method}: is not in {where}; add such a run to params.yaml")
    chain = [next(run for run in lineage if run.method.name == method)]
    for run in lineage[lineage.index(chain[0]) + 1 :]:
        if any((other.kind, other.key) in run.sources.items() for other in chain):
            chain.append(run)
    if others := sorted({run.spec.dataset for run in lineage} - {dataset}):
        step = f"a search fits all runs on {dataset}; search on the first step, and use the winner on all steps"
        raise UserError(f"{lineage[-1].key}: has inputs on {', '.join(others)}: {step}")
    upstream = tuple(run for run in lineage if run not in chain)
    code = provenance.digest([sources.fit_digest(run.method.name, params) for run in lineage])
    return Branch(tuple(chain), params.seed, upstream, code, settings.threads, evaluate, metrics, verb)


def load_data(branch: Branch, params: Params, settings: Settings) -> FitData:
    """Load split 0 with separate validation rows; the data set is prepared first if it is not up to date.

    Raises:
        UserError: there are no validation rows, or the data set cannot be prepared.
    """
    body.ensure(one("prepare", branch.dataset, params), params, replace(Settings.read(), executor="inline"))
    data = folders.load_fit(places.artifact("prepare", branch.dataset), 0, final=False)
    if len(data.validation) == 0:
        raise UserError(f"datasets.{branch.dataset}.validation: must hold out rows to score a search, got none")
    if params.datasets[branch.dataset].splits > 1:
        also = "some validation rows of split 0 are test rows of other splits"
        print(f"warning: {branch.dataset} has several splits: {also}")
    return data.on(settings.device)


def make_upstream(branch: Branch, data: FitData, params: Params, settings: Settings) -> Upstream:
    """Fit the upstream runs to the training rows; finished fits are stored and reused by the next call."""
    executor, made = choose(settings), dict[tuple[str, str], list[State]]()
    for run in branch.upstream:
        states = {kind: made[kind, key] for kind, key in run.sources.items()}
        keys = {kind: [f"{kind}-{number}" for number in range(len(above))] for kind, above in states.items()}
        shared: dict[str, Any] = {"data-0": data}
        for kind, names in keys.items():
            shared |= zip(names, states[kind], strict=True)
        root = Seed(params.seed).fold(branch.verb, run.kind, run.key)
        seeds = seeds_of(run.stage, "data-0", keys, root, seeds=_seeds_needed(branch, run))
        tasks = [fit.task_of(Fits(run.stage.fit_one, run.config, (seed,))) for seed in seeds]
        lineage = params.lineage(run)
        about = {
            "for": branch.verb,
            "made from": [fit.facts(source, params) for source in lineage[:-1]],
            "code": [sources.fit_digest(source.method.name, params) for source in lineage],
            **fit.facts(run, params),
        }
        identity = fit.identity(about, settings, [places.artifact("prepare", branch.dataset)])
        store = Store(places.checkpoints(branch.verb, f"{run.kind}-{run.key}"), identity)
        store.open()
        with Display(f"{run.kind} {run.key}, on training rows alone") as display:
            done = executor.map(fit.make, tasks, shared=shared, display=display, store=store)
        made[run.kind, run.key] = [d.result for d in done]
    return made


def _seeds_needed(branch: Branch, run: Run) -> int:
    """Return the number of seeds of an upstream run that a trial of one seed needs."""
    counts = [1]
    for other in (*branch.upstream, *branch.runs):
        if (run.kind, run.key) in other.sources.items():
            needs_all = other.stage.needs[run.kind] == "all"
            of_other = _seeds_needed(branch, other) if other in branch.upstream else 1
            counts.append(run.spec.seeds // other.spec.seeds if needs_all else min(run.spec.seeds, of_other))
    return max(counts)


class Folder(storage.Folder):
    """A folder that holds a search: an absolute path, or an address such as ``s3://bucket/path``."""

    def read(self) -> dict[str, Any]:
        """Read the record; {} if there is none."""
        record: dict[str, Any] = json.loads(self.load(RECORD) or b"{}")
        return record

    def write(self, **record: object) -> None:
        """Write the record completely or not at all."""
        if "://" not in self.address:
            Path(self.address).mkdir(parents=True, exist_ok=True)
        self.save(RECORD, json.dumps(record).encode())

    def clear(self) -> None:
        """Remove everything in the folder."""
        files, path = fs.FileSystem.from_uri(self.address)
        files.delete_dir_contents(path, missing_dir_ok=True)

    def is_unfinished(self) -> bool:
        """Return whether the folder holds an unfinished search."""
        record = self.read()
        return bool(record) and not record.get("finished")


def folder_of(verb: str, name: str, settings: Settings) -> Folder:
    """Return the folder of a search.

    Raises:
        UserError: BDL_SEARCHES cannot be written.
    """
    if settings.searches:
        storage.require("BDL_SEARCHES", settings.searches)
    return Folder("BDL_SEARCHES", f"{settings.searches or places.STATE.absolute()}/{verb}/{name}")


@dataclass(frozen=True)
class Session:
    """A running search or study.

    Attributes:
        parts: the parameters of :func:`.trial.trial` that all trials share.
        tags: the tags of the trials' tracked runs; trials without a parent run are not tracked.
        metrics: the names of the scores that a trial reports.
    """

    name: str
    folder: Folder
    settings: Settings
    parts: Mapping[str, Any]
    tags: Mapping[str, object]
    metrics: tuple[str, ...]


@contextmanager
def opened(
    name: str, branch: Branch, facts: object, params: Params, settings: Settings, resume: bool
) -> Iterator[Session]:
    """Hold a search's lock, Ray and its tracked run within the block, and mark the search as finished at the end.

    Args:
        facts: other facts that scores depend on, besides the branch and the data; a search resumes only if they are
            equal.
        settings: the command's settings.
        resume: continue an unfinished search; otherwise begin a new one.

    Raises:
        UserError: another process holds the search, ``resume`` does not fit the folder's state, or Ray cannot be used.
        KeyboardInterrupt: the user stopped the search with Ctrl-C or SIGTERM.
    """
    verb, settings = branch.verb, settings.of(branch.verb, branch.method.name)
    if settings.jobs:
        rule = f"must be host:port for {verb}; send the whole command: python -m pipeline job -- python -m pipeline"
        raise UserError(f"RAY_ADDRESS={settings.jobs}: {rule} {verb} …")
    folder, lock = folder_of(verb, name, settings), places.STATE / verb / f"{name}.lock"
    with locked(lock, folder):
        data = load_data(branch, params, settings)
        record = {"identity": provenance.digest([branch.facts(), facts, records.data_hash(branch.dataset)])}
        parent = begin(folder, record["identity"], resume)
        tags = {"method": branch.method.name, "dataset": branch.dataset, "seed": branch.seed}
        with cluster.connected(settings, ships=shipped()):
            cluster.require_shared(settings)
            with tracking.parent(f"{verb} {name}", {**tags, "stage": verb}, parent) as run_id:
                try:
                    folder.write(**record, parent=run_id)
                    # Tune's Ctrl-C handler saves the trials; Ray's SIGTERM handler would end the process immediately.
                    signals.interruptible()
                    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
                    upstream = make_upstream(branch, data, params, settings)
                    parts = {"branch": branch, "data": data, "upstream": upstream}
                    tags |= {"stage": "trial", tracking.NEST: run_id}
                    yield Session(name, folder, settings, parts, tags, branch.metrics)
                    folder.write(**record, parent=run_id, finished=True)
                except KeyboardInterrupt:
                    print(f"{verb}: stopped; continue with --resume (trials in {folder.address})", file=sys.stderr)
                    raise
                finally:
                    signals.interruptible()


def begin(folder: Folder, identity: str, resume: bool) -> str | None:
    """Empty the folder for a new search, or return the id of the resumed search's tracked run.

    Raises:
        UserError: the folder holds an unfinished search and ``resume`` is False, or none and ``resume`` is True.
    """
    if not resume:
        if folder.is_unfinished():
            raise UserError(
                f"{folder.address}: has an unfinished search; continue it with --resume, or remove this folder"
            )
        folder.clear()
        return None
    record = folder.read()
    if not folder.is_unfinished():
        raise UserError(f"{folder.address}: has no unfinished search; leave out --resume")
    if record["identity"] != identity:
        changed = "params, data, grid, code, --samples or another option differ from the stopped search's"
        raise UserError(f"{folder.address}: {changed}; change them back, or remove the folder and start again")
    return record["parent"]


@contextmanager
def locked(lock: Path, folder: Folder) -> Iterator[None]:
    """Hold the lock of a search.

    Raises:
        UserError: another process holds it.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=0):
            yield
    except Timeout:
        rule = "one process at a time may run a search; wait for it, or stop it"
        raise UserError(f"{folder.address}: another process holds {lock}: {rule}") from None
