"""The common part of all stages that fit: from a run of params.yaml to an artifact.

params → run → data and input states of each split → one task for each (split, seed) → artifact,
then provenance, then summaries. The artifact comes first, so that no later failure loses it.
"""

import dataclasses
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bdl_pipe import artifacts, config, recalibration
from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.files import write_bytes
from bdl_pipe.fitting import RATE_SHARE, Fits, SeedFit, grouped, seeds_of
from bdl_pipe.method import Kind, Summary
from bdl_pipe.posterior import Predictor, prediction_address
from bdl_pipe.progress import Report
from bdl_pipe.registry import RECALIBRATION, posterior_of
from bdl_pipe.seeds import Seed

from ..core import places, provenance, records
from ..core.curves import Curve
from ..core.model import Params, Run
from ..core.settings import Settings
from ..plan.plan import Stage
from ..prepared import folders
from ..work.display import Display
from ..work.executor import Done, Executor, Task, Where
from ..work.store import Store

FEW_ROWS: Final = 20_000  # a single task with at most this many rows over all seeds runs here, not on a cluster


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
    named = dict[str, Done]()  # each seed, with its share of the seconds of a task
    for task, fitted in zip(tasks, done, strict=True):
        seeds = task.payload.seeds
        states = artifacts.unpack(fitted.result) if len(seeds) > 1 else [fitted.result]
        for seed, state in zip(seeds, states, strict=True):
            named[seed.name] = Done(state, fitted.seconds / len(seeds), fitted.peak_bytes)
    data = [rows for rows in shared.values() if isinstance(rows, FitData)]  # one for each split, in order
    _publish(places.artifact(kind, key), run, about, params.seed, named, data)
    summary = _summarise(run, named, data)
    records.write(run, named, settings, summary, above, display.curve())
    for text in summary.warnings:
        print(f"warning: {kind} {key}: {text}", file=sys.stderr)
    return store


def make(payload: Fits, shared: Mapping[str, Any], report: Report) -> State:
    """Do the work of a task; several states are packed into one."""
    seeds = [
        dataclasses.replace(
            seed,
            data=shared[seed.data],
            inputs={kind: [shared[name] for name in names] for kind, names in seed.inputs.items()},
        )
        for seed in payload.seeds
    ]
    states = dataclasses.replace(payload, seeds=tuple(seeds)).states(report)
    return artifacts.pack(states) if len(states) > 1 else states[0]


def facts(run: Run, params: Params) -> dict[str, object]:
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


def identity(about: Mapping[str, object], settings: Settings, inputs: Sequence[Path]) -> str:
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
    """Plan the shared data and the tasks: one for each seed of each split, or for several seeds of small tables."""
    place = places.artifact("prepare", run.spec.dataset)
    shared: dict[str, Any] = {}
    seeds, data = list[SeedFit](), list[FitData]()
    above = {kind: artifacts.load(places.artifact(kind, key), kind) for kind, key in run.sources.items()}
    root = Seed(params.seed).fold(run.kind, run.key)
    splits = range(params.datasets[run.spec.dataset].splits)
    for split, rows in zip(splits, folders.load_fits(place, splits, final=True), strict=True):
        data.append(rows.on(settings.device))
        shared[f"data-{split}"] = data[-1]
        keys = dict[Kind, list[str]]()
        for kind, artifact in above.items():  # the process of a task reads the states' tensors
            names = [f"{split}-{seed}" for seed in range(artifact.manifest["about"]["seeds"])]
            keys[kind] = [f"{kind}-{name}" for name in names]
            shared |= zip(keys[kind], map(artifact.open, names), strict=True)
        seeds += seeds_of(run.stage, f"data-{split}", keys, root, split, run.spec.seeds)
    calls = grouped(run.stage, run.config, seeds, data)
    parallel = run.stage.data_parallel and len(calls) == len(seeds)  # a process shares the batches of single seeds
    return shared, [task_of(call, parallel) for call in calls]


def task_of(fits: Fits, data_parallel: bool = False) -> Task:
    """Return the task of fits whose data and inputs are keys of shared data."""
    names = [seed.name for seed in fits.seeds]
    needs = [key for seed in fits.seeds for key in (seed.data, *itertools.chain(*seed.inputs.values()))]
    name = names[0] if len(names) == 1 else f"{names[0]}_to_{names[-1]}"
    return Task(name, fits, tuple(dict.fromkeys(needs)), data_parallel)


def _where(run: Run, tasks: Sequence[Task], shared: Mapping[str, Any], settings: Settings) -> Where:
    """Return where the tasks run.

    A single task runs here if no cluster is named, since a worker on this machine has the same resources as this
    process. A single task that fits small tables together runs here even if a cluster is named. Several tasks
    may be too short for this machine's workers.
    """
    if run.stage.in_driver:
        return "here"
    if settings.address:
        seeds = tasks[0].payload.seeds if len(tasks) == 1 else ()
        is_small = len(seeds) > 1 and sum(len(shared[seed.data].train) for seed in seeds) <= FEW_ROWS
        return "here" if is_small else "workers"
    if settings.workers > 1 and any(task.data_parallel for task in tasks):
        return "workers"
    return "here" if len(tasks) == 1 else "try"


def _publish(
    place: Path, run: Run, about: Mapping[str, object], seed: int, done: Mapping[str, Done], data: Sequence[FitData]
) -> None:
    """Write the artifact; a student's has recalibrations, learnt from calibration rows, one for each fit."""
    with artifacts.publish(place, run.kind, about={**about, "run": run.key}) as folder:
        for name, made in done.items():
            artifacts.write_state(folder / name, made.result)
        if run.kind == "student":
            prepare = places.artifact("prepare", run.spec.dataset)
            for split, rows in enumerate(data):
                artifacts.write_state(folder / f"transform-{split}", rows.transform.state())
                calibration = folders.load_calibration(prepare, split)
                if calibration is None:
                    continue
                for number in range(run.spec.seeds):
                    name, device = f"{split}-{number}", rows.device
                    fitted = Predictor(posterior_of(done[name].result, device), rows.transform)
                    rng = prediction_address(seed, run.key, split, number)
                    batches = fitted.transformed_batches(calibration.inputs, rng=rng, device=device)
                    learnt = recalibration.fit(batches, calibration, rows.transform)
                    artifacts.write_state(folder / f"{RECALIBRATION}-{name}", learnt.state())
            schema = json.dumps(folders.load_schema(prepare), sort_keys=True, indent=1)
            write_bytes(folder / "schema.json", schema.encode())


def _summarise(run: Run, done: Mapping[str, Done], data: Sequence[FitData]) -> Summary:
    """Return the method's summary of all seeds of all splits, with a warning for fits that had diverged."""
    slow = _slowed(done)
    if run.stage.summarise is None:
        return Summary(warnings=slow)
    seeds, splits = range(run.spec.seeds), range(len(data))
    states = [[done[f"{split}-{seed}"].result for seed in seeds] for split in splits]
    summary = run.stage.summarise(states, data, run.config)
    return dataclasses.replace(summary, warnings=[*summary.warnings, *slow])


def _slowed(done: Mapping[str, Done]) -> list[str]:
    """Return a warning with the number of fits that had diverged, and the smallest share of their rates in a retry."""
    shares = [share for fitted in done.values() if (share := fitted.result.config.get(RATE_SHARE)) is not None]
    which = f"{len(shares)} of {len(done)} fits" if len(done) > 1 else "the fit"
    rule = "diverged and had to be repeated at"
    return [f"rates: {which} {rule} {min(shares):.2g} of the learning rates; lower them"] if shares else []
