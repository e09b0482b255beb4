"""What benchmarks/ import from the project exists; a soak counts what is wrong, a dry run counts operations."""

import ast
import importlib
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import vbpc_dry_run as dry
from benchmarks.coresets import CLASSES
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


def test_every_name_that_a_benchmark_imports_exists() -> None:
    assert {path.stem: lost for path in BENCHMARKS.rglob("*.py") if (lost := absent(path.read_text()))} == {}


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


@pytest.mark.parametrize(("blocks", "width"), [(1, 4), (2, 3)])
def test_the_operations_of_convolutions_equal_the_count_by_hand(blocks: int, width: int) -> None:
    """A forward pass of the batch, two of the coreset, and the coreset's gradients by its pixels and by the weights.

    A convolution of one image has 2·9·c_in·c_out FLOP a pixel; so has its gradient by its input, and by its weights.
    Where a network is trained, the gradient by the pixels of the images is not computed.
    """
    batch, ipc, channels, side = 6, 1, 2, 8
    args = Namespace(width=width, blocks=blocks, norm="none", ipc=ipc, batch=batch, image=(channels, side, side))
    counts, moved = dry.count(dry.steps_of(args, "meta"))
    rows, each = ipc * CLASSES, list[int]()
    for block in range(blocks):
        filters = width * 2**block
        each.append(2 * 9 * channels * filters * side**2)
        channels, side = filters, side // 2
    assert counts["aten.convolution"] == (batch + 2 * rows) * sum(each)
    assert counts["aten.convolution_backward"] == rows * (sum(each) + sum(each) + sum(each[1:]))
    assert counts["aten.addmm"] + counts["aten.mm"] > 6 * rows * channels * side**2 * CLASSES
    assert moved > 4 * (batch + 2 * rows) * sum(each) / (9 * 8)  # the output of the convolutions, and more


def test_the_bound_is_the_larger_time_of_computation_and_memory() -> None:
    assert dry.bound(10.0, 1.0, 5.0, 10.0) == 2.0
    assert dry.bound(10.0, 100.0, 5.0, 10.0) == 10.0
