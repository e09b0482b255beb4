"""The rows that a coreset starts from, the rows that it takes from an earlier coreset, and its pictures."""

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bdl_pipe import artifacts, config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.shared.init import Coreset, balanced
from bdl_pipe.coresets.vbpc.method import VBPC
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import DataError
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from bdl_report.pictures import of_artifact, png, sheet
from benchmarks.pages import coreset_sheets
from tests.resuming import killed

from .cases import tiny_data, tiny_vbpc


def clustered(per_cluster: int = 20) -> FitData:
    """Two classes of three clusters each, far apart; a row's first pixel is its cluster's number."""
    inputs = np.random.default_rng(0).integers(0, 12, (6 * per_cluster, 1, 4, 4))
    clusters = np.arange(6).repeat(per_cluster)
    inputs[:, 0, 1, :] += 40 * clusters[:, None]
    inputs[:, 0, 0, 0] = clusters
    rows = Examples(inputs.astype(np.uint8), clusters // 3)
    return FitData("classification", rows, rows, Transform("image", torch.zeros(1), torch.ones(1)), ("a", "b"))


def started(data: FitData, ipc: int, choice: str = "random", seed: Seed = Seed(0)) -> Coreset:
    return balanced(data, ipc, 1.0, rng=seed, choice=choice)  # type: ignore[arg-type]


def distilled(data: FitData, earlier: State | None = None, report: Report | None = None, **changes: Any) -> State:
    inputs = {} if earlier is None else {"coreset": [earlier]}
    read = config.read(VBPC.config, config.merge(tiny_vbpc(), changes), "methods.vbpc")
    return VBPC.stages["coreset"].fit_one(data, inputs, read, rng=Seed(0), report=report or Silent())


def pixels(data: FitData, choice: str, ipc: int, seed: int = 0) -> np.ndarray:
    return np.rint(255 * started(data, ipc, choice, Seed(seed)).images.numpy()).astype(int)


def test_kmeans_takes_one_row_of_each_cluster() -> None:
    """The control: a random start has all clusters of a class with probability .23, so not in all of ten seeds."""
    data = clustered()
    chosen = [sorted(pixels(data, "kmeans", 3, seed)[:, 0, 0, 0].tolist()) for seed in range(10)]
    assert chosen == [[0, 1, 2, 3, 4, 5]] * 10
    drawn = [sorted(pixels(data, "random", 3, seed)[:, 0, 0, 0].tolist()) for seed in range(10)]
    assert drawn != chosen


@pytest.mark.parametrize("choice", ["random", "kmeans", "herding"])
@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_no_row_is_taken_twice(choice: str) -> None:
    """With as many rows asked for as a class has, two of them equal, each is taken once."""
    data = tiny_data()
    rows = np.concatenate([np.flatnonzero(data.train.targets == number)[:4] for number in range(3)])
    inputs = data.train.inputs[rows].copy()
    inputs[1] = inputs[0]
    small = replace(data, train=Examples(inputs, data.train.targets[rows]))
    pixels_of_start = (255 * small.transform.inverse_inputs(started(small, 4, choice).images)).round().int()
    assert sorted(pixels_of_start.flatten(1).tolist()) == sorted(inputs.reshape(12, -1).tolist())


def test_herding_takes_the_greedy_choice_among_all_rows() -> None:
    data = clustered(5)
    for number in (0, 1):
        rows = data.train.inputs[data.train.targets == number].reshape(15, -1).astype(np.float64)
        mean, taken = rows.mean(0), list[int]()
        for _ in range(6):
            errors = {i: np.linalg.norm(rows[[*taken, i]].mean(0) - mean) for i in range(len(rows)) if i not in taken}
            taken.append(min(errors, key=errors.__getitem__))
        chosen = pixels(data, "herding", 6)[6 * number : 6 * number + 6].reshape(6, -1)
        assert sorted(chosen.tolist()) == sorted(rows[taken].tolist())
        drawn = pixels(data, "random", 6)[6 * number : 6 * number + 6].reshape(6, -1)
        assert sorted(drawn.tolist()) != sorted(chosen.tolist())  # the control


@pytest.mark.parametrize("choice", ["random", "kmeans", "herding", "noise"])
def test_a_distillation_starts_from_the_images_of_the_chosen_start(choice: str) -> None:
    """At a learning rate of almost 0 the images stay at their start."""
    changes = {"steps": 1, "lr": 1e-12, "label_lr": 1e-12, "start": choice}
    coreset = distilled(clustered(), ipc=3, coreset=changes)
    start = started(clustered(), 3, choice, Seed(0).fold("start"))
    assert torch.allclose(coreset.tensors["images"], start.images, atol=1e-6)


def test_a_noise_start_is_uniform_and_copies_no_row() -> None:
    """64 × 60 numbers in [0, 1]: their mean and variance within five standard errors of 1/2 and 1/12."""
    data, start = tiny_data(), started(tiny_data(), 20, "noise")
    raw, drawn = (data.transform.inverse_inputs(s.images).double().flatten() for s in (start, started(data, 20)))
    count = raw.numel()
    assert abs(raw.mean() - 0.5) < 5 / (12 * count) ** 0.5 < abs(drawn.mean() - 0.5)  # the control
    assert abs(raw.var() - 1 / 12) < 5 / (180 * count) ** 0.5
    assert start.classes.bincount().tolist() == [20, 20, 20]
    rows = {row.tobytes() for row in data.train.inputs}
    assert not rows & {row.tobytes() for row in (255 * raw.view(60, -1)).round().numpy().astype(np.uint8)}


def test_labels_without_a_learning_rate_stay_at_their_start() -> None:
    start = started(tiny_data(), 2, seed=Seed(0).fold("start"))
    still, moved = (
        distilled(tiny_data(), coreset={"steps": 3, "label_lr": rate}).tensors["labels"] for rate in (None, 0.1)
    )
    assert torch.equal(still, start.labels) and not torch.equal(moved, start.labels)


def only(data: FitData, classes: list[int]) -> FitData:
    rows = np.isin(data.train.targets, classes)
    part = Examples(data.train.inputs[rows], data.train.targets[rows])
    return replace(data, train=part, validation=part)


def test_every_coreset_stage_declares_an_optional_earlier_coreset() -> None:
    stages = {name: method.stages["coreset"] for name, method in METHODS.items() if "coreset" in method.stages}
    assert {"vbpc", "random_coreset", "frepo", "rcig", "bpc_fkl"} <= stages.keys()
    for name, stage in stages.items():
        assert stage.needs["coreset"] == "earlier", name
        assert stage.required == {*stage.needs} - {"coreset"}, name


def test_a_balanced_start_has_the_classes_of_its_data() -> None:
    start, data = started(only(tiny_data(), [0, 2]), 2), tiny_data()
    assert start.classes.tolist() == [0, 0, 2, 2]
    assert start.labels.shape == (4, 3) and start.labels.argmax(1).tolist() == [0, 0, 2, 2]
    few = np.append(np.flatnonzero(data.train.targets != 1), 1)  # one row of class 1, the other classes whole
    part = Examples(data.train.inputs[few], data.train.targets[few])
    with pytest.raises(DataError, match="class 1 has 1 training rows: ipc must be at most that, got 2"):
        started(replace(data, train=part), 2)


def test_the_earlier_rows_come_first_and_the_new_rows_equal_a_step_without_them() -> None:
    """At the end, and at the checkpoint half-way, which a search reads."""
    data, earlier = only(tiny_data(), [0, 2]), distilled(only(tiny_data(), [1]))
    alone, both = distilled(data), distilled(data, earlier)
    assert both.config == alone.config and both.tensors.keys() == alone.tensors.keys() == {*Coreset.TENSORS}
    for name in Coreset.TENSORS:
        assert torch.equal(both.tensors[name], torch.cat([earlier.tensors[name], alone.tensors[name]])), name
    assert both.tensors["classes"].tolist() == [1, 1, 0, 0, 2, 2]
    checkpoint = killed(lambda report: distilled(data, report=report), 6)
    read = config.read(VBPC.config, tiny_vbpc(), "m")
    half = VBPC.stages["coreset"].from_checkpoint(checkpoint, data, {"coreset": [earlier]}, read, rng=Seed(0))
    assert torch.equal(half.tensors["images"][:2], earlier.tensors["images"]) and len(half.tensors["images"]) == 6


def shown_pixels(image: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(image)))


