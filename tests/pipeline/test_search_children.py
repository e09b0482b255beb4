"""A search's trials in MLflow: each one child run, complete, whoever told of it, how often, and in what order."""

from types import SimpleNamespace

import pytest

from pipeline.search import telling
from pipeline.search.telling import Ended, Trials
from pipeline.search.trial import MILESTONES, TIME
from pipeline.tracking import experiments, provenance, trials

ABOUT = Trials("shift-toy", 3, {"method": "shift"}, ("nll",))


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """A search's run in an empty project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(experiments, "_stopped", False)
    for cached in (experiments.client, experiments.experiment):
        cached.cache_clear()
    run_id = experiments.start_parent("tune shift-toy")
    yield run_id
    experiments.end_parent(run_id)


def trial_of(name, lr, at=0, nll=0.0):
    result = {TIME: at, "nll": nll} if at else {}
    return SimpleNamespace(trial_id=name, config={"lr": lr}, last_result=result)


def tell(callback, *trials, ends=True):
    """Tell of trials, as Tune does, from their beginnings up to where they are."""
    for trial in trials:
        callback.on_trial_start(0, [], trial)
        for at in range(1, trial.last_result.get(TIME, 0) + 1):
            callback.on_trial_result(0, [], trial, {TIME: at, "nll": trial.last_result["nll"] + MILESTONES - at})
        if ends:
            callback.on_trial_complete(0, [], trial)


def ended(*trials):
    return [Ended(trial.trial_id, trial.config, trial.last_result) for trial in trials]


def state_of(parent):
    """Return each child's status, numbers, and the steps of its scores."""
    client, found = experiments.client(), {}
    for run in trials.below(parent):
        steps = [m.step for m in client.get_metric_history(run.info.run_id, "validation/nll")]
        assert run.data.tags["trial"] not in found, "a trial has one child"
        found[run.data.tags["trial"]] = (run.info.status, run.data.params, steps)
    return found


WHOLE = {
    "a": ("FINISHED", {"lr": "0.1"}, [1, 2, 3, 4]),
    "b": ("FINISHED", {"lr": "0.2"}, [1, 2]),
    "c": ("FINISHED", {"lr": "0.3"}, [1, 2, 3, 4]),
}
LAST = (trial_of("a", 0.1, 4, 1.0), trial_of("b", 0.2, 2, 2.0), trial_of("c", 0.3, 4, 3.0))


def test_a_search_that_nothing_disturbs(parent):
    tell(telling.told(ABOUT), *LAST)
    telling.settle(ABOUT, ended(*LAST))
    assert state_of(parent) == WHOLE


def test_who_goes_on_tells_the_same_runs(parent, monkeypatch):
    """After a kill, which left one at its second step, by a process of another machine; and a job's events twice."""
    monkeypatch.setattr(provenance, "process", lambda pid: "elsewhere/1/2.00")
    first = telling.told(ABOUT)
    tell(first, LAST[0])
    tell(first, trial_of("c", 0.3, 2, 3.0), ends=False)
    monkeypatch.undo()
    assert state_of(parent)["c"] == ("RUNNING", {"lr": "0.3"}, [1, 2])
    for _ in range(2):
        tell(telling.told(ABOUT), *LAST)
        telling.settle(ABOUT, ended(*LAST))
        assert state_of(parent) == WHOLE


def test_what_no_event_told_is_made_good_and_forgotten_trials_are_no_runs(parent):
    killed = telling.told(ABOUT)
    tell(killed, trial_of("z", 0.7, 1, 9.0), trial_of("a", 0.1, 4, 1.0), ends=False)  # Tune forgot z, and knows a's end
    experiments.client().create_run(  # a kill before its numbers were told
        experiments.experiment(),
        tags={"mlflow.parentRunId": parent, "search": "shift-toy", "trial": "b", "stage": "trial"},
    )
    telling.settle(ABOUT, ended(*LAST))
    assert state_of(parent) == {
        "a": WHOLE["a"],
        "b": ("FINISHED", {"lr": "0.2"}, [2]),
        "c": ("FINISHED", {"lr": "0.3"}, [4]),
    }


def test_a_store_that_comes_back_hears_it_all(parent, monkeypatch, capsys):
    with monkeypatch.context() as broken:
        broken.setattr(experiments.client(), "create_run", lambda *_, **__: 1 / 0)
        tell(telling.told(ABOUT), *LAST)
    assert capsys.readouterr().err.count("no tracking") == 1
    assert state_of(parent) == {}
    telling.settle(ABOUT, ended(*LAST))
    assert {name: status for name, (status, *_) in state_of(parent).items()} == dict.fromkeys("abc", "FINISHED")


def test_a_population_and_its_finals_are_told_apart(parent):
    finals = Trials("shift-toy-finals", 1, {}, ("nll",))
    tell(telling.told(ABOUT), *LAST)
    tell(telling.told(finals), trial_of("f", 0.4, 4, 0.5))
    telling.settle(finals, ended(trial_of("f", 0.4, 4, 0.5)))
    telling.settle(ABOUT, ended(*LAST))
    assert set(state_of(parent)) == {"a", "b", "c", "f"}


def test_numbers_that_change_are_metrics_beside_those_of_the_beginning_after_a_stop_too(parent):
    tell(telling.told(ABOUT), trial_of("a", 0.1, 1, 1.0), ends=False)
    again = telling.told(ABOUT)
    tell(again, trial_of("a", 0.12, 2, 1.0))
    (run,) = trials.below(parent)
    assert run.data.params == {"lr": "0.1"}
    assert run.data.metrics["number/lr"] == 0.12


def test_what_a_search_leaves_unfinished_is_ended_with_it(parent):
    tell(telling.told(ABOUT), LAST[0])
    tell(telling.told(ABOUT), LAST[1], ends=False)
    trials.end_all(parent, "KILLED")
    assert {name: status for name, (status, *_) in state_of(parent).items()} == {"a": "FINISHED", "b": "KILLED"}
