"""Tracking: what is logged, under which names, and that nothing is lost when it fails."""

import hashlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.scores import Quantity, Score
from pipeline.tracking import experiments, provenance

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project, and a tracking module without memory of another."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", experiments.PARENT):
        monkeypatch.delenv(name, raising=False)
    forget(monkeypatch)
    return tmp_path


def forget(monkeypatch):
    monkeypatch.setattr(experiments, "_stopped", False)
    for cached in (experiments.client, experiments.experiment, experiments._session_parent):
        cached.cache_clear()


def runs_of(folder):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlruns/mlflow.db")
    experiment = client.get_experiment_by_name(experiments.EXPERIMENT)
    return experiment, {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def test_final_scores_have_the_same_names_for_every_method():
    figures = [
        (0, Quantity("accuracy"), 0.8),
        (1, Quantity("accuracy"), 0.9),
        (0, Quantity("accuracy", "corrupted", "fog", 1), 0.7),
        (0, Quantity("accuracy", "corrupted", "gaussian_noise", 5), 0.1),
        (0, Quantity("auroc", "ood", "mnist5k", score="max_prob"), 0.6),
        (0, Quantity("auroc", "ood", "mnist5k", score="refit_density"), 0.3),
        (0, Quantity("accuracy", "transfer", "stl10"), 0.5),
        (1, Quantity("accuracy", "transfer", "stl10"), 0.7),
        (0, Quantity("fit_seconds", "cost"), 12.0),
    ]
    scores = [Score(0, seed, of, value, 10) for seed, of, value in figures]
    assert experiments.final_scores(scores) == pytest.approx(
        {
            "test/accuracy": 0.85,
            "corrupted/accuracy": 0.4,
            "ood/mnist5k/auroc": 0.6,
            "ood/mnist5k/auroc_refit_density": 0.3,
            "transfer/stl10/accuracy": 0.6,
            "cost/fit_seconds": 12.0,
        }
    )


def test_params_are_dotted_and_short():
    flat = experiments.flatten({"a": {"b": 1, "c": {"d": [1, 2]}}, "e": "x" * 9000})
    assert flat["a.b"] == "1"
    assert flat["a.c.d"] == "[1, 2]"
    assert len(flat["e"]) <= 6000  # MLflow's limit


def test_a_stage_is_a_tagged_child_of_the_repro(project, capsys):
    manifest = project / "work/prepare/toy/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    parent = experiments.start_parent()
    tags = {"dataset": "toy", "method": "vbpc", "setting": "ipc1", "seed": 0}
    many = {f"p{i}": i for i in range(150)}  # more than MLflow takes in one request
    with experiments.stage_run("evaluate", "toy-vbpc", tags, many, deps=["work/prepare/toy"]) as run:
        run.metrics({"test/accuracy": 0.5})
        run.metrics({"loss": 2.0}, 1)
        run.metrics({"loss": 1.0}, 2)
        run.warn("chains disagree")
    experiments.end_parent(parent)
    experiment, runs = runs_of(project)
    child = runs["evaluate toy-vbpc"]
    assert child.data.tags["mlflow.parentRunId"] == parent
    assert {k: child.data.tags[k] for k in tags} == {k: str(v) for k, v in tags.items()}
    assert child.data.tags["stage"] == "evaluate"
    assert child.data.tags["sha256.work/prepare/toy"] == hashlib.sha256(b"{}").hexdigest()
    assert child.data.tags["warnings"] == "chains disagree"
    assert child.data.metrics == {"test/accuracy": 0.5, "loss": 1.0}
    assert len(child.data.params) == 150
    assert (child.info.status, runs["repro"].info.status) == ("FINISHED", "FINISHED")
    assert experiment.artifact_location == (project / "mlruns/artifacts").as_uri()
    assert "chains disagree" in capsys.readouterr().err
    with sqlite3.connect(project / "mlruns/mlflow.db") as store:
        assert store.execute("pragma journal_mode").fetchone() == ("wal",)


def test_a_stage_that_fails_says_so_and_its_error_passes(project):
    with pytest.raises(ZeroDivisionError), experiments.stage_run("student", "x", {}, {}):
        _ = 1 / 0
    _, runs = runs_of(project)
    assert runs["student x"].info.status == "FAILED"


def test_stages_of_one_process_share_a_parent(project):
    for key in ("a", "b"):
        with experiments.stage_run("student", key, {}, {}):
            pass
    _, runs = runs_of(project)
    parents = {runs[f"student {key}"].data.tags["mlflow.parentRunId"] for key in "ab"}
    assert len(parents) == 1
    assert len(runs) == 3


def test_tracking_that_fails_costs_one_line_and_no_result(project, capsys, monkeypatch):
    (project / "mlruns").write_text("a file where the store's folder belongs")
    done = []
    for key in ("a", "b"):
        with experiments.stage_run("student", key, {}, {}) as run:
            run.metrics({"x": 1.0})
            run.model(project / "nothing")
            done.append(key)
    assert done == ["a", "b"]
    assert capsys.readouterr().err.count("no tracking") == 1


def test_a_dead_server_is_noticed_at_once(project, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert experiments.initialise() is None
    assert "no tracking (http://127.0.0.1:9)" in capsys.readouterr().err


def test_without_mlflow_everything_works(project, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with experiments.stage_run("student", "a", {}, {}) as run:
        run.metrics({"x": 1.0})
    assert run.id is None
    assert "no tracking" in capsys.readouterr().err


def test_the_runs_of_killed_processes_are_ended(project):
    dead = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = provenance.process(dead.pid)
    assert not provenance.is_dead(name)
    dead.communicate()
    assert provenance.is_dead(name)
    assert not provenance.is_dead("elsewhere/1/0.00")  # another machine's: not ours to judge
    lost = experiments._create("lost", {})
    experiments.client().set_tag(lost.info.run_id, "process", name)
    experiments.start_parent()
    _, runs = runs_of(project)
    assert runs["lost"].info.status == "KILLED"
    assert runs["repro"].info.status == "RUNNING"


@pytest.mark.slow
def test_tracking_that_is_off_imports_nothing_and_leaves_nothing(project):
    code = (
        "import sys; from pipeline.tracking import experiments; assert experiments.initialise() is None\n"
        "parent = experiments.start_parent()\n"
        "with experiments.stage_run('student', 'x', {}, {}) as run: run.metrics({'x': 1.0})\n"
        "experiments.end_parent(parent); assert 'mlflow' not in sys.modules"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "BDL_TRACKING": "off"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and list(project.iterdir()) == []


def test_processes_that_begin_at_once_lose_nothing(project):
    """Four at once on a store that is not there yet, forks as a host's stages are: without the lock they fail."""
    code = (
        "import os, sys, mlflow.tracking, mlflow.store.tracking.sqlalchemy_store, alembic.command\n"
        "from pipeline.tracking import experiments\n"
        "for i in range(4):\n"
        "    if os.fork() == 0:\n"
        "        with experiments.stage_run('student', str(i), {}, {}) as run: run.metrics({'x': 1.0})\n"
        "        sys.exit()\n"
        "sys.exit(any(os.wait()[1] for _ in range(4)))"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stderr) == (0, "")
    _, runs = runs_of(project)
    assert {runs[f"student {i}"].data.metrics["x"] for i in range(4)} == {1.0}


def test_an_experiment_keeps_its_files_where_it_was_made(project, monkeypatch, capsys):
    """Another place is refused before work, in one line with the cure, and taken where the experiment is new."""
    from pipeline.tracking import artifact_store

    monkeypatch.setenv("BDL_MLFLOW_ARTIFACTS", "s3://bucket/runs")
    experiments.initialise()
    assert runs_of(project)[0].artifact_location == "s3://bucket/runs/bdl-pipe-stages"
    monkeypatch.setenv("BDL_MLFLOW_ARTIFACTS", "s3://bucket/others")
    assert artifact_store.main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "keeps its files at s3://bucket/runs/bdl-pipe-stages; move mlruns away" in said


def test_a_warning_of_tracking_holds_no_password(project, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:aSecretOfATest@127.0.0.1:9/")
    assert experiments.initialise() is None
    said = capsys.readouterr().err
    assert "no tracking (http://127.0.0.1:9/)" in said and "aSecretOfATest" not in said
