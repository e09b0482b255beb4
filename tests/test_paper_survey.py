"""Cells that are made, cells that can be made here, and the needs of other cells: each printed cell is counted once."""

import csv
from dataclasses import replace
from pathlib import Path

from bdl_report import papers
from bdl_report.papers import stored, survey
from bdl_report.papers.comparison import Ours, compare
from pipeline.core.params_files import read_params
from tests.test_paper_pages import RUNS, images

ROOT = Path(__file__).parents[1]
MINE = "python -m pipeline apply params/mine.yaml, then repro and paper all"


def source(*runs: Ours, only: str = "", command: str = MINE) -> survey.Source:
    return survey.Source(Path("params/mine.yaml"), command, runs, only)


def row(rows: list[survey.Row], table: str, dataset: str) -> survey.Row:
    return next(row for row in rows if (str(row.table), row.dataset) == (table, dataset))


def test_each_printed_cell_is_made_or_can_be_made_or_needs_something() -> None:
    """The printed cells are the lines of the papers' CSV files without their heads."""
    rows = survey.survey(ROOT / "results", survey.sources(ROOT / "params.yaml", ROOT / "params", read_params))
    lines = {path.stem: len(path.read_text().splitlines()) - 1 for path in papers.HERE.glob("*.csv")}
    for paper, count in lines.items():
        assert sum(row.printed for row in rows if row.table.paper == paper) == count
    for row in rows:
        others = sum(row.missing.cells.values()) + sum(row.missing.needs.values())
        assert row.made + row.stand_in + others == row.printed, (str(row.table), row.dataset)
    *_, can, total = survey.report(rows, {})
    counts = sum(row.made for row in rows), sum(row.stand_in for row in rows)
    of_both = f"{counts[0]} on the papers' data and {counts[1]} on a stand-in"
    assert total == f"made: {sum(counts)} of {sum(lines.values())}, {of_both}"
    assert can.startswith("can still be made here: ")


def test_the_made_cells_equal_the_cells_of_the_pages_in_results() -> None:
    """Counted from the CSV files: lines with our figure and the paper's figure, one for each method and metric."""
    tables, on_stand_in = set[tuple[str, ...]](), set[tuple[str, ...]]()
    for path, comparison in stored.stored(ROOT / "results"):
        with open(path, newline="") as file:
            for line in csv.DictReader(file):
                printed, method = comparison.table.figures[line["dataset"]], line["method"]
                method = method if method in printed else method.removesuffix(f" ({line['setting']})")
                if line["ours"] and line["paper"]:
                    into = on_stand_in if line.get("kind") in ("stand-in", "held-out classes") else tables
                    into.add((str(comparison.table), line["dataset"], method, line["metric"]))
    rows = survey.survey(ROOT / "results", [])
    assert sum(row.made for row in rows) == len(tables) > 0
    assert sum(row.stand_in for row in rows) == len(on_stand_in - tables)
    assert not any(row.missing.cells for row in rows), "no params file, and still something to run"


def test_a_missing_cell_counts_for_a_command_or_for_a_need(tmp_path: Path) -> None:
    table = papers.load("vbll:table1").on_stand_ins("CIFAR10")
    assert table is not None
    stored.write(tmp_path / "vbll/table1-cifar10-on-fashion_mnist.csv", compare(table, "CIFAR10", RUNS, "stand-in"), {})
    rows = survey.survey(tmp_path, [source(images("f-bnn", "bnn", "small", {}), images("f-g", "g_vbll", "x", {}))])
    line = row(rows, "vbll:table1", "CIFAR10")
    assert (line.printed, line.made, line.stand_in) == (37, 0, 7)
    assert sum(row.made + row.stand_in for row in rows) == 7
    # BNN, G-VBLL and G-VBLL-MAP: all but the AUROC against CIFAR-100, of which each of the eight methods has one
    assert line.missing.cells == {MINE: 4 + 4 + 1} and line.missing.runs == {MINE: {"f-bnn", "f-g"}}
    # the rest: the near set of all 8; 4 of both last layers with variational features, 3 of SNGP, ECE of DNN and D-VBLL
    assert line.missing.needs == {"a run that no params file has": 8 + 8 + 3 + 1 + 1}


def test_a_cell_that_is_made_on_the_papers_data_is_not_counted_on_a_stand_in(tmp_path: Path) -> None:
    """DNN's NLL, accuracy and AUROC of SVHN both ways, and one run on CIFAR-10 itself with its NLL alone."""
    table, on = papers.load("vbll:table1"), papers.load("vbll:table1").on_stand_ins("CIFAR10")
    assert on is not None
    mine = images("c-det", "deterministic", "small", {"nll": (0.2,)})
    comparison = compare(table, "CIFAR10", [replace(mine, dataset="cifar10")])
    stored.write(tmp_path / "vbll/table1-cifar10.csv", comparison, {})
    there = compare(on, "CIFAR10", RUNS[:1], "stand-in")
    stored.write(tmp_path / "vbll/table1-cifar10-on-fashion_mnist.csv", there, {})
    line = row(survey.survey(tmp_path, []), "vbll:table1", "CIFAR10")
    assert (line.made, line.stand_in) == (1, 2)