def test_png_writes_the_pixels_of_grey_and_colour_images() -> None:
    assert shown_pixels(png(np.array([[[0.0, 1.0], [0.5, 7.0]]]))).tolist() == [[0, 255], [128, 255]]
    colour = np.zeros((3, 2, 2))
    colour[2] = 1
    assert shown_pixels(png(colour))[0, 0].tolist() == [0, 0, 255]


def test_a_sheet_has_a_row_for_each_class_with_at_most_the_images_asked_for() -> None:
    images = np.array([0.0, 0.2, 0.4]).reshape(3, 1, 1, 1)
    shown = shown_pixels(sheet(images, np.array([1, 0, 1]), 2, most=1))[::8, ::8]
    assert shown.tolist() == [[51], [0]]
    assert shown_pixels(sheet(images, np.array([1, 0, 1]), 2))[::8, ::8].tolist() == [[51, 255], [0, 102]]


def test_the_picture_of_a_stored_coreset_sorts_images_by_their_learned_labels(tmp_path: Path) -> None:
    images, labels = torch.tensor([0.0, 0.2, 0.4]), torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]])
    for name, raw in (("images", images.view(3, 1, 1, 1)), ("rows", images.view(3, 1))):
        with artifacts.publish(tmp_path / name, "coreset") as folder:
            artifacts.write_state(folder / "0-0", State({"raw": raw, "labels": labels}))
    drawn = of_artifact(tmp_path / "images")
    assert drawn is not None and shown_pixels(drawn)[::8, ::8].tolist() == [[51, 255], [0, 102]]
    assert of_artifact(tmp_path / "rows") is None and of_artifact(tmp_path / "absent") is None


