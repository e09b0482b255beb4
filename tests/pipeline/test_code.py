"""The digest of a stage's code against another tool's import graph and edits; the plan against DVC's reading."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem
from pathlib import Path

import grimp
import pytest

from bdl_pipe import config
from bdl_pipe.errors import UserError
from bdl_pipe.registry import METHODS, Lazy
from bdl_pipe.yaml_files import read_yaml
from pipeline.core.load import load, typed
from pipeline.core.params_files import read_params
from pipeline.plan import code, plan, sources

ROOT = Path(__file__).parents[2]
DIGESTS = "import json; from pipeline.plan import code; print(json.dumps({f'{k} {m}': code.digest(k, m) "
DIGESTS += "for k in ('student', 'evaluate') for m in code.methods()}"
DIGESTS += " | {k: code.digest(k) for k in ('prepare', 'inputs', 'scores', 'report')}))"


def module(method: str) -> str:
    assert isinstance(METHODS, Lazy)
    return METHODS.module(method)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """The imports that a result may depend on, as import-linter's library finds them."""
    graph = grimp.build_graph("bdl_pipe", "pipeline", cache_dir=None, exclude_type_checking_imports=True)
    for name in graph.modules:
        counts = any(name == r or name.startswith(f"{r}.") for r in code.RESULTS)
        if name in (code.REGISTRY, code.PUBLIC, code.SIZES) or (name.startswith("pipeline") and not counts):
            for imported in graph.find_modules_directly_imported_by(name):
                graph.remove_import(importer=name, imported=imported)
            for importer in graph.find_modules_that_directly_import(name):
                graph.remove_import(importer=importer, imported=name)
    return graph


@pytest.mark.parametrize(("kind", "method"), [("evaluate", "vbll"), *(("student", method) for method in METHODS)])
def test_the_closure_of_a_method_equals_the_import_graph_of_grimp(
    graph: grimp.ImportGraph, kind: str, method: str
) -> None:
    roots, theirs = [code.BODIES[kind], module(method)], set[str]()
    while new := {*roots} - theirs:  # and the packages that a module lies in, which Python imports before it
        theirs |= new | {above for name in new for above in graph.find_upstream_modules(name)}
        roots = [name.rpartition(".")[0] for name in theirs if "." in name]
    assert code.closure([code.BODIES[kind], module(method)]) == theirs - {
        "pipeline",
        "pipeline.core",
        "pipeline.stages",
    }


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code alone, for a test to edit and put back."""
    folder = tmp_path_factory.mktemp("code")
    for name in ("pipeline", "src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return folder


Digests = Callable[[], dict[str, str]]
ANSWERS = """
import ast, functools, os, pathlib, sys
ast.parse = functools.cache(ast.parse)
for path in pathlib.Path().rglob("*.py"):
    ast.parse(path.read_bytes())
for _ in sys.stdin:
    if os.fork() == 0:
        exec(sys.argv[1])
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0
"""


@pytest.fixture(scope="module")
def digests(copy: Path) -> Iterator[Digests]:
    """A function that returns the digests of the code as it is now.

    Each call is a fork of a process that has imported nothing of the project; that process has parsed the files, since
    parsing 300 files anew for each edit of one would take most of the time.
    """
    environment, pipe = {"PYTHONPATH": f"{copy / 'src'}:{copy}"}, subprocess.PIPE
    words = [sys.executable, "-c", ANSWERS, DIGESTS]
    with subprocess.Popen(words, cwd=copy, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        asked, answered = process.stdin, process.stdout
        assert asked is not None and answered is not None
        yield lambda: dict(json.loads(asked.write("\n") and answered.readline()))
        asked.close()


@pytest.fixture(scope="module")
def before(digests: Digests) -> dict[str, str]:
    """The digests of the code as it is before any edit."""
    return digests()


def of_methods(*names: str) -> set[str]:
    return {f"{kind} {name}" for kind in ("student", "evaluate") for name in names}


EVALUATIONS = {f"evaluate {name}" for name in METHODS}
REGISTRY, LINE = "src/bdl_pipe/registry.py", '        "sgd": "trajectory.sgd:SGD",\n'
SET_UP = [f"pipeline/{name}.py" for name in ("work/executor", "run/body", "tracking/store")]
STALE: dict[tuple[str, ...], set[str]] = {  # files that are edited, and the digests that change
    ("src/bdl_pipe/coresets/vbpc/closed_form.py",): of_methods(
        "vbpc", "vbpc_regression", "random_coreset", "coreset_bma", "coreset_vi"
    ),
    ("src/bdl_pipe/baselines/gp.py",): of_methods("gp", "svgp"),  # which shares its kernels
    ("src/bdl_pipe/seeds.py",): {*of_methods(*METHODS), "prepare", "scores", "report"},
    ("pipeline/stages/fit.py",): of_methods(*METHODS),
    ("src/bdl_pipe/evaluation/references/new.safetensors",): EVALUATIONS,  # a stored reference
    (REGISTRY, *SET_UP): set(),
    # Neither a fit nor an evaluation depends on a metric of stored predictions.
    ("src/bdl_pipe/metrics/selective.py",): {"scores", "report"},
    ("src/bdl_report/templates/style.css",): {"report"},
}


@contextlib.contextmanager
def edited(place: Path, old: str = "", new: str = "\n# a comment\n") -> Iterator[None]:
    """Append to a file, replace a part of it, or make it, and undo that."""
    text = place.read_text() if place.exists() else None
    place.write_text((text or "").replace(old, new) if old else (text or "") + new)
    try:
        yield
    finally:
        place.unlink() if text is None else place.write_text(text)


@pytest.mark.process
@pytest.mark.parametrize("files", STALE)
def test_an_edit_changes_only_the_digests_that_depend_on_the_file(
    copy: Path, digests: Digests, before: dict[str, str], files: tuple[str, ...]
) -> None:
    with contextlib.ExitStack() as edits:
        for file in files:
            edits.enter_context(edited(copy / file))
        after = digests()
    assert {key for key in before if before[key] != after[key]} == STALE[files]


@pytest.mark.process
def test_a_new_method_changes_no_digest_of_another_method(copy: Path, digests: Digests, before: dict[str, str]) -> None:
    line = LINE + '        "snapshots": "baselines.snapshots:SNAPSHOTS",\n'
    module = edited(copy / "src/bdl_pipe/baselines/snapshots.py", new="SNAPSHOTS = None\n")
    with edited(copy / REGISTRY, LINE, line), module:
        after = digests()
    assert {key: after.pop(key) for key in list(after) if "snapshots" in key} and after == before


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
