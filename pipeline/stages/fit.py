"""The common part of all stages that fit: from a run of params.yaml to an artifact.

params → run → data and input states of each split → one task for each (split, seed) → artifact,
then provenance, then summaries. The artifact comes first, so that no later failure loses it.
"""

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bdl_pipe import artifacts, config, recalibration
from bdl_pipe.artifacts import State
from bdl_pipe.data import prepared
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.files import write_bytes
from bdl_pipe.method import Fit, FitMany, Kind, Summary, fan_in
from bdl_pipe.posterior import Predictor, prediction_address
from bdl_pipe.progress import Report
from bdl_pipe.registry import RECALIBRATION, posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.training.retry import RATE_SHARE, retried

from ..core import places, provenance, records
from ..core.curves import Curve
from ..core.model import Params, Run
from ..core.settings import Settings
from ..plan.plan import Stage
from ..work.display import Display
from ..work.executor import Done, Executor, Task, Where
from ..work.store import Store

GROUP_SIZE: Final = 10  # seeds that one task fits together; a change of this number changes results' last bits
FEW_ROWS: Final = 20_000  # a single task with at most this many rows over all seeds runs here, not on a cluster


@dataclasses.dataclass(frozen=True)
class SeedTask:
    """A task's payload: everything that one seed's fit needs, except the shared data."""

    fit: Fit
    config: Any
    data: str  # key of the shared FitData
    inputs: Mapping[Kind, tuple[str, ...]]  # stage kind -> keys of the shared states
    rng: Seed


@dataclasses.dataclass(frozen=True)
class GroupTask:
    """A payload of a task that fits several seeds together."""

    names: tuple[str, ...]
    tasks: tuple[SeedTask, ...]
    fit_many: FitMany


def run(stage: Stage, params: Params, executor: Executor, settings: Settings) -> Store:
    """Fit the artifact of one run.

    Returns:
        The checkpoints, which the caller clears once the result is recorded.

    Raises:
        UserError: an input is missing or damaged, or the executor cannot run the work.
    """
    kind, key = stage.kind, stage.key
    run = params.run(kind, key)
    about = facts(run, params)
    shared, tasks = _plan(run, params, settings)
    above = records.above(run)
    work = identity({**about, "code": dict(stage.digests)}, settings, inputs_of(run))
    store = Store(places.checkpoints(kind, key), work)
    store.open()
    with Display(f"{kind} {key}", Curve(kind, key).metrics) as display:
        done = executor.map(
            make, tasks, shared=shared, display=display, store=store, where=_where(run, tasks, shared, settings)
        )
    named = {name: part for task, made in zip(tasks, done, strict=True) for name, part in _parts(task, made)}
    data = {name: value for name, value in shared.items() if isinstance(value, FitData)}
    _publish(places.artifact(kind, key), run, about, params.seed, named, data)
    summary = _summarise(run, named, shared)
    records.write(run, named, settings, summary, above)
    for text in summary.warnings:
        print(f"warning: {kind} {key}: {text}", file=sys.stderr)
    return store


def make(payload: SeedTask | GroupTask, shared: Mapping[str, Any], report: Report) -> State:
    """Do the work of a task; a group's states are packed into one."""
    if isinstance(payload, GroupTask):
        data, inputs = [shared[task.data] for task in payload.tasks], [_inputs(task, shared) for task in payload.tasks]
        rngs, many = [task.rng for task in payload.tasks], payload.fit_many

        def fit_group(config: Any, attempt: Report) -> list[State]:
            return many(data, inputs, config, rngs=rngs, report=attempt)

        return artifacts.pack(retried(fit_group, payload.tasks[0].config, report))
    rows, above = shared[payload.data], _inputs(payload, shared)

    def fit_one(config: Any, attempt: Report) -> list[State]:
        return [payload.fit(rows, above, config, rng=payload.rng, report=attempt)]

    (state,) = retried(fit_one, payload.config, report)
    return state


def _inputs(task: SeedTask, shared: Mapping[str, Any]) -> dict[str, list[State]]:
    return {kind: [shared[name] for name in names] for kind, names in task.inputs.items()}


