"""Population-based training in rounds, by Ray Tune: the same seed gives the same population, stopped or not."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining

from bdl_pipe.seeds import Seed

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


class Rounds(PopulationBasedTraining):
    """Jaderberg et al. 2017, all waiting for all: ``synch=True``.

    Three things are other than in Ray 2.60. A round is complete, too, where the last sample that is waited for ends
    instead of reporting: it diverged, failed or was further than the others before a stop; Ray's others wait for
    ever. What a round draws depends on the seed and the round alone. A search that goes on after a stop knows where
    each sample is, and does a round again where the stop may have been in the middle of it.
    """

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(synch=True, **options)
        self._seed = Seed(seed).fold("population")
        self._is_behind = False  # trials were restored, and the rounds are not yet where they are

    def on_trial_add(self, tune_controller: "TuneController", trial: Trial) -> None:
        super().on_trial_add(tune_controller, trial)
        if (kept := self._kept(trial)) and not trial.is_finished():
            self._is_behind = True
            # the checkpoint may be older than the report, or another sample's
            self._save_trial_state(self._trial_state[trial], kept, trial.run_metadata.last_result, trial)
            trial.set_status(Trial.PAUSED)

    def on_trial_result(self, tune_controller: "TuneController", trial: Trial, result: dict[str, Any]) -> str:
        before, milestone = self._num_perturbations, self._next_perturbation_sync
        with _drawing(self._seed.fold(milestone)):
            decision = super().on_trial_result(_Unfinished(tune_controller), trial, result)
        if self._num_perturbations > before:
            _keep(tune_controller)
        return decision

    def choose_trial_to_run(self, tune_controller: "TuneController") -> Trial | None:
        waiting = [trial for trial in tune_controller.get_trials() if not trial.is_finished()]
        if self._is_behind:
            self._catch_up(tune_controller.get_trials())
        chosen = super().choose_trial_to_run(tune_controller)
        if chosen or not waiting or any(trial.status != Trial.PAUSED for trial in waiting):
            return chosen
        first = waiting[0]
        self.on_trial_result(tune_controller, first, first.last_result)  # the round
        return super().choose_trial_to_run(tune_controller) or first

    def _catch_up(self, trials: list[Trial]) -> None:
        """Go to the round that restored trials were in.

        That round is done again where no trial has gone beyond it, which changes nothing: it depends on the reports
        of the trials that were alive, and those are kept.
        """
        self._is_behind = False
        for trial in sorted(trials, key=lambda trial: trial.trial_id):  # Ray adds the latest first
            self._trial_state[trial] = self._trial_state.pop(trial)
        alive = [trial for trial in trials if not trial.is_finished()]
        at = min(self._kept(trial) for trial in alive)
        reported = [trial.run_metadata.last_result.get(self._time_attr, 0) for trial in alive]
        ended = [
            self._kept(trial) + 1 for trial in trials if trial.is_finished()
        ]  # in the quarter after the checkpoint
        is_done = max(reported + ended) > at
        self._next_perturbation_sync = max(at + is_done, self._perturbation_interval)

    def _kept(self, trial: Trial) -> int:
        """Return the time of a trial's checkpoint, 0 where there is none."""
        stored = trial.latest_checkpoint_result
        return stored.metrics[self._time_attr] if stored else 0


@contextmanager
def _drawing(seed: Seed) -> Iterator[None]:
    """Seed the two global generators, which Ray draws from, and leave them as they were."""
    drawn, drawn_by_numpy = seed.integer(), seed.fold("numpy").integer() % 2**32
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(drawn)
    np.random.seed(drawn_by_numpy)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def _keep(tune_controller: Any) -> None:
    """Let Ray write what a round changed: numbers would be written where a sample runs again, checkpoints never."""
    for trial in tune_controller.get_trials():
        trial.run_metadata.invalidate_cache()
        tune_controller._tune_controller._mark_trial_to_checkpoint(trial)


class _Unfinished:
    """What the scheduler sees of Tune, in which a failed sample is still alive."""

    def __init__(self, tune_controller: "TuneController") -> None:
        self._tune_controller = tune_controller

    def get_live_trials(self) -> set[Trial]:
        return {trial for trial in self._tune_controller.get_live_trials() if not trial.is_finished()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tune_controller, name)
