"""The pages of comparisons: the counts in their heads, and the statements of a stand-in's page."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bdl_pipe import scores
from bdl_pipe.scores import Estimate, Quantity, RunScores, Score
from bdl_report import papers
from bdl_report.papers import Pair, PaperTable, Printed, stored
from bdl_report.papers.comparison import Comparison, Line, Ours, compare, read
from bdl_report.papers.pages import Cells, counted, facts_of, markdown, orders, stem

TITLES = ("## What limits the comparison", "## What agrees", "## What does not", "## Where the figures come from")


def images(key: str, method: str, setting: str, values: dict[str, tuple[float, ...]]) -> Ours:
    """A run on Fashion-MNIST; a metric with a colon is an AUROC of another set."""
    figures = []
    for name, seeds in values.items():
        metric, _, where = name.partition(":")
        of = Quantity(metric, "ood", where, score="max_prob") if where else Quantity(metric)
        figures += [Score(0, seed, of, value, 9) for seed, value in enumerate(seeds)]
    stored = scores.table("fashion_mnist", method, setting, figures)
    return Ours(key, "fashion_mnist", method, setting, RunScores(stored))


RUNS = [
    images("f-det", "deterministic", "small", {"nll": (0.30, 0.32), "accuracy": (0.91, 0.91), "auroc:mnist5k": (0.9,)}),
    images("f-d_vbll", "d_vbll", "small", {"nll": (0.20, 0.22), "accuracy": (0.90, 0.92), "auroc:mnist5k": (0.8,)}),
    images("f-sngp", "sngp", "small", {"nll": (0.40, 0.42)}),
]


def on(name: str, dataset: str = "CIFAR10") -> PaperTable:
    table = papers.load(name).on_stand_ins(dataset)
    assert table is not None
    return table


def test_the_head_counts_each_printed_cell_once() -> None:
    """Of Boston's 20 cells: two of GBLL near and far, one of MAP without an error, two runs of Ensemble."""
    table = papers.load("vbll:table2")

    def line(method: str, run: str, setting: str = "", **ours: Estimate) -> Line:
        name = method.removesuffix(f" ({setting})")
        printed = table.figures["Boston"][name]
        return Line(method, run, setting, True, {m: Pair(ours.get(m), printed[m]) for m in ("nll", "rmse")})

    lines = [
        line("GBLL", "g", nll=Estimate(2.91, 0.05, 20), rmse=Estimate(3.0, 0.05, 20)),  # 2.90 ± 0.05, 4.19 ± 0.17
        line("MAP", "m", nll=Estimate(9.0, None, 1)),
        line("Ensemble (x)", "x", "x", nll=Estimate(2.50, 0.09, 20)),  # 2.48 ± 0.09
        line("Ensemble (y)", "y", "y", nll=Estimate(9.0, 0.09, 20)),
        Line("own", "o", "", True, {"nll": Pair(Estimate(1.0, 0.1, 20)), "rmse": Pair()}),
        *(Line(m, None, "", False, {k: Pair(None, v) for k, v in f.items()}) for m, f in table.figures["Boston"].items()
          if m not in ("GBLL", "MAP", "Ensemble")),
    ]  # fmt: skip
    cells = counted(Comparison(table, "Boston", lines))
    assert cells == Cells(printed=20, made=4, near=2, far=1, stand_in=0)
    counts = "2 within 3 combined standard errors, 1 beyond, 1 without an error on both sides"
    assert str(cells) == f"20 cells printed; 4 made on the paper's data ({counts}); 0 made on a stand-in"


def test_a_page_of_a_stand_in_compares_orders_and_no_values() -> None:
    table = on("vbll:table1")
    comparison = compare(table, "CIFAR10", RUNS, "stand-in")
    assert comparison.stand_in == "fashion_mnist"
    assert stem(table, "CIFAR10", "stand-in") == "table1-cifar10-on-fashion_mnist"
    last = papers.load("vbpc:table9").on_stand_ins(step := "CIFAR100 (20 classes)")
    assert last and stem(last, step, "stand-in") == "table9-cifar100_20_classes-on-fashion_digits-20-classes"
    assert counted(comparison) == Cells(printed=37, made=0, near=0, far=0, stand_in=7)
    page = markdown(comparison, {"commit": "abc"})
    places = [page.index(title) for title in TITLES]
    assert places == sorted(places)
    assert "combined standard errors, ours" not in page and " !" not in page and "agrees:" not in page
    assert all(not row.split(",")[10] for row in comparison.comma_separated().splitlines()[1:])
    assert "Ours are of fashion_mnist, the paper's of CIFAR10" in page
    assert comparison.remarks()[0] == "ours are of fashion_mnist: its page compares orders"
    assert table.names.default_run_note in page
    assert "Of other sets: mnist5k for SVHN, nothing for CIFAR100" in page
    assert "| DNN | 91.00 ± 0.00 | 95.8 ± 0.19 |" in page and "| BNN | not run |" in page
    # NLL printed: DNN .183 ± .007, SNGP .149 ± .005, D-VBLL .160 ± .001; ours .31, .41, .21, each ± .01
    nll = orders(comparison)["nll", "WRN-28-10"]
    assert [str(pair) for pair in nll.same] == ["D-VBLL < DNN (clear)"]
    assert [str(pair) for pair in nll.opposite] == ["SNGP < DNN (clear)", "SNGP < D-VBLL (clear)"]
    order = "1 of 3 pairs of methods in the paper's order (Kendall's τ-b -0.33); of 3 that are distinguishable on both "
    order += "sides 1"
    assert f"- NLL (WRN-28-10): {order}; against DNN 1 of 2 differences have the paper's sign" in page
    opposite = "SNGP < DNN (clear), SNGP < D-VBLL (clear)"
    assert f"- NLL (WRN-28-10), opposite to the paper's order, which is: {opposite}" in page
    # our accuracies are equal, so that no pair has an order
    assert not orders(comparison)["accuracy", "WRN-28-10"].same


