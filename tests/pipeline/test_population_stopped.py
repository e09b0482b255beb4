"""A population that is stopped at any moment and goes on ends as one that was not: Ray's scheduler, trials and JSON."""

import math
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.train._internal.session import _FutureTrainingResult, _TrainingResult
from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler

from bdl_pipe.seeds import Seed
from pipeline.search import population
from pipeline.search.population import Rounds

LAST, SAMPLES = 4, 8
Stored = dict[str, tuple[str, str]]  # a trial -> what Ray writes of it
Ends = dict[str, int]  # a trial that diverges -> the quarter in which it does
Way = tuple[int, bool, Ends]  # see Controller
History = tuple[float, ...]  # the lr of each quarter, which is what a checkpoint holds


class Later(_FutureTrainingResult):
    """The checkpoint of a report, which its sample's process is asked for."""

    def __init__(self, result: _TrainingResult) -> None:
        self._result = result

    def resolve(self, block: bool = True) -> _TrainingResult:
        return self._result


class Controller:
    """Ray Tune's loop without processes: ``slots`` samples run at once, the one that began ``first`` or last reports.

    It writes a trial where Ray does: where one is added, begins, has reported, and has written its checkpoint.
    """

    search_alg = None

    def __init__(self, scheduler: Rounds, slots: int, first: bool, ends: Ends) -> None:
        self.scheduler, self.slots, self.first, self.ends = scheduler, slots, first, ends
        self.trials: list[Trial] = []
        self.running: list[Trial] = []
        self.dirty: set[Trial] = set()
        self.stored: Stored = {}
        self.wrapped: Any = SimpleNamespace(
            get_trials=lambda: self.trials,
            get_live_trials=lambda: {trial for trial in self.trials if not trial.is_finished()},
            _tune_controller=SimpleNamespace(_mark_trial_to_checkpoint=self.dirty.add),
            search_alg=None,
            pause_trial=lambda trial, should_checkpoint: trial.set_status(Trial.PAUSED),
            _schedule_trial_save=lambda trial, result: Later(_TrainingResult(self.history(trial), result)),
        )

    def add(self, trials: list[Trial]) -> None:
        for trial in trials:
            trial.create_placement_group_factory()
            self.trials.append(trial)
            self.scheduler.on_trial_add(self.wrapped, trial)
            self.dirty.add(trial)

    def restore(self, stored: Stored) -> None:
        trials = []
        for state, metadata in stored.values():
            trial = Trial.from_json_state(state, stub=True)
            trial.restore_run_metadata(metadata)
            if not trial.is_finished():
                trial.set_status(Trial.PENDING)
            trials.append(trial)
        self.add(sorted(trials, key=lambda trial: trial.run_metadata.last_result_time, reverse=True))

    def history(self, trial: Trial) -> Any:
        return *(trial.checkpoint or ()), trial.config["lr"]

    def run(self) -> Iterator[None]:
        """Yield where Ray may have written its state for the last time."""
        while True:
            yield self.write()
            while len(self.running) < self.slots and (trial := self.next()):
                trial.set_status(Trial.RUNNING)
                self.running.append(trial)
                self.dirty.add(trial)
                yield self.write()
            if not self.running:
                return
            trial = self.running.pop(0 if self.first else -1)
            history = self.history(trial)
            at = LAST if self.ends.get(trial.trial_id) == len(history) else len(history)
            result = {"milestone": at, "nll": nll(history), "done": at == LAST, "lrs": history}
            decision = TrialScheduler.STOP
            if result["done"]:
                self.scheduler.on_trial_complete(self.wrapped, trial, result)
                trial.set_status(Trial.TERMINATED)
            else:
                decision = self.scheduler.on_trial_result(self.wrapped, trial, result)
            trial.update_last_result(result)
            self.dirty.add(trial)
            yield self.write()  # the checkpoint is not yet there
            if decision == TrialScheduler.PAUSE:  # or it goes on from another's
                trial.run_metadata.checkpoint_manager.register_checkpoint(_TrainingResult(history, result))
                trial.run_metadata.invalidate_cache()
                trial.set_status(Trial.PAUSED)
            self.dirty.add(trial)

    def next(self) -> Trial | None:
        chosen = self.scheduler.choose_trial_to_run(self.wrapped)
        pending = [trial for trial in self.trials if trial.status == Trial.PENDING]
        return chosen if chosen and chosen.status != Trial.RUNNING else next(iter(pending), None)

    def write(self) -> None:
        self.stored |= {trial.trial_id: trial.get_json_state() for trial in self.dirty}
        self.dirty.clear()


