"""Searches without Ray: what is searched and scored, what is written, and which searches can be resumed."""

import math
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tune_cases
import yaml

import bdl_pipe.registry
from bdl_pipe.errors import UserError
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.search import DIVERGED, validation_nll
from bdl_pipe.seeds import Seed
from pipeline.core import places
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.plan import sources
from pipeline.prepared import folders
from pipeline.search import Folder, Session, begin, folder_of, load_data, make_upstream, trial, tune, tuner
from pipeline.search.trial import Ended
from pipeline.search.tuner import Halving, _domains
from pipeline.work.cluster import require_shared
from tests.pipeline.params_cases import REFUSED

ROOT = Path(__file__).parents[2]
SETTINGS = Settings()
made, toy = tune_cases.made, tune_cases.toy


def search_of(samples=4, scheduler=tune.ASHA, *more):
    return tune.plan(load(), "shift", "toy", samples, None, SETTINGS, scheduler, *more)


def gaussian_nll(targets, mean):
    return float(np.mean(0.5 * (targets - mean) ** 2 + 0.5 * math.log(2 * math.pi)))


def test_the_teacher_of_a_search_has_not_seen_validation_rows(toy):
    search, loaded = search_of(), load()
    assert [r.key for r in search.branch.upstream] == ["toy-level"]
    assert [r.key for r in search.branch.runs] == ["toy-shift"]
    assert search.first == [{"inner.shift": tune_cases.IN_FORCE}]
    data = load_data(search.branch, loaded, SETTINGS)
    ((run, states),) = make_upstream(search.branch, data, loaded, Settings(executor="inline")).items()
    assert run == ("teacher", "toy-level")
    assert len(states) == 2  # The student takes all.
    final = folders.load_fit(toy / "work/prepare/toy", 0, final=True)
    for seed, state in enumerate(states):
        assert state.config["rows"] == len(data.train) < len(final.train)
        assert float(state.tensors["mean"]) == pytest.approx(data.train.targets.mean() + 4 + seed, rel=1e-6)


def test_the_score_is_the_validation_nll_in_original_units(toy):
    chain, loaded = search_of().branch, load()
    data = load_data(chain, loaded, SETTINGS)
    states = make_upstream(chain, data, loaded, Settings(executor="inline"))["teacher", "toy-level"]
    (config,) = chain.configs({"inner.shift": 1.5})
    fitted = tune_cases.shift(data, {"teacher": states}, config, rng=Seed(0), report=Silent())
    mean = data.train.targets.mean() + 4 + 0.5 + 1.5
    nll = validation_nll(fitted, data, chain.predictions)
    assert nll == pytest.approx(gaussian_nll(data.validation.targets, mean), rel=1e-4)
    assert nll != pytest.approx(gaussian_nll(data.train.targets, mean), rel=1e-4)


def test_an_integer_is_drawn_from_all_integers_including_the_ends():
    domain = _domains({"inner.shift": (2, 4, "integer")})["inner.shift"]
    assert {domain.sample() for _ in range(100)} == {2, 3, 4}  # One is missing with probability 8e-13.


def test_asha_and_the_median_rule_never_stop_the_hyperparameters_in_force():
    """Here they report last and are the worst, so that the plain schedulers stop them."""
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule

    numbers = {"time_attr": "milestone", "max_t": 4, "grace_period": 1, "reduction_factor": 2}
    median = {"time_attr": "milestone", "grace_period": 1, "min_samples_required": 2}

    def decisions(scheduler):
        scheduler.set_search_properties("nll", "min")
        trials = [Trial("none", stub=True, config={"inner.shift": float(at)}) for at in (1, 2, 6)]
        started = []
        for worse, each in enumerate(trials):
            scheduler.on_trial_add(None, each)
            result = {"milestone": 1, "nll": 1.0 + worse}
            started.append(scheduler.on_trial_result(SimpleNamespace(get_live_trials=list), each, result))
        return started

    assert decisions(ASHAScheduler(**numbers)) == ["CONTINUE", "STOP", "STOP"]
    assert decisions(Halving([{"inner.shift": 6.0}], **numbers)) == ["CONTINUE", "STOP", "CONTINUE"]
    assert decisions(MedianStoppingRule(**median)) == ["CONTINUE", "CONTINUE", "STOP"]
    assert decisions(tuner.Median([{"inner.shift": 6.0}], **median)) == ["CONTINUE"] * 3


@pytest.mark.parametrize(("words", "message"), REFUSED["tune"])
def test_an_impossible_search_is_refused_in_one_line(toy, command, words, message, monkeypatch):
    monkeypatch.setattr("pipeline.run.body.ensure", lambda *_: False)
    error = command("tune", *words.split(), "--samples", "3", code=2)
    assert error.startswith("tune: ") and error.count("\n") == 1 and re.search(message, error)


