"""Overlays for images on top of params.yaml: the merged params are valid, and their runs are scored on few rows."""

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
from pipeline.core.load import load
from tests.data import archives as made
from tests.pipeline import walk

ROOT = Path(__file__).parents[2]
CONVNET = {"name": "convnet", "width": 4, "blocks": 2, "norm": "batch"}  # for a ResNet, which has no small form
KINDS = ("fog", "elastic_transform")  # kinds of corruption, in place of 19
OVERLAYS = {  # file -> its runs; the runs of the last file are also scored on corrupted and other data
    "images": (
        *("d_vbll-random", "g_vbll-random", "g_vbll-exact", "d_vbll_bnn", "g_vbll_bnn"),
        *("bnn", "dropout", "sngp", "deterministic-wide", "ensemble-wide"),
    ),
    "subspace": (
        "swa",
        "swag",
        "pca_ess",
        "pca_vi",
        "pca_ess-all",
        "pca_vi-30",
    ),  # swa to pca_vi are runs of the comparison
    "laplace": ("kfac_laplace", "kfac_laplace-all"),
    "ciber": ("ciber", "ciber-cubic", "ciber-softmax", "ciber-weights3"),
    "inducing-convnet": ("ffg_u", "fcg_u", "ffg_w", "ensemble_u", "ffg_u-half", "ffg_w-half"),
    "inducing-fashion_mnist": tuple(
        f"resnet-{name}" for name in ("deterministic", "ensemble", "ffg_w", "ffg_u", "ensemble_u")
    ),
}


def small_networks(value: Any) -> Any:
    if isinstance(value, dict):
        return CONVNET if value.get("name") == "resnet" else {k: small_networks(v) for k, v in value.items()}
    return value


def small_methods(methods: dict[str, Any], members: int) -> None:
    """Change the methods in place: few rows in a batch, few epochs, few draws."""
    for name in ("sgd", "d_vbll", "g_vbll", "d_vbll_bnn", "g_vbll_bnn", "bnn", "dropout"):
        section = methods.get(name, {})
        section.get("training", section)["batch"] = 10
    methods["sngp"] |= {"features": 16}
    methods["swag"] |= {"draws": 2, "batch_norm_rows": 20, "batch_norm_batch": 10}
    for name in ("pca_ess", "pca_vi"):
        few = {"burn_in": 1, "every": 1} if name == "pca_ess" else {"steps": 2}
        methods[name] |= few | {"draws": 2, "batch_norm_rows": 20}
    methods["swa"] |= {"batch_norm_rows": 20, "batch_norm_batch": 10}
    methods["kfac_laplace"] |= {"draws": 2, "batch_norm_rows": 20, "batch_norm_batch": 10}
    for name in ("ffg_w", "ffg_u", "ensemble_u"):
        section = methods.get(name, {"training": {}, "weights": {}})
        section |= {"draws": members, "validation_draws": members, "annealing": {"start": 0.0, "end": 1.0}}
        section["training"] |= {"epochs": 1, "batch": 10}
        section["weights"] |= {"members": members} if name == "ensemble_u" else {}


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_runs_of_an_overlay_are_made_and_scored(
    overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifted = overlay == "inducing-fashion_mnist"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BDL_TRACKING", "off")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "data"))
    entry = made.small_entry("fashion_mnist", tmp_path / "data/fashion_mnist")
    monkeypatch.setitem(CATALOG._values, "fashion_mnist", entry)
    monkeypatch.setattr(corrupt, "NAMES", KINDS)
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    overlays.apply(ROOT / "params/comparison.yaml")
    overlays.apply(ROOT / f"params/{overlay}.yaml")
    raw = small_networks(yaml.safe_load(Path("params.yaml").read_text()))
    runs = {f"fashion_mnist-{name}": raw["runs"][f"fashion_mnist-{name}"] for name in OVERLAYS[overlay]}
    other = {"corrupted_images": 2 if shifted else 0, "ood": ["digits"] if shifted else []}
    raw["datasets"]["fashion_mnist"] |= {"validation": 10, **other}
    small = {
        **raw,
        "teachers": {},
        "coresets": {},
        "evaluate": {**raw["evaluate"], "joint_pairs": 10, "joint_groups": 5},
    }
    used = {run["input"].removeprefix("trajectory/") for run in runs.values()}
    used |= {raw["trajectories"][k]["input"].removeprefix("trajectory/") for k in used & raw["trajectories"].keys()}
    members = 2 if shifted else 1
    small["runs"] = {k: v | {"seeds": min(v["seeds"], members)} for k, v in runs.items()}
    for run in small["runs"].values():
        few = {} if run["method"] == "ensemble_u" else {"draws": 2, "steps": 2}  # draws are a multiple of its members
        run["override"] = {k: few.get(k, v) for k, v in run.get("override", {}).items()}
    small["trajectories"] = {k: v | {"seeds": members} for k, v in raw["trajectories"].items() if k in used}
    if shifted:
        small["trajectories"]["fashion_mnist-resnet"]["override"] |= {"epochs": 1, "batch": 10}
    small_methods(small["methods"], members=2 if shifted else 5)
    Path("params.yaml").write_text(yaml.safe_dump(small, sort_keys=False))
    load()
    stages = ["prepare fashion_mnist", *(f"trajectory {key}" for key in small["trajectories"])]
    for stage in stages + [f"{kind} {run}" for run in runs for kind in ("student", "evaluate")]:
        walk.stage(*stage.split())
    expected = {("test", None, None), ("cost", None, None)}
    if shifted:
        expected |= {("ood", "digits", None), *(("corrupted", kind, s) for kind in KINDS for s in range(1, 6))}
    for run in runs:
        scores = pq.read_table(f"work/evaluate/{run}/scores.parquet").to_pylist()
        assert expected == {(row["set"], row["name"], row["severity"]) for row in scores}
        assert {"accuracy", "ece"} <= {row["metric"] for row in scores}
