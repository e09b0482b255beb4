"""The tiny project: what runs, what is stale, what is left when things go wrong."""

import csv
import json
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from bdl_pipe.scores import COLUMNS
from tests.end_to_end.conftest import ROOT, Project, make

pytestmark = [pytest.mark.slow, pytest.mark.process]


def digest(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_comparison_has_every_split_and_a_second_run_does_nothing(finished: Project) -> None:
    with open(finished.folder / "report/comparison.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    of = {(r["dataset"], r["set"]) for r in rows}
    assert of == {("digits", s) for s in ("test", "corrupted", "ood", "transfer", "cost")} | {
        ("boston", "test"),
        ("boston", "cost"),
    }
    assert len({(r["name"], r["severity"]) for r in rows if r["set"] == "corrupted"}) == 95
    boston = {(r["split"], r["seed"]) for r in rows if r["dataset"] == "boston"}
    assert boston == {("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")}
    costs = {r["metric"] for r in rows if r["set"] == "cost"}
    assert costs == {"parameters", "bytes", "fit_seconds", "seconds_per_1000", "peak_bytes"}
    transferred = {(r["name"], r["metric"]) for r in rows if r["set"] == "transfer"}
    assert transferred == {("mnist5k", metric) for metric in ("accuracy", "nll", "brier", "ece")}
    assert "nothing to do" in finished.pipeline("repro").stdout
    assert "up to date" in finished.dvc("status")
    assert not [p for p in (finished.folder / ".state/checkpoints").rglob("*") if p.is_file()]
    assert not list(finished.folder.joinpath("work").rglob("*.tmp"))


def test_the_comparison_in_mlflow_has_the_reports_scores(finished: Project) -> None:
    text = """
import json
from mlflow.tracking import MlflowClient
from pipeline.tracking import store
client = MlflowClient(store.store_uri())
runs = client.search_runs([client.get_experiment_by_name(store.COMPARISON).experiment_id])
print(json.dumps({r.data.tags["key"]: [r.data.metrics, r.data.params] for r in runs}))
"""
    found = json.loads(finished.run(sys.executable, "-c", text, env={"BDL_TRACKING": "on"}).stdout)
    assert found.keys() == {"digits-ensemble", "boston-deterministic"}
    with open(finished.folder / "report/comparison.csv") as file:
        rows = [r for r in csv.DictReader(file) if r["dataset"] == "boston" and r["set"] == "test"]
    nll = {(r["split"], r["seed"]): float(r["value"]) for r in rows if r["metric"] == "nll"}
    metrics, params = found["boston-deterministic"]
    assert metrics["nll"] == pytest.approx(sum(nll.values()) / len(nll), rel=1e-4)
    assert {"nll_se", "rmse", "fit_seconds", "parameters"} <= metrics.keys()
    assert params["network"] == "mlp 16" and params["seeds"] == "2"
    assert "auroc_mnist5k" in found["digits-ensemble"][0] and "corrupted_accuracy" in found["digits-ensemble"][0]


def test_a_number_makes_only_its_branch_stale(project: Project) -> None:
    project.edit("params.yaml", "override: {epochs: 3}", "override: {epochs: 4}")
    said = project.pipeline("repro").stdout
    assert "4 of 9 stages to run" in said
    assert "digits" not in "".join(line for line in said.splitlines() if ": started" in line)
    assert "up to date" in project.dvc("status")


def test_fits_do_not_need_the_holdout(project: Project) -> None:
    """With the test rows out of reach, everything but evaluate runs, and gives the same bytes."""
    os.rename(project.folder / "work/holdout", project.folder / "hidden")
    before = (
        digest(project.folder / "work/trajectory/digits-sgd"),
        digest(project.folder / "work/student/digits-ensemble"),
    )
    shutil.rmtree(project.folder / "work/identity")
    stage = sys.executable, "-m", "stages"
    project.run(*stage, "trajectory", "digits-sgd")
    project.run(*stage, "student", "digits-ensemble")
    after = (
        digest(project.folder / "work/trajectory/digits-sgd"),
        digest(project.folder / "work/student/digits-ensemble"),
    )
    assert after == before
    error = project.run(*stage, "evaluate", "digits-ensemble", code=2).stderr
    assert "work/holdout/digits" in error and "Traceback" not in error


def test_no_stage_but_evaluate_opens_the_holdout(project: Project) -> None:
    text = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from pipeline.core.load import load
from importlib import import_module
from pipeline.core.settings import Settings
from pipeline.plan import plan
from pipeline.plan.code import BODIES
from pipeline.work import choose
student = "boston-deterministic"
for kind, key in (("trajectory", "boston-sgd"), ("student", student), ("evaluate", student), ("report", "")):
    opened.clear()
    params, settings = load(), Settings.read()
    import_module(BODIES[kind]).run(plan.one(kind, key, params), params, choose(settings), settings)
    print("READ", kind, any("holdout" in path for path in opened), any("work/" in path for path in opened))
"""
    said = project.run(sys.executable, "-c", text).stdout
    found = [line.split()[1:] for line in said.splitlines() if line.startswith("READ")]
    assert found == [[k, str(k == "evaluate"), "True"] for k in ("trajectory", "student", "evaluate", "report")]


def test_a_failing_stage_stops_its_descendants_only(project: Project) -> None:
    project.edit(
        "pipeline/run/body.py",
        "    with alone(stage):\n",
        '    if stage.name == "student@digits-ensemble":\n        raise SystemExit("no luck today")\n'
        "    with alone(stage):\n",
    )
    shutil.rmtree(project.folder / "work/student")
    shutil.rmtree(project.folder / "work/evaluate")
    done = project.pipeline("repro", "-j", "2", code=1)
    assert "FAILED student@digits-ensemble" in done.stderr and "no luck today" in done.stderr
    assert "not run, because a stage that they need failed: evaluate@digits-ensemble, report" in done.stderr
    assert (project.folder / "work/evaluate/boston-deterministic").exists()


@pytest.mark.soak
def test_artifacts_travel_by_a_remote(project: Project, tmp_path: Path) -> None:
    store = tmp_path / "remote"
    project.dvc("remote", "add", "-q", "-d", "store", str(store))
    project.git("commit", "-qam", "remote")
    project.dvc("push", "-q")
    other = tmp_path / "other"
    project.git("clone", "-q", str(project.folder), str(other))
    clone = Project(other)
    clone.dvc("pull", "-q")
    assert "up to date" in clone.dvc("status")
    assert "Running stage" not in clone.dvc("repro")
    assert "nothing to do" in clone.pipeline("repro").stdout


def test_user_errors_are_one_line_and_leave_nothing(project: Project) -> None:
    """(what is changed, command, environment) -> what is said."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
        no_gpu = {"BDL_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""}
        cases = [
            (("repro",), {"BDL_EXECUTOR": "ray", "RAY_ADDRESS": dead}, "no Ray cluster answers there"),
            (("predict", "digits-ensemble", "--input", "x", "--output", "y"), no_gpu, "there is no GPU"),
            (("repro", "studant"), {}, "studant is not a stage"),
        ]
        before = digest(project.folder / "work")
        for command, env, message in cases:
            error = project.pipeline(*command, env=env, code=2).stderr
            assert message in error and len(error.strip().splitlines()) == 1, error
        assert digest(project.folder / "work") == before
    project.edit("params.yaml", "epochs: 2", "epochs: -2")
    for verb in (["check"], ["repro"]):
        error = project.pipeline(*verb, code=2).stderr
        assert error.strip().endswith("methods.sgd.epochs must be > 0, got -2") and error.count("\n") == 1
    assert digest(project.folder / "work") == before


def named(process: psutil.Process) -> str:
    try:
        return process.cmdline()[0]
    except (psutil.Error, IndexError):
        return ""


@pytest.mark.soak
def test_a_short_run_needs_no_worker_and_an_interrupt_of_a_long_one_leaves_no_process(project: Project) -> None:
    """The parallel executor with its own Ray head: with the bits of before, then stopped where workers are at work."""
    ray = {"BDL_EXECUTOR": "ray"}
    before = digest(project.folder / "work/trajectory")
    shutil.rmtree(project.folder / "work/trajectory")
    project.pipeline("repro", "trajectory", env=ray)
    made = digest(project.folder / "work/trajectory")
    assert {k: v for k, v in made.items() if "run.json" not in k} == {
        k: v for k, v in before.items() if "run.json" not in k
    }
    project.edit("params.yaml", "epochs: 2", "epochs: 4000")
    process = project.start(
        sys.executable, "-m", "pipeline", "repro", "trajectory", env=ray | {"BDL_CHECKPOINT_SECONDS": "0"}
    )
    hub, family = None, []
    while hub is None:  # ten seconds in the stage's own process, and then in workers
        assert process.poll() is None
        time.sleep(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
        hub = next((p for p in family if named(p) == "ray::Hub"), None)
    os.kill(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and error.strip().splitlines()[-1] == "repro: interrupted"
    _, alive = psutil.wait_procs(family, timeout=15)
    assert [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.soak
def test_the_real_graph_one_number_of_vbpc(tmp_path: Path) -> None:
    """In the project's own params.yaml: methods.vbpc.gamma makes stale what VBPC makes, and nothing else."""
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    project = make(tmp_path / "real", (ROOT / "params.yaml").read_text())
    text = """
import json
from pathlib import Path
from dvc.repo import Repo
with Repo() as repo:
    for stage in repo.index.stages:
        for out in stage.outs if stage.addressing != "sources" else ():
            path = Path(str(out))
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix in (".json", ".html", ".csv", ".md", ".parquet"):
                path.write_text(str(out))
            else:
                path.mkdir()
                (path / "manifest.json").write_text(str(out))
    repo.commit(force=True)
"""
    project.run(sys.executable, "-m", "stages", "sources")
    project.run(sys.executable, "-c", text)
    assert "up to date" in project.dvc("status")
    changed = yaml.safe_load((project.folder / "params.yaml").read_text())
    changed["methods"]["vbpc"]["gamma"] = 12345.0
    (project.folder / "params.yaml").write_text(yaml.safe_dump(changed))
    status = project.dvc("status", "--json")
    stale = set(yaml.safe_load(status))
    own = {f"coreset@{k}" for k, row in raw["coresets"].items() if row["method"] == "vbpc"}
    own |= {f"student@{k}" for k, row in raw["runs"].items() if row["method"] == "vbpc"}
    assert stale == own