def _parts(task: Task, made: Done) -> list[tuple[str, Done]]:
    """Return the seeds that a task fitted, each with its share of the seconds."""
    if not isinstance(task.payload, GroupTask):
        return [(task.name, made)]
    states, names = artifacts.unpack(made.result), task.payload.names
    share = made.seconds / len(names)
    return [(n, Done(s, share, made.peak_bytes)) for n, s in zip(names, states, strict=True)]


def facts(run: Run, params: Params) -> dict[str, Any]:
    """Collect the settings of params.yaml that an artifact depends on; equal runs give equal values."""
    several = {kind: f"{kind}/{key}" for kind, key in run.sources.items()}
    return {
        "dataset": run.spec.dataset,
        "method": run.method.name,
        "seeds": run.spec.seeds,
        "input": several if len(several) > 1 else run.spec.input,
        "seed": params.seed,
        "config": config.to_mapping(run.config),
        **({"plugins": needed} if (needed := params.plugins_of(run)) else {}),
    }


def inputs_of(run: Run) -> list[Path]:
    """List the artifacts that a run reads: its data and its inputs."""
    above = [places.artifact(kind, key) for kind, key in run.sources.items()]
    return [places.artifact("prepare", run.spec.dataset), *above]


def identity(about: Mapping[str, Any], settings: Settings, inputs: Sequence[Path]) -> str:
    """Hash all that a result's bits depend on: ``about`` (numbers, code), inputs, torch, device, threads, workers."""
    import torch

    facts = {
        "about": {k: v for k, v in about.items() if k != "seeds"},
        "inputs": [artifacts.sha256(path / artifacts.MANIFEST) for path in inputs],
        "torch": torch.__version__,
        "machine": [settings.device, settings.threads, settings.workers],
    }
    return provenance.digest(facts)


def _plan(run: Run, params: Params, settings: Settings) -> tuple[dict[str, Any], list[Task]]:
    """Plan the shared data and the tasks, one for each seed of each split."""
    place = places.artifact("prepare", run.spec.dataset)
    shared: dict[str, Any] = {}
    tasks: list[Task] = []
    above = {kind: artifacts.load(places.artifact(kind, key), kind) for kind, key in run.sources.items()}
    root = Seed(params.seed).fold(run.kind, run.key)
    splits = range(params.datasets[run.spec.dataset].splits)
    for split, rows in zip(splits, prepared.load_fits(place, splits, final=True), strict=True):
        shared[f"data-{split}"] = rows.on(settings.device)
        states = {kind: _states(artifact, kind, split) for kind, artifact in above.items()}
        for named in states.values():
            shared |= named
        tasks += seed_tasks(run, split, states, root, run.spec.seeds)
    tables = all(len(d.input_shape) == 1 for d in shared.values() if isinstance(d, FitData))
    alike = "student" not in run.sources  # seeds with posteriors as inputs may have different shapes
    if run.stage.fit_many is not None and alike and tables and len(tasks) > 1:
        tasks = _grouped(tasks, run.stage.fit_many)
    return shared, tasks


def seed_tasks(run: Run, split: int, states: Mapping[Kind, Mapping[str, State]], root: Seed, seeds: int) -> list[Task]:
    """Plan a task for each seed of a split.

    Args:
        states: the split's states of each input, by their names among the shared data.
        root: the run's random stream.
    """
    data, tasks = f"data-{split}", []
    for seed in range(seeds):
        inputs = {
            kind: tuple(list(named)[number] for number in fan_in(run.stage.needs[kind], seed, len(named), seeds))
            for kind, named in states.items()
        }
        payload = SeedTask(run.stage.fit_one, run.config, data, inputs, root.fold(split, seed))
        needs = (data, *itertools.chain(*inputs.values()))
        tasks.append(Task(f"{split}-{seed}", payload, needs, run.stage.data_parallel))
    return tasks


def _grouped(tasks: list[Task], fit_many: FitMany) -> list[Task]:
    """Group the tasks of single seeds into tasks of ``GROUP_SIZE`` seeds."""
    grouped = []
    for start in range(0, len(tasks), GROUP_SIZE):
        part = tasks[start : start + GROUP_SIZE]
        payload = GroupTask(tuple(t.name for t in part), tuple(t.payload for t in part), fit_many)
        needs = tuple(dict.fromkeys(need for t in part for need in t.needs))
        grouped.append(Task(f"{part[0].name}_to_{part[-1].name}", payload, needs))
    return grouped


