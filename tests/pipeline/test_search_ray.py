"""Searches and studies by Ray Tune, on one Ray for all of these tests: how they are stopped, resumed and tracked."""

import csv
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tune_cases
import yaml

import bdl_pipe.registry
from bdl_pipe.errors import UserError
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.search import study, tune, tuner
from pipeline.work import cluster
from tests import buckets
from tests.pipeline import background

HERE = Path(__file__).parent
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def made(ray_head, tmp_path_factory):
    """A prepared project, which each test copies, and a connection to a Ray whose workers import the methods."""
    folder = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(bdl_pipe.registry, "METHODS", tune_cases.REGISTRY)
        patch.setenv("PYTHONPATH", str(HERE))
        patch.delenv("RAY_ADDRESS", raising=False)
        tune_cases.project(folder, hold="hold", fault="fault", log="log")
        with cluster.connected(Settings(), head=lambda: ray_head):
            yield folder


@pytest.fixture
def toy(made, tmp_path, monkeypatch):
    """A copy of the project; the files that its work waits for have absolute paths."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    text = (tmp_path / "params.yaml").read_text()
    for name in ("hold", "fault", "log"):
        text = text.replace(f"{name}: {name}", f"{name}: {tmp_path / name}")
    (tmp_path / "params.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bdl_pipe.registry, "METHODS", tune_cases.REGISTRY)
    monkeypatch.setenv("BDL_TRACKING", "off")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def trials(monkeypatch):
    """The trials of each call of Ray Tune."""
    real, calls = tuner.run, []

    def run(*arguments, **more):
        calls.append(real(*arguments, **more))
        return calls[-1]

    monkeypatch.setattr(tuner, "run", run)
    return calls


def starts(folder):
    """List the fits that began: the shift, the step and the seed."""
    return [(float(s), int(step), int(seed)) for s, step, seed in map(str.split, (folder / "log").open())]


def search(samples=3, **more):
    return tune.tune("shift", dataset="toy", samples=samples, **({"max_concurrent": 1} | more))


CODE = """
import signal, sys, tune_cases, bdl_pipe.registry
bdl_pipe.registry.METHODS = tune_cases.REGISTRY
from pipeline import cli
if sys.argv.pop(1) == "restored":
    signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(cli.main(sys.argv[1:]))
"""


ASKED = ["tune", "shift", "--dataset", "toy", "--samples", "3", "--max-concurrent", "1"]


def command(handler, *more):
    return [sys.executable, "-c", CODE, handler, *ASKED, *more]


def on_this_ray(folder):
    """Return the environment of a process that joins the Ray of these tests."""
    import ray

    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1", "BDL_TRACKING": "off"}
    env |= {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    return env | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # the head of these tests listens on 127.0.0.1 alone


def started(folder, handler, env=None):
    """Start a search with SIGINT ignored, as a shell without job control does, and wait until it works."""
    (folder / "hold").touch()
    process = background.start(command(handler), folder, env or on_this_ray(folder))
    while not (folder / "hold.waits").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def stop(process, number):
    """Send a signal, and return the process's stderr and its exit code."""
    try:
        process.send_signal(number)
        return process.communicate(timeout=120)[1], process.returncode
    finally:
        process.kill()


