"""The plan against dvc.yaml: the same stages, which read, make and depend on the same."""

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
    """What DVC reads in dvc.yaml and params.yaml."""
    done = subprocess.run([sys.executable, "-c", READ], cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def ours() -> plan.Plan:
    return plan.plan(load(ROOT / "params.yaml"))


def test_the_stages_are_the_same_and_in_order(theirs: dict[str, Any], ours: plan.Plan) -> None:
    assert {*ours, "sources"} == {*theirs}
    names = list(ours)
    assert all(names.index(need) < names.index(name) for name, stage in ours.items() for need in stage.needs)


def test_each_stage_reads_makes_and_depends_on_the_same(theirs: dict[str, Any], ours: plan.Plan) -> None:
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


def test_the_digests_are_those_of_the_file(ours: plan.Plan) -> None:
    written = sources.digests(load(ROOT / "params.yaml"))

    def at(dotted: str) -> Any:
        value: Any = written
        for part in dotted.split("."):
            value = value[part]
        return value

    assert all(at(key) == value for stage in ours.values() for key, value in stage.digests.items())


def test_only_evaluate_reads_the_holdout() -> None:
    for kind, stage in STAGES.items():
        body = stage.get("do", stage)
        reads = any("holdout" in dep for dep in body.get("deps", ()))
        writes = any("holdout" in str(out) for out in body["outs"])
        assert (reads, writes) == (kind == "evaluate", kind == "prepare")


def test_stages_are_thin() -> None:
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
def test_what_is_to_be_light_imports_nothing_heavy(text: str) -> None:
    heavy = ("torch", "ray", "mlflow", "dvc")
    text = f"import sys; {text}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
