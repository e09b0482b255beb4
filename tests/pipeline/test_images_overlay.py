"""The overlay that needs a GPU, params/inducing-fashion_mnist.yaml: its runs are made and scored on few rows.

The other overlays have stored results, and test_params_files checks each file.
"""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from bdl_pipe.data import corrupt
from bdl_pipe.data.catalog import CATALOG
from bdl_pipe.data.sources.archive import FOLDER_VARIABLE
from pipeline.core import overlays
from tests.data import archives as made
from tests.pipeline import walk

ROOT = Path(__file__).parents[2]
CONVNET = {"name": "convnet", "width": 4, "blocks": 2, "norm": "batch"}  # for a ResNet, which has no small form
KINDS = ("fog", "elastic_transform")  # kinds of corruption, in place of 19
SMALL = {
    "batch": 10,
    "epochs": 1,
    "draws": 2,
    "validation_draws": 2,
    "members": 2,
    "start": 0.0,
    "end": 1.0,
    "seeds": 2,
}


def shrunk(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return CONVNET if value.get("name") == "resnet" else {k: shrunk(v, k) for k, v in value.items()}
    return min(value, SMALL[key]) if key in SMALL else value


@pytest.mark.soak
@pytest.mark.slow
def test_the_runs_of_the_overlay_are_made_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BDL_TRACKING", "off")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "data"))
    entry = made.small_entry("fashion_mnist", tmp_path / "data/fashion_mnist")
    monkeypatch.setitem(CATALOG._values, "fashion_mnist", entry)
    monkeypatch.setattr(corrupt, "NAMES", KINDS)
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    for name in ("comparison", "inducing-fashion_mnist"):
        overlays.apply(ROOT / f"params/{name}.yaml")
    raw = yaml.safe_load(Path("params.yaml").read_text())
    own = {"methods": {name: raw["methods"][name] for name in ("ffg_w", "ffg_u", "ensemble_u")}}
    for section in ("trajectories", "runs"):
        own[section] = {key: run for key, run in raw[section].items() if "resnet" in key}
    raw["datasets"]["fashion_mnist"] |= {"validation": 10, "corrupted_images": 2, "ood": ["digits"]}
    raw |= {"teachers": {}, "coresets": {}, **shrunk(own), "methods": raw["methods"] | shrunk(own["methods"])}
    Path("params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    walk.stage("prepare", "fashion_mnist")
    walk.stage("trajectory", "fashion_mnist-resnet")
    assert len(own["runs"]) == 5
    expected = {("test", None, None), ("cost", None, None), ("ood", "digits", None)}
    expected |= {("corrupted", kind, severity) for kind in KINDS for severity in range(1, 6)}
    for run in own["runs"]:
        walk.stage("student", run)
        walk.stage("evaluate", run)
        scores = pq.read_table(f"work/evaluate/{run}/scores.parquet").to_pylist()
        assert expected == {(row["set"], row["name"], row["severity"]) for row in scores}
        assert {"accuracy", "ece"} <= {row["metric"] for row in scores}
