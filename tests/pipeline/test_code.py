"""The digest of a stage's code against another tool's import graph, and against edits."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grimp
import pytest

from bdl_pipe.registry import METHODS, Lazy
from pipeline.plan import code

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


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("kind", ["student", "evaluate"])
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