def test_orders_compare_methods_of_one_printed_setting() -> None:
    """At ten images a class every method is better than at one: such pairs would make any order agree."""
    table = on("vbpc:table2")
    runs = [
        images("a", "coreset_nn", "frepo-ipc1", {"accuracy": (0.6,)}),
        images("b", "vbpc", "ipc1", {"accuracy": (0.7,)}),
        images("c", "vbpc", "ipc10", {"accuracy": (0.9,)}),
        images("d", "coreset_nn", "frepo-ipc10", {"accuracy": (0.8,)}),
    ]
    ordered = orders(compare(table, "CIFAR10", runs, "stand-in"))
    pairs = {key: len(order.pairs) for key, order in ordered.items()}
    assert pairs == {("accuracy", "ipc=1"): 1, ("accuracy", "ipc=10"): 1}


def test_a_table_that_prints_the_stand_in_has_no_stand_in_page() -> None:
    assert papers.load("vbpc:table1").on_stand_ins("CIFAR10") is None
    assert papers.load("vbpc:table3").on_stand_ins("CIFAR10") is not None
    assert papers.load("vbpc:table1").on_stand_ins("Tiny-ImageNet") is None, "200 classes have no stand-in"
    assert on("vbll:table4").names.datasets["CIFAR100"] == "fashion_digits"
    table = on("ciber:table4")
    assert table.names.datasets["CIFAR10"] == "mnist5k"
    assert table.quantity("nll:STL10", None) == Quantity("nll", "transfer", "digits")
    assert papers.load("ciber:table4").quantity("nll:STL10", None).name == "stl10", "a table was changed in place"


def on_fold(fold: str, method: str, near: float, setting: str = "small") -> Ours:
    run = images(f"{fold}-{method}", method, setting, {"auroc:held_out": (near,)})
    return replace(run, dataset=fold)


def test_held_out_classes_stand_for_a_near_set_on_a_page_of_its_own_and_folds_are_its_splits() -> None:
    assert papers.load("vbll:table4").on_folds("CIFAR100") is None, "its OOD set is CIFAR-10"
    assert papers.load("inducing:table2").on_folds("CIFAR10") is None, "it prints no OOD score"
    folds = papers.load("vbll:table1").names.folds["CIFAR10"].of
    runs = [on_fold(fold, "deterministic", near) for fold, near in zip(folds, (0.7, 0.8, 0.75), strict=True)]
    runs += [on_fold(fold, "sngp", 0.9) for fold in folds[1:]]  # a fold is not run
    pages = dict(stored.of_default_run([*RUNS, *runs]))
    near = pages[Path("vbll/table1-cifar10-on-fashion_near.csv")]
    (cell,) = (cell for cell, pair in near.cells.items() if pair.ours)
    ours = near.cells[cell].ours
    assert cell == ("DNN", "auroc:CIFAR100") and ours is not None and ours.n == 3
    assert ours.mean == pytest.approx(0.75) and ours.error == pytest.approx(0.05 / 3**0.5)
    assert near.first["DNN"].run == ", ".join(f"{fold}-deterministic" for fold in folds)
    assert counted(near) == Cells(printed=37, made=0, near=0, far=0, stand_in=1)
    page = markdown(near, {})
    assert "nothing for SVHN, held_out for CIFAR100" in page and "three folds" in page and "agrees:" not in page
    again = read(papers.load("vbll:table1"), near.comma_separated())
    assert markdown(again, {}) == page
    there = pages[Path("vbll/table1-cifar10-on-fashion_mnist.csv")]
    assert there.cells["DNN", "auroc:CIFAR100"].ours is None, "the stand-in's own page has no near set"


