"""What benchmarks/ takes from the project is there: no other test runs most of them."""

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def absent(source: str) -> list[str]:
    """List the names that a module imports from bdl_pipe, pipeline and that are not there."""
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
def test_a_benchmark_takes_what_is_there(path: Path) -> None:
    assert absent(path.read_text()) == []


def test_what_is_not_there_is_named() -> None:
    gone = "from bdl_pipe.sgmcmc.hamiltonian import sghmc\nfrom bdl_pipe.sgmcmc.diagnostics import of_split, summary"
    assert absent(gone) == ["bdl_pipe.sgmcmc.hamiltonian", "bdl_pipe.sgmcmc.diagnostics.summary"]