def test_a_method_that_cannot_be_scored_during_a_fit_refuses_pbt(toy, monkeypatch):
    stage = replace(tune_cases.SHIFT.stages["student"], from_checkpoint=None)
    blind = {**tune_cases.REGISTRY, "shift": replace(tune_cases.SHIFT, stages={"student": stage})}
    monkeypatch.setattr(bdl_pipe.registry, "METHODS", blind)
    with pytest.raises(UserError, match="reports no scores during a fit"):
        search_of(scheduler=tune.PBT)


def test_a_data_set_without_validation_rows_cannot_be_searched(toy, monkeypatch):
    monkeypatch.setattr("pipeline.run.body.ensure", lambda *_: False)
    whole = folders.load_fit(toy / "work/prepare/toy", 0, final=True)
    monkeypatch.setattr(folders, "load_fit", lambda *_, **__: whole)
    with pytest.raises(UserError, match=r"datasets\.toy\.validation: must hold out rows"):
        load_data(search_of().branch, load(), SETTINGS)


def test_a_new_search_does_not_discard_an_unfinished_search(tmp_path):
    folder = Folder("BDL_SEARCHES", str(tmp_path / "a folder" / "s"))
    assert begin(folder, "a", resume=False) is None
    with pytest.raises(UserError, match="leave out --resume"):
        begin(folder, "a", resume=True)
    folder.write(identity="a", parent="p")
    assert begin(folder, "a", resume=True) == "p"
    with pytest.raises(UserError, match="continue it with --resume, or remove this folder"):
        begin(folder, "a", resume=False)
    with pytest.raises(UserError, match="params, data, grid, code, --samples or another option differ"):
        begin(folder, "b", resume=True)
    folder.write(**folder.read(), finished=True)
    (tmp_path / "a folder" / "s" / "trials").mkdir()
    assert begin(folder, "a", resume=False) is None
    assert list((tmp_path / "a folder" / "s").iterdir()) == []


def test_other_code_or_other_hyperparameters_change_the_identity_of_a_search(toy, monkeypatch):
    def identity():
        return search_of().branch.facts()

    before, real = identity(), sources.fit_digest
    assert before == identity()
    edited = lambda method, params: real(method, params) + ("edited" if method == "level" else "")  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(sources, "fit_digest", edited)
        assert identity() != before
    text = (toy / "params.yaml").read_text()
    (toy / "params.yaml").write_text(text.replace("add: 4.0", "add: 5.0"))
    assert identity() != before


def ended(shift, nll, milestone=trial.MILESTONES):
    return Ended({"inner.shift": shift}, {"nll": nll}, milestone)


def test_the_winner_is_the_best_finished_sample_and_a_search_without_one_is_refused(toy, monkeypatch):
    stopped_early = ended(-3.0, 0.5, trial.MILESTONES - 1)
    trials = [ended(6.0, 9.0), ended(-4.0, 1.25), stopped_early, ended(1.0, DIVERGED)]
    text = tune.conclude(search_of(), trials).read_text()
    assert yaml.safe_load(text) == {"runs": {"toy-shift": {"override": {"inner": {"shift": -4.0}}}}}
    assert "validation nll 1.25 (in force: 9); 2 of 4 samples finished" in text
    monkeypatch.setattr(tune, "opened", lambda *_: nullcontext())
    monkeypatch.setattr(tune, "_run", lambda *_: (trials[2:], ()))
    with pytest.raises(UserError, match="none of 4 samples gave a finite score"):
        tune.search_one(search_of(), load(), SETTINGS, None, resume=False)


def test_a_space_and_scores_of_the_command_line_reach_the_trials_and_their_table(toy):
    search = search_of(4, tune.ASHA, ("nll", "crps"), ["inner.shift=-1:9:linear"])
    assert search.branch.method.search == {"inner.shift": (-1.0, 9.0, "linear")} and search.first
    trials = [Ended({"inner.shift": at}, {"nll": at - 1, "crps": 9 - at}, round(at), 0.5) for at in (4.0, 2.0, 3.0)]
    text = tune.conclude(search, trials).with_suffix(".csv").read_text()
    head, *rows = [line.split(",") for line in text.splitlines()]
    assert head == ["inner.shift", "nll", "crps", "trained", "seconds"]
    assert rows == [
        ["4.0", "3.0", "5.0", "4/4", "0.5"],
        ["3.0", "2.0", "6.0", "3/4", "0.5"],
        ["2.0", "1.0", "7.0", "2/4", "0.5"],
    ]


def test_the_winners_overlay_names_the_options_that_change_the_search(toy, monkeypatch, command):
    trial = Ended({"inner.shift": 2.0}, {"nll": 1.0}, 4, 0.5)
    monkeypatch.setattr(tune, "search_one", lambda search, *_: tune.conclude(search, [trial]))
    options = "--samples 3 --scheduler fifo --space inner.shift=-1:9:linear --run toy-other --max-concurrent 2"
    words = f"tune shift --dataset toy {options}"
    command(*words.split())
    (path,) = tune.OVERLAYS.glob("*.yaml")
    head = path.read_text().splitlines()[0]
    assert head == f"# python -m pipeline {words}"


