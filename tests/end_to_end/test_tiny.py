"""The tiny project: its results, the stages out of date after a change, and errors, which leave results unchanged."""

import contextlib
import copy
import csv
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from bdl_pipe.scores import COLUMNS
from pipeline.core.load import typed
from pipeline.plan.plan import plan
from tests.end_to_end.conftest import FORKED, ROOT, Project

pytestmark = [pytest.mark.slow, pytest.mark.process, FORKED]


def digest(folder: Path, *others: str) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(others)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_the_comparison_has_every_set_and_split_and_a_second_run_does_nothing(finished: Project) -> None:
    with open(finished.folder / "report/comparison.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    of = {(r["dataset"], r["set"]) for r in rows}
    digits = {("digits", of_set) for of_set in ("test", "corrupted", "ood", "transfer", "cost")}
    assert of == digits | {("boston", "test"), ("boston", "cost")}
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


@pytest.mark.soak
def test_the_comparison_in_mlflow_has_the_reports_scores(project: Project) -> None:
    text = """
import json
from mlflow.tracking import MlflowClient
from pipeline.tracking import store
client = MlflowClient(store.store_uri())
places = client.search_experiments(filter_string=f"name LIKE '{store.COMPARISON}%'")
runs = client.search_runs([place.experiment_id for place in places])
print(json.dumps({r.data.tags["key"]: [r.data.metrics, r.data.params] for r in runs}))
"""
    project.edit("params.yaml", "figures_dpi: 110", "figures_dpi: 90")
    project.pipeline("repro", env={"BDL_TRACKING": "on"})
    imported = json.loads(project.run(sys.executable, "-c", text, env={"BDL_TRACKING": "on"}).stdout)
    assert imported.keys() == {"digits-ensemble", "boston-deterministic"}
    with open(project.folder / "report/comparison.csv") as file:
        rows = [r for r in csv.DictReader(file) if r["dataset"] == "boston" and r["set"] == "test"]
    nll = {(r["split"], r["seed"]): float(r["value"]) for r in rows if r["metric"] == "nll"}
    metrics, params = imported["boston-deterministic"]
    assert metrics["nll"] == pytest.approx(sum(nll.values()) / len(nll), rel=1e-4)
    assert {"nll_se", "rmse", "fit_seconds", "parameters"} <= metrics.keys()
    assert params["network"] == "mlp 16" and params["seeds"] == "2"
    assert {"auroc_mnist5k", "corrupted_accuracy", "augrc", "ece_adaptive_p"} <= imported["digits-ensemble"][0].keys()
    assert {"augrc", "augrc_se", "quantile_error", "width_at_90"} <= metrics.keys()


def test_a_changed_hyperparameter_makes_only_its_branch_out_of_date(project: Project) -> None:
    output = project.pipeline("repro", "trajectories.boston-sgd.override.epochs=4").stdout
    assert (
        "params.yaml: trajectories.boston-sgd.override.epochs: 3 -> 4" in output and "5 of 11 stages to run" in output
    )
    assert "digits" not in "".join(line for line in output.splitlines() if ": started" in line)
    assert "up to date" in project.dvc("status")


def test_fits_and_the_report_run_without_the_holdout_and_evaluate_does_not(project: Project) -> None:
    """With the test rows out of reach, fits and the report run, and the fits give the same bytes."""
    fitted = [project.folder / "work" / place for place in ("trajectory/digits-sgd", "student/digits-ensemble")]
    before = [digest(folder) for folder in fitted]
    os.rename(project.folder / "work/holdout", project.folder / "hidden")
    shutil.rmtree(project.folder / "work/identity")
    for words in (("trajectory", "digits-sgd"), ("student", "digits-ensemble"), ("report",)):
        project.run(sys.executable, "-m", "stages", *words)
    assert [digest(folder) for folder in fitted] == before
    error = project.run(sys.executable, "-m", "stages", "evaluate", "digits-ensemble", code=2).stderr
    assert "work/holdout/digits" in error and "Traceback" not in error


@pytest.mark.soak
def test_the_ray_executor_repeats_the_bits_and_an_interrupt_leaves_no_process(project: Project) -> None:
    """The parallel executor with its own Ray head: a short run, then a long run that is interrupted at its workers."""
    ray = {"BDL_EXECUTOR": "ray"}
    before = digest(project.folder / "work/trajectory", "run.json")
    shutil.rmtree(project.folder / "work/trajectory")
    project.pipeline("repro", "trajectory", env=ray)
    assert digest(project.folder / "work/trajectory", "run.json") == before
    project.edit("params.yaml", "epochs: 2", "epochs: 4000")
    ray["BDL_CHECKPOINT_SECONDS"] = "0"
    process = project.start(sys.executable, "-m", "pipeline", "repro", "trajectory", env=ray)
    hub, family = None, []
    while hub is None:  # ten seconds in the stage's own process, and then in workers
        assert process.poll() is None
        time.sleep(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
        with contextlib.suppress(psutil.Error):
            hub = next((p for p in family if p.cmdline()[:1] == ["ray::Hub"]), None)
    os.kill(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and error.strip().splitlines()[-1] == "repro: interrupted"
    _, alive = psutil.wait_procs(family, timeout=15)
    assert [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_hyperparameter_of_vbpc_is_read_only_by_vbpcs_coresets_and_runs() -> None:
    """In the project's own graph, whose stages read the same params for DVC (test_code.py)."""
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    coresets = {f"coreset@{k}" for k, row in raw["coresets"].items() if row["method"] == "vbpc"}
    coresets |= {f"student@{k}" for k, row in raw["runs"].items() if row["method"] == "vbpc"}
    before = plan(typed(copy.deepcopy(raw)))
    raw["methods"]["vbpc"]["gamma"] = 12345.0
    assert {name for name, stage in plan(typed(raw)).items() if stage.params != before[name].params} == coresets
