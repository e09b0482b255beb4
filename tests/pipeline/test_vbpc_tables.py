"""The tables of Lee, Lee & Lee 2025: the printed figures, what stands for them, and a part of them run at toy size."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from paper_cases import printed_in
from rich.console import Console
from safetensors.torch import load_file

from bdl_pipe.data import corrupt
from bdl_pipe.data.catalog import CATALOG
from bdl_pipe.data.sources.archive import FOLDER_VARIABLE
from bdl_pipe.networks import AlexNetConfig, ConvNetConfig, ResNetConfig, Vgg11Config
from pipeline import cli, papers
from pipeline.core import params
from pipeline.core.scores import Quantity
from pipeline.papers import Printed, compare, show
from tests.data import archives as made

ROOT = Path(__file__).parents[2]
FILE = ROOT / "params/paper/vbpc-table1.yaml"
NUMBERS = (1, 2, 3, 4, 8, 9, 10)
FAMILY = ("BPC-rKL", "BPC-fKL", "FBPC", "BPC-CD")
COUNT = {1: 140, 2: 24, 3: 20, 4: 70, 8: 28, 9: 25, 10: 30}  # figures; of table 3 those of its first two rows


@pytest.fixture(scope="module")
def published() -> params.Params:
    return params.load(FILE)


def test_figures_by_hand() -> None:
    """Read off the printed tables: corners, and what is printed twice."""
    printed = printed_in("vbpc")
    assert printed(1, "MNIST", "BPC-rKL (ipc 1)", "accuracy") == Printed("74.8", "1.2")
    assert printed(1, "FMNIST", "VBPC (ipc 10)", "nll") == Printed("0.30", "0.01")
    assert printed(1, "Tiny-ImageNet", "VBPC (ipc 10)", "nll") == Printed("3.45", "0.02")
    assert printed(2, "CIFAR10", "FRePo (ipc 1)", "accuracy") == Printed("46.8", "0.7")
    assert printed(2, "CIFAR100", "RCIG VI (ipc 10)", "accuracy") == Printed("2.5", "0.4")
    assert printed(2, "CIFAR100", "AVBPC (ipc 10)", "accuracy") == Printed("44.0", "0.8")
    assert printed(3, "CIFAR10", "BPC-CD (ipc 10)", "nll:gaussian blur") == Printed("1.73", "0.83")
    assert printed(4, "CIFAR10", "VBPC (Conv-NN)", "nll") == Printed("1.46", "0.05")
    assert printed(4, "CIFAR10", "FBPC (AlexNet-NN)", "nll") == Printed("2.91", "0.05")
    assert printed(4, "CIFAR10", "VBPC (VGG11-GN)", "accuracy") == Printed("52.4", "1.1")
    assert printed(8, "ImageWoof", "Random (ipc 1)", "accuracy") == Printed("14.2", "0.9")
    assert printed(8, "ImageNet-resized", "VBPC (ipc 2)", "nll") == Printed("5.25", "0.05")
    assert printed(9, "CIFAR100 (20 classes)", "BPC-CD (ipc 20)", "accuracy") == Printed("52.5", "2.4")
    assert printed(9, "CIFAR100 (100 classes)", "VBPC (ipc 20)", "accuracy") == Printed("50.3", "0.2")
    assert printed(10, "CIFAR10", "BPC-CD (ipc 10)", "auroc:TinyImageNet") == Printed("49.09")
    assert printed(10, "CIFAR10", "VBPC (ipc 10)", "aupr_out:SVHN") == Printed("82.91")
    for method in (*FAMILY, "VBPC"):
        for metric in ("accuracy", "nll"):
            first = printed(1, "CIFAR10", f"{method} (ipc 10)", metric)
            assert printed(3, "CIFAR10", f"{method} (ipc 10)", metric) == first
            assert printed(4, "CIFAR10", f"{method} (Conv-BN)", metric) == first
    for dataset, ipc in (("CIFAR10", 1), ("CIFAR10", 10), ("CIFAR100", 1), ("CIFAR100", 10)):
        name = f"VBPC (ipc {ipc})"
        assert printed(2, dataset, name, "accuracy") == printed(1, dataset, name, "accuracy")


@pytest.mark.parametrize("number", NUMBERS)
def test_every_figure_is_there_once_and_has_a_counterpart(number: int) -> None:
    table = papers.load(f"vbpc:table{number}")
    figures = [(m, metric, f) for row in table.figures.values() for m, of in row.items() for metric, f in of.items()]
    with open(papers.HERE / "vbpc.csv", newline="") as file:
        assert sum(row["table"] == f"table{number}" for row in csv.DictReader(file)) == len(figures) == COUNT[number]
    for method, metric, figure in figures:
        assert float(figure.value) >= 0 and float(figure.error or 0) >= 0 and table.quantity(metric, method).metric
    assert table.source == ("table1" if number in (2, 3, 4, 10) else f"table{number}")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_cell_of_the_paper_has_one_run(number: int, published: params.Params) -> None:
    """But for chains of a network with running statistics; and AVBPC has a second line, of ridge regression."""
    table = papers.load(f"vbpc:table{number}")
    found = published if table.source == "table1" else params.load(ROOT / f"params/paper/vbpc-{table.source}.yaml")
    shown = [name for name in table.figures if table.names.datasets[name] in found.datasets]
    assert {*table.figures} - {*shown} == ({"Tiny-ImageNet"} if number == 1 else set())
    for dataset in shown:
        lines = compare.compare(table, dataset, found, evaluated=())
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


def coreset_of(found: params.Params, key: str) -> tuple[str, int, str]:
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


def test_every_run_is_a_cell_or_the_second_line_of_avbpc(published: params.Params) -> None:
    shown = set[str]()
    for table in (papers.load(f"vbpc:table{number}") for number in (1, 2, 3, 4, 10)):
        for dataset in table.figures:
            if table.names.datasets[dataset] in published.datasets:
                shown |= {line.run for line in compare.compare(table, dataset, published, ()) if line.run}
    assert shown == {row.key for row in published.of("student")}
    used = {row.sources["coreset"] for row in published.of("student")}
    assert used == {row.key for row in published.of("coreset")}


def test_the_numbers_are_those_of_lee(published: params.Params) -> None:
    """Appendix E.4: T' by data set and images per class, γ, ρ, the outer descent; a coreset and its run agree."""
    steps = {
        **{(name, ipc): t for name in ("mnist5k", "fashion_mnist") for ipc, t in ((1, 100), (10, 500), (50, 1000))},
        **{("cifar10", ipc): t for ipc, t in ((1, 200), (10, 2000), (50, 5000))},
        **{("cifar100", ipc): t for ipc, t in ((1, 2000), (10, 2000), (50, 5000))},
    }
    rows = [row for row in published.of("student") if row.method.name == "vbpc"]
    assert len(rows) == len(steps)
    for row in rows:
        config, of = row.config, (row.spec.dataset, row.config.ipc)
        assert config == published.run("coreset", row.sources["coreset"]).config
        assert (config.student.steps, config.student.lr, config.gamma) == (steps.pop(of), 3e-4, 100)
        assert config.rho == (10 if of[1] == 50 or of == ("cifar100", 10) else 1)
        assert (config.coreset.steps, config.coreset.batch, config.coreset.lr) == (500_000, 1024, 3e-3)
        assert (config.coreset.label_lr, config.beta_dataset) == (3e-3, 1e-8)
        assert (config.coreset.pool.networks, config.coreset.pool.steps, config.coreset.pool.lr) == (10, 100, 3e-4)
        assert config.network == ConvNetConfig("convnet", 128, 3, "batch", "average")
        colour = of[0].startswith("cifar")
        assert published.datasets[of[0]].whiten == colour
        extra = {"flip", "colour"} if colour else {"brightness"}
        wanted = {"noise", "crop", "rotate", "translate", "cutout"} | extra
        for augmentation in (config.coreset.augmentation, config.student.augmentation):
            assert {name for name, strength in augmentation.operations.items() if strength > 0} == wanted
    assert not steps


