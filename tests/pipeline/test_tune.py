"""Searches: what is scored, on which rows, what is written, and that an interrupted one goes on."""

import argparse
import json
import math
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tune_cases
import yaml

import bdl_pipe.registry
from bdl_pipe.data import prepared
from bdl_pipe.errors import UserError
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.core.storage import Place
from pipeline.search import branch, ray_tune, trial, tune

SETTINGS = Settings()
HERE = Path(__file__).parent


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A prepared project whose registry holds the known methods, here and in Ray's workers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bdl_pipe.registry, "METHODS", tune_cases.REGISTRY)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tune_cases.project(tmp_path)
    return tmp_path


def search_of(samples=4):
    return tune.plan(load(), "shift", "toy", samples, None, SETTINGS)


def gaussian_nll(targets, mean):
    return float(np.mean(0.5 * (targets - mean) ** 2 + 0.5 * math.log(2 * math.pi)))


def test_the_chain_begins_with_the_searched_method_and_its_teacher_is_made_before(toy):
    search = search_of()
    assert [r.key for r in search.upstream] == ["toy-level"]
    assert [r.key for r in search.chain.runs] == ["toy-shift"]
    assert search.present == {"inner.shift": 6.0}


def test_the_teacher_of_a_search_has_not_seen_validation_rows(toy):
    search, loaded = search_of(), load()
    data = branch.load_data(search, loaded, SETTINGS)
    inline = Settings(executor="inline")
    ((row, states),) = branch.make_upstream(search, data, loaded, inline).items()
    assert row == ("teacher", "toy-level")
    assert len(states) == 2  # all members: the student takes all
    final = prepared.load_fit(toy / "work/prepare/toy", 0, final=True)
    for member, state in enumerate(states):
        assert state.config["rows"] == len(data.train) < len(final.train)
        assert float(state.tensors["mean"]) == pytest.approx(data.train.targets.mean() + 4 + member, rel=1e-6)


def test_a_chain_that_is_made_from_data_alone_needs_nothing_before(toy):
    search, loaded = replace(search_of(), upstream=()), load()
    data = branch.load_data(search, loaded, SETTINGS)
    assert branch.make_upstream(search, data, loaded, Settings(executor="inline")) == {}


def test_the_score_is_the_validation_nll_in_original_units(toy):
    search, loaded = search_of(), load()
    data = branch.load_data(search, loaded, SETTINGS)
    states = branch.make_upstream(search, data, loaded, Settings(executor="inline"))["teacher", "toy-level"]
    chain = search.chain
    (config,) = chain.configs({"inner.shift": 1.5})
    made = tune_cases.shift(data, {"teacher": states}, config, rng=Seed(0), report=Silent())
    mean = data.train.targets.mean() + 4 + 0.5 + 1.5
    nll = trial.validation_nll(made, data, chain.predictions)
    assert nll == pytest.approx(gaussian_nll(data.validation.targets, mean), rel=1e-4)
    assert nll != pytest.approx(gaussian_nll(data.train.targets, mean), rel=1e-4)


def test_sampled_numbers_reach_the_searched_method_alone():
    assert trial.nested({"a.b": 1.0, "a.c": 2.0, "d": 3.0}) == {"a": {"b": 1.0, "c": 2.0}, "d": 3.0}
    assert trial.rounded(0.00123456) == 0.001235


def test_an_integer_is_searched_over_integers_up_to_its_ends(toy):
    search = replace(search_of(), space={"inner.shift": (2, 4, "integer")}, present={"inner.shift": 3})
    space, how = ray_tune._space(search, None)
    tried = {space["inner.shift"].sample() for _ in range(100)}
    assert tried == {2, 3, 4}  # one is missing with probability 8e-13
    assert trial.rounded(12345) == 12345
    assert type(trial.rounded(3)) is int
    assert how.search_alg._points_to_evaluate == [{"inner.shift": 3}]


