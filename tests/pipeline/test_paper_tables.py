"""The params files of the papers' tables: which run stands for which method."""

from pathlib import Path

from bdl_pipe import papers
from bdl_pipe.papers.comparison import runs_of
from pipeline.core.load import load
from pipeline.papers import compared, ours

ROOT = Path(__file__).parents[2]
RITTER = (2, 3, 5, 6, 7, 8, *range(11, 19))  # tables of one params file


def test_tables_of_the_same_runs_show_their_own_alone() -> None:
    found = load(ROOT / "params/paper/inducing-table2.yaml")
    shown = {
        name: [row.key for row in runs_of(papers.load(f"inducing:{name}"), dataset, ours(found))]
        for name, dataset in (
            ("table2", "CIFAR10"),
            ("table5", "CIFAR10"),
            ("table3", "CIFAR100"),
            ("table7", "CIFAR100"),
        )
    }
    own = ["deterministic", "ensemble", "ffg_w", "ffg_u", "ensemble_u"]
    assert shown["table2"] == [f"cifar10-{key}" for key in own]
    assert shown["table5"] == [f"cifar10-{key}" for key in (*own, "ffg_u-128", "ensemble_u-128")]
    assert shown["table3"] == [f"cifar100-{key}" for key in own]
    weights, inducing = (50, 10, 1, "0_1"), (75, 50, 25)  # per cent that are left
    left = [f"ffg_w-left-{n}" for n in weights] + [f"ffg_u-left-{n}" for n in inducing]
    assert shown["table7"] == [f"cifar100-{key}" for key in ("ffg_w", "ffg_u", *left)]
    assert papers.load("inducing:table6").source == "inducing-table2"


def test_every_method_of_ritter_has_one_run_and_every_run_a_method() -> None:
    found, shown = load(ROOT / "params/paper/inducing-table2.yaml"), set[str]()
    for table in (papers.load(f"inducing:table{number}") for number in RITTER):
        assert table.source == "inducing-table2"
        for dataset, figures in table.figures.items():
            lines = compared(table, dataset, found, evaluated=()).lines
            assert [line.method for line in lines] == [*figures]
            keys = [line.run for line in lines if line.run is not None]
            assert len(keys) == len(set(keys)) == len(figures)
            for line in lines:
                assert {m: cell.paper for m, cell in line.cells.items() if cell.paper} == figures[line.method]
            shown |= {*keys}
    assert shown == {row.key for row in found.of("student")}


def test_every_params_file_of_a_table_is_right() -> None:
    paths = sorted(
        path for paper in ("vbll", "inducing", "ciber", "vbpc") for path in ROOT.glob(f"params/paper/{paper}-*.yaml")
    )
    assert len(paths) >= 9
    for path in paths:
        table = papers.load(path.stem.replace("-", ":", 1))
        found = load(path)
        known = {table.names.datasets[name] for name in table.figures}
        assert {row.spec.dataset for row in found.of("student")} <= known
        assert f"python -m pipeline paper {table}" in path.read_text()