def test_every_stand_in_is_declared_for_existing_names() -> None:
    for path in papers.HERE.glob("*.yaml"):
        every = [papers.load(name) for name in papers.tables() if name.startswith(f"{path.stem}:")]
        names, here = every[0].names, {table.table: table for table in every}
        assert names.stand_ins.keys() - {"all"} <= here.keys()
        datasets = {*names.datasets, *names.transfers}
        assert {name for sets in names.stand_ins.values() for name in sets} <= datasets
        assert names.folds.keys() | {folds.near for folds in names.folds.values()} <= datasets
        assert all(folds.of[0] in names.stand_in_notes for folds in names.folds.values())
        assert {*names.default_run} | {*names.gpu} | names.baselines.keys() <= here.keys()
        assert names.settings.keys() <= {counterpart.setting for counterpart in names.methods.values()}
        for table, baselines in names.baselines.items():
            assert {*baselines} <= {m for figures in here[table].figures.values() for m in figures}, table


@pytest.mark.parametrize("kind", ["default run", "stand-in"])
def test_a_page_is_rebuilt_from_its_csv_file_and_its_own_facts(kind: str, tmp_path: Path) -> None:
    table, dataset = (papers.load("vbpc:table1"), "FMNIST") if kind == "default run" else (on("vbll:table1"), "CIFAR10")
    scores = images("v", "vbpc", "ipc10", {"nll": (0.3, 0.32), "accuracy": (0.89, 0.90)})
    again = images("w", "vbpc", "vbpc-ipc10", {"nll": (0.4, 0.42)})
    comparison = compare(table, dataset, [scores, again, *RUNS], kind)  # type: ignore[arg-type]
    facts = {"command": "python -m pipeline paper all", "commit": "abc | def"}
    path = tmp_path / table.folder / f"{stem(table, dataset, kind)}.csv"  # type: ignore[arg-type]
    page, file = stored.write(path, comparison, facts)
    assert facts_of(page.read_text()) == facts
    assert read(papers.load(str(table)), file.read_text()).comma_separated() == file.read_text()
    first = page.read_bytes()
    head = "an older page\n\n| | |\n|---|---|\n"
    page.write_text(f"{head}| command | python -m pipeline paper all |\n| commit | abc | def |\n")
    assert list(stored.rewrite(tmp_path)) == [page] and page.read_bytes() == first
    ((_, cells),) = stored.stored(tmp_path)
    assert counted(cells) == counted(comparison) and counted(cells).made + counted(cells).stand_in > 0


def test_a_page_keeps_the_rows_of_runs_that_another_folder_made(tmp_path: Path) -> None:
    """Here is one run of a method that the stored page lacks; a run that was made here and is gone has no figures."""
    table = on("vbll:table1")
    path = tmp_path / "page.csv"
    stored.write(path, compare(table, "CIFAR10", RUNS[:2], "stand-in"), {"commit": "abc", "command": "go"})
    one = compare(table, "CIFAR10", RUNS[2:], "stand-in")
    whole, facts = stored.completed(path, one, {"commit": "def"}, ["f-sngp"])
    assert whole.comma_separated() == compare(table, "CIFAR10", RUNS, "stand-in").comma_separated()
    assert facts == {"commit": "def", stored.EARLIER: "DNN, D-VBLL: commit abc"}
    part, facts = stored.completed(path, one, {}, ["f-sngp", "f-det"])
    assert {line.run for line in part.lines if line.ran} == {"f-d_vbll", "f-sngp"}
    assert facts[stored.EARLIER] == "D-VBLL: commit abc"


def test_the_default_run_has_pages_only_for_tables_with_a_made_cell() -> None:
    pages = {str(path): comparison for path, comparison in stored.of_default_run(RUNS)}
    assert "vbll/table1-cifar10-on-fashion_mnist.csv" in pages
    assert "vbpc/table1-fashion_mnist-default_run.csv" not in pages, "no run stands for its methods"
    assert not any("stl10" in path or "cifar100" in path for path in pages)
    # only runs that stand for a method of the table have a line
    lines = pages["vbll/table1-cifar10-on-fashion_mnist.csv"].lines
    assert [line.run for line in lines if line.run] == ["f-det", "f-sngp", "f-d_vbll"]


def test_every_stored_page_has_the_commits_of_its_scores() -> None:
    for path, _ in stored.stored(Path(__file__).parents[1] / "results"):
        commits = facts_of(path.with_suffix(".md").read_text())["commit"]
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?(, [0-9a-f]{40}(-dirty)?)*", commits), path


def test_printed_settings_are_read() -> None:
    assert papers.load("vbpc:table4").figures["CIFAR10"]["VBPC (Conv-NN)"]["nll"].setting == "ipc=10;net=Conv-NN"
    assert Printed("1").setting == ""
