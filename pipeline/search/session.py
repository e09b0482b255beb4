"""A search or a study as a process works on it: its runs, their inputs, its folder, its lock and its tracked run.

A trial fits on the training rows alone. Its inputs must not have seen validation rows either, and a final fit may have
seen them. So the inputs are fitted here once more, on the training rows.

The folder holds the record of the search (what it is a search of, whether it is finished) and Ray Tune's trials. It is
``.state/<verb>/<name>`` in the project, or ``<verb>/<name>`` in BDL_SEARCHES. One process at a time works on a search:
it holds a lock on a file in ``.state``. The lock ends with its process.
"""

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from pyarrow import fs

from bdl_pipe import artifacts, config
from bdl_pipe.artifacts import State
from bdl_pipe.config import nearest
from bdl_pipe.data import prepared
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import UserError
from bdl_pipe.method import Method
from bdl_pipe.seeds import Seed

from .. import tracking
from ..core import places, provenance, signals, storage
from ..core.model import Params, Run
from ..core.settings import Settings
from ..plan import sources
from ..plan.code import shipped
from ..plan.plan import one
from ..run import body
from ..stages import fit
from ..work import choose, cluster
from ..work.display import Display
from ..work.store import Store
from .trial import Chain, Upstream

RECORD: Final = "search.json"


@dataclass(frozen=True)
class Branch:
    """A run that predicts and everything it is made from, in two parts.

    Attributes:
        upstream: the runs before the first run of the searched method, in order; they are fitted once.
        chain: that run and all runs after it; every trial fits them.
        code: the hash of the code of all these runs.
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
        """List everything that a trial's score depends on, except the searched hyperparameters and the data."""
        runs = [[r.kind, r.key, config.to_mapping(r.config)] for r in (*self.upstream, *self.chain.runs)]
        return [runs, self.chain.seed, self.code]


def branch_of(params: Params, method: str, dataset: str, key: str | None, verb: str, settings: Settings) -> Branch:
    """Find the runs that make the run ``key``, or the first run on ``dataset`` in which ``method`` takes part.

    Args:
        verb: ``tune`` or ``study``; random streams depend on it.

    Raises:
        UserError: the method, the data set or the run does not exist.
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
        step = f"a search fits all on {dataset}; search on the first step, and use the winner for all"
        raise UserError(f"{lineage[-1].key}: is made from runs on {', '.join(others)}: {step}")
    code = provenance.digest([sources.fit_digest(run.method.name, params) for run in lineage])
    parted = Chain(tuple(chain), method, params.seed, settings.threads, verb)
    return Branch(methods[method], dataset, upstream, parted, code)


def _lineage(params: Params, method: str, dataset: str, key: str | None) -> list[Run]:
    """List a run and everything it is made from; each run comes after its inputs."""
    runs = [params.run("student", key)] if key else [r for r in params.of("student") if r.spec.dataset == dataset]
    for run in runs:
        lineage = params.lineage(run)
        if run.spec.dataset == dataset and method in [r.method.name for r in lineage]:
            return lineage
    where = f"run {key}" if key else f"any run on {dataset}"
    raise UserError(f"{method}: is not in {where}; add one to runs in params.yaml")


def load_data(branch: Branch, params: Params, settings: Settings) -> FitData:
    """Load split 0 with separate validation rows; the data set is prepared first if it is not up to date.

    Raises:
        UserError: there are no validation rows, or the data set cannot be prepared.
    """
    body.ensure(one("prepare", branch.dataset, params), params, Settings.read(executor="inline"))
    data = prepared.load_fit(places.artifact("prepare", branch.dataset), 0, final=False)
    if len(data.validation) == 0:
        raise UserError(f"datasets.{branch.dataset}.validation: must leave rows to score a search on, got none")
    if params.datasets[branch.dataset].splits > 1:
        also = "some validation rows of split 0 are test rows of other splits"
        print(f"warning: {branch.dataset} has several splits: {also}")
    return data.on(settings.device)


def data_hash(branch: Branch) -> str:
    """Hash the prepared data's manifest."""
    return artifacts.sha256(places.artifact("prepare", branch.dataset) / artifacts.MANIFEST)


def make_upstream(branch: Branch, data: FitData, params: Params, settings: Settings) -> Upstream:
    """Fit the chain's inputs to the training rows; finished fits are kept, and reused by the next call."""
    verb, executor, made = branch.chain.verb, choose(settings), dict[tuple[str, str], list[State]]()
    for run in branch.upstream:
        states = {
            kind: {f"{kind}-{number}": state for number, state in enumerate(made[kind, key])}
            for kind, key in run.sources.items()
        }
        shared = {"data-0": data, **{name: state for named in states.values() for name, state in named.items()}}
        root = Seed(params.seed).fold(verb, run.kind, run.key)
        tasks = fit.seed_tasks(run, 0, states, root, _seeds_needed(branch, run))
        lineage = params.lineage(run)
        about = {
            "for": verb,
            "made from": [fit.facts(source, params) for source in lineage[:-1]],
            "code": [sources.fit_digest(source.method.name, params) for source in lineage],
            **fit.facts(run, params),
        }
        identity = fit.identity(about, settings, [places.artifact("prepare", branch.dataset)])
        store = Store(places.checkpoints(verb, f"{run.kind}-{run.key}"), identity)
        store.open()
        with Display(f"{run.kind} {run.key}, on training rows alone") as display:
            whole = [replace(task, data_parallel=False) for task in tasks]
            done = executor.map(fit.make, whole, shared=shared, display=display, store=store)
        made[run.kind, run.key] = [d.result for d in done]
    return made