def test_numbers_in_force_are_fitted_to_their_end_however_they_begin():
    """The last to report at the first milestone, and the worst, which ASHA by itself gives up."""
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import ASHAScheduler

    def decided(scheduler):
        scheduler.set_search_properties("nll", "min")
        trials = [Trial("none", stub=True, config={"inner.shift": float(at)}) for at in (1, 2, 6)]
        said = []
        for worse, each in enumerate(trials):
            scheduler.on_trial_add(None, each)
            said.append(scheduler.on_trial_result(None, each, {"milestone": 1, "nll": 1.0 + worse}))
        return said

    asha = ASHAScheduler(time_attr="milestone", max_t=4, grace_period=1, reduction_factor=2)
    assert decided(asha) == ["CONTINUE", "STOP", "STOP"]
    assert decided(ray_tune._halving({"inner.shift": 6.0})) == ["CONTINUE", "STOP", "CONTINUE"]


@pytest.mark.parametrize(
    ("method", "dataset", "run", "said"),
    [
        ("level", "toy", None, "declares nothing to search.*shift"),
        ("shfit", "toy", None, "did you mean shift"),
        ("shift", "tay", None, "did you mean toy"),
        ("shift", "toy", "toy-x", "is not a run"),
    ],
)
def test_what_cannot_be_searched_is_said(toy, method, dataset, run, said):
    with pytest.raises(UserError, match=said):
        tune.plan(load(), method, dataset, 2, run, SETTINGS)


def test_a_data_set_without_validation_rows_cannot_be_searched(toy):
    path = toy / "params.yaml"
    path.write_text(path.read_text().replace("validation: 0.25", "validation: 0"))
    from pipeline.stages import prepare
    from pipeline.work.inline import Inline

    prepare.prepare_dataset("toy", load(), Inline(SETTINGS))
    with pytest.raises(UserError, match=r"datasets\.toy\.validation: must leave rows"):
        branch.load_data(search_of(), load(), SETTINGS)


def test_a_fresh_search_does_not_throw_away_an_unfinished_one(toy):
    search, folder = search_of(), toy / "s"
    assert branch.begin(folder, "a", search.name, resume=False) == {}
    with pytest.raises(UserError, match="leave out --resume"):
        branch.begin(folder, "a", search.name, resume=True)
    (folder / "search.json").write_text(json.dumps({"identity": "a", "parent": "p"}))
    assert branch.begin(folder, "a", search.name, resume=True)["parent"] == "p"
    with pytest.raises(UserError, match="--resume, or remove"):
        branch.begin(folder, "a", search.name, resume=False)
    with pytest.raises(UserError, match="other params"):
        branch.begin(folder, "b", search.name, resume=True)
    away = Place(None, str(toy / "away"))
    with pytest.raises(UserError, match=rf"or remove .*s and BDL_SEARCHES' {toy}/away"):
        branch.begin(folder, "a", search.name, resume=False, away=away)
    (folder / "search.json").write_text(json.dumps({"identity": "a", "finished": True}))
    assert branch.begin(folder, "a", search.name, resume=False) == {}


def test_a_search_by_other_code_is_another_search(toy, monkeypatch):
    before = search_of().identity("data")
    assert before == search_of().identity("data")
    real = branch.fit.code_of
    monkeypatch.setattr(
        branch.fit, "code_of", lambda run, params: real(run, params) + ("edited" if run.key == "toy-level" else "")
    )
    assert search_of().identity("data") != before


