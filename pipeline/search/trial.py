"""One trial: the runs from the searched method to the posterior, fitted to training rows, scored on validation rows.

A search scores a trial by metrics of the validation rows: by default the mean −log p(y | x), in the targets' own
units. If the first run's method can read a checkpoint as a result (``from_checkpoint``), a search also scores the
checkpoint at each quarter of that run's steps, so that a scheduler can stop a weak trial. The last quarter is the
finished posterior. A study scores only the finished posterior, and stores a checkpoint at each quarter.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from bdl_pipe import config, search
from bdl_pipe.artifacts import State, from_bytes, to_bytes
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError, Diverged, require
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.fitting import Fits, SeedFit, seeds_of
from bdl_pipe.method import Method
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.posterior import prediction_address
from bdl_pipe.progress import Report, Silent
from bdl_pipe.search import DIVERGED, Sampled, rounded
from bdl_pipe.seeds import Seed
from bdl_report.grids import SEED, Result

from ..core.model import Run
from ..work.process import keep_freed_memory, repeat_bits

MILESTONES: Final = 4
METRIC: Final = "nll"
TIME: Final = "milestone"
_CHECKPOINT: Final = "state"
Upstream = Mapping[tuple[str, str], list[State]]  # (stage kind, run) -> the states of its seeds


@dataclass(frozen=True)
class Ended(Result):
    """A finished or stopped trial, with its last scores.

    Attributes:
        milestone: the trial's last milestone.
        seconds: the trial's time, including earlier attempts up to their last checkpoint.
    """

    milestone: int = MILESTONES
    seconds: float = 0.0


@dataclass(frozen=True)
class Branch:
    """A run that predicts, with its upstream runs, divided into runs that every trial fits and runs fitted once.

    Attributes:
        runs: the runs that every trial fits, with one seed of split 0: from the first run of the searched method to
            the run that predicts.
        upstream: the runs before these, in order, which are fitted once.
        code: the hash of the code of all these runs.
        threads: the threads of a trial's process.
        evaluate: how a trial is scored; None means by the NLL alone.
        metrics: the scores that a trial reports; a search minimises or maximises the first.
        verb: the command, ``tune`` or ``study``; random streams depend on it.
        repeat: the number of the trial's seed.
    """

    runs: tuple[Run, ...]
    seed: int
    upstream: tuple[Run, ...] = ()
    code: str = ""
    threads: int = 1
    evaluate: EvaluateConfig | None = None
    metrics: tuple[str, ...] = (METRIC,)
    verb: str = "tune"
    repeat: int = 0

    @property
    def method(self) -> Method:
        """Return the method whose hyperparameters are searched."""
        return self.runs[0].method

    @property
    def dataset(self) -> str:
        """Return the key of the data set of all runs."""
        return self.runs[0].spec.dataset

    @property
    def name(self) -> str:
        """Return ``<method>-<data set>``."""
        return f"{self.method.name}-{self.dataset}"

    def facts(self) -> list[Any]:
        """List everything that a trial's score depends on, except the searched hyperparameters and the data."""
        runs = [[r.kind, r.key, config.to_mapping(r.config)] for r in (*self.upstream, *self.runs)]
        led = [self.metrics] if self.verb == "tune" and self.metrics != (METRIC,) else []
        return [runs, self.seed, self.code, self.evaluate and config.to_mapping(self.evaluate), *led]

    def configs(self, sampled: Sampled) -> list[Any]:
        """Read each run's config, with the sampled hyperparameters in the configs of the searched method."""
        configs = list[Any]()
        for run in self.runs:
            values = sampled if run.method.name == self.method.name else {}
            configs.append(search.sampled_config(run.method, run.config, values))
        return configs

    def make(self, data: FitData, upstream: Upstream, configs: Sequence[Any], report: Report) -> State:
        """Fit the first run to the training rows and to its inputs in ``upstream``."""
        return self._fit(self.runs[0], data, upstream, configs[0], report)

    def finish(self, first: State, data: FitData, configs: Sequence[Any], upstream: Upstream) -> State:
        """Fit the other runs, and return the last one's posterior."""
        state, states = first, {**upstream, (self.runs[0].kind, self.runs[0].key): [first]}
        for run, run_config in zip(self.runs[1:], configs[1:], strict=True):
            state = self._fit(run, data, states, run_config, Silent())
            states[run.kind, run.key] = [state]
        return state

    def seed_of(self, run: Run, data: FitData, states: Upstream) -> SeedFit:
        """Return the arguments of a run's fit."""
        inputs = {kind: states[kind, key] for kind, key in run.sources.items()}
        (seed,) = seeds_of(run.stage, data, inputs, Seed(0))
        return replace(seed, rng=self.rng(run))

    def rng(self, run: Run) -> Seed:
        """Return a run's seed, which is the same in every trial, so that only hyperparameters differ."""
        return Seed(self.seed).fold(self.verb, run.kind, run.key, 0, self.repeat)

    def _fit(self, run: Run, data: FitData, states: Upstream, run_config: Any, report: Report) -> State:
        """Fit a run once: a fit that diverges is a bad trial, and is not repeated at smaller rates."""
        (state,) = Fits(run.stage.fit_one, run_config, (self.seed_of(run, data, states),)).once(run_config, report)
        return state

    @property
    def predictions(self) -> Seed:
        """Return the seed of the predictions."""
        return prediction_address(self.seed, self.runs[-1].key, 0, self.repeat)


