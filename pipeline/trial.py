"""One trial of a search: the method's chain on training rows, scored on validation rows.

The chain is the rows from the first that the method makes to the run that predicts. The score is
the mean −log p(y | x) of the validation rows, in the targets' own units. Where the first row's
method can ``peek`` into a checkpoint, the score of what it would be if it stopped there is reported
at each quarter of its steps, so that a scheduler may give up; the last quarter is the finished chain.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State, from_bytes, to_bytes
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.method import taken
from bdl_pipe.methods import posterior_of
from bdl_pipe.posterior import Fitted
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed

from .core.params import Row

MILESTONES: Final = 4
METRIC: Final = "nll"
TIME: Final = "milestone"
DIVERGED: Final = 1e9  # the score of a trial whose loss is no longer a number; finite, for the scheduler's quantiles
_BATCH: Final = 1000
Upstream = Mapping[tuple[str, str], list[State]]  # (stage kind, row) -> its members
_FILE: Final = "checkpoint.safetensors"


@dataclass(frozen=True)
class Chain:
    """What a trial makes.

    Attributes:
        rows: from the first row of the searched method to the run; each makes one member of split 0.
        method: whose numbers are searched.
        threads: of the trial's process.
        verb: ``tune`` or ``study``; with ``member`` a part of the seeds' addresses.
    """

    rows: tuple[Row, ...]
    method: str
    seed: int
    threads: int = 1
    verb: str = "tune"
    member: int = 0

    def configs(self, sampled: Mapping[str, Any]) -> list[Any]:
        """Each row's config, with the sampled numbers in those of the searched method."""
        return [self._config(row, nested(sampled) if row.method.name == self.method else {}) for row in self.rows]

    def make(self, data: FitData, upstream: Upstream, configs: Sequence[Any], report: Report) -> State:
        """What the first row makes of the training rows and of what it is made from in ``upstream``."""
        first = self.rows[0]
        return first.room.make(data, inputs_of(first, upstream), configs[0], rng=self.address(first), report=report)

    def finish(self, first: State, data: FitData, configs: Sequence[Any], upstream: Upstream) -> State:
        """From what the first row made to the fitted posterior."""
        made, states = first, {**upstream, (self.rows[0].kind, self.rows[0].key): [first]}
        for row, numbers in zip(self.rows[1:], configs[1:], strict=True):
            made = row.room.make(data, inputs_of(row, states), numbers, rng=self.address(row), report=Silent())
            states[row.kind, row.key] = [made]
        return made

    def address(self, row: Row) -> Seed:
        """The same in every trial of a member: they differ by their numbers alone."""
        return Seed(self.seed).fold(self.verb, row.kind, row.key, 0, self.member)

    def _config(self, row: Row, overlay: Mapping[str, Any]) -> Any:
        merged = config.merge(config.to_mapping(row.config), overlay)
        return config.read(row.method.config, merged, f"methods.{row.method.name}")


def inputs_of(row: Row, made: Upstream) -> dict[str, list[State]]:
    """What the first member of a row takes of what was made."""
    inputs = dict[str, list[State]]()
    for kind, key in row.sources.items():
        states = made[kind, key]
        inputs[kind] = [states[number] for number in taken(row.room.needs[kind], 0, len(states))]
    return inputs


class Milestones(Report):
    """Reports to Ray Tune at each quarter of a make's steps, with its checkpoint."""

    def __init__(self, score: Callable[[State], Mapping[str, float]] | None) -> None:
        """``score``: checkpoint -> what is reported of it; None: no checkpoint is kept."""
        self._score = score
        self._at = self._told = 0

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._at = step * MILESTONES // total

    def due(self) -> bool:
        return self._score is not None and self._told < self._at < MILESTONES

    def save(self, state: State) -> None:
        from ray import tune

        self._told = self._at
        with tempfile.TemporaryDirectory() as folder:
            blob = to_bytes(State(state.tensors, {"state": state.config, TIME: self._told}))
            Path(folder, _FILE).write_bytes(blob)
            kept = tune.Checkpoint.from_directory(folder)
            assert self._score is not None
            tune.report({**self._score(state), TIME: self._told}, checkpoint=kept)

    def load(self) -> State | None:
        from ray import tune

        kept = tune.get_checkpoint()
        if kept is None:
            return None
        with kept.as_directory() as folder:
            stored = from_bytes(Path(folder, _FILE).read_bytes())
        self._told = stored.config[TIME]
        return State(stored.tensors, stored.config["state"])


def trial(sampled: Mapping[str, float], chain: Chain, data: FitData, upstream: Upstream) -> None:
    """The trainable that Ray Tune runs."""
    from ray import tune

    torch.set_num_threads(chain.threads)
    configs = chain.configs({key: rounded(value) for key, value in sampled.items()})
    first = chain.rows[0]

    def score(checkpoint: State) -> dict[str, float]:
        assert first.room.peek is not None
        inputs = inputs_of(first, upstream)
        made = first.room.peek(checkpoint, data, inputs, configs[0], rng=chain.address(first))
        return {METRIC: validation_nll(chain.finish(made, data, configs, upstream), data, chain.seed)}

    try:
        made = chain.make(data, upstream, configs, Milestones(score if first.room.peek else None))
        nll = validation_nll(chain.finish(made, data, configs, upstream), data, chain.seed)
    except FloatingPointError:
        nll = DIVERGED
    tune.report({METRIC: nll, TIME: MILESTONES})


def validation_nll(state: State, data: FitData, seed: int) -> float:
    """Mean −log p(y | x) over the validation rows, in nats, in the targets' own units."""
    fitted = Fitted(posterior_of(state, data.device), data.transform, data.classes)
    total, rows = 0.0, data.validation
    for start in range(0, len(rows), _BATCH):
        part = slice(start, start + _BATCH)
        rng = Seed(seed).fold("tune", "validation", start)
        predictive = fitted.predict(rows.inputs[part], rng=rng, device=data.device)
        targets = torch.tensor(rows.targets[part], device=data.device)
        total -= float(predictive.log_prob(targets).double().sum())
    nll = total / len(rows)
    return min(nll, DIVERGED) if nll == nll else DIVERGED


def rounded(value: float) -> float:
    """Four significant digits: the number that is tried is the number that is written."""
    return float(f"{value:.4g}")


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` → ``{"a": {"b": 1}}``."""
    tree: dict[str, Any] = {}
    for key, value in dotted.items():
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return tree
