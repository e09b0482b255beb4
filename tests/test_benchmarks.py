"""The names that benchmarks/ imports from the project exist: no other test runs most of the benchmarks."""

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def absent(source: str) -> list[str]:
    """List the names that a module imports from bdl_pipe and pipeline and that do not exist."""
    lost = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("bdl_pipe", "pipeline"):
            try:
                module = importlib.import_module(node.module)
            except ModuleNotFoundError:
                lost.append(node.module)
                continue
            for name in node.names:
                try:
                    found = hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")
                except ModuleNotFoundError:
                    found = None
                lost += [] if found else [f"{node.module}.{name.name}"]
    return lost


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: path.stem)
def test_every_name_that_a_benchmark_imports_exists(path: Path) -> None:
    assert absent(path.read_text()) == []


def test_names_that_do_not_exist_are_listed() -> None:
    gone = "from bdl_pipe.sgmcmc.hamiltonian import sghmc\nfrom bdl_pipe.sgmcmc.diagnostics import of_split, summary"
    assert absent(gone) == ["bdl_pipe.sgmcmc.hamiltonian", "bdl_pipe.sgmcmc.diagnostics.summary"]
