"""The rows that a coreset starts from, the rows that it takes from an earlier coreset, and its pictures."""

from dataclasses import replace
from io import BytesIO
from pathlib import Path

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
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from bdl_report.pictures import of_artifact, png, sheet
from tests.resuming import killed

from .cases import tiny_data, tiny_vbpc


def clustered(per_cluster: int = 20) -> FitData:
    """Two classes of three clusters each, far apart; a row's first pixel is its cluster's number."""
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 12, (6 * per_cluster, 1, 4, 4))
    clusters = np.arange(6).repeat(per_cluster)
    inputs[:, 0, 1, :] += 40 * clusters[:, None]
    inputs[:, 0, 0, 0] = clusters
    rows = Examples(inputs.astype(np.uint8), clusters // 3)
    return FitData("classification", rows, rows, Transform("image", torch.zeros(1), torch.ones(1)), ("a", "b"))


def pixels(data: FitData, choice: str, ipc: int, seed: int = 0) -> np.ndarray:
    images = balanced(data, ipc, 1.0, rng=Seed(seed), choice=choice).images  # type: ignore[arg-type]
    return np.rint(255 * images.numpy()).astype(int)


def test_kmeans_takes_one_row_of_each_cluster() -> None:
    """The control: a random start has all clusters of a class with probability .23, so not in all of ten seeds."""
    data = clustered()
    found = [sorted(pixels(data, "kmeans", 3, seed)[:, 0, 0, 0].tolist()) for seed in range(10)]
    assert found == [[0, 1, 2, 3, 4, 5]] * 10
    drawn = [sorted(pixels(data, "random", 3, seed)[:, 0, 0, 0].tolist()) for seed in range(10)]
    assert drawn != found


@pytest.mark.parametrize("choice", ["random", "kmeans", "herding"])
@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_no_row_is_taken_twice(choice: str) -> None:
    """With as many rows asked for as a class has, two of them equal, each is taken once."""
    data = tiny_data()
    rows = np.concatenate([np.flatnonzero(data.train.targets == number)[:4] for number in range(3)])
    inputs = data.train.inputs[rows].copy()
    inputs[1] = inputs[0]
    small = replace(data, train=Examples(inputs, data.train.targets[rows]))
    start = balanced(small, 4, 1.0, rng=Seed(0), choice=choice)  # type: ignore[arg-type]
    made = (255 * small.transform.inverse_inputs(start.images)).round().int()
    assert sorted(made.flatten(1).tolist()) == sorted(inputs.reshape(12, -1).tolist())


def test_herding_takes_the_greedy_choice_among_all_rows() -> None:
    data = clustered(5)
    for number in (0, 1):
        rows = data.train.inputs[data.train.targets == number].reshape(15, -1).astype(np.float64)
        mean, taken = rows.mean(0), list[int]()
        for _ in range(6):
            errors = {i: np.linalg.norm(rows[[*taken, i]].mean(0) - mean) for i in range(len(rows)) if i not in taken}
            taken.append(min(errors, key=errors.__getitem__))
        found = pixels(data, "herding", 6)[6 * number : 6 * number + 6].reshape(6, -1)
        assert sorted(found.tolist()) == sorted(rows[taken].tolist())
        drawn = pixels(data, "random", 6)[6 * number : 6 * number + 6].reshape(6, -1)
        assert sorted(drawn.tolist()) != sorted(found.tolist())  # the control


def test_a_distillation_starts_from_the_images_of_the_chosen_start() -> None:
    """At a learning rate of almost 0 the images stay at their start; an unknown start is refused."""
    changes = {"steps": 1, "lr": 1e-12, "label_lr": 1e-12}
    data, section = clustered(), tiny_vbpc()
    for choice in ("random", "kmeans", "herding", "noise"):
        read = config.read(
            VBPC.config, config.merge(section, {"ipc": 3, "coreset": {**changes, "start": choice}}), "methods.vbpc"
        )
        made = VBPC.stages["coreset"].fit_one(data, {}, read, rng=Seed(0), report=Silent())
        start = balanced(data, 3, 1.0, rng=Seed(0).fold("start"), choice=choice)  # type: ignore[arg-type]
        assert torch.allclose(made.tensors["images"], start.images, atol=1e-6)
    with pytest.raises(ConfigError, match=r"coreset\.start must be one of"):
        config.read(VBPC.config, config.merge(section, {"coreset": {"start": "best"}}), "methods.vbpc")


def test_a_noise_start_is_uniform_and_copies_no_row() -> None:
    """64 × 60 numbers in [0, 1]: their mean and variance within five standard errors of 1/2 and 1/12."""
    data = tiny_data()
    start = balanced(data, 20, 1.0, rng=Seed(0), choice="noise")
    raw = data.transform.inverse_inputs(start.images).double().flatten()
    count = raw.numel()
    assert abs(raw.mean() - 0.5) < 5 / (12 * count) ** 0.5
    assert abs(raw.var() - 1 / 12) < 5 / (180 * count) ** 0.5
    assert start.classes.bincount().tolist() == [20, 20, 20]
    rows = {row.tobytes() for row in data.train.inputs}
    assert not rows & {row.tobytes() for row in (255 * raw.view(60, -1)).round().numpy().astype(np.uint8)}
    drawn = data.transform.inverse_inputs(balanced(data, 20, 1.0, rng=Seed(0)).images).double().flatten()
    assert abs(drawn.mean() - 0.5) > 5 / (12 * count) ** 0.5  # the control


def test_labels_without_a_learning_rate_stay_at_their_start() -> None:
    section = config.merge(tiny_vbpc(), {"coreset": {"steps": 3}})
    labels = {}
    for rate in (None, 0.1):
        read = config.read(VBPC.config, config.merge(section, {"coreset": {"label_lr": rate}}), "methods.vbpc")
        made = VBPC.stages["coreset"].fit_one(tiny_data(), {}, read, rng=Seed(0), report=Silent())
        labels[rate] = made.tensors["labels"]
    start = balanced(tiny_data(), 2, 1.0, rng=Seed(0).fold("start"))
    assert torch.equal(labels[None], start.labels) and not torch.equal(labels[0.1], start.labels)
    with pytest.raises(ConfigError, match=r"label_lr must be > 0 or null, got 0"):
        config.read(VBPC.config, config.merge(section, {"coreset": {"label_lr": 0.0}}), "methods.vbpc")


def only(data: FitData, classes: list[int]) -> FitData:
    rows = np.isin(data.train.targets, classes)
    part = Examples(data.train.inputs[rows], data.train.targets[rows])
    return replace(data, train=part, validation=part)


def test_every_coreset_stage_declares_an_optional_earlier_coreset() -> None:
    made = {name: method.stages["coreset"] for name, method in METHODS.items() if "coreset" in method.stages}
    assert {"vbpc", "random_coreset", "frepo", "rcig", "bpc_fkl"} <= made.keys()
    for name, stage in made.items():
        assert stage.needs["coreset"] == "earlier", name
        assert stage.required == {*stage.needs} - {"coreset"}, name


def test_a_balanced_start_has_the_classes_of_its_data() -> None:
    start = balanced(only(tiny_data(), [0, 2]), 2, 1.0, rng=Seed(0))
    assert start.classes.tolist() == [0, 0, 2, 2]
    assert start.labels.shape == (4, 3) and start.labels.argmax(1).tolist() == [0, 0, 2, 2]
    data = tiny_data()
    few = np.append(np.flatnonzero(data.train.targets != 1), 1)  # one row of class 1, the other classes whole
    part = Examples(data.train.inputs[few], data.train.targets[few])
    with pytest.raises(DataError, match="class 1 has 1 training rows: ipc must be at most that, got 2"):
        balanced(replace(data, train=part), 2, 1.0, rng=Seed(0))


def test_the_earlier_rows_come_first_and_the_new_rows_equal_a_step_without_them() -> None:
    """At the end, and at the checkpoint half-way, which a search reads."""
    read, stage = config.read(VBPC.config, tiny_vbpc(), "methods.vbpc"), VBPC.stages["coreset"]
    earlier = stage.fit_one(only(tiny_data(), [1]), {}, read, rng=Seed(1), report=Silent())
    data = only(tiny_data(), [0, 2])

    def fit(report: Report) -> State:
        return stage.fit_one(data, {}, read, rng=Seed(2), report=report)

    alone, checkpoint = fit(Silent()), killed(fit, 6)
    both = stage.fit_one(data, {"coreset": [earlier]}, read, rng=Seed(2), report=Silent())
    assert both.config == alone.config and both.tensors.keys() == alone.tensors.keys() == {*Coreset.TENSORS}
    for name in Coreset.TENSORS:
        assert torch.equal(both.tensors[name], torch.cat([earlier.tensors[name], alone.tensors[name]])), name
    assert both.tensors["classes"].tolist() == [1, 1, 0, 0, 2, 2]
    assert stage.from_checkpoint is not None
    half = stage.from_checkpoint(checkpoint, data, {"coreset": [earlier]}, read, rng=Seed(2))
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