def test_the_need_of_a_missing_cell_is_data_a_method_or_a_gpu(tmp_path: Path) -> None:
    needs = {
        ("ciber:table1", "Yacht"): {"a run that no params file has": 8} | not_built("DVI", "DGP", "VSD"),
        ("vbll:table4", "CIFAR100"): {"a run that no params file has": 37},
        ("vbpc:table1", "Tiny-ImageNet"): {"the data of Tiny-ImageNet": 20},
        ("vbpc:table1", "FMNIST"): {"a GPU": 30},
        ("vbpc:table1", "CIFAR10"): {"the data of CIFAR10 (the table prints its stand-in, too)": 30},
        ("ciber:table10", "CIFAR10"): {"a run that no params file has": 12},
        ("vbpc:table8", "ImageWoof"): {"the data of ImageWoof": 20},
    }
    rows = survey.survey(tmp_path, [])
    assert {of: row(rows, *of).missing.needs for of in needs} == needs


def not_built(*names: str) -> dict[str, int]:
    methods = papers.load("ciber:table1").names.methods
    return {f"a method that is not built here ({name}: {methods[name].absent})": 1 for name in names}


def test_every_method_that_is_not_built_has_a_reason() -> None:
    for table in map(papers.load, papers.tables()):
        for name in {name for figures in table.figures.values() for name in figures}:
            theirs = table.names.methods[name]
            assert theirs.method is not None or theirs.absent or theirs.note, (str(table), name)


def test_the_params_file_of_a_table_makes_its_cells_unless_it_needs_a_gpu(tmp_path: Path) -> None:
    command = "python -m pipeline paper {table} --dataset '{dataset}'"
    wine = Ours("wine-gbll", "wine", "gbll", "mlp-2x50")
    rows = survey.survey(tmp_path, [source(wine, only="vbll-table3", command=command)])
    by = "python -m pipeline paper vbll:table3 --dataset 'Wine'"
    assert row(rows, "vbll:table3", "Wine").missing.cells == {by: 2}
    # a file of stand-ins makes the cells of a set that is not at hand, and of no other table
    flipper = Ours("penguins-333-gbll", "penguins-333", "gbll", "mlp-2x50")
    for only, cells in (
        ("vbll-table3-stand_ins", {"paper vbll:table3": 2}),
        ("vbll-table3", {}),
        ("vbll-table2-stand_ins", {}),
    ):
        rows = survey.survey(tmp_path, [source(flipper, only=only, command="paper {table}")])
        assert row(rows, "vbll:table3", "Yacht").missing.cells == cells
    # another table's file makes none of it, nor does an overlay of the comparison, whose protocol is another
    for other in (source(wine, only="vbll-table2", command=command), source(wine)):
        assert not row(survey.survey(tmp_path, [other]), "vbll:table3", "Wine").missing.cells
    vbpc = Ours("fashion_mnist-vbpc-ipc10", "fashion_mnist", "vbpc", "vbpc-ipc10")
    for_gpu = survey.survey(tmp_path, [source(vbpc, only="vbpc-table1", command=command)])
    assert row(for_gpu, "vbpc:table1", "FMNIST").missing.needs == {"a GPU": 30}
    overlay = survey.survey(tmp_path, [source(vbpc)])
    assert row(overlay, "vbpc:table1", "FMNIST").missing.cells == {MINE: 2}


def test_a_reported_time_is_recorded_or_from_the_params_file_or_unknown() -> None:
    hour = "about an hour"
    for took, says, sentence in (
        ({}, "", "time unknown"),
        ({}, hour, f"{hour} for all of the file"),
        ({"a": 60.0}, hour, "60 s of fitting as recorded, unknown for 1 of 2 runs"),
        ({"a": 60.0, "b": 61.0, "c": 9.0}, "", "121 s of fitting as recorded"),
    ):
        missing = survey.Missing()
        missing.cells["go"], missing.runs["go"], missing.says["go"] = 2, {"a", "b"}, says
        lines = survey.report([survey.Row(papers.load("vbll:table2"), "Boston", 2, 0, 0, missing)], took)
        assert [line for line in lines if "go" in line] == [f"  2 can be made: go ({sentence})"]


def test_the_time_is_read_from_the_head_of_a_params_file(tmp_path: Path) -> None:
    (tmp_path / "params").mkdir()
    (tmp_path / "params.yaml").write_text("runs: {}\n")
    overlay = tmp_path / "params/mine.yaml"
    overlay.write_text(
        "# Mine.\n#   python -m pipeline repro   # about 7 minutes on two cores\nruns:\n"
        "  a: {dataset: boston, method: gp, setting: x, seeds: 2}\n  b: {seeds: 3}\n"
    )
    default, mine = survey.sources(tmp_path / "params.yaml", tmp_path / "params", read_params)
    assert (default.says, mine.says) == ("", "about 7 minutes on two cores")
    assert mine.runs == [Ours("a", "boston", "gp", "x")], "a change of a run that params.yaml has is none"


def test_residual_networks_stand_for_methods_of_one_paper() -> None:
    """An overlay's runs have settings; a paper's other networks of the same method and data set take none of them."""
    sources = survey.sources(ROOT / "params.yaml", ROOT / "params", read_params)
    (residual,) = (s for s in sources if s.path.name == "residual.yaml")
    tables = map(papers.load, papers.tables())
    there = {
        table.paper
        for table in tables
        for dataset, methods in table.figures.items()
        if (of := table.on_stand_ins(dataset))
        for run in residual.runs
        if run.dataset == of.names.datasets[dataset] and any(run.stands_for(method, of) for method in methods)
    }
    assert residual.runs and there == {"ciber"}