def test_the_numbers_of_the_others_are_those_of_their_published_code(published: params.Params) -> None:
    for row in published.of("coreset"):
        config, name = row.config, row.method.name
        classes = 100 if row.spec.dataset == "cifar100" else 10
        if name in ("bpc_rkl", "bpc_fkl", "fbpc"):
            assert config.start_epochs == {1: 2, 10: 20, 50: 30}[config.ipc]
            assert (config.inner.steps, config.inner.lr) == ((50, 0.01) if config.ipc == 1 else (30, 0.03))
            assert config.draws == (10 if name == "bpc_rkl" and config.ipc != 10 else 30)
        if name == "bpc_cd":  # a step of ½·step_size on the sum over rows is one of .01 on their mean
            assert config.step_size / 2 * config.ipc * classes == pytest.approx(0.01) and config.temperature == 0
        if name.startswith("bpc") or name == "fbpc":
            assert (config.outer.steps, config.outer.optimiser.lr) == (5000, 1000)
            assert config.outer.optimiser.momentum == (0 if name == "bpc_rkl" else 0.5)
            experts = published.run("trajectory", row.sources["trajectory"])
            assert (experts.spec.seeds, experts.config.epochs, experts.config.keep_start) == (10, 50, True)
    steps = {10: 1000, 100: 2000, 1000: 10_000}
    for row in published.of("student"):
        if row.method.name in ("coreset_nn", "coreset_krr"):
            rcig = row.spec.setting.startswith("rcig")
            ipc = int(row.spec.setting.rpartition("ipc")[2])
            images = ipc * (100 if row.spec.dataset == "cifar100" else 10)
            config = row.config
            assert config.network.norm == "none" and config.optimiser.lr == (1e-4 if rcig else 3e-4)
            assert config.steps == (1000 if images == 10 else 2000) if rcig else steps[images]
            assert config.steps * config.optimiser.warmup == pytest.approx(500)  # of warm-up
        if row.method.name == "coreset_sgmcmc":
            draws = 10 if row.spec.setting.endswith("-ipc1") else 50
            assert (row.config.thinning.count, row.config.temperature) == (draws, 0.01)
            assert row.config.start_sd is None  # from N(0, .1²) chains of AlexNet leave the numbers
    assert {row.config.network for row in published.of("student") if row.method.name == "coreset_vi"} == {
        *(ConvNetConfig("convnet", 128, 3, norm, "average") for norm in ("batch", "none", "group", "instance")),
        AlexNetConfig("alexnet"),
        ResNetConfig("resnet", 18),
        Vgg11Config("vgg11", "group", 128),
    }