class Milestones(Report):
    """A report to Ray Tune at each quarter of a run's steps, with a checkpoint from which the trial can resume."""

    def __init__(self, score: Callable[[State], Mapping[str, float]]) -> None:
        """Create the report; ``score`` scores a checkpoint."""
        self._score, self._at, self._reached = score, 0, 0

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._at = step * MILESTONES // total

    def due(self) -> bool:
        return self._reached < self._at < MILESTONES

    def save(self, state: State) -> None:
        from ray import tune

        self._reached = self._at
        scores = {**self._score(state), TIME: self._reached}
        kept = State(state.tensors, {"state": state.config, TIME: self._reached})
        with tempfile.TemporaryDirectory(prefix="bdl-trial-") as folder:
            (Path(folder) / _CHECKPOINT).write_bytes(to_bytes(kept))
            # This call does not return if the scheduler stops or replaces the trial.
            tune.report(scores, checkpoint=tune.Checkpoint.from_directory(folder))

    def load(self) -> State | None:
        from ray import tune

        checkpoint = tune.get_checkpoint()
        if checkpoint is None:
            return None
        with checkpoint.as_directory() as folder:
            kept = from_bytes((Path(folder) / _CHECKPOINT).read_bytes(), _CHECKPOINT)
        self._reached = kept.config[TIME]
        return State(kept.tensors, kept.config["state"])


def trial(sampled: Sampled, branch: Branch, data: FitData, upstream: Upstream) -> None:
    """Fit and score one sample, as Ray Tune's trainable.

    A search scores the sample by its metrics, and also scores checkpoints if the method supports it. A study scores it
    by several metrics; a diverged fit has no scores.
    """
    from ray import tune

    torch.set_num_threads(branch.threads)
    repeat_bits(data.device)
    keep_freed_memory()
    branch, is_search, asked = replace(branch, repeat=sampled.get(SEED, 0)), branch.verb == "tune", branch.metrics
    values = {key: rounded(value) if is_search else value for key, value in sampled.items() if key != SEED}
    first = branch.runs[0]
    read = first.stage.from_checkpoint

    def score(made: State) -> dict[str, float]:
        fitted = branch.finish(made, data, configs, upstream)
        if branch.evaluate is None:
            return {METRIC: search.validation_nll(fitted, data, branch.predictions)}
        scores = search.validation_scores(fitted, data, branch.predictions, branch.evaluate)
        for name in asked if is_search else ():
            require(name in scores, "--metric", "must be a score of this posterior", name)
        return {name: scores[name] for name in asked} if is_search else scores

    def score_checkpoint(checkpoint: State) -> dict[str, float]:
        if read is None or not is_search:
            return {}
        seed = branch.seed_of(first, data, upstream)
        return score(read(checkpoint, data, seed.inputs, configs[0], rng=seed.rng))

    report = Silent() if read is None and is_search else Milestones(score_checkpoint)
    try:
        configs = branch.configs(values)
        scores = score(branch.make(data, upstream, configs, report))
    except (ConfigError, Diverged) as error:  # the space has no rules between keys, so a ConfigError is a bad sample
        print(error)
        scores = {asked[0]: -metric_of(asked[0]).better * DIVERGED} if is_search else {}
    tune.report({**scores, TIME: MILESTONES})
