"""One trial: the runs from the searched method to the posterior, fitted on training rows, scored on validation rows.

A search scores a trial by the mean −log p(y | x) of the validation rows, in the targets' own units. If the first run's
method can read a checkpoint as a result (``from_checkpoint``), a search also scores the checkpoint at each quarter of
that run's steps, so that a scheduler can stop a weak trial. The last quarter is the finished posterior. A study scores
the finished posterior alone, by the metrics of ``evaluate``, and keeps a checkpoint at each quarter.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from bdl_pipe import config, evaluation, search
from bdl_pipe.artifacts import State, from_bytes, to_bytes
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.grids import SEED, Result
from bdl_pipe.memory import keep_freed_memory
from bdl_pipe.method import Method, fan_in
from bdl_pipe.posterior import Predictor, prediction_address
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.repeatable import repeat_bits
from bdl_pipe.search import DIVERGED, Sampled, rounded
from bdl_pipe.seeds import Seed

from ..core.model import Run

MILESTONES: Final = 4
METRIC: Final = "nll"
TIME: Final = "milestone"
_CHECKPOINT: Final = "state"
Upstream = Mapping[tuple[str, str], list[State]]  # (stage kind, run) -> the states of its seeds


@dataclass(frozen=True)
class Ended(Result):
    """A trial that has ended, with its last scores.

    Attributes:
        milestone: its last milestone.
        seconds: its time, in earlier attempts up to their last checkpoint, too.
    """

    milestone: int = MILESTONES
    seconds: float = 0.0


@dataclass(frozen=True)
class Branch:
    """A run that predicts and everything it is made from: what a search fits once, and what every trial fits.

    Attributes:
        runs: what every trial fits, one seed of split 0: from the first run of the searched method to the run that
            predicts.
        upstream: the runs before these, in order; they are fitted once.
        code: the hash of the code of all these runs.
        threads: the threads of a trial's process.
        evaluate: how a study scores a trial; None: the trial is of a search.
        repeat: the number of the trial's seed.
    """

    runs: tuple[Run, ...]
    seed: int
    upstream: tuple[Run, ...] = ()
    code: str = ""
    threads: int = 1
    evaluate: EvaluateConfig | None = None
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

    @property
    def verb(self) -> str:
        """Return the command, ``tune`` or ``study``; random streams depend on it."""
        return "tune" if self.evaluate is None else "study"

    def facts(self) -> list[Any]:
        """List everything that a trial's score depends on, except the searched hyperparameters and the data."""
        runs = [[r.kind, r.key, config.to_mapping(r.config)] for r in (*self.upstream, *self.runs)]
        return [runs, self.seed, self.code, self.evaluate and config.to_mapping(self.evaluate)]

    def configs(self, sampled: Sampled) -> list[Any]:
        """Read each run's config; the sampled hyperparameters go into the configs of the searched method."""
        configs = list[Any]()
        for run in self.runs:
            values = sampled if run.method.name == self.method.name else {}
            configs.append(search.sampled_config(run.method, run.config, values))
        return configs

    def make(self, data: FitData, upstream: Upstream, configs: Sequence[Any], report: Report) -> State:
        """Fit the first run to the training rows and to its inputs in ``upstream``."""
        first = self.runs[0]
        return first.stage.fit_one(data, inputs_of(first, upstream), configs[0], rng=self.rng(first), report=report)

    def finish(self, first: State, data: FitData, configs: Sequence[Any], upstream: Upstream) -> State:
        """Fit the other runs, and return the last one's posterior."""
        made, states = first, {**upstream, (self.runs[0].kind, self.runs[0].key): [first]}
        for run, run_config in zip(self.runs[1:], configs[1:], strict=True):
            made = run.stage.fit_one(data, inputs_of(run, states), run_config, rng=self.rng(run), report=Silent())
            states[run.kind, run.key] = [made]
        return made

    def rng(self, run: Run) -> Seed:
        """Return a run's random stream, which is the same in every trial: only hyperparameters differ."""
        return Seed(self.seed).fold(self.verb, run.kind, run.key, 0, self.repeat)

    @property
    def predictions(self) -> Seed:
        """Return the random stream of the predictions."""
        return prediction_address(self.seed, self.runs[-1].key, 0, self.repeat)


def inputs_of(run: Run, made: Upstream) -> dict[str, list[State]]:
    """Select the inputs of a run's first seed."""
    inputs = dict[str, list[State]]()
    for kind, key in run.sources.items():
        states = made[kind, key]
        inputs[kind] = [states[number] for number in fan_in(run.stage.needs[kind], 0, len(states))]
    return inputs


class Milestones(Report):
    """A report to Ray Tune at each quarter of a run's steps, with a checkpoint, from which the trial is resumed."""

    def __init__(self, score: Callable[[State], Mapping[str, float]]) -> None:
        """Take the function that scores a checkpoint."""
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
            # This call does not return if the scheduler stops the trial or replaces it by another.
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
    """Fit and score one sample; this is Ray Tune's trainable.

    A search scores the sample by its NLL, and scores checkpoints if the method can. A study scores it by the metrics
    of ``branch.evaluate``; a fit that diverged has none.
    """
    from ray import tune

    torch.set_num_threads(branch.threads)
    repeat_bits(data.device)
    keep_freed_memory()
    branch, evaluate = replace(branch, repeat=sampled.get(SEED, 0)), branch.evaluate
    values = {key: rounded(value) if evaluate is None else value for key, value in sampled.items() if key != SEED}
    first = branch.runs[0]
    read = first.stage.from_checkpoint

    def score(made: State) -> dict[str, float]:
        fitted = branch.finish(made, data, configs, upstream)
        if evaluate is None:
            return {METRIC: search.validation_nll(fitted, data, branch.predictions)}
        predictor = Predictor(posterior_of(fitted, data.device), data.transform, data.classes)
        without_joints = replace(evaluate, joint_pairs=0, joint_groups=0)
        scored = evaluation.score_clean(predictor, data.validation, without_joints, branch.predictions, data.device)
        return {name: value for name, (value, _) in scored.metrics.items()}

    def score_checkpoint(checkpoint: State) -> dict[str, float]:
        if read is None or evaluate is not None:
            return {}
        return score(read(checkpoint, data, inputs_of(first, upstream), configs[0], rng=branch.rng(first)))

    report = Silent() if read is None and evaluate is None else Milestones(score_checkpoint)
    try:
        configs = branch.configs(values)
        scores = score(branch.make(data, upstream, configs, report))
    except (ConfigError, Diverged) as error:  # A space has no rules between its keys: a ConfigError is a bad sample.
        print(error)
        scores = {METRIC: DIVERGED} if evaluate is None else {}
    tune.report({**scores, TIME: MILESTONES})
