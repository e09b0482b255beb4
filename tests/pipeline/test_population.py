"""Rounds of a population, through Ray's own scheduler and trials: none waits for a sample that has ended."""

from collections.abc import Iterator
from typing import Any

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler

from pipeline.search.population import Rounds

LAST = 4
Scheduler = PopulationBasedTraining
NUMBERS: dict[str, Any] = {
    "time_attr": "milestone",
    "metric": "nll",
    "mode": "min",
    "perturbation_interval": 1,
    "hyperparam_mutations": {"lr": lambda: 1.0},
}


class Controller:
    """Trials that run one at a time, in the order that the scheduler says."""

    search_alg = None

    def __init__(self, scheduler: Scheduler, trials: list[Trial]) -> None:
        self.scheduler, self.trials, self.alive = scheduler, trials, set(trials)
        for trial in trials:
            scheduler.on_trial_add(self, trial)  # type: ignore[arg-type]

    def get_trials(self) -> list[Trial]:
        return self.trials

    def get_live_trials(self) -> set[Trial]:
        return self.alive

    def step(self, ends: dict[Trial, Iterator[str]], reached: dict[Trial, int]) -> bool:
        """Run the chosen trial to its next milestone, or to the end that ``ends`` has for it; False: none is chosen."""
        trial = self.scheduler.choose_trial_to_run(self)  # type: ignore[arg-type]
        if trial is None:
            return False
        trial.set_status(Trial.RUNNING)
        end = next(ends[trial], "")
        reached[trial] += 1
        result = {"milestone": LAST if end else reached[trial], "nll": 1.0 + self.trials.index(trial), "config": {}}
        if end == "fails":  # Ray keeps it among the living
            self.scheduler.on_trial_error(self, trial)  # type: ignore[arg-type]
            trial.set_status(Trial.ERROR)
            return True
        if result["milestone"] == LAST:
            self.scheduler.on_trial_complete(self, trial, result)  # type: ignore[arg-type]
            trial.set_status(Trial.TERMINATED)
            self.alive.discard(trial)
            return True
        assert self.scheduler.on_trial_result(self, trial, result) != TrialScheduler.STOP  # type: ignore[arg-type]
        trial.run_metadata.last_result = result
        trial.set_status(Trial.PAUSED)
        return True


def milestones(scheduler: Scheduler, ends: dict[int, list[str]], begin: dict[int, int]) -> list[int]:
    """Run four trials; ``ends`` of some, and the milestone where some begin. Return what each has reached."""
    trials = [Trial("none", stub=True, config={"lr": 1.0}) for _ in range(4)]
    controller = Controller(scheduler, trials)
    reached = {trial: begin.get(at, 0) for at, trial in enumerate(trials)}
    left = {trial: iter(ends.get(at, [])) for at, trial in enumerate(trials)}
    for _ in range(100):
        if not controller.step(left, reached):
            break
    return [reached[trial] for trial in trials]


CASES: dict[str, tuple[dict[int, list[str]], dict[int, int], list[int]]] = {
    "all live to the end": ({}, {}, [4, 4, 4, 4]),
    "the last of a round diverges": ({3: ["diverges"]}, {}, [4, 4, 4, 1]),
    "the last of a later round diverges": ({3: ["", "diverges"]}, {}, [4, 4, 4, 2]),
    "the last of a round fails": ({3: ["fails"]}, {}, [4, 4, 4, 1]),
    "one that fails is not waited for": ({0: ["", "fails"]}, {}, [2, 4, 4, 4]),
    "one was further when it was stopped": ({}, {3: 3}, [4, 4, 4, 4]),
    "three were further": ({}, {1: 3, 2: 3, 3: 3}, [4, 4, 4, 4]),
}


@pytest.mark.parametrize("name", CASES)
def test_every_trial_comes_to_its_end(name: str) -> None:
    ends, begin, expected = CASES[name]
    assert milestones(Rounds(0, **NUMBERS), ends, begin) == expected


@pytest.mark.parametrize("name", CASES)
def test_by_ray_alone_the_others_wait_for_ever(name: str) -> None:
    """The control: where this is red, Ray has mended it, and ``Rounds`` can go."""
    ends, begin, expected = CASES[name]
    found = milestones(PopulationBasedTraining(synch=True, **NUMBERS), ends, begin)
    assert (found == expected) == (name == "all live to the end")


def test_a_round_without_its_last_trial_is_a_round() -> None:
    """The worst of those that are left is told to go on as the best one."""
    scheduler = Rounds(0, **NUMBERS)
    exploited: list[tuple[Trial, Trial]] = []
    scheduler._checkpoint_or_exploit = (  # type: ignore[method-assign]
        lambda trial, _, upper, lower: exploited.append((trial, upper[0])) if trial in lower else None
    )
    milestones(scheduler, {3: ["diverges"]}, {})
    trials = list(scheduler._trial_state)
    assert exploited == [(trials[2], trials[0])] * (LAST - 1)
