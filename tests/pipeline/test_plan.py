"""The plan against DVC's own reading of dvc.yaml: the same stages, with the same inputs, outputs and dependencies."""

import json
import subprocess
import sys
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

from bdl_pipe import config
from bdl_pipe.errors import UserError
from bdl_pipe.yaml_files import read_yaml
from pipeline.core.load import load, typed
from pipeline.core.params_files import read_params
from pipeline.plan import code, plan, sources

ROOT = Path(__file__).parents[2]
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


def test_the_plan_has_the_stages_of_dvc_each_after_its_needs() -> None:
    ours = plan.plan(load(ROOT / "params.yaml"))
    done = subprocess.run([sys.executable, "-c", READ], cwd=ROOT, capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout)
    assert {*ours, "sources"} == {*theirs}
    names = list(ours)
    for name, stage in ours.items():
        assert all(names.index(need) < names.index(name) for need in stage.needs)
        there = theirs[name]
        whole = {"work/evaluate", "work/scores", "work/decide"}  # the report depends on folders
        reads = whole if name == "report" else {str(path) for path in stage.reads}
        assert {*there["deps"]} == reads, name
        assert {*there["params"]["params.yaml"]} == {*stage.params}, name
        assert {*there["params"]["work/sources.yaml"]} == {*stage.digests}, name
        identity = f"work/identity/{stage.kind}/{stage.key or stage.kind}.json"
        assert {*there["outs"]} == {*map(str, stage.makes), identity}, name
        assert {*there["above"]} - {"sources"} == {*stage.needs}, name


def test_a_plan_of_every_kind_agrees_with_the_sources_and_keeps_the_holdout_for_the_evaluation() -> None:
    raw = read_yaml(ROOT / "params.yaml")
    for name in ("comparison", "increments", "decisions"):
        raw = config.merge(raw, read_params(ROOT / f"params/{name}.yaml"))
    params = typed(raw)
    stages, digests = plan.plan(params), sources.digests(params)
    assert {stage.kind for stage in stages.values()} == {*code.BODIES}
    for stage in stages.values():
        assert {name: reduce(getitem, name.split("."), digests) for name in stage.digests} == stage.digests
        reads, makes = (any("holdout" in path.parts for path in paths) for paths in (stage.reads, stage.makes))
        assert (reads, makes) == (stage.kind == "evaluate", stage.kind == "prepare")
    bundle, earlier = stages["inputs@fashion_mnist-0-1-fbpc"], "work/coreset/fashion_mnist-0-0-fbpc"
    assert [*map(str, bundle.reads)] == ["work/trajectory/fashion_mnist-0-1-experts", earlier]
    assert stages["coreset@fashion_mnist-0-1-fbpc"].needs == {bundle.name, "prepare@fashion_mnist-0-1"}
    for kind, message in {
        "prepare": r"^datasets.absent is not a data set \(known: fashion_small, boston, ",
        "decide": r"^decisions.absent is not an entry \(known: wheel, wheel-95, ",
        "scores": "^runs.absent is not a run",
    }.items():
        with pytest.raises(UserError, match=message):
            plan.one(kind, "absent", params)


def test_every_stage_runs_the_stages_package_which_has_at_most_60_lines() -> None:
    for kind, stage in read_yaml(ROOT / "dvc.yaml")["stages"].items():
        assert stage.get("do", stage)["cmd"].split()[:5] == ["exec", "python", "-m", "stages", kind]
    assert sum(len(path.read_text().splitlines()) for path in (ROOT / "stages").glob("*.py")) <= 60


LIGHT = {
    "command line": "import pipeline.cli",
    "hub": "import pipeline.work.hub",
    "a stage's own process": "import stages.__main__",
    "digests": "import pipeline.plan.code as c; c.digest('student', 'vbpc')",
    "missing cells of papers": "import pipeline.cli as c; assert c.main(['paper', 'all', '--missing']) == 0",
}


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_import_neither_torch_nor_ray_nor_mlflow_nor_dvc(name: str) -> None:
    heavy = ("ray", "mlflow") if name == "missing cells of papers" else ("torch", "ray", "mlflow", "dvc")
    text = f"import sys; {LIGHT[name]}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]" and all(line.startswith("made: ") for line in lines[-2:-1])
