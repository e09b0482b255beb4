"""The tables of Lee, Lee & Lee 2025: which run stands for which cell."""

from pathlib import Path

import pytest

from bdl_pipe import papers
from pipeline.core.load import load
from pipeline.core.model import Params
from pipeline.papers import compared

ROOT = Path(__file__).parents[2]
FILE = ROOT / "params/paper/vbpc-table1.yaml"
NUMBERS = (1, 2, 3, 4, 8, 9, 10)
FAMILY = ("BPC-rKL", "BPC-fKL", "FBPC", "BPC-CD")


@pytest.fixture(scope="module")
def published() -> Params:
    return load(FILE)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_cell_of_the_paper_has_one_run(number: int, published: Params) -> None:
    """But for chains of a network with running statistics; and AVBPC has a second line, of ridge regression."""
    table = papers.load(f"vbpc:table{number}")
    found = published if table.source == "vbpc-table1" else load(ROOT / f"params/paper/{table.source}.yaml")
    shown = [name for name in table.figures if table.names.datasets[name] in found.datasets]
    assert {*table.figures} - {*shown} == ({"Tiny-ImageNet"} if number == 1 else set())
    for dataset in shown:
        lines = compared(table, dataset, found, evaluated=()).lines
        keys = [line.run for line in lines if line.run]
        assert len(keys) == len({*keys})
        of_paper, more = lines[: len(table.figures[dataset])], lines[len(table.figures[dataset]) :]
        assert [line.method for line in of_paper] == [*table.figures[dataset]]
        unbuilt = {line.method for line in of_paper if line.run is None}
        assert unbuilt == ({f"{method} (ResNet18-BN)" for method in FAMILY} if number == 4 else set())
        second = ["coreset_krr (vbpc-ipc1)", "coreset_krr (vbpc-ipc10)"]
        assert [line.method for line in more] == (second if dataset.startswith("CIFAR") and number != 9 else [])
        for line in of_paper:
            assert line.run is None or coreset_of(found, line.run) == expected_coreset(line.method)


def coreset_of(found: Params, key: str) -> tuple[str, int, str]:
    """Return the method of a run's coreset, its images per class, and what predicts from it."""
    run = found.run("student", key)
    coreset = found.run("coreset", run.sources["coreset"])
    return coreset.method.name, coreset.config.ipc, run.method.name


def expected_coreset(name: str) -> tuple[str, int, str]:
    method, _, rest = name.partition(" (")
    ipc = int(rest[4:-1]) if rest.startswith("ipc") else 10
    coreset, vi, a = method.removesuffix(" VI"), method.endswith(" VI"), method == "AVBPC"
    ours = {"AVBPC": "vbpc", "Random": "random_coreset"}.get(coreset, coreset.lower().replace("-", "_"))
    if vi or (method == "VBPC" and not rest.startswith(("ipc", "Conv-BN"))):
        return ours, ipc, "coreset_vi"
    if ours in ("vbpc", "random_coreset") and not a:
        return ours, ipc, ours
    return ours, ipc, "coreset_nn" if a or ours in ("frepo", "rcig") else "coreset_sgmcmc"


def test_every_run_is_a_cell_or_the_second_line_of_avbpc(published: Params) -> None:
    shown = set[str]()
    for table in (papers.load(f"vbpc:table{number}") for number in (1, 2, 3, 4, 10)):
        for dataset in table.figures:
            if table.names.datasets[dataset] in published.datasets:
                shown |= {line.run for line in compared(table, dataset, published, ()).lines if line.run}
    assert shown == {row.key for row in published.of("student")}
    used = {row.sources["coreset"] for row in published.of("student")}
    assert used == {row.key for row in published.of("coreset")}