def test_the_winner_is_the_best_that_was_finished(toy, capsys):
    scores = [
        ray_tune.Score({"inner.shift": 6.0}, 9.0, trial.MILESTONES),
        ray_tune.Score({"inner.shift": -4.0}, 1.25, trial.MILESTONES),
        ray_tune.Score({"inner.shift": -3.0}, 0.5, trial.MILESTONES - 1),  # stopped early
        ray_tune.Score({"inner.shift": 1.0}, trial.DIVERGED, trial.MILESTONES),
    ]
    text = tune.conclude(search_of(), scores).read_text()
    assert yaml.safe_load(text) == {"runs": {"toy-shift": {"override": {"inner": {"shift": -4.0}}}}}
    assert "validation nll 1.25 (present numbers: 9); 2 of 4 samples finished" in text
    with pytest.raises(UserError, match="none of 1 samples"):
        tune.conclude(search_of(), scores[3:])


@pytest.mark.slow
def test_a_search_that_is_interrupted_goes_on_and_its_winner_is_applied(toy):
    """Both runs in processes of their own: Ray's workers must import the methods as users' do.

    In the first, the first sample fails and the second is interrupted; the other one ends both.
    """
    log, crash = toy / "starts.txt", toy / "crash"
    path = toy / "params.yaml"
    extra = f"crash: {crash}, fault: {crash}, log: {log}, inner: {{shift: 6.0}}"
    path.write_text(path.read_text().replace("inner: {shift: 6.0}", extra))
    code = (
        "import sys, argparse, tune_cases, bdl_pipe.registry; from pathlib import Path;"
        "bdl_pipe.registry.METHODS = tune_cases.REGISTRY; from pipeline.search import ray_tune, tune;"
        "ray_tune._RETRIES = 0;"
        "import os; sys.argv[1] == 'r' or Path('crash').write_text(str(os.getpid()));"
        "tune.main(argparse.Namespace(method='shift', dataset='toy', samples=3, resume=sys.argv[1]=='r',"
        " apply=True, max_concurrent=1))"
    )

    def go(mode):
        command = [sys.executable, "-c", code, mode]
        root = HERE.parents[1]
        places = ":".join(map(str, (HERE, root, root / "src")))
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": places, "HOME": str(toy), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=toy, env=env, capture_output=True, text=True, timeout=200)

    first = go("n")
    assert "1 trials failed (go on with --resume): RuntimeError: a fault" in first.stderr
    assert not (toy / "params/tuned").exists()
    crash.unlink()
    before = path.read_text()
    second = go("r")
    assert second.returncode == 0, second.stderr[-3000:]
    starts = [float(line.split()[1]) for line in log.read_text().splitlines()]
    assert starts[0] == 0
    assert max(starts) >= tune_cases.STEPS // 4  # from a checkpoint, not from the beginning
    overlay = yaml.safe_load((toy / "params/tuned/shift-toy.yaml").read_text())
    best = overlay["runs"]["toy-shift"]["override"]["inner"]["shift"]
    shifts = {float(line.split()[0]) for line in log.read_text().splitlines()}
    assert len(shifts) == 3
    assert 6.0 in shifts  # the numbers in force are the first sample
    assert best == min(shifts, key=lambda s: abs(4.5 + s))  # the means differ from the rows' by 4.5 + shift
    after = load(path).run("student", "toy-shift").config
    assert after.inner.shift == best
    kept = [line for line in before.splitlines() if "toy-shift:" not in line]
    assert kept == [line for line in path.read_text().splitlines() if "toy-shift:" not in line]
    with sqlite3.connect(toy / "mlruns/mlflow.db") as store:
        parents = store.execute("select run_uuid from tags where key='stage' and value='tune'").fetchall()
        children = store.execute(
            "select t.value, r.status from runs r join tags t on r.run_uuid = t.run_uuid"
            " where t.key = 'mlflow.parentRunId' and r.lifecycle_stage = 'active'"
        ).fetchall()
    assert len(parents) == 1  # the resumed search is the same run
    assert children == [(parents[0][0], "FINISHED")] * 3  # and so are its trials


def test_main_takes_what_the_command_line_gives(toy):
    with pytest.raises(UserError, match="declares nothing"):
        tune.main(argparse.Namespace(method="level", dataset="toy", samples=2, resume=False, apply=False))
