"""params/images.yaml on top of params.yaml: the whole is valid, and its runs are made and scored at few rows."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from bdl_pipe.data.sources import archive
from bdl_pipe.data.sources.archive import FOLDER_VARIABLE
from pipeline import apply, cli, params, tracking
from tests.data import archives as made

ROOT = Path(__file__).parents[2]
NEW = ("d_vbll_bnn", "g_vbll_bnn", "bnn", "dropout", "sngp", "swag")


def test_the_overlays_runs_are_made_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tracking, "_stopped", True)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "data"))
    monkeypatch.setitem(archive.ARCHIVES, "fashion_mnist", made.small("fashion_mnist", tmp_path / "data/fashion_mnist"))
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    apply.apply(ROOT / "params/images.yaml")
    raw = yaml.safe_load(Path("params.yaml").read_text())
    runs = {f"fashion_mnist-{name}": raw["runs"][f"fashion_mnist-{name}"] for name in NEW}
    raw["datasets"]["fashion_mnist"] |= {"validation": 10, "corrupted_images": 0, "ood": []}
    small = {**raw, "runs": runs, "teachers": {}, "coresets": {}, "evaluate": {**raw["evaluate"], "joint_pairs": 10}}
    small["trajectories"] = {k: v | {"members": 1} for k, v in raw["trajectories"].items() if "fashion" in k}
    for name in ("sgd", "d_vbll_bnn", "g_vbll_bnn", "bnn", "dropout"):
        section = small["methods"][name]
        section.get("learn", section)["batch"] = 10
    small["methods"]["sngp"] |= {"features": 16}
    small["methods"]["swag"] |= {"draws": 2, "batch_norm_rows": 20, "batch_norm_batch": 10}
    Path("params.yaml").write_text(yaml.safe_dump(small, sort_keys=False))
    params.load()
    stages = ["prepare fashion_mnist", "trajectory fashion_mnist-sgd", "trajectory fashion_mnist-swa"]
    for stage in stages + [f"{kind} {run}" for run in runs for kind in ("student", "evaluate")]:
        assert cli.main(["run", *stage.split(), "--executor", "inline"]) in (0, None), stage
    for run in runs:
        scores = pq.read_table(f"work/evaluate/{run}/scores.parquet").to_pylist()
        assert {"test", "cost"} == {row["split"] for row in scores}
