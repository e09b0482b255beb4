"""The digest of a stage's code against another tool's import graph, against a running process, and against edits."""

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
    found = grimp.build_graph("bdl_pipe", "pipeline", cache_dir=None, exclude_type_checking_imports=True)
    for name in found.modules:
        counts = any(name == r or name.startswith(f"{r}.") for r in code.RESULTS)
        if name in (code.REGISTRY, code.PUBLIC, code.SIZES) or (name.startswith("pipeline") and not counts):
            for imported in found.find_modules_directly_imported_by(name):
                found.remove_import(importer=name, imported=imported)
            for importer in found.find_modules_that_directly_import(name):
                found.remove_import(importer=importer, imported=name)
    return found


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


SEEN = ("deterministic", "vbpc", "gp", "d_vbll", "ciber_last")
IMPORTED = """
import importlib, json, os, sys
import torch
for name in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        importlib.import_module(name)
        print(json.dumps([name, [m for m in sys.modules if m.startswith("bdl_pipe")]]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """Module of a method -> the bdl_pipe modules of a process that imports it; torch is imported before the fork."""
    command = [sys.executable, "-c", IMPORTED, *map(module, SEEN)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(map(json.loads, said.splitlines()))


@pytest.mark.process
@pytest.mark.parametrize("method", SEEN)
def test_the_closure_holds_every_module_that_a_process_imports(method: str, imported: dict[str, list[str]]) -> None:
    modules = imported[module(method)]
    assert {module(method)} <= {*modules} - {code.PUBLIC, code.SIZES} <= code.closure([module(method)])
    assert code.REGISTRY not in modules, "no method reads the registry"


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
    with subprocess.Popen(
        [sys.executable, "-c", ANSWERS, DIGESTS],
        cwd=copy,
        env={"PYTHONPATH": f"{copy / 'src'}:{copy}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        asked, said = process.stdin, process.stdout
        assert asked is not None and said is not None

        def ask() -> dict[str, str]:
            asked.write("\n")
            asked.flush()
            return dict(json.loads(said.readline()))

        yield ask
        asked.close()


@pytest.fixture(scope="module")
def before(digests: Digests) -> dict[str, str]:
    """The digests of the code as it is before any edit."""
    return digests()


COMMENT = "\n# a comment\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "stale"),
    [
        ("src/bdl_pipe/coresets/vbpc/closed_form.py", {"vbpc", "random_coreset", "coreset_bma", "coreset_vi"}),
        ("src/bdl_pipe/baselines/gp.py", {"gp"}),
        ("src/bdl_pipe/registry.py", set()),
        ("pipeline/work/executor.py", set()),
        ("pipeline/run/body.py", set()),
        ("pipeline/tracking/store.py", set()),
        ("src/bdl_pipe/seeds.py", {*METHODS}),
        ("pipeline/stages/fit.py", {*METHODS}),
    ],
)
def test_an_edit_changes_only_the_digests_of_the_methods_that_use_the_file(
    copy: Path, digests: Digests, before: dict[str, str], file: str, stale: set[str]
) -> None:
    text = (copy / file).read_text()
    (copy / file).write_text(text + COMMENT)
    try:
        after = digests()
    finally:
        (copy / file).write_text(text)
    assert {key.split()[1] for key in before if before[key] != after[key] and key.startswith("student ")} == stale


@pytest.mark.process
def test_a_new_method_changes_no_digest_of_another_method(copy: Path, digests: Digests, before: dict[str, str]) -> None:
    registry = copy / "src/bdl_pipe/registry.py"
    text = registry.read_text()
    new = copy / "src/bdl_pipe/baselines/snapshots.py"
    new.write_text("SNAPSHOTS = None\n")
    line = '        "sgd": "trajectory.sgd:SGD",\n'
    registry.write_text(text.replace(line, line + '        "snapshots": "baselines.snapshots:SNAPSHOTS",\n'))
    try:
        after = digests()
    finally:
        registry.write_text(text)
        new.unlink()
    assert {key: after.pop(key) for key in list(after) if "snapshots" in key} and after == before


@pytest.mark.process
def test_a_stored_reference_changes_only_the_digests_of_evaluations(
    copy: Path, digests: Digests, before: dict[str, str]
) -> None:
    new = copy / "src/bdl_pipe/evaluation/references/new.safetensors"
    new.write_bytes(b"draws")
    try:
        after = digests()
    finally:
        new.unlink()
    assert {key.split()[0] for key in before if before[key] != after[key]} == {"evaluate"}
    assert all(before[key] != after[key] for key in before if key.startswith("evaluate "))


@pytest.mark.process
@pytest.mark.parametrize("file", ["columns.py", "templates/style.css", "paper.csv"])
def test_a_file_of_the_report_changes_only_the_digest_of_the_report(
    copy: Path, digests: Digests, before: dict[str, str], file: str
) -> None:
    place = copy / "src/bdl_report" / file
    text = place.read_text()
    place.write_text(text + COMMENT)
    try:
        after = digests()
    finally:
        place.write_text(text)
    assert {key for key in before if before[key] != after[key]} == {"report"}


@pytest.mark.process
@pytest.mark.parametrize("file", ["table", "selective", "calibration"])
def test_a_metric_of_stored_predictions_changes_only_scores_and_the_report(
    copy: Path, digests: Digests, before: dict[str, str], file: str
) -> None:
    """No fit and no evaluation depends on such a metric; the report prints it."""
    place = copy / f"src/bdl_pipe/metrics/{file}.py"
    text = place.read_text()
    place.write_text(text + COMMENT)
    try:
        after = digests()
    finally:
        place.write_text(text)
    assert {key for key in before if before[key] != after[key]} == {"scores", "report"}