def _seeds_needed(branch: Branch, run: Run) -> int:
    """Count the seeds of an upstream run that one trial, which has one seed, is made from."""
    counts = [1]
    for other in (*branch.upstream, *branch.chain.runs):
        if (run.kind, run.key) in other.sources.items():
            needs_all = other.stage.needs[run.kind] == "all"
            of_other = _seeds_needed(branch, other) if other in branch.upstream else 1
            counts.append(run.spec.seeds if needs_all else min(run.spec.seeds, of_other))
    return max(counts)


@dataclass(frozen=True)
class Folder:
    """A folder that holds a search: an absolute path, or an address such as ``s3://bucket/path``."""

    address: str

    def read(self) -> dict[str, Any]:
        """Read the record; {} if there is none."""
        record: dict[str, Any] = json.loads(self._stored.load(RECORD) or b"{}")
        return record

    def write(self, **record: Any) -> None:
        """Write the record, whole or not at all."""
        if "://" not in self.address:
            Path(self.address).mkdir(parents=True, exist_ok=True)
        self._stored.save(RECORD, json.dumps(record).encode())

    def clear(self) -> None:
        """Remove everything in the folder."""
        files, path = fs.FileSystem.from_uri(self.address)
        files.delete_dir_contents(path, missing_dir_ok=True)

    def finish(self) -> None:
        """Mark the search as finished."""
        self.write(**{**self.read(), "finished": True})

    def is_unfinished(self) -> bool:
        """Return whether a search was begun here and has not been finished."""
        record = self.read()
        return bool(record) and not record.get("finished")

    @property
    def _stored(self) -> storage.Folder:
        return storage.Folder("BDL_SEARCHES", self.address)


def folder_of(verb: str, name: str, settings: Settings) -> Folder:
    """Return the folder of a search; storage that cannot be written is refused.

    Raises:
        UserError: BDL_SEARCHES cannot be written.
    """
    if settings.searches:
        storage.require("BDL_SEARCHES", settings.searches)
    return Folder(f"{settings.searches or places.STATE.absolute()}/{verb}/{name}")


@contextmanager
def opened(
    name: str, branch: Branch, facts: Sequence[Any], params: Params, settings: Settings, resume: bool
) -> Iterator[tuple[Folder, dict[str, Any], dict[str, Any]]]:
    """Hold a search within the block: its lock, Ray, its tracked run. The caller marks it as finished in its folder.

    Yield its folder, what all trials share, and the tags of the trials' tracked runs.

    Args:
        facts: what scores depend on besides the branch and the data; only the same search is resumed.
        resume: continue an unfinished search; otherwise begin a new one.

    Raises:
        UserError: another process holds the search; ``resume`` and the folder do not agree; Ray cannot be used.
        KeyboardInterrupt: the user stopped the search, by Ctrl-C or SIGTERM.
    """
    verb = branch.chain.verb
    if settings.jobs:
        rule = f"must be host:port for {verb}; send the whole command: python -m pipeline job -- python -m pipeline"
        raise UserError(f"RAY_ADDRESS={settings.jobs}: {rule} {verb} …")
    folder = folder_of(verb, name, settings)
    with locked(places.STATE / verb / f"{name}.lock", folder):
        data = load_data(branch, params, settings)
        identity = provenance.digest([*branch.facts(), *facts, data_hash(branch)])
        parent = begin(folder, identity, resume).get("parent")
        tags = {"method": branch.method.name, "dataset": branch.dataset, "stage": verb, "seed": branch.chain.seed}
        with cluster.connected(settings, ships=shipped()), _tracked(f"{verb} {name}", tags, parent) as run_id:
            require_shared(settings)
            folder.write(identity=identity, parent=run_id)
            # Tune's handler of Ctrl-C keeps the trials, while Ray's of SIGTERM ends the process at once.
            signals.interruptible()
            signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
            try:
                upstream = make_upstream(branch, data, params, settings)
                parts = {"chain": branch.chain, "data": data, "upstream": upstream}
                yield folder, parts, {**tags, "stage": "trial", tracking.NEST: run_id}
            except KeyboardInterrupt:
                print(f"{verb}: stopped; continue with --resume (trials in {folder.address})", file=sys.stderr)
                raise
            finally:
                signals.interruptible()


def begin(folder: Folder, identity: str, resume: bool) -> dict[str, Any]:
    """Empty the folder for a new search and return {}, or return the record of the search that is resumed.

    Raises:
        UserError: the folder holds an unfinished search and ``resume`` is false, or it holds none of this identity.
    """
    if not resume:
        if folder.is_unfinished():
            raise UserError(f"{folder.address}: holds an unfinished search; continue with --resume, or remove it")
        folder.clear()
        return {}
    record = folder.read()
    if not folder.is_unfinished():
        raise UserError(f"{folder.address}: holds no unfinished search; leave out --resume")
    if record["identity"] != identity:
        changed = "params, data, grid, code, --samples or --scheduler differ from those of the stopped search"
        raise UserError(f"{folder.address}: {changed}; change them back, or remove the folder and start again")
    return record


def require_shared(settings: Settings) -> None:
    """Refuse a cluster of several machines without storage that all of them reach: trials store checkpoints there.

    Raises:
        UserError: naming the setting.
    """
    import ray

    machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if settings.address and not settings.searches and len(machines) > 1:
        need = "a folder or s3://bucket/path that all of them reach"
        raise UserError(f"BDL_SEARCHES: must be {need}, since RAY_ADDRESS has {len(machines)} machines; it is not set")


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


@contextmanager
def _tracked(name: str, tags: Mapping[str, Any], resumed: str | None) -> Iterator[str | None]:
    """Open the search's own MLflow run, the same run after a resume, and yield its id; None without tracking."""
    run_id, status = tracking.start_parent(name, tags, resumed), "FAILED"
    try:
        yield run_id
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracking.end_parent(run_id, status)
