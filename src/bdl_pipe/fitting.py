"""Fit runs: each seed from its rows, its input states and its address. All that fits a method in this project calls it.

The estimators fit a plan of runs (:func:`fit_runs`). The pipeline lists the same fits (:func:`seeds_of`,
:func:`grouped`) and sends them to its workers, and a model of the user and a search's trial make single fits. So equal
rows, hyperparameters and addresses give equal bits.

A fit that diverges is repeated with smaller rates (:func:`retried`). The rates of a config are its fields ``lr``,
``label_lr`` and ``step_size``, at any depth, and the factors of schedules of step sizes. A retry that was killed
continues from its checkpoint, which records the attempt's number.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, TypeVar

import numpy as np
from torch import Tensor

from . import config as configs
from .artifacts import State
from .data.examples import Examples
from .data.fitdata import FitData
from .errors import Diverged
from .method import Fit, FitMany, Kind, Method, StageSpec, fan_in
from .metrics.cost import clock
from .networks import RowsConfig
from .progress import Report, Silent
from .seeds import Seed

GROUP_SIZE: Final = 10  # seeds that one call fits together; a change of this number changes results' last bits
ATTEMPTS: Final = 4  # the last attempt has 0.027 of the rates
FACTOR: Final = 0.3
RATE_SHARE: Final = "rate_share"  # key of the factor of the rates, in the config of a result of several attempts
_RATES: Final = frozenset({"lr", "label_lr", "step_size"})
_ATTEMPT: Final = "attempt"
_FACTORS: Final = ("value", "a", "rate")  # fields of schedules of step sizes
_ROWS: Final = 20_000  # more training rows are thinned evenly to this number, before bins get their edges
C = TypeVar("C")  # a frozen dataclass of hyperparameters
FittedRuns = dict[str, tuple[list[State], float]]  # :func:`address` of runs -> the last one's states and seconds


@dataclass(frozen=True)
class Run:
    """A fit of one or more seeds.

    Attributes:
        config: the typed hyperparameters.
        sources: stage kind -> key of the upstream run of this kind, an input besides the data.
    """

    kind: Kind
    key: str
    method: Method
    config: object
    seeds: int
    sources: Mapping[Kind, str]

    @property
    def stage(self) -> StageSpec:
        """Return the method's part in this stage kind."""
        return self.method.stages[self.kind]


@dataclass(frozen=True)
class SeedFit:
    """The arguments of one seed's fit.

    Attributes:
        data: the rows, or their key.
        inputs: stage kind -> the input states, or their keys.
        rng: the seed's address.
        name: the seed's name in an artifact, ``<split>-<seed>``.
    """

    data: Any
    inputs: Mapping[str, Sequence[Any]]
    rng: Seed
    name: str = "0-0"


@dataclass(frozen=True)
class Fits:
    """Seeds that one call fits: a single one, or several together.

    Attributes:
        fit: ``fit_one`` of the stage for a single seed, ``fit_many`` for several.
        config: the method's hyperparameters.
    """

    fit: Fit | FitMany
    config: object
    seeds: tuple[SeedFit, ...]

    def states(self, report: Report) -> list[State]:
        """Fit the seeds, at smaller rates if they diverge, as :func:`retried`."""
        return retried(self.once, self.config, report)

    def once(self, config: object, report: Report) -> list[State]:
        """Fit the seeds with ``config``.

        Raises:
            Diverged: the fit diverged.
        """
        fit: Any = self.fit
        config = placed(config, self.seeds[0].data)
        data, inputs, rngs = ([getattr(seed, name) for seed in self.seeds] for name in ("data", "inputs", "rng"))
        if len(self.seeds) > 1:
            several: list[State] = fit(data, inputs, config, rngs=rngs, report=report)
            return several
        return [fit(data[0], inputs[0], config, rng=rngs[0], report=report)]


def seeds_of(
    stage: StageSpec, data: Any, inputs: Mapping[Kind, Sequence[Any]], root: Seed, split: int = 0, seeds: int = 1
) -> list[SeedFit]:
    """List the fits of a run's seeds on the rows of a split.

    Args:
        data: the rows, or their key.
        inputs: stage kind -> all states of the source run for these rows, or their keys.
        root: the run's address.
    """
    fits = []
    for seed in range(seeds):
        taken = dict[str, list[Any]]()
        for kind, states in inputs.items():
            taken[kind] = [states[i] for i in fan_in(stage.needs[kind], seed, len(states), seeds)]
        fits.append(SeedFit(data, taken, root.fold(split, seed), f"{split}-{seed}"))
    return fits


def grouped(stage: StageSpec, config: object, seeds: Sequence[SeedFit], data: Iterable[FitData]) -> list[Fits]:
    """Divide seeds into calls: a method that can fit several at once does so on tables, ``GROUP_SIZE`` at a time.

    Args:
        data: the rows of all seeds. Seeds whose inputs are posteriors may have different shapes, and are fitted one by
            one.
    """
    alike = all("student" not in seed.inputs for seed in seeds) and all(len(rows.input_shape) == 1 for rows in data)
    size = GROUP_SIZE if stage.fit_many is not None and alike else 1
    by_split = groupby(seeds, lambda seed: seed.name.partition("-")[0])
    apart = [list(some) for _, some in by_split] if needs_rows(config) else [seeds]  # each split has its own edges
    parts = [tuple(some[start : start + size]) for some in apart for start in range(0, len(some), size)]
    return [Fits(stage.fit_many if len(part) > 1 else stage.fit_one, config, part) for part in parts]  # type: ignore[arg-type]


