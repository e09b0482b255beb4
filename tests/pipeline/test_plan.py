"""The plan against dvc.yaml: both have the same stages, with the same inputs, outputs and dependencies."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.core.load import load
from pipeline.plan import plan, sources

ROOT = Path(__file__).parents[2]
STAGES: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
READ = """
import json
from dvc.repo import Repo
with Repo() as repo:
    stages = {}
    for stage in repo.index.stages:
        deps = [d for d in stage.deps if not hasattr(d, "params")]
        numbers = {str(d): sorted(d.params) for d in stage.deps if hasattr(d, "params")}
        above = [s.addressing for s in repo.index.graph.successors(stage)]
        outs = [str(o) for o in stage.outs]
        stages[stage.addressing] = {"deps": [str(d) for d in deps], "params": numbers, "outs": outs, "above": above}
print(json.dumps(stages))
"""


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    """The stages as DVC reads them from dvc.yaml and params.yaml."""
    done = subprocess.run([sys.executable, "-c", READ], cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def ours() -> plan.Plan:
    return plan.plan(load(ROOT / "params.yaml"))


def test_the_plan_has_the_stages_of_dvc_each_after_its_needs(theirs: dict[str, Any], ours: plan.Plan) -> None:
    assert {*ours, "sources"} == {*theirs}
    names = list(ours)
    assert all(names.index(need) < names.index(name) for name, stage in ours.items() for need in stage.needs)


def test_each_stage_has_the_same_inputs_outputs_and_needs_as_in_dvc(theirs: dict[str, Any], ours: plan.Plan) -> None:
    for name, stage in ours.items():
        there = theirs[name]
        whole = {"work/evaluate", "work/scores", "work/decide"}  # the report depends on folders
        reads = whole if name == "report" else {str(path) for path in stage.reads}
        assert {*there["deps"]} == reads, name
        assert {*there["params"]["params.yaml"]} == {*stage.params}, name
        assert {*there["params"]["work/sources.yaml"]} == {*stage.digests}, name
        identity = f"work/identity/{stage.kind}/{stage.key or stage.kind}.json"
        assert {*there["outs"]} == {*map(str, stage.makes), identity}, name
        assert {*there["above"]} - {"sources"} == {*stage.needs}, name


def test_the_plan_and_the_sources_stage_compute_equal_digests(ours: plan.Plan) -> None:
    written = sources.digests(load(ROOT / "params.yaml"))

    def at(dotted: str) -> Any:
        value: Any = written
        for part in dotted.split("."):
            value = value[part]
        return value

    assert all(at(key) == value for stage in ours.values() for key, value in stage.digests.items())


def test_only_prepare_writes_the_holdout_and_only_evaluate_reads_it() -> None:
    for kind, stage in STAGES.items():
        body = stage.get("do", stage)
        reads = any("holdout" in dep for dep in body.get("deps", ()))
        writes = any("holdout" in str(out) for out in body["outs"])
        assert (reads, writes) == (kind == "evaluate", kind == "prepare")


def test_every_stage_runs_the_stages_package_which_has_at_most_60_lines() -> None:
    for kind, stage in STAGES.items():
        assert stage.get("do", stage)["cmd"].split()[:5] == ["exec", "python", "-m", "stages", kind]
    assert sum(len(path.read_text().splitlines()) for path in (ROOT / "stages").glob("*.py")) <= 60


@pytest.mark.parametrize(
    "text",
    [
        "import pipeline.cli",
        "import pipeline.work.hub",
        "import stages.__main__",
        "import pipeline.plan.code as c; c.digest('student', 'vbpc')",
    ],
    ids=["command line", "hub", "a stage's own process", "digests"],
)
def test_light_modules_import_neither_torch_nor_ray_nor_mlflow_nor_dvc(text: str) -> None:
    heavy = ("torch", "ray", "mlflow", "dvc")
    text = f"import sys; {text}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
