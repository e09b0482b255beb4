"""What MLflow and the terminal are told of a search's trials."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..tracking import experiments
from ..tracking import trials as tracked
from .trial import MILESTONES, TIME, rounded


@dataclass(frozen=True)
class Trials:
    """Facts about trials that MLflow and the terminal are told.

    Attributes:
        count: how many there are.
        metrics: of what a trial reports, the scores.
        numbers: a trial's place in the space -> the numbers that it tries; picklable.
        called: a trial's place in the space -> what the terminal calls it; picklable.
    """

    name: str
    count: int
    tags: Mapping[str, Any]
    metrics: tuple[str, ...]
    numbers: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    called: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict

    @property
    def children(self) -> tracked.Children:
        """Return their runs, below the run of the search that this process is at."""
        return tracked.Children(os.environ.get(experiments.PARENT), self.name, self.tags)

    def plain(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Write the numbers that a trial tries."""
        return {key: _plain(value) for key, value in self.numbers(config).items()}

    def scores(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Choose the scores of what a trial reports."""
        return {name: result[name] for name in self.metrics if name in result}


@dataclass(frozen=True)
class Ended:
    """A trial that has ended: its name, its place in the space, and what it reported last."""

    trial: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]


def settle(trials: Trials, ended: Sequence[Ended]) -> None:
    """Make MLflow's runs those of the trials that have ended, each complete, and no others."""
    known = [
        tracked.Told(e.trial, trials.plain(e.config), _named(trials.scores(e.metrics)), e.metrics[TIME]) for e in ended
    ]
    trials.children.settle(known)


def told(trials: Trials) -> Any:
    """Make the callback that tells MLflow and the terminal of every trial.

    It is stored with the search, so it holds no connection.
    """
    from ray.tune import Callback

    class Told(Callback):
        def __init__(self, about: Trials) -> None:
            self.about = about
            self.runs: dict[str, tracked.Child] = {}
            self.ended = 0

        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "runs": {}}

        def run(self, trial: Any) -> tracked.Child:
            if trial.trial_id not in self.runs:
                self.runs[trial.trial_id] = self.about.children.open(trial.trial_id, self.about.plain(trial.config))
            return self.runs[trial.trial_id]

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.run(trial)

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
            said, run = _named(self.about.scores(result)), self.run(trial)
            now = self.about.numbers(trial.config)
            said |= {f"number/{k}": now[k] for k, v in run.began.items() if v != str(_plain(now[k]))}  # a population's
            run.metrics(said, result[TIME])

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.run(trial).end()
            self.ended += 1
            called = self.about.called(trial.config)
            last, values = trial.last_result, ", ".join(f"{k} {_plain(v)}" for k, v in called.items())
            at = "" if last.get(TIME) == MILESTONES else f", stopped at {last.get(TIME)}/{MILESTONES}"
            scores = ", ".join(f"{k} {v:.5g}" for k, v in self.about.scores(last).items()) or "diverged"
            print(f"{self.ended} of {self.about.count}: {scores}{at} ({values})", flush=True)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.run(trial).end("FAILED")

    return Told(trials)


def _plain(value: Any) -> Any:
    return f"{rounded(value):g}" if isinstance(value, float) else value


def _named(scores: Mapping[str, float]) -> dict[str, float]:
    return {f"validation/{name}": value for name, value in scores.items()}
