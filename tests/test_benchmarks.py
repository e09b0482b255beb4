"""The names that benchmarks/ imports from the project exist, which no other test shows; a soak counts what is wrong."""

import ast
import importlib
from pathlib import Path

import pytest

from benchmarks.served_soak import MOST_GROWTH, Soak, compared

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
                    exists = hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")
                except ModuleNotFoundError:
                    exists = None
                lost += [] if exists else [f"{node.module}.{name.name}"]
    return lost


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: path.stem)
def test_every_name_that_a_benchmark_imports_exists(path: Path) -> None:
    assert absent(path.read_text()) == []


def test_names_that_do_not_exist_are_listed() -> None:
    gone = "from bdl_pipe.sgmcmc.hamiltonian import sghmc\nfrom bdl_pipe.sgmcmc.diagnostics import of_split, summary"
    assert absent(gone) == ["bdl_pipe.sgmcmc.hamiltonian", "bdl_pipe.sgmcmc.diagnostics.summary"]


def test_the_soak_of_served_models_counts_wrong_answers_and_lost_connections() -> None:
    def send(body: bytes) -> bytes:
        if body == b"13":
            raise ConnectionResetError
        return b"wrong" if body in (b"7", b"30") else body

    requests, done = [str(number).encode() for number in range(40)], list[int]()
    assert compared(lambda _: send, requests, requests, 8, done.append) == 3
    assert done == list(range(1, 41))
    assert Soak("swag", 0, 1.0, 1.0, 0, int(MOST_GROWTH)).right
    assert not Soak("swag", 1, 1.0, 1.0, 0, 0).right
    assert not Soak("swag", 0, 1.0, 1.0, 0, int(MOST_GROWTH) + 1).right
