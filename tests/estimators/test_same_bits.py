"""A fit of an estimator and the pipeline's run of the same rows, hyperparameters and addresses have the same bits."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bdl_pipe import BayesianClassifier, BayesianRegressor, artifacts, load_predictor, offers, stored_address
from bdl_pipe.config import merge
from bdl_pipe.data.inspect.images import inspect_images
from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.prepare import uci_splits
from bdl_pipe.registry import METHODS
from bdl_pipe.yaml_files import read_yaml, write_yaml
from pipeline.add import overlay_of
from pipeline.core import places
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.plan.plan import one
from pipeline.stages import fit, prepare
from pipeline.work.executor import Inline
from tests.tables import houses

ROOT = Path(__file__).parents[2]
SETTINGS = Settings(executor="inline", tracking=False)
PACE = 0.05


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    Path("data").mkdir()
    return tmp_path


def made(profile: Profile, method: str, calibration: float = 0.0) -> artifacts.Artifact:
    """Fit a method by the pipeline's stages, as ``add`` writes its runs, and return the student's artifact."""
    size = profile.size(calibration)
    chosen = [METHODS[method]]
    paces = dict.fromkeys([*offers.upstream(chosen, size), method], PACE)
    overlay = overlay_of("data", profile.dataset(), size, chosen, 1, paces)
    Path("params.yaml").write_text(write_yaml(merge(read_yaml(Path("params.yaml")), overlay)))
    params = load()
    prepare.run(one("prepare", "data", params), params, Inline(SETTINGS), SETTINGS)
    for (kind, key), run in params.runs.items():
        if run.spec.dataset == "data":
            fit.run(one(kind, key, params), params, Inline(SETTINGS), SETTINGS)
    return artifacts.load(places.artifact("student", f"data-{method}"), "student")


def assert_same(model: Any, student: artifacts.Artifact, calibrated: bool = False) -> None:
    (part,) = model.fitted_.parts
    stored = {"0-0": part.posterior, "transform-0": part.transform}
    stored |= {"recalibration-0-0": part.recalibration} if calibrated else {}
    assert {*student.names()} == stored.keys()
    for name, state in stored.items():
        theirs = student.state(name)
        assert state.tensors.keys() == theirs.tensors.keys()
        for tensor in state.tensors:
            assert torch.equal(state.tensors[tensor], theirs.tensors[tensor]), (name, tensor)
    assert part.posterior.config == student.state("0-0").config
    assert model.fitted_.address() == stored_address(student.path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "calibration"),
    [("vbll", 0.0), ("swag", 0.0), ("ensemble", 0.0), ("map_blr", 0.2), ("sgmcmc", 0.0), ("ffg_u", 0.0)],
)
def test_a_regressor_of_a_table_has_the_same_bits_as_the_pipeline(method: str, calibration: float, root: Path) -> None:
    frame = houses(160)
    frame.to_csv("data/data.csv", index=False)
    student = made(inspect_table(Path("data/data.csv"), ["price"]), method, calibration)
    train, test = uci_splits(len(frame), 1)[0]
    given = pd.read_csv("data/data.csv")
    rows = given.drop(columns="price")
    model = BayesianRegressor(method, pace=PACE, conformal="split" if calibration else None)
    model.fit(rows.iloc[train], given["price"].iloc[train])
    assert_same(model, student, calibrated=bool(calibration))
    predictor = load_predictor(student.path)
    raw = model._rows(rows.iloc[test])
    theirs = next(predictor.batches(raw, rng=stored_address(student.path)))[1].mean
    np.testing.assert_array_equal(model.predict(rows.iloc[test]), theirs[:, 0].double().numpy())
    other = BayesianRegressor(method, pace=PACE, conformal=model.conformal, random_state=1)
    other.fit(rows.iloc[train], given["price"].iloc[train])
    assert not np.array_equal(other.predict(rows.iloc[test]), theirs[:, 0].numpy())  # another seed is another address


@pytest.mark.slow
def test_a_classifier_of_a_table_has_the_same_bits_as_the_pipeline(root: Path) -> None:
    frame = houses(160)
    frame.to_csv("data/data.csv", index=False)
    student = made(inspect_table(Path("data/data.csv"), ["made_of"]), "d_vbll")
    train, _ = uci_splits(len(frame), 1)[0]
    given = pd.read_csv("data/data.csv")
    model = BayesianClassifier("d_vbll", pace=PACE)
    model.fit(given.drop(columns="made_of").iloc[train], given["made_of"].iloc[train])
    assert_same(model, student)
    assert model.classes_.tolist() == student.json("schema.json")["classes"] == ["brick", "stone", "wood"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["swa", "random_coreset", "vbpc"])
def test_a_classifier_of_images_has_the_same_bits_as_the_pipeline(method: str, root: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(90) % 2
    images = random.integers(0, 100, (90, 8, 8)) + 100 * (labels[:, None, None] * (np.arange(8) % 2))
    images = images.astype(np.uint8)
    np.savez("data/data.npz", x_train=images[:60], y_train=labels[:60], x_test=images[60:], y_test=labels[60:])
    student = made(inspect_images(Path("data/data.npz")), method)
    model = BayesianClassifier(method, pace=PACE).fit(images[:60, :, :, None], labels[:60])
    assert_same(model, student)
