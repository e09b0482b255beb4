"""dvc.yaml against the code: every module that a stage imports is one of its dependencies."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import grimp
import pytest
import yaml

ROOT = Path(__file__).parents[2]
STAGES: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
KINDS = ("prepare", "trajectory", "teacher", "coreset", "student", "evaluate", "report")
# What params.py imports in order to check the numbers of other stages; no result of these stages depends on it.
CHECK_ONLY = {
    "prepare": ("bdl_pipe.registry", "bdl_pipe.evaluation"),
    "report": ("bdl_pipe.registry", "bdl_pipe.evaluation"),
}


def body(kind: str) -> dict[str, Any]:
    return STAGES[kind].get("do", STAGES[kind])


def names(entries: list[Any]) -> list[str]:
    return [next(iter(e)) if isinstance(e, dict) else e for e in entries]


def source(module: str) -> Path:
    top = ROOT / "src" if module.startswith("bdl_pipe") else ROOT
    stem = top.joinpath(*module.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


def has_code(path: Path) -> bool:
    return any(
        not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)) for n in ast.parse(path.read_text()).body
    )


def imported(kind: str) -> set[Path]:
    """Files that ``stages/<kind>.py`` imports, directly or not, also inside functions."""
    graph = grimp.build_graph("bdl_pipe", "pipeline", "stages", cache_dir=None)
    for module in CHECK_ONLY.get(kind, ()):
        graph.remove_import(importer="pipeline.core.params", imported=module)
    return {source(m) for m in graph.find_upstream_modules(f"stages.{kind}")} | {source(f"stages.{kind}")}


def covered(path: Path, deps: list[str]) -> bool:
    return any(path == ROOT / dep or path.is_relative_to(ROOT / dep) for dep in deps)


def test_the_stage_kinds_are_these() -> None:
    assert tuple(STAGES) == KINDS
    assert sorted(p.stem for p in (ROOT / "stages").glob("[a-z]*.py")) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_dependencies_cover_what_is_imported(kind: str) -> None:
    deps = [dep for dep in names(body(kind)["deps"]) if "$" not in dep]
    files = imported(kind)
    assert source("pipeline.core.shell") in files, "the import graph is not what it should be"
    assert [str(f.relative_to(ROOT)) for f in sorted(files) if has_code(f) and not covered(f, deps)] == []
    assert [dep for dep in deps if not dep.startswith(("work/", "data")) and not (ROOT / dep).exists()] == []


def test_a_dependency_that_is_left_out_is_noticed() -> None:
    deps = [dep for dep in names(body("student")["deps"]) if "$" not in dep]
    for dep in deps:
        rest = [d for d in deps if d != dep]
        assert any(has_code(f) and not covered(f, rest) for f in imported("student")), f"{dep} is not needed"


def test_only_evaluate_reads_the_holdout() -> None:
    for kind in KINDS:
        reads = any("holdout" in dep for dep in names(body(kind)["deps"]))
        writes = any("holdout" in out for out in names(body(kind)["outs"]))
        assert (reads, writes) == (kind == "evaluate", kind == "prepare")


def test_stages_are_thin() -> None:
    for path in (ROOT / "stages").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    "code", ["import pipeline.cli as c; c.parser()", "import pipeline.core.executors.hub"], ids=["command line", "hub"]
)
def test_light_commands_and_a_stages_hub_import_nothing_heavy(code: str) -> None:
    heavy = ("torch", "ray", "mlflow", "dvc")
    text = f"import sys; {code}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
