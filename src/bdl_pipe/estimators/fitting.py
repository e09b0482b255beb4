"""Fit the runs of a plan in this process, bit for bit as in the pipeline."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import config
from ..artifacts import State
from ..data.fitdata import FitData
from ..method import Inputs, fan_in
from ..progress import Report, Silent
from ..seeds import Seed
from ..training.retry import retried
from .plan import Run

Made = dict[str, tuple[list[State], float]]  # :func:`address` of a run -> its seeds' states, and its seconds


def fit(runs: Sequence[Run], data: FitData, seed: int, split: int = 0, made: Made | None = None) -> tuple[State, float]:
    """Fit the runs one after another; return the posterior's state and the seconds of all of its runs.

    Args:
        seed: the root seed.
        split: the number of the split of ``data``.
        made: runs that were already fitted on these data and are not fitted again; this call adds its own runs.

    Raises:
        Diverged: a fit diverged even at its smallest rates.
    """
    made = {} if made is None else made
    of_run, seconds = dict[str, list[State]](), 0.0
    alone = data.device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter  # the pipeline's records use the same clocks
    for run in runs:
        about = address(run, seed, split)
        if about not in made:
            start = clock()
            states = _fit_run(run, data, of_run, Seed(seed).fold(run.kind, run.key), split)
            made[about] = states, clock() - start
        of_run[run.key], took = made[about]
        seconds += took
    return of_run[runs[-1].key][0], seconds


def address(run: Run, seed: int, split: int = 0) -> str:
    """Return a run's key in ``made``: the settings that determine its states on the same data."""
    about = [run.kind, run.key, config.to_mapping(run.config), run.seeds, seed, split]
    return json.dumps(about, sort_keys=True, default=str)


def _fit_run(run: Run, data: FitData, above: Mapping[str, list[State]], root: Seed, split: int) -> list[State]:
    stage, rngs = run.stage, [root.fold(split, seed) for seed in range(run.seeds)]
    inputs = [_inputs(run, above, seed) for seed in range(run.seeds)]
    if stage.fit_many is not None and run.seeds > 1 and len(data.input_shape) == 1 and "student" not in run.sources:
        many = stage.fit_many  # The pipeline fits a table's seeds together, too.

        def fit_group(typed: Any, report: Report) -> list[State]:
            return many([data] * run.seeds, inputs, typed, rngs=rngs, report=report)

        return list(map(_stored, retried(fit_group, run.config, Silent())))
    states = list[State]()
    for rng, states_above in zip(rngs, inputs, strict=True):

        def fit_one(typed: Any, report: Report, rng: Seed = rng, above: Any = states_above) -> list[State]:
            return [stage.fit_one(data, above, typed, rng=rng, report=report)]

        states += map(_stored, retried(fit_one, run.config, Silent()))
    return states


def _inputs(run: Run, above: Mapping[str, list[State]], seed: int) -> Inputs:
    taken = {kind: (above[key], run.stage.needs[kind]) for kind, key in run.sources.items()}
    return {
        kind: [states[i] for i in fan_in(rule, seed, len(states), run.seeds)] for kind, (states, rule) in taken.items()
    }


def _stored(state: State) -> State:
    """Return a state as if it had been stored and read."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.tensors.items()}
    return State(tensors, json.loads(json.dumps(state.config)))
