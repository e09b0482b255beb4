"""Population-based training in rounds, by Ray Tune, which goes on where the sample that all wait for has ended."""

from typing import TYPE_CHECKING, Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


class Rounds(PopulationBasedTraining):
    """Jaderberg et al. 2017, all waiting for all: ``synch=True``.

    Ray 2.60 looks whether a round is complete where a sample reports. Where the last one that is waited for ends
    instead, since it diverged, failed or was further than the others before a stop, no sample would run again.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(synch=True, **options)

    def on_trial_result(self, tune_controller: "TuneController", trial: Trial, result: dict[str, Any]) -> str:
        return super().on_trial_result(_Unfinished(tune_controller), trial, result)

    def choose_trial_to_run(self, tune_controller: "TuneController") -> Trial | None:
        chosen = super().choose_trial_to_run(tune_controller)
        waiting = [trial for trial in tune_controller.get_trials() if not trial.is_finished()]
        if chosen or not waiting or any(trial.status != Trial.PAUSED for trial in waiting):
            return chosen
        first = waiting[0]
        self.on_trial_result(tune_controller, first, first.last_result)  # the round
        return super().choose_trial_to_run(tune_controller) or first


class _Unfinished:
    """What the scheduler sees of Tune, in which a failed sample is still alive."""

    def __init__(self, tune_controller: "TuneController") -> None:
        self._tune_controller = tune_controller

    def get_live_trials(self) -> set[Trial]:
        return {trial for trial in self._tune_controller.get_live_trials() if not trial.is_finished()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tune_controller, name)