def test_the_best_of_a_population_is_fitted_again_beside_the_values_in_force(toy, monkeypatch):
    """So a population that did well only while its hyperparameters changed does not replace better values."""
    calls = []

    def run(session, space, how, part=""):
        calls.append((part, how.num_samples, how.search_alg._points_to_evaluate))
        scores = (2.0, 1.0, 3.0, DIVERGED) if len(calls) == 1 else (8.0, 7.0)
        return [ended(float(at) if len(calls) == 1 else (1.0, 6.0)[at], nll) for at, nll in enumerate(scores)]

    monkeypatch.setattr(tuner, "run", run)
    session = Session("shift-toy", Folder("BDL_SEARCHES", "s"), SETTINGS, {}, {}, ("nll",))
    trials, population = tune._run(search_of(scheduler=tune.PBT), session, None)
    finals = ("finals", 2, [{"inner.shift": 1.0}, {"inner.shift": 6.0}])
    assert calls == [("", 4, [{"inner.shift": 6.0}]), finals]
    text = tune.conclude(search_of(scheduler=tune.PBT), trials, population).read_text()
    assert yaml.safe_load(text)["runs"]["toy-shift"]["override"] == {"inner": {"shift": 6.0}}
    assert "validation nll 7 (in force: 7); 2 of 2 samples finished" in text
    assert "a population of 4 with changing hyperparameters reached 1" in text


def test_a_cluster_of_several_machines_needs_shared_storage(tmp_path, monkeypatch):
    import ray

    nodes = [{"NodeManagerAddress": f"10.0.0.{at}", "Alive": at != 3} for at in (1, 1, 2, 3)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with pytest.raises(UserError, match=r"BDL_SEARCHES: must be .* that all 2 machines of RAY_ADDRESS reach"):
        require_shared(Settings(address="10.0.0.1:6379"))
    require_shared(Settings(address="10.0.0.1:6379", searches="s3://bucket/searches"))
    monkeypatch.setattr(ray, "nodes", lambda: nodes[:2])
    require_shared(Settings(address="10.0.0.1:6379"))
    shared = Settings.read({"BDL_SEARCHES": f"{tmp_path}/"})
    assert folder_of("tune", "shift-toy", shared).address == f"{tmp_path}/tune/shift-toy"


def test_tune_refuses_a_dashboard_as_its_ray_address(toy, monkeypatch, command):
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    error = command("tune", "shift", "--dataset", "toy", "--samples", "2", code=2)
    assert "RAY_ADDRESS=http://head:8265: must be host:port for tune; send the whole" in error


class TestAll:
    """``tune all``: which methods are searched, in what order, and what a resumed search repeats."""

    @pytest.fixture
    def searched(self, here, monkeypatch):
        """The searches that ran, in order; the search of ``vbll`` is interrupted while the file ``stop`` exists."""
        shutil.copy(ROOT / "params.yaml", "params.yaml")
        searched = []

        def search_one(search, params, settings, at_once, resume):
            folder = folder_of("tune", search.branch.name, settings)
            searched.append((search.branch.method.name, search.samples, resume))
            folder.write(identity="x")
            if search.branch.method.name == "vbll" and Path("stop").exists():
                raise KeyboardInterrupt
            folder.write(identity="x", finished=True)
            return Path("overlay.yaml")

        monkeypatch.setattr(tune, "search_one", search_one)
        monkeypatch.setattr(tune.overlays, "apply", lambda path: [f"merged {path}"])
        return searched

    @pytest.fixture
    def go(self, command):
        return partial(command, "tune", "all", "--dataset", "boston", "--samples", "4", "--apply")

    @pytest.mark.slow
    def test_every_method_with_a_space_is_searched_once_and_inputs_come_first(self, searched, go):
        out = go()
        methods = [method for method, *_ in searched]
        runs = [run for run in load().runs.values() if run.spec.dataset == "boston"]
        assert set(methods) == {run.method.name for run in runs if METHODS[run.method.name].search}
        assert len(methods) == len(set(methods)) > 5
        assert methods[:2] == ["sgd", "sgmcmc"], "posteriors are made from these"
        assert {search[1:] for search in searched} == {(4, False)}
        assert out.count("merged overlay.yaml") == len(methods)

    @pytest.mark.slow
    def test_a_stopped_search_of_all_methods_continues_with_the_remaining_methods(self, searched, go):
        Path("stop").touch()
        go(code=130)
        before = {method for method, *_ in searched} - {"vbll"}
        assert "vbll-boston: has an unfinished search; continue it with --resume" in go(code=2)
        Path("stop").unlink()
        searched.clear()
        go("--resume")
        assert searched[0] == ("vbll", 4, True), "the stopped one is resumed, the others begin"
        assert not any(resumed for _, _, resumed in searched[1:])
        assert not {method for method, *_ in searched} & before
        searched.clear()
        go()
        assert not any(resumed for _, _, resumed in searched) and len(searched) > len(before), "all are begun again"
        assert places.STATE.exists()
