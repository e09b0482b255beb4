"""One trial of a search: the method's chain on training rows, scored on validation rows.

The chain is the runs from the first that the method makes to the one that predicts. The score is
the mean −log p(y | x) of the validation rows, in the targets' own units. Where the first run's
method can read a checkpoint as a result (``from_checkpoint``), the score of what it would be if it stopped
there is reported at each quarter of its steps, so that a scheduler may give up; the last quarter is the finished chain.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.method import fan_in
from bdl_pipe.posterior import Predictor, prediction_address
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed

from ..core.model import Run
from ..work.hub import NullChannel
from ..work.worker import TaskReport, keep_freed_memory

MILESTONES: Final = 4
METRIC: Final = "nll"
TIME: Final = "milestone"
SECONDS: Final = "seconds"  # over all attempts, up to their last checkpoint
DIVERGED: Final = 1e9  # the score of a trial whose loss is no longer a number; finite, for the scheduler's quantiles
_CHECKPOINT: Final = "state"  # the file of a checkpoint
Upstream = Mapping[tuple[str, str], list[State]]  # (stage kind, run) -> its states


@dataclass(frozen=True)
class Chain:
    """A chain of runs, which every trial makes.

    Attributes:
        runs: from the first of the searched method to the one that predicts; each makes one seed of split 0.
        method: whose numbers are searched.
        threads: of the trial's process.
        verb: ``tune`` or ``study``; with ``repeat`` a part of the seeds' addresses.
    """

    runs: tuple[Run, ...]
    method: str
    seed: int
    threads: int = 1
    verb: str = "tune"
    repeat: int = 0

    def configs(self, sampled: Mapping[str, Any]) -> list[Any]:
        """Read each run's config, with the sampled numbers in those of the searched method."""
        return [self._config(run, nested(sampled) if run.method.name == self.method else {}) for run in self.runs]

    def make(self, data: FitData, upstream: Upstream, configs: Sequence[Any], report: Report) -> State:
        """Make the first run from the training rows and from what it is made from in ``upstream``."""
        first = self.runs[0]
        return first.stage.fit_one(data, inputs_of(first, upstream), configs[0], rng=self.address(first), report=report)

    def finish(self, first: State, data: FitData, configs: Sequence[Any], upstream: Upstream) -> State:
        """Go on from what the first run made to the fitted posterior."""
        made, states = first, {**upstream, (self.runs[0].kind, self.runs[0].key): [first]}
        for run, numbers in zip(self.runs[1:], configs[1:], strict=True):
            made = run.stage.fit_one(data, inputs_of(run, states), numbers, rng=self.address(run), report=Silent())
            states[run.kind, run.key] = [made]
        return made

    def address(self, run: Run) -> Seed:
        """Return a seed's address, the same in every trial: trials differ by their numbers alone."""
        return Seed(self.seed).fold(self.verb, run.kind, run.key, 0, self.repeat)

    @property
    def predictions(self) -> Seed:
        """Return the address of the run's predictions."""
        return prediction_address(self.seed, self.runs[-1].key, 0, self.repeat)

    def _config(self, run: Run, overlay: Mapping[str, Any]) -> Any:
        merged = config.merge(config.to_mapping(run.config), overlay)
        return config.read(run.method.config, merged, f"methods.{run.method.name}")


def inputs_of(run: Run, made: Upstream) -> dict[str, list[State]]:
    """Collect what the first seed of a run takes of what was made."""
    inputs = dict[str, list[State]]()
    for kind, key in run.sources.items():
        states = made[kind, key]
        inputs[kind] = [states[number] for number in fan_in(run.stage.needs[kind], 0, len(states))]
    return inputs