def _where(run: Run, tasks: Sequence[Task], shared: Mapping[str, Any], settings: Settings) -> Where:
    """Return where the tasks run.

    A single task runs here if no cluster is named, since a worker on this machine has the same resources as this
    process. A single task that fits small tables together runs here even if a cluster is named. Several tasks
    may be too short for this machine's workers.
    """
    if run.stage.in_driver:
        return "here"
    if settings.address:
        group = len(tasks) == 1 and isinstance(tasks[0].payload, GroupTask)
        is_small = group and sum(len(shared[seed.data].train) for seed in tasks[0].payload.tasks) <= FEW_ROWS
        return "here" if is_small else "workers"
    if settings.workers > 1 and any(task.data_parallel for task in tasks):
        return "workers"
    return "here" if len(tasks) == 1 else "try"


def _states(above: artifacts.Artifact, kind: Kind, split: int) -> dict[str, State]:
    """Open an input's states for the seeds of one split, in order; the process of the task reads their tensors."""
    names = [f"{split}-{seed}" for seed in range(above.manifest["about"]["seeds"])]
    return {f"{kind}-{name}": above.open(name) for name in names}


def _publish(
    place: Path, run: Run, about: Mapping[str, Any], seed: int, done: Mapping[str, Done], data: Mapping[str, FitData]
) -> None:
    places.sweep(place)
    with artifacts.publish(place, run.kind, about={**about, "run": run.key}) as folder:
        for name, made in done.items():
            artifacts.write_state(folder / name, made.result)
        if run.kind == "student":
            for key, fit_data in data.items():
                split = key.removeprefix("data-")
                artifacts.write_state(folder / f"transform-{split}", fit_data.transform.state())
                for name, recalibrated in _recalibrate(run, seed, int(split), done, fit_data):
                    artifacts.write_state(folder / name, recalibrated)
            schema = prepared.load_schema(places.artifact("prepare", run.spec.dataset))
            write_bytes(folder / "schema.json", json.dumps(schema, sort_keys=True, indent=1).encode())


def _recalibrate(
    run: Run, seed: int, split: int, done: Mapping[str, Done], data: FitData
) -> Iterator[tuple[str, State]]:
    """Yield the recalibration of each fit of a split, learnt from calibration rows, with its name in the artifact."""
    rows = prepared.load_calibration(places.artifact("prepare", run.spec.dataset), split)
    if rows is None:
        return
    for number in range(run.spec.seeds):
        name = f"{split}-{number}"
        fitted = Predictor(posterior_of(done[name].result, data.device), data.transform)
        rng = prediction_address(seed, run.key, split, number)
        batches = fitted.transformed_batches(rows.inputs, rng=rng, device=data.device)
        yield f"{RECALIBRATION}-{name}", recalibration.fit(batches, rows, data.transform).state()


def _summarise(run: Run, done: Mapping[str, Done], shared: Mapping[str, Any]) -> Summary:
    """Return the method's summary of all seeds of all splits, with a warning for fits that had diverged."""
    slow = _slowed(done)
    if run.stage.summarise is None:
        return Summary(warnings=slow)
    data = {key.removeprefix("data-"): rows for key, rows in shared.items() if key.startswith("data-")}
    states = [[made.result for name, made in done.items() if name.startswith(f"{split}-")] for split in data]
    summary = run.stage.summarise(states, list(data.values()), run.config)
    return dataclasses.replace(summary, warnings=[*summary.warnings, *slow])


def _slowed(done: Mapping[str, Done]) -> list[str]:
    """Return a warning with the number of fits that had diverged, and the smallest share of their rates in a retry."""
    shares = {name: made.result.config.get(RATE_SHARE) for name, made in done.items()}
    slow = {name: share for name, share in shares.items() if share is not None}
    if not slow:
        return []
    which = f"{len(slow)} of {len(done)} fits" if len(done) > 1 else "the fit"
    return [
        f"rates: {which} diverged and had to be repeated at {min(slow.values()):.2g} of the learning rates; lower them"
    ]
