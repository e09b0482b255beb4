"""The params files of the papers' tables: which run stands for which cell."""

from functools import cache
from pathlib import Path

import pytest

from bdl_report import papers
from bdl_report.papers.comparison import runs_of
from bdl_report.papers.survey import STAND_INS
from pipeline.core.load import typed
from pipeline.core.model import Params
from pipeline.core.params_files import read_params
from pipeline.papers import compared, ours

ROOT = Path(__file__).parents[2]
RITTER = (2, 3, 5, 6, 7, 8, *range(11, 19))  # tables of one params file
LEE = (1, 2, 3, 4, 8, 9, 10)
FAMILY = ("BPC-rKL", "BPC-fKL", "FBPC", "BPC-CD")


@cache
def params(source: str) -> Params:
    """Read the params file of a table, or of the table whose fits it shows."""
    return typed(read_params(ROOT / f"params/paper/{source}.yaml"))


def test_tables_that_share_a_params_file_show_only_their_own_runs() -> None:
    sections = params("inducing-table2")
    datasets = {"table2": "CIFAR10", "table5": "CIFAR10", "table3": "CIFAR100", "table7": "CIFAR100"}
    tables = {name: papers.load(f"inducing:{name}") for name in datasets}
    shown = {name: [row.key for row in runs_of(tables[name], datasets[name], ours(sections))] for name in datasets}
    methods = ["deterministic", "ensemble", "ffg_w", "ffg_u", "ensemble_u"]
    assert shown["table2"] == [f"cifar10-{key}" for key in methods]
    assert shown["table5"] == [f"cifar10-{key}" for key in (*methods, "ffg_u-128", "ensemble_u-128")]
    assert shown["table3"] == [f"cifar100-{key}" for key in methods]
    weights, inducing = (50, 10, 1, "0_1"), (75, 50, 25)  # per cent that are left
    pruned = [f"ffg_w-left-{n}" for n in weights] + [f"ffg_u-left-{n}" for n in inducing]
    assert shown["table7"] == [f"cifar100-{key}" for key in ("ffg_w", "ffg_u", *pruned)]
    assert papers.load("inducing:table6").source == "inducing-table2"


def test_every_method_of_ritter_has_one_run_and_every_run_is_shown() -> None:
    sections, shown = params("inducing-table2"), set[str]()
    for table in (papers.load(f"inducing:table{number}") for number in RITTER):
        assert table.source == "inducing-table2"
        for dataset, figures in table.figures.items():
            lines = compared(table, dataset, sections, evaluated=()).lines
            assert [line.method for line in lines] == [*figures]
            keys = [line.run for line in lines if line.run is not None]
            assert len(keys) == len(set(keys)) == len(figures)
            for line in lines:
                assert {m: cell.paper for m, cell in line.cells.items() if cell.paper} == figures[line.method]
            shown |= {*keys}
    assert shown == {row.key for row in sections.of("student")}


def test_every_params_file_has_only_data_sets_of_its_table_and_names_its_command() -> None:
    paths = sorted(p for p in ROOT.glob("params/paper/*-*.yaml") if not p.stem.endswith(STAND_INS))
    assert len(paths) >= 12
    for path in paths:
        table = papers.load(path.stem.replace("-", ":", 1))
        sections = params(path.stem)
        datasets = {table.names.datasets[name] for name in table.figures}
        assert {row.spec.dataset for row in sections.of("student")} <= datasets
        assert f"python -m pipeline paper {table}" in path.read_text()


@pytest.mark.parametrize("number", LEE)
def test_every_method_of_lee_has_one_run_with_the_right_coreset(number: int) -> None:
    """Only chains of a network with running statistics have no run. AVBPC has a second line, of ridge regression."""
    table = papers.load(f"vbpc:table{number}")
    sections = params(table.source)
    shown = [name for name in table.figures if table.names.datasets[name] in sections.datasets]
    assert {*table.figures} - {*shown} == ({"Tiny-ImageNet"} if number == 1 else set())
    for dataset in shown:
        lines = compared(table, dataset, sections, evaluated=()).lines
        keys = [line.run for line in lines if line.run]
        assert len(keys) == len({*keys})
        of_paper, more = lines[: len(table.figures[dataset])], lines[len(table.figures[dataset]) :]
        assert [line.method for line in of_paper] == [*table.figures[dataset]]
        unbuilt = {line.method for line in of_paper if line.run is None}
        assert unbuilt == ({f"{method} (ResNet18-BN)" for method in FAMILY} if number == 4 else set())
        second = ["coreset_krr (vbpc-ipc1)", "coreset_krr (vbpc-ipc10)"]
        assert [line.method for line in more] == (second if dataset.startswith("CIFAR") and number != 9 else [])
        for line in of_paper:
            assert line.run is None or coreset_of(sections, line.run) == expected_coreset(line.method)


def coreset_of(found: Params, key: str) -> tuple[str, int, str]:
    """Return the method of a run's coreset, its images per class, and the method that predicts from it."""
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


def test_every_run_of_lee_is_a_cell_or_the_second_line_of_avbpc() -> None:
    published, shown = params("vbpc-table1"), set[str]()
    for table in (papers.load(f"vbpc:table{number}") for number in (1, 2, 3, 4, 10)):
        for dataset in table.figures:
            if table.names.datasets[dataset] in published.datasets:
                shown |= {line.run for line in compared(table, dataset, published, ()).lines if line.run}
    assert shown == {row.key for row in published.of("student")}
    used = {row.sources["coreset"] for row in published.of("student")}
    assert used == {row.key for row in published.of("coreset")}