def needs_rows(config: object) -> bool:
    """Return True if a network of a method's config has values that a fit computes from its training rows."""
    if isinstance(config, RowsConfig):
        return config.needs_rows
    return dataclasses.is_dataclass(config) and any(
        needs_rows(getattr(config, f.name)) for f in dataclasses.fields(config)
    )


def placed(config: C, data: FitData) -> C:
    """Return the config with these values computed, from at most 20,000 training rows without validation rows."""
    if not needs_rows(config):
        return config
    source = data.search or data
    chosen = np.unique(np.linspace(0, len(source.train) - 1, _ROWS).round().astype(int))
    some = Examples(source.train.inputs[chosen], source.train.targets[chosen])
    return _with_rows(config, replace(source, train=some).tensors("train")[0])


def _with_rows(config: Any, rows: Tensor) -> Any:
    if isinstance(config, RowsConfig):
        return config.with_rows(rows)
    within = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return replace(config, **{name: _with_rows(of, rows) for name, of in within.items() if needs_rows(of)})


def fit_runs(
    runs: Sequence[Run], data: FitData, seed: int, split: int = 0, fitted: FittedRuns | None = None
) -> tuple[State, float]:
    """Fit the runs one after another; return the last one's first state and the seconds of all of its runs.

    Args:
        seed: the root seed.
        split: the number of the split of ``data``.
        fitted: runs that were already fitted on these data and are not fitted again; this call adds its own runs.

    Raises:
        Diverged: a fit diverged even at its smallest rates.
    """
    fitted = {} if fitted is None else fitted
    states, seconds, now = dict[str, list[State]](), 0.0, clock(data.device)
    for number, run in enumerate(runs, 1):
        place = address(runs[:number], seed, split)
        if place not in fitted:
            start = now()
            inputs = {kind: states[key] for kind, key in run.sources.items()}
            seeds = seeds_of(run.stage, data, inputs, Seed(seed).fold(run.kind, run.key), split, run.seeds)
            calls = grouped(run.stage, run.config, seeds, [data])
            fitted[place] = [_stored(state) for fits in calls for state in fits.states(Silent())], now() - start
        states[run.key], took = fitted[place]
        seconds += took
    return states[runs[-1].key][0], seconds


def address(runs: Sequence[Run], seed: int, split: int = 0) -> str:
    """Return the key in ``fitted`` of the last run of a plan: the settings that determine its states on the same data.

    They include those of the runs before it, from which it is made.
    """
    about = [[run.kind, run.key, configs.to_mapping(run.config), run.seeds] for run in runs]
    return json.dumps([about, seed, split], sort_keys=True, default=str)


def _stored(state: State) -> State:
    """Return a state as if it had been stored and read."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.tensors.items()}
    return State(tensors, json.loads(json.dumps(state.config)))


def retried(fit: Callable[[C, Report], list[State]], config: C, report: Report) -> list[State]:
    """Fit; if the fit diverges, repeat it with the rates times ``FACTOR``, up to ``ATTEMPTS`` attempts.

    The states equal the states of a fit with the smaller rates; their config then has the key ``RATE_SHARE``.

    Args:
        fit: (config, report) -> the states.
        config: a frozen dataclass.
        report: stores the checkpoints of all attempts.

    Raises:
        Diverged: the fit diverged at the smallest rates as well, or its config has no rates.
    """
    last = report.load()
    first = int(last.config.get(_ATTEMPT, 0)) if last is not None else 0
    for number in range(first, ATTEMPTS):
        share = FACTOR**number
        try:
            states = fit(slower(config, share), _Attempt(report, number))
        except Diverged:
            if number + 1 == ATTEMPTS or slower(config, FACTOR) == config:
                raise
        else:
            return [State(s.tensors, {**s.config, RATE_SHARE: share}) for s in states] if number else states
    raise AssertionError(first)


def slower(config: C, share: float) -> C:
    """Return the config with all of its rates times ``share``; a config without rates is returned unchanged."""
    if share == 1 or not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    changes = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in _RATES and isinstance(value, float | int):
            changes[field.name] = value * share
        elif field.name in _RATES and value is not None:
            (name,) = (name for name in _FACTORS if hasattr(value, name))
            changes[field.name] = replace(value, **{name: getattr(value, name) * share})
        elif (smaller := slower(value, share)) != value:
            changes[field.name] = smaller
    return replace(config, **changes) if changes else config


class _Attempt(Report):
    """A report for one attempt, which ignores the checkpoints of other attempts."""

    def __init__(self, report: Report, number: int) -> None:
        self._report, self._number = report, number

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._report(step, total, metrics)

    def due(self) -> bool:
        return self._report.due()

    def save(self, state: State) -> None:
        about = {**state.config, _ATTEMPT: self._number} if self._number else state.config
        self._report.save(State(state.tensors, about))

    def load(self) -> State | None:
        last = self._report.load()
        if last is None or last.config.get(_ATTEMPT, 0) != self._number:
            return None
        return State(last.tensors, {k: v for k, v in last.config.items() if k != _ATTEMPT})