def test_a_step_of_table_9_has_its_own_experts_and_the_coreset_before() -> None:
    found = params.load(ROOT / "params/paper/vbpc-table9.yaml")
    for row in found.of("coreset"):
        step = found.datasets[row.spec.dataset].increment.step
        earlier = {"coreset": f"cifar100-{20 * step}-classes-{row.method.name}"} if step else {}
        own = {} if row.method.name == "vbpc" else {"trajectory": f"{row.spec.dataset}-experts"}
        assert {kind: key for kind, key in row.sources.items() if kind != "prepare"} == own | earlier
        assert row.config.ipc == 20
        if row.method.name == "bpc_cd":  # as in table 1, over the 400 rows of a step
            assert row.config.step_size / 2 * 400 == pytest.approx(0.01)


def test_a_corruption_after_the_colon_is_the_mean_over_its_severities() -> None:
    table = papers.load("vbpc:table3")
    assert table.quantity("nll:gaussian blur", None) == Quantity("nll", "corrupted", "gaussian_blur")
    assert table.title("accuracy:gaussian blur") == "Acc. % gaussian blur"
    assert {name.replace("_", " ") for name in corrupt.NAMES} < {*papers.CORRUPTED}


def test_notes_are_shown_below_the_table_each_once() -> None:
    table = papers.load("vbpc:table1")
    notes = table.notes("FMNIST")
    family = [f"{method} (ipc {ipc})" for ipc in (1, 10, 50) for method in FAMILY]
    assert [*notes.values()] == [family, [f"VBPC (ipc {ipc})" for ipc in (1, 10, 50)]]
    console = Console(width=90, record=True, file=io.StringIO())
    show.terminal(table, "FMNIST", [], console)
    lines = console.export_text().splitlines()
    said = " ".join(" ".join(lines).split())
    text = show.markdown(table, "FMNIST", [], {})
    for note, methods in notes.items():
        told = f"{', '.join(methods)}: {note}"
        assert said.count(told) == 1 and text.count(f"\n- {told}\n") == 1
    assert max(map(len, lines)) <= 90
    assert papers.load("vbll:table1").notes("CIFAR10") == {}
    unlike = {f"{method} (ResNet18-BN)" for method in FAMILY}
    assert unlike in [{*methods} for methods in papers.load("vbpc:table4").notes("CIFAR10").values()]


KINDS = ("gaussian_blur", "fog")  # of corruptions, in place of 19
SMALL = {"ipc": 1, "width": 8, "epochs": 3, "snapshots": 3, "start_epochs": 1, "ahead": 2, "batch": 8, "steps": 2}
SMALL |= {"draws": 2, "chains": 2, "networks": 2, "burn_in": 1, "every": 1, "rows": 4, "seeds": 1, "validation": 10}
SMALL |= {"corrupted_images": 2, "blocks": 2, "iterations": 2}