def test_the_start_on_a_sheet_is_the_start_of_the_stored_fit() -> None:
    """A fit whose one step is 1e-9 long keeps its start; the same rows under another run's address are others."""
    data, stage = tiny_data(), VBPC.stages["coreset"]
    numbers = config.merge(tiny_vbpc(), {"coreset": {"steps": 1, "lr": 1e-9}})
    runs = [
        SimpleNamespace(kind="coreset", key=key, stage=stage, config=config.read(VBPC.config, numbers, "m"))
        for key in "ab"
    ]
    here, there = (coreset_sheets.start(run, data, Seed(3)) for run in runs)  # type: ignore[arg-type]
    fitted = stage.fit_one(data, {}, runs[0].config, rng=Seed(3).fold("coreset", "a").fold(0, 0), report=Silent())
    assert np.abs(fitted.tensors["raw"].numpy() - here).max() < 1e-6 < np.abs(here - there).max()


@pytest.mark.parametrize("count, levels, big", [(10, 16, 2), (11, 5, 1), (100, 5, 1), (101, 4, 1)])
def test_a_grey_sheet_is_within_half_a_level_of_its_images(count: int, levels: int, big: int) -> None:
    images = np.linspace(0, 1, count * 784, dtype=np.float32).reshape(count, 1, 28, 28)
    picture = Image.open(BytesIO(coreset_sheets.grey(images, np.arange(count))))
    shown = np.asarray(picture.convert("L"))[::big, ::big][: count * 29, :28].reshape(count, 29, 28)[:, :28]
    error = np.abs(shown / 255 - images[:, 0]).max()
    assert error <= 0.5 / (levels - 1) + 1 / 255 and len(np.unique(shown)) == levels