@pytest.mark.soak
def test_a_search_stopped_by_sigterm_resumes_and_gets_the_same_scores(toy, trials):
    """The first sample waits after half of its steps until the search is stopped; it continues from its checkpoint."""
    process = started(toy, "ignored")
    with pytest.raises(UserError, match=r"tune/shift-toy: another process holds .*shift-toy\.lock: one process"):
        search()
    error, code = stop(process, signal.SIGTERM)
    assert "tune: stopped; continue with --resume" in error and code == 130
    (toy / "hold").unlink()
    with pytest.raises(UserError, match="has an unfinished search; continue it with --resume"):
        search()
    with pytest.raises(UserError, match="params, data, grid, code, --samples or another option differ"):
        search(samples=4, resume=True)
    before = starts(toy)
    assert before == [(tune_cases.IN_FORCE, 0, 0)]
    search(resume=True)
    after = starts(toy)[len(before) :]
    assert after[0] == (tune_cases.IN_FORCE, tune_cases.STEPS // 2, 0), "from the checkpoint"
    with pytest.raises(UserError, match="has no unfinished search"):
        search(resume=True)
    search()
    assert_equal(*trials)


def assert_equal(*calls):
    """Two calls of Ray Tune have the same three trials."""
    resumed, undisturbed = ([(dict(t.sampled), dict(t.scores), t.milestone) for t in call] for call in calls)
    assert resumed == undisturbed and len(resumed) == 3


def test_ctrl_c_stops_a_search_that_was_started_in_the_background(toy):
    error, code = stop(started(toy, "restored"), signal.SIGINT)
    assert "tune: stopped; continue with --resume" in error and code == 130


@pytest.mark.soak
def test_a_killed_search_resumes_and_gets_the_same_scores(toy, trials):
    """Ray Tune saves its state every ten seconds, so a kill may cost that much work, but no score changes."""
    stop(started(toy, "ignored"), signal.SIGKILL)
    (toy / "hold").unlink()
    search(resume=True)
    search()
    assert_equal(*trials)


def test_a_search_is_tracked_and_its_winner_is_merged_into_params(toy, trials, monkeypatch, capsys):
    """The means of the data and the teachers differ by 4.5, so that the best shift is -4.5."""
    monkeypatch.setenv("BDL_TRACKING", "on")
    before = (toy / "params.yaml").read_text()
    search(samples=3, apply=True, max_concurrent=None, tensorboard=True)
    assert len([*(toy / ".state/tune/shift-toy/trials").rglob("events.out.tfevents*")]) == 3
    tried = [trial.sampled["inner.shift"] for trial in trials[0]]
    assert tried[0] == tune_cases.IN_FORCE
    overlay = yaml.safe_load((toy / "params/tuned/shift-toy.yaml").read_text())
    best = overlay["runs"]["toy-shift"]["override"]["inner"]["shift"]
    assert best in [tune.rounded(t.sampled["inner.shift"]) for t in trials[0] if t.milestone == 4]
    assert load().run("student", "toy-shift").config.inner.shift == best
    kept = [line for line in before.splitlines() if "toy-shift:" not in line]
    assert kept == [line for line in (toy / "params.yaml").read_text().splitlines() if "toy-shift:" not in line]
    assert capsys.readouterr().out.count(" of 3: nll ") == 3
    with sqlite3.connect(toy / "mlruns/mlflow.db") as store:
        ((parent, status),) = store.execute(
            "select r.run_uuid, r.status from runs r join tags t on r.run_uuid = t.run_uuid where t.value = 'tune'"
        )
        children = store.execute(
            "select t.value, r.status, p.value from runs r join tags t on r.run_uuid = t.run_uuid"
            " join params p on r.run_uuid = p.run_uuid where t.key = 'mlflow.parentRunId' and p.key = 'inner.shift'"
        ).fetchall()
        logged = store.execute("select distinct key from metrics").fetchall()
    assert status == "FINISHED"
    assert [child[:2] for child in children] == [(parent, "FINISHED")] * 3
    assert sorted(float(value) for *_, value in children) == pytest.approx(sorted(tried))
    assert ("validation/nll",) in logged


def test_a_failure_of_tracking_stops_no_trial(toy, monkeypatch, capsys):
    monkeypatch.setenv("BDL_TRACKING", "on")
    monkeypatch.setattr(tuner.MLflowLoggerCallback, "log_trial_result", lambda *_: 1 / 0)
    search(samples=2)
    assert capsys.readouterr().err.count("no tracking") == 1
    assert (toy / "params/tuned/shift-toy.yaml").exists()


@pytest.mark.soak
def test_a_population_is_never_worse_than_the_hyperparameters_in_force(toy, trials):
    search(samples=4, scheduler=tune.PBT, max_concurrent=None)
    population, finals = trials
    assert len(population) == 4 and len(finals) == 2
    assert all(trial.milestone == 4 for trial in (*population, *finals))
    text = (toy / "params/tuned/shift-toy.yaml").read_text()
    nll, in_force = sorted(trial.scores["nll"] for trial in finals)
    assert f"validation nll {nll:.5g} (in force: " in text and nll <= in_force
    assert "a population of 4 with changing hyperparameters reached" in text


def test_a_study_whose_trials_failed_is_resumed_and_written(toy, monkeypatch):
    """One of two points fails while the file ``fault`` exists; the other point is not fitted again."""
    monkeypatch.setattr(tuner, "_RETRIES", 0)
    (toy / "fault").touch()
    path = toy / "params/study/fake-shift.yaml"
    path.parent.mkdir(parents=True)
    grid = f"{{inner.shift: [-4.5, {tune_cases.IN_FORCE}]}}, figure: [{{x: inner.shift}}], overlay: {{}}"
    path.write_text(f"{{method: shift, dataset: toy, seeds: 2, metrics: [nll, rmse], grid: {grid}}}")
    place = path.relative_to(toy)
    with pytest.raises(UserError, match=r"2 trials failed \(continue with --resume\): RuntimeError: a fault"):
        study.study(place)
    assert not (toy / "results").exists()
    (toy / "fault").unlink()
    before = len(starts(toy))
    study.study(place, resume=True)
    assert sorted(starts(toy)[before:]) == [(6.0, 0, 0), (6.0, 0, 1)]
    rows = list(csv.DictReader((toy / "results/fake/shift.csv").open()))
    assert [(float(r["inner.shift"]), int(r["seed"])) for r in rows] == [(-4.5, 0), (-4.5, 1), (6.0, 0), (6.0, 1)]
    assert float(rows[0]["nll"]) < float(rows[2]["nll"])
    assert "| fits | 4 |" in (toy / "results/fake/shift.md").read_text()
    assert (toy / "results/fake/shift.svg").read_text().startswith("<?xml")


@pytest.mark.soak
def test_another_machine_resumes_a_search_from_a_bucket(made, toy, tmp_path_factory):
    """The first process is stopped; its search reaches the second project through the bucket alone."""
    with buckets.served("searches") as (keys, client):
        env = {**os.environ, **keys, "BDL_SEARCHES": "s3://searches/x", "PYTHONPATH": background.PATHS}
        _, code = stop(started(toy, "ignored", env), signal.SIGTERM)
        assert code == 130
        (toy / "hold").unlink()
        second = tmp_path_factory.mktemp("second")
        shutil.copytree(made, second, dirs_exist_ok=True)
        shutil.copy(toy / "params.yaml", second)
        assert subprocess.run(command("ignored", "--resume"), cwd=second, env=env, timeout=300).returncode == 0
        kept = buckets.files(client, "searches")
    assert starts(toy)[1] == (tune_cases.IN_FORCE, tune_cases.STEPS // 2, 0), "from the checkpoint in the bucket"
    assert (second / "params/tuned/shift-toy.yaml").exists()
    assert kept and not any(buckets.SECRET.encode() in blob for blob in kept.values())
