"""Tables of papers, from data to our figures beside the paper's: shrunk params and small files of the real format."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from safetensors.torch import load_file

from bdl_pipe import scores
from bdl_pipe.data import corrupt
from bdl_pipe.data.catalog import CATALOG
from bdl_pipe.data.sources.archive import FOLDER_VARIABLE
from bdl_pipe.data.sources.uci import UCI_SIZES
from bdl_pipe.scores import Quantity
from bdl_report import papers
from pipeline.core.params_files import read_params
from pipeline.prepared import folders
from pipeline.run import pool
from tests.data import archives as made
from tests.pipeline import walk

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
KINDS = ("fog", "gaussian_blur")  # kinds of corruption, in place of 19
CORRUPTED = 3  # images under each corruption
VBLL = {"depth": 10, "widen": 1, "epochs": 1, "batch": 16, "seeds": 1, "validation": 10, "features": 16, "draws": 2}
FEW = {"rows": 4, "cols": 4, "members": 2, "start": 0, "end": 1, "corrupted_images": CORRUPTED}
AVERAGED = {"epochs": 2, "snapshots": 2, "every": 1, "count": 2, "rank": 2, "steps": 4, "burn_in": 2, "rows": 4}
VBPC = {"ipc": 1, "width": 8, "epochs": 3, "snapshots": 3, "start_epochs": 1, "ahead": 2, "batch": 8, "steps": 2}
VBPC |= {"draws": 2, "chains": 2, "networks": 2, "burn_in": 1, "every": 1, "rows": 4, "seeds": 1, "validation": 10}
VBPC |= {"corrupted_images": CORRUPTED, "blocks": 2, "iterations": 2}
UCI = {"epochs": 1, "patience": 10, "extra_epochs": 2, "snapshots": 3, "count": 3, "rank": 2, "dimension": 2}
UCI |= {"draws": 2, "burn_in": 1, "every": 1, "steps": 2, "batch": 2_000, "validation_draws": 1, "splits": 1}
UNITS = {1000: 4, 500: 3, 50: 4, 2: 2}  # units of the hidden layers of the UCI tables, before and after shrinking
CONVNET = {"name": "convnet", "width": 4, "blocks": 2}  # for networks that have no small form
DENSITIES = {Quantity("auroc", "ood", "svhn", score=s) for s in ("max_prob", "feature_density", "refit_density")}
FILES: dict[str, tuple[dict[str, int], list[int], str, set[Quantity]]] = {
    # params file -> its small numbers, its tables in the order in which they run; a run and some of its scores
    "vbll-table1": (VBLL, [1, 6], "cifar10-g_vbll", DENSITIES),
    "vbll-table4": (VBLL, [4], "cifar100-g_vbll", DENSITIES),
    "inducing-table2": (
        VBLL | FEW,
        [2, 3, 11, 12, 13, 14, 5, 6, 7, 8, 15, 16, 17, 18],
        "cifar100-ensemble_u-128",
        {Quantity("aupr_in", "ood", "cifar10", score="max_prob"), Quantity("ece", "corrupted", "fog", 5)},
    ),
    "ciber-table3": (
        VBLL | AVERAGED,
        [7, 3, 8, 9, 4, 10],
        "cifar10-preresnet-ciber",
        {Quantity("nll"), Quantity("ece", "transfer", "stl10")},
    ),
}
PART = {"ciber": "CIFAR10"}  # the part that is run: CIFAR-100 takes minutes, for the curvature of 100 outputs
NOT_RUN = {"SGLD (PreResNet-164)", "SGLD (WideResNet)"}  # on stand-ins alone, with frozen batch norms


def shrunk(value: Any, small: dict[str, int], key: str = "") -> Any:
    """Replace the numbers whose keys ``small`` has, and networks that have no small form; turn whitening off."""
    if isinstance(value, dict):
        if value.get("name") == "resnet" and "width" not in small:
            return CONVNET | {"norm": "batch"}
        if value.get("name") == "vgg":
            return CONVNET | {"norm": value["norm"], "dropout": value["dropout"]}
        if value.get("name") == "preresnet":
            return value | {"depth": 11}
        return {k: shrunk(v, small, k) for k, v in value.items()} | ({"whiten": False} if "whiten" in value else {})
    if key == "hidden":
        return [UNITS[width] for width in value]
    if isinstance(value, list):
        return [shrunk(part, small, key) for part in value]
    return small[key] if key in small and type(value) is int else value


@pytest.fixture
def project(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, small archives and releases of corrupted images, no tracking."""
    monkeypatch.setenv("BDL_TRACKING", "off")
    monkeypatch.setattr(pool, "run", walk.run)
    monkeypatch.setenv(FOLDER_VARIABLE, str(here / "data"))
    for name in ("cifar10", "cifar100", "svhn", "stl10", "fashion_mnist"):
        monkeypatch.setitem(CATALOG._values, name, made.small_entry(name, here / "data" / name))
    monkeypatch.setattr(corrupt, "NAMES", KINDS)
    for name in ("cifar10", "cifar100"):
        folder = here / "data" / f"{name}_corrupted"
        folder.mkdir()
        for i, kind in enumerate(KINDS):
            np.save(folder / f"{kind}.npy", made.images(5 * CORRUPTED, (32, 32, 3), i))
    Path("params/paper").mkdir(parents=True)
    return here


