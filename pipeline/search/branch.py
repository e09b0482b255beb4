"""The part of the graph that a search or a study fits: which runs, on which rows of data, from which inputs.

A trial fits on the training rows alone. Its inputs must not have seen validation rows either, and a final fit may have
seen them. So the inputs are fitted here once more, on the training rows.
"""

import itertools
from dataclasses import dataclass
from typing import Any

from bdl_pipe import artifacts, config
from bdl_pipe.artifacts import State
from bdl_pipe.config import nearest
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import UserError
from bdl_pipe.method import Kind, Method, fan_in
from bdl_pipe.seeds import Seed

from ..core import places
from ..core.model import Params, Run
from ..core.settings import Settings
from ..plan import sources
from ..plan.plan import one
from ..run import body
from ..stages import fit
from ..tracking import provenance
from ..work.base import Task
from .trial import Chain, Upstream


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

    def tags(self) -> dict[str, Any]:
        """Return the tags of the search's tracked run."""
        return {
            "method": self.method.name,
            "dataset": self.dataset,
            "stage": self.chain.verb,
            "seed": self.chain.seed,
        }


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


def _lineage(params: Params, method: str, dataset: str, key: str | None) -> tuple[Run, ...]:
    """List a run and everything it is made from; each run comes after its inputs."""
    runs = [params.run("student", key)] if key else [r for r in params.of("student") if r.spec.dataset == dataset]
    for run in runs:
        lineage = params.lineage(run)
        if run.spec.dataset == dataset and method in [r.method.name for r in lineage]:
            return tuple(lineage)
    where = f"run {key}" if key else f"any run on {dataset}"
    raise UserError(f"{method}: is not in {where}; add one to runs in params.yaml")


def load_data(branch: Branch, params: Params, settings: Settings) -> FitData:
    """Load split 0 with separate validation rows; the data set is prepared first if it is not up to date.

    Raises:
        UserError: there are no validation rows, or the data set cannot be prepared.
    """
    from bdl_pipe.data import prepared

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
    from ..work.choose import choose
    from ..work.display import Display
    from ..work.store import Store

    executor, made = choose(settings), dict[tuple[str, str], list[State]]()
    for run in branch.upstream:
        shared: dict[str, Any] = {"data": data}
        keys = dict[Kind, list[str]]()
        for kind, key in run.sources.items():
            named = {f"{kind}-{number}": state for number, state in enumerate(made[kind, key])}
            shared |= named
            keys[kind] = list(named)
        tasks = []
        for seed in range(_seeds_needed(branch, run)):
            inputs = {
                kind: tuple(names[number] for number in fan_in(run.stage.needs[kind], seed, len(names)))
                for kind, names in keys.items()
            }
            rng = Seed(params.seed).fold(branch.chain.verb, run.kind, run.key, 0, seed)
            payload = fit.SeedTask(run.stage.fit_one, run.config, "data", inputs, rng)
            tasks.append(Task(str(seed), payload, ("data", *itertools.chain(*inputs.values()))))
        kept_in = places.checkpoints(branch.chain.verb, f"{run.kind}-{run.key}")
        store = Store(kept_in, _identity(branch, run, params, settings))
        store.open()
        with Display(f"{run.kind} {run.key}, on training rows alone") as display:
            done = executor.map(fit.make, tasks, shared=shared, display=display, store=store)
        made[run.kind, run.key] = [d.result for d in done]
    return made


def _identity(branch: Branch, run: Run, params: Params, settings: Settings) -> str:
    """Hash everything that an upstream fit depends on."""
    *above, _ = lineage = params.lineage(run)
    about = {
        "for": branch.chain.verb,
        "made from": [fit.facts(source, params) for source in above],
        "code": [sources.fit_digest(source.method.name, params) for source in lineage],
        **fit.facts(run, params),
    }
    return fit.identity(about, settings, [places.artifact("prepare", run.spec.dataset)])


def _seeds_needed(branch: Branch, run: Run) -> int:
    """Count the seeds of an upstream run that one trial, which has one seed, is made from."""
    counts = [1]
    for other in (*branch.upstream, *branch.chain.runs):
        if (run.kind, run.key) in other.sources.items():
            needs_all = other.stage.needs[run.kind] == "all"
            of_other = _seeds_needed(branch, other) if other in branch.upstream else 1
            counts.append(run.spec.seeds if needs_all else min(run.spec.seeds, of_other))
    return max(counts)