def shrunk(value: Any) -> Any:
    """The same with small numbers where their key says how small, and not whitened, slow for 3,072 pixels."""
    if isinstance(value, dict):
        small = {k: SMALL[k] if k in SMALL and type(v) is int else shrunk(v) for k, v in value.items()}
        return small | ({"whiten": False} if "whiten" in small else {})
    return [shrunk(part) for part in value] if isinstance(value, list) else value


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project and small archives, no tracking."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BDL_TRACKING", "off")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "data"))
    for name in ("cifar10", "cifar100", "svhn"):
        monkeypatch.setitem(CATALOG._values, name, made.small_entry(name, tmp_path / "data" / name))
    (tmp_path / "params/paper").mkdir(parents=True)
    return tmp_path


def test_class_after_class_from_data_to_ours_beside_the_paper(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two methods after two steps of table 9: the second step's coreset has the rows of the first, too."""
    small = shrunk(params.read_yaml(ROOT / "params/paper/vbpc-table9.yaml"))
    for dataset in small["datasets"].values():
        dataset["validation"] = 0  # most classes have one row
    (project / "params/paper/vbpc-table9.yaml").write_text(yaml.safe_dump(small, sort_keys=False))
    command = ["paper", "vbpc:table9", "--dataset", "CIFAR100 (40 classes)", "--executor", "inline"]
    assert cli.main([*command, "--method", "BPC-CD (ipc 20),VBPC (ipc 20)"]) == 0, capsys.readouterr().err
    with open(project / "results/vbpc/table9-cifar100-40-classes.csv", newline="") as file:
        ours = {row["method"]: float(row["ours"]) for row in csv.DictReader(file) if row["ours"]}
    assert ours.keys() == {"BPC-CD (ipc 20)", "VBPC (ipc 20)"} and all(0 <= percent <= 100 for percent in ours.values())
    for method in ("bpc_cd", "vbpc"):
        place = project / f"work/paper/vbpc-table9/coreset/cifar100-40-classes-{method}/0-0.safetensors"
        assert len(load_file(place)["labels"]) == 40  # one row a class


def test_a_part_of_the_tables_from_data_to_ours_beside_the_paper(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A coreset of each of two methods of CIFAR-10, under other networks, another evaluation, corruptions and OOD."""
    monkeypatch.setattr(corrupt, "NAMES", KINDS)
    (project / "data/cifar10_corrupted").mkdir()
    for i, kind in enumerate(KINDS):
        np.save(project / f"data/cifar10_corrupted/{kind}.npy", made.images(10, (32, 32, 3), i))
    small = shrunk(params.read_yaml(FILE))
    for section in ("datasets", "trajectories", "coresets", "runs"):  # the others are checked whole above
        small[section] = {key: value for key, value in small[section].items() if key.partition("-")[0] == "cifar10"}
    (project / "params/paper/vbpc-table1.yaml").write_text(yaml.safe_dump(small, sort_keys=False))
    ran = set[str]()
    for number, methods in (
        (4, ["BPC-CD (VGG11-GN)", "VBPC (AlexNet-NN)", "BPC-CD (Conv-BN)"]),
        (2, ["AVBPC (ipc 10)"]),
        (3, ["BPC-CD (ipc 10)"]),
        (10, ["BPC-CD (ipc 10)"]),
    ):
        command = ["paper", f"vbpc:table{number}", "--dataset", "CIFAR10", "--executor", "inline"]
        assert cli.main([*command, "--method", ",".join(methods)]) == 0, capsys.readouterr().err
        more = {line for line in capsys.readouterr().out.splitlines() if line.endswith(": done")}
        assert not ran & more and bool(more) == (number in (2, 4)), "made twice"
        ran |= more
        with open(project / f"results/vbpc/table{number}-cifar10.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        metrics = {m for m in papers.load(f"vbpc:table{number}").metrics("CIFAR10") if "TinyImageNet" not in m}
        for method in methods:
            assert {row["metric"] for row in rows if row["method"] == method and row["ours"]} == metrics
    assert {line for line in ran if line.startswith("coreset@")} == {
        f"coreset@cifar10-{method}-ipc10: done" for method in ("bpc_cd", "vbpc")
    }