class TuneChannel(NullChannel):
    """A channel to Ray Tune, whose checkpoints are folders of its storage. ``scores`` go with the next one."""

    scores: Mapping[str, float] = MappingProxyType({})

    def save(self, task: str, blob: bytes) -> None:
        from ray import tune

        with tempfile.TemporaryDirectory(prefix="bdl-trial-") as folder:
            (Path(folder) / _CHECKPOINT).write_bytes(blob)
            # does not return where the scheduler gives up, or lets another trial go on in this one's place
            tune.report(dict(self.scores), checkpoint=tune.Checkpoint.from_directory(folder))

    def load(self, task: str) -> bytes | None:
        from ray import tune

        checkpoint = tune.get_checkpoint()
        if checkpoint is None:
            return None
        with checkpoint.as_directory() as folder:
            return (Path(folder) / _CHECKPOINT).read_bytes()


class Milestones(TaskReport):
    """A report to Ray Tune at each quarter of a run's steps, with a checkpoint."""

    def __init__(self, score: Callable[[State], Mapping[str, float]] | None) -> None:
        """Take the function ``score``, checkpoint -> what is reported of it; with None no checkpoint is kept."""
        from ray import tune

        self._tune = TuneChannel()
        super().__init__(str(tune.get_context().get_trial_id()), self._tune, every=0.0, keeps=score is not None)
        self._score = score
        self._at = self._reached = 0

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._at = step * MILESTONES // total

    def due(self) -> bool:
        return super().due() and self._reached < self._at < MILESTONES

    def save(self, state: State) -> None:
        assert self._score is not None
        self._reached = self._at
        self._tune.scores = {**self._score(state), TIME: self._reached}
        super().save(State(state.tensors, {"state": state.config, TIME: self._reached}))

    def load(self) -> State | None:
        stored = super().load()
        if stored is None:
            return None
        self._reached = stored.config[TIME]
        return State(stored.tensors, stored.config["state"])


def trial(sampled: Mapping[str, float], chain: Chain, data: FitData, upstream: Upstream) -> None:
    """Fit and score one sample, as Ray Tune's trainable."""
    from ray import tune

    torch.set_num_threads(chain.threads)
    keep_freed_memory()
    try:
        configs = chain.configs({key: rounded(value) for key, value in sampled.items()})
    except ConfigError as error:  # numbers of the space that cannot go together are a bad sample, not a failed search
        print(error)
        tune.report({METRIC: DIVERGED, TIME: MILESTONES})
        return
    first = chain.runs[0]

    def score(checkpoint: State) -> dict[str, float]:
        assert first.stage.from_checkpoint is not None
        inputs = inputs_of(first, upstream)
        made = first.stage.from_checkpoint(checkpoint, data, inputs, configs[0], rng=chain.address(first))
        return {METRIC: validation_nll(chain.finish(made, data, configs, upstream), data, chain.predictions)}

    try:
        made = chain.make(data, upstream, configs, Milestones(score if first.stage.from_checkpoint else None))
        nll = validation_nll(chain.finish(made, data, configs, upstream), data, chain.predictions)
    except Diverged:
        nll = DIVERGED
    tune.report({METRIC: nll, TIME: MILESTONES})


def validation_nll(state: State, data: FitData, rng: Seed) -> float:
    """Compute the mean of −log p(y | x) over the validation rows, in nats, in the targets' own units.

    Raises:
        Diverged: a prediction is not finite.
    """
    fitted = Predictor(posterior_of(state, data.device), data.transform, data.classes)
    total, validation = 0.0, data.validation
    for rows, predictive in fitted.batches(validation.inputs, rng=rng, device=data.device):
        targets = torch.tensor(validation.targets[rows], device=data.device)
        total -= float(predictive.log_prob(targets).double().sum())
    nll = total / len(validation)
    return min(nll, DIVERGED) if nll == nll else DIVERGED


def rounded(value: float) -> float:
    """Round to four significant digits: what is tried is what is written; integers are kept."""
    return value if isinstance(value, int) else float(f"{value:.4g}")


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted keys: ``{"a.b": 1}`` → ``{"a": {"b": 1}}``."""
    tree: dict[str, Any] = {}
    for key, value in dotted.items():
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return tree