def nll(history: History) -> float:
    """Compute a score that is best at lr = .03 and of which no two are equal."""
    return math.fsum(abs(math.log(lr / 0.03)) / (1 + at) for at, lr in enumerate(history))


def begin(kind: type[Rounds], way: Way, seed: int = 0) -> Controller:
    mutations = {"lr": tune.loguniform(1e-3, 1.0)}
    numbers: dict[str, Any] = {"time_attr": "milestone", "metric": "nll", "mode": "min", "perturbation_interval": 1}
    return Controller(kind(seed, hyperparam_mutations=mutations, log_config=False, **numbers), *way)


def started(kind: type[Rounds], way: Way, seed: int = 0) -> Controller:
    controller = begin(kind, way, seed)
    lrs = np.random.default_rng(1).lognormal(-3, 2, SAMPLES)
    controller.add([Trial("none", stub=True, config={"lr": float(lr)}, trial_id=f"t{at}") for at, lr in enumerate(lrs)])
    return controller


def finished(controller: Controller) -> dict[str, History]:
    """Run to the end, and return the numbers that each sample has had."""
    for _ in controller.run():
        pass
    return {trial.trial_id: tuple(trial.last_result["lrs"]) for trial in controller.trials if trial.is_finished()}


def after_all_stops(kind: type[Rounds], way: Way) -> Iterator[dict[str, History]]:
    """Stop at each moment in turn, go on from what was written, and yield how the population ended."""
    moments = sum(1 for _ in started(kind, way).run())
    for last in range(moments):
        stopped = started(kind, way)
        for at, _ in enumerate(stopped.run()):
            if at == last:
                break
        again = begin(kind, way)
        again.restore(stopped.stored)
        yield finished(again)


class Forgets(Rounds):
    """The control: Ray's own restart, in which the scheduler knows nothing of restored samples."""

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        PopulationBasedTraining.on_trial_add(self, tune_controller, trial)


ENDS: dict[str, Ends] = {
    "all live": {},
    "two diverge at once": {"t0": 1, "t7": 1},
    "some diverge on the way": {"t1": 2, "t3": 3, "t6": 2},
    "the best diverges last": {"t2": 3},
}


@pytest.mark.parametrize(("slots", "first"), [(1, True), (2, False), (SAMPLES, False)])
@pytest.mark.parametrize("name", ENDS)
def test_a_stop_at_any_moment_changes_nothing(name: str, slots: int, first: bool) -> None:
    whole = finished(started(Rounds, (1, True, ENDS[name])))
    assert len(whole) == SAMPLES
    assert sum(len(set(lrs)) > 1 for lrs in whole.values()) >= 2  # numbers were changed
    ends = list(after_all_stops(Rounds, (slots, first, ENDS[name])))
    assert len(ends) > 2 * SAMPLES * LAST - 20
    assert [end for end in ends if end != whole] == []


def test_the_control_ends_otherwise() -> None:
    whole = finished(started(Rounds, (2, True, {})))
    ends = list(after_all_stops(Forgets, (2, True, {})))
    assert sum(end != whole for end in ends) > len(ends) / 4


def test_what_a_round_changed_must_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population, "_keep", lambda controller: None)
    whole = finished(started(Rounds, (2, True, {})))
    assert any(end != whole for end in after_all_stops(Rounds, (2, True, {})))


def test_a_population_is_of_its_seed_and_leaves_the_global_generators() -> None:
    ends = []
    for other in range(2):
        random.seed(other)
        np.random.seed(other)  # noqa: NPY002
        before = np.random.get_state()[1].tobytes()  # type: ignore[union-attr]  # noqa: NPY002
        ends.append(finished(started(Rounds, (2, True, {}))))
        assert np.random.get_state()[1].tobytes() == before  # type: ignore[union-attr]  # noqa: NPY002
    assert ends[0] == ends[1] != finished(started(Rounds, (2, True, {}), seed=1))
    seed = Seed(0)
    with population._drawing(seed):
        first = random.random(), np.random.random()  # noqa: NPY002
    between = random.random(), np.random.random()  # noqa: NPY002
    with population._drawing(seed):
        assert (random.random(), np.random.random()) == first != between  # noqa: NPY002
