"""Predictions of new rows: the posterior's values, a whole file or none, and clear errors."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fitted_cases import CLASSES, FEATURES, student
from PIL import Image

from bdl_pipe import summary
from bdl_pipe.errors import ArtifactError, UserError
from bdl_pipe.predictive import Gaussian
from bdl_pipe.registry import load_predictor
from bdl_pipe.seeds import Seed
from pipeline.export import predict
from pipeline.export.targets import model


def go(run, given, **more):
    predict.predict(run, Path(given), Path("out/made.parquet"), **more)
    return pd.read_parquet("out/made.parquet")


def table(rows=7):
    return pd.DataFrame(np.random.default_rng(0).normal(30, 9, (rows, 2)), columns=FEATURES)


def test_class_predictions_of_a_table_equal_the_posterior(here):
    place, rows = student(here / "work/student/c"), table(2500)  # several batches
    rows[["rooms", "age"]].assign(other="x").to_csv("new.csv", index=False)  # another order, one column more
    predictions = go("c", "new.csv")
    direct = load_predictor(str(place)).predict(rows.to_numpy(), rng=Seed(0))
    expected = summary.columns(direct, CLASSES)
    assert list(predictions) == ["row", *expected]
    for name in expected.keys() - {"predicted"}:
        assert np.allclose(predictions[name], expected[name], atol=1e-6), name
    assert list(predictions["predicted"]) == [CLASSES[i] for i in direct.mean.argmax(1)]
    assert (predictions["mutual_information"] > 0).any() and list(predictions["row"]) == list(range(2500))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("new.csv", r"--output: is written as Parquet; name it new\.parquet"),
        ("./new.parquet", r"--output: must not be the input new\.parquet, which would be lost"),
    ],
)
def test_predictions_never_replace_the_input_and_are_named_as_parquet(here, output, said):
    student(here / "work/student/c")
    table().to_parquet("new.parquet")
    before = Path("new.parquet").read_bytes()
    with pytest.raises(UserError, match=said):
        predict.predict("c", Path("new.parquet"), Path(output))
    assert Path("new.parquet").read_bytes() == before and not Path("new.csv").exists()


def test_regression_predictions_are_in_the_targets_own_units(here):
    place, rows = student(here / "work/student/r", task="regression"), table()
    rows.to_parquet("new.parquet")
    predictions = go("r", "new.parquet")
    direct = load_predictor(str(place)).predict(rows.to_numpy(), rng=Seed(0))
    assert np.allclose(predictions["mean"], direct.mean[:, 0].numpy(), rtol=1e-5)
    assert np.allclose(predictions["sd"] ** 2, direct.variance[:, 0].numpy(), rtol=1e-5)
    assert (predictions["lower"] < predictions["mean"]).all() and (predictions["mean"] < predictions["upper"]).all()


def test_predictions_of_a_folder_name_the_image_files_in_order(here):
    student(here / "work/student/i", images=True)
    (here / "new").mkdir()
    for name in ("b.png", "a.png"):
        Image.fromarray(np.full((4, 4), 9, np.uint8)).save(here / "new" / name)
    assert list(go("i", "new")["file"]) == ["a.png", "b.png"]


def test_a_wrong_run_column_or_seed_is_named_and_no_file_is_written(here):
    student(here / "work/student/c")
    table().to_csv("new.csv", index=False)
    table().set_axis(["age", "room"], axis=1).to_csv("other.csv", index=False)
    with pytest.raises(UserError, match=r"is not a fitted run \(fitted: c"):
        go("x", "new.csv")
    with pytest.raises(UserError, match="rooms"):
        go("c", "other.csv")
    with pytest.raises(UserError, match="has no seed 4 of split 0"):
        go("c", "new.csv", seed=4)
    assert not (here / "out").exists()
    with pytest.raises(ArtifactError, match="has no seed 4 of split 0"):
        model.export("c", here / "saved", seed=4)
    assert sorted(path.name for path in here.iterdir()) == ["new.csv", "other.csv", "work"]


def test_columns_of_several_targets_have_the_names_of_the_targets():
    two = Gaussian(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[4.0, 9.0]]]))
    columns = summary.columns(two, ["a", "b"])
    assert (columns["mean_a"], columns["sd_b"]) == (1.0, 3.0)
    assert math.isclose(float(columns["epistemic_variance_a"][0]), 0.0)