def write(name: str, raw: Any) -> Any:
    Path(f"params/paper/{name}.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    return raw


def small_file(name: str, small: dict[str, int]) -> Any:
    """Write a shrunk copy of a params file, and return its content."""
    return write(name, shrunk(read_params(ROOT / f"params/paper/{name}.yaml"), small))


Run = Callable[..., set[str]]


@pytest.fixture
def run(project: Path, command: Callable[..., str]) -> Run:
    """A function that runs a table, and returns the stages that were done."""
    return lambda table, *words: {line for line in command("paper", table, *words).splitlines() if ": done" in line}


def shown(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    with open(path, newline="") as file:
        return {(row["method"], row["metric"]): row for row in csv.DictReader(file)}


@pytest.mark.soak
@pytest.mark.parametrize("name", FILES)
def test_every_image_table_is_filled_and_no_stage_runs_twice(name: str, run: Run) -> None:
    small, numbers, scored, expected = FILES[name]
    paper = name.partition("-")[0]
    part = ["--dataset", PART[paper]] if paper in PART else []
    raw = small_file(name, small)
    done = set[str]()
    for number in numbers:
        more = run(f"{paper}:table{number}", *part)
        assert not done & more, "made twice"
        done |= more
        table = papers.load(f"{paper}:table{number}")
        for dataset, figures in table.figures.items():
            if part and dataset != PART[paper]:
                continue
            stem = Path(f"results/{table.folder}/table{number}-{table.names.datasets[dataset]}")
            text = stem.with_suffix(".md").read_text()
            assert text.count("not run") == len(NOT_RUN & {*figures}) and (paper == "vbll" or "nan" not in text)
            cells = shown(stem.with_suffix(".csv"))
            added = {method for method, _ in cells} - {*figures}
            assert bool(added) == (paper == "ciber") and {*figures} <= {method for method, _ in cells}
            assert all(row["ours"] for (method, _), row in cells.items() if row["paper"] and method not in NOT_RUN)
    keys = [key for key in raw["runs"] if not part or key.startswith("cifar10-")]
    assert {f"evaluate@{key}: done" for key in keys} <= done
    stored = scores.read(Path(f"work/paper/{name}/evaluate/{scored}/scores.parquet"))
    assert expected <= {*scores.RunScores(stored).quantities}


def made_up(source: dict[str, Any]) -> None:
    """Write random numbers, with the set's rows and columns, to the file that the source reads."""
    rows, features = UCI_SIZES[source["set"]]
    random = np.random.default_rng(rows)
    inputs = random.normal(size=(rows, features)).astype(np.float32)
    targets = 40 * (inputs[:, :1] + 0.5 * random.normal(size=(rows, 1)))
    path = Path(source["path"])
    path.parent.mkdir(exist_ok=True)
    names = [*(source.get("features") or [f"c{i}" for i in range(features)]), *(source.get("target") or ["y"])]
    if path.suffix == ".txt":  # the set as it is published: another target follows
        np.savetxt(path, np.hstack([inputs, targets, targets]), fmt="%.4g")
    else:
        columns = np.hstack([inputs, targets]).round(3).T
        pa.csv.write_csv(pa.table(dict(zip(names, columns, strict=True))), path)


@pytest.mark.parametrize(("number", "dataset"), [(2, "Skillcraft"), (1, "Naval")])
def test_a_uci_table_is_refused_without_its_file_and_filled_with_it(
    number: int, dataset: str, run: Run, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set has few rows, since an exact integral takes long for each test row. Table 2 is in normalised units."""
    raw = small_file(f"ciber-table{number}", UCI)
    table, second = papers.load(f"ciber:table{number}"), number + 4  # the table of RMSE
    key = table.names.datasets[dataset]
    monkeypatch.setitem(UCI_SIZES, key, (60, UCI_SIZES[key][1]))
    assert "is missing" in command("paper", table, "--dataset", dataset, code=2)
    made_up(raw["datasets"][key]["source"])
    run(str(table), "--dataset", dataset)
    cells = shown(Path(f"results/collapsed/table{number}-{key}.csv"))
    built = {method for method in table.figures[dataset] if table.names.methods[method].method is not None}
    more = {"swa", "kfac_laplace", "dropout" if number == 2 else "ciber_second (input)"}  # not in the paper's table
    assert {method for method, _ in cells} == {*table.figures[dataset]} | more
    assert {method for (method, _), row in cells.items() if row["ours"]} == built | more
    assert run(f"ciber:table{second}", "--dataset", dataset) == set(), "nothing to run"
    assert float(shown(Path(f"results/collapsed/table{second}-{key}.csv"))["SWAG", "rmse"]["ours"]) > 0
    if number == 2:  # log p(z) of z = (y − m)/s is log p(y) + log s, with the s of the training rows
        work = Path("work/paper/ciber-table2")
        stored = pq.read_table(work / f"evaluate/{key}-deterministic/scores.parquet").to_pylist()
        (value,) = [row["value"] for row in stored if (row["set"], row["metric"]) == ("test", "log_likelihood")]
        spread = math.log(np.std(folders.load_fit(work / f"prepare/{key}", 0, final=True).train.targets))
        assert abs(spread) > 1
        assert float(cells["SGD", "log_likelihood_normalised"]["ours"]) == pytest.approx(value + spread, abs=1e-5)


def test_the_second_step_of_vbpc_table_9_makes_a_coreset_of_40_rows(run: Run) -> None:
    """Two methods after two steps of VBPC's table 9: the second step's coreset also has the rows of the first."""
    raw = small_file("vbpc-table9", VBPC)
    for dataset in raw["datasets"].values():
        dataset["validation"] = 0  # most classes have one row
    write("vbpc-table9", raw)
    run("vbpc:table9", "--dataset", "CIFAR100 (40 classes)", "--method", "BPC-CD (ipc 20),VBPC (ipc 20)")
    cells = shown(Path("results/vbpc/table9-cifar100-40-classes.csv"))
    ours = {method: float(row["ours"]) for (method, _), row in cells.items() if row["ours"]}
    assert ours.keys() == {"BPC-CD (ipc 20)", "VBPC (ipc 20)"} and all(0 <= percent <= 100 for percent in ours.values())
    for method in ("bpc_cd", "vbpc"):
        place = Path(f"work/paper/vbpc-table9/coreset/cifar100-40-classes-{method}/0-0.safetensors")
        assert len(load_file(place)["labels"]) == 40  # one row a class
