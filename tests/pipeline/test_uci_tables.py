"""The UCI tables of Zeng & Van den Broeck 2023, whole, at toy size: their params files, shrunk, on made-up files."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml

from bdl_pipe import config
from bdl_pipe.data import prepared, sources
from bdl_pipe.data.sources.uci import UCI_SIZES, Uci
from pipeline import cli, papers
from pipeline.core import params

ROOT = Path(__file__).parents[2]
SMALL = {  # in place of the number of that key
    "epochs": 1,
    "patience": 10,
    "extra_epochs": 2,
    "snapshots": 3,
    "count": 3,
    "rank": 2,
    "dimension": 2,
    "draws": 2,
    "burn_in": 1,
    "every": 1,
    "steps": 2,
    "batch": 2_000,
    "validation_draws": 1,
    "splits": 1,
}
UNITS = {1000: 4, 500: 3, 50: 4, 2: 2}  # of hidden layers
OURS = {"swa", "kfac_laplace"}  # not in the paper's tables
LARGE = ("elevators", "keggdirected", "keggundirected", "protein", "skillcraft", "pol")


def shrunk(value: Any, key: str = "") -> Any:
    """The same with small numbers and few units; nothing is added and nothing left out."""
    if isinstance(value, dict):
        return {k: shrunk(v, k) for k, v in value.items()}
    if key == "hidden":
        return [UNITS[width] for width in value]
    return SMALL[key] if key in SMALL and type(value) is int else value


def made_up(source: dict[str, Any]) -> None:
    """A file of the set's rows and columns where the source looks for it."""
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


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BDL_TRACKING", "off")
    return tmp_path


def figures(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    with open(path, newline="") as file:
        return {(row["method"], row["metric"]): row for row in csv.DictReader(file)}


@pytest.mark.parametrize(("number", "dataset"), [(2, "Skillcraft"), (1, "Naval")])
def test_a_set_runs_as_soon_as_its_file_is_there(
    number: int, dataset: str, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few rows: an exact integral for each of a thousand test rows takes long."""
    name, second = f"ciber-table{number}", number + 4  # the table of RMSE
    raw = shrunk(params.read_yaml(ROOT / f"params/paper/{name}.yaml"))
    (project / "params/paper").mkdir(parents=True)
    (project / f"params/paper/{name}.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    table = papers.load(f"ciber:table{number}")
    key = table.names.datasets[dataset]
    monkeypatch.setitem(UCI_SIZES, key, (60, UCI_SIZES[key][1]))
    words = ["--dataset", dataset, "--executor", "inline"]
    assert cli.main(["paper", str(table), *words]) == 2
    assert "is missing" in capsys.readouterr().err
    made_up(raw["datasets"][key]["source"])
    assert cli.main(["paper", str(table), *words]) == 0, capsys.readouterr().err
    found = figures(project / f"results/collapsed/table{number}-{key}.csv")
    built = {m for m in table.figures[dataset] if table.names.methods[m].method is not None}
    more = OURS if number == 1 else OURS | {"dropout"}  # which is table 1's MCD
    assert {method for method, _ in found} == {*table.figures[dataset]} | more
    assert {method for (method, _), row in found.items() if row["ours"]} == built | more
    capsys.readouterr()
    assert cli.main(["paper", f"ciber:table{second}", *words]) == 0
    assert "nothing to run" in capsys.readouterr().err
    assert float(figures(project / f"results/collapsed/table{second}-{key}.csv")["SWAG", "rmse"]["ours"]) > 0


@pytest.mark.parametrize(("number", "key"), [(2, n) for n in LARGE] + [(1, "yacht"), (1, "naval"), (1, "energy")])
def test_a_file_of_the_sets_own_size_is_read(number: int, key: str, project: Path) -> None:
    source = params.load(ROOT / f"params/paper/ciber-table{number}.yaml").datasets[key].source
    assert isinstance(source, Uci) and source.set == key
    made_up(config.to_mapping(source))
    raw = sources.load(source)
    assert raw.train.inputs.shape == UCI_SIZES[key] and raw.train.targets.shape == (UCI_SIZES[key][0], 1)


def test_large_tables_are_in_normalised_units(project: Path) -> None:
    """log p(z) of z = (y − m)/s is log p(y) + log s, s the training rows' (validation rows are among them)."""
    raw = shrunk(params.read_yaml(ROOT / "params/paper/ciber-table2.yaml"))
    (project / "params/paper").mkdir(parents=True)
    (project / "params/paper/ciber-table2.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    source = raw["datasets"]["skillcraft"]["source"]
    made_up(source)
    words = ["--dataset", "skillcraft", "--method", "SGD", "--executor", "inline"]
    assert cli.main(["paper", "ciber:table2", *words]) == 0
    work = project / "work/paper/ciber-table2"
    scores = pq.read_table(work / "evaluate/skillcraft-deterministic/scores.parquet").to_pylist()
    own = {row["metric"]: row["value"] for row in scores if row["set"] == "test"}
    fitted = prepared.load_fit(work / "prepare/skillcraft", 0, final=True)
    spread = math.log(np.std(fitted.train.targets))
    shown = figures(project / "results/collapsed/table2-skillcraft.csv")["SGD", "log_likelihood_normalised"]
    assert float(shown["ours"]) == pytest.approx(own["log_likelihood"] + spread, abs=1e-5)
    assert abs(spread) > 3 and shown["paper"] == "-1.162"


def test_the_numbers_are_those_of_zeng() -> None:
    """Zeng & Van den Broeck 2023, section 6.1 and appendix C.2."""
    small, large = (params.load(ROOT / f"params/paper/ciber-table{n}.yaml") for n in (1, 2))
    assert {name: dataset.splits for name, dataset in small.datasets.items()} == dict.fromkeys(
        ("boston", "concrete", "yacht", "naval", "energy"), 20
    )
    assert all(dataset.splits == 10 for dataset in large.datasets.values()) and len(large.datasets) == 6
    for found in (small, large):
        for dataset in found.datasets.values():
            assert dataset.targets == "standardise" and dataset.fit_rows == "train_and_validation"
        for row in found.of("trajectory"):
            sgd = row.config
            assert (sgd.extra_epochs, sgd.snapshots, sgd.every, sgd.optimiser.schedule) == (40, 40, 1, "constant")
            assert sgd.early_stopping is not None and sgd.network.activation == "relu"
            hidden = {"skillcraft": (1000, 500, 50, 2)}.get(row.spec.dataset, (1000, 1000, 500, 50, 2))
            assert sgd.network.hidden == ((50,) if found is small else hidden)
        for row in found.of("student"):
            assert row.spec.seeds == 1 and list(row.sources) == ([] if row.method.name == "dropout" else ["trajectory"])
            if row.method.name in ("ciber_last", "ciber_second"):
                assert row.config.weights == (None if row.method.name == "ciber_last" else 3)
            if row.method.name == "swag":
                assert (row.config.rank, row.config.draws, row.config.scale) == (20, 30, 1.0)
