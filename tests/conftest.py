"""Shapes and types of bdl_pipe are checked at run time under pytest; tiny data sets for all tests."""

import tests.typecheck

tests.typecheck.install(["bdl_pipe", "bdl_report", "bdl_decisions"])

from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from bdl_pipe import plugins  # noqa: E402
from bdl_pipe.data.examples import Examples  # noqa: E402
from bdl_pipe.data.fitdata import FitData  # noqa: E402
from bdl_pipe.data.transform import Transform  # noqa: E402
from pipeline.work.cluster import prepare_environment  # noqa: E402

pytest_plugins = ["tests.clean_root", "tests.tiers"]
prepare_environment()  # Ray reads the environment when it is imported, and files of tests import Ray at their head.
torch.set_num_threads(1)  # equal bits whatever the machine


def make_tiny_images(train: int = 160) -> FitData:
    """``train`` images, and a quarter as many validation images, of 8×8×1 in 3 classes.

    Each is a bright band at a third of the height, plus noise.
    """
    random, count = np.random.default_rng(0), train + train // 4
    labels = np.arange(count) % 3
    images = random.integers(0, 120, (count, 1, 8, 8))
    for label in range(3):
        images[labels == label, :, 2 * label : 2 * label + 3] += 100
    images = images.astype(np.uint8)
    rows, validation = Examples(images[:train], labels[:train]), Examples(images[train:], labels[train:])
    scaled = torch.tensor(images[:train]).double() / 255
    transform = Transform("image", scaled.mean((0, 2, 3)), scaled.std((0, 2, 3)))
    return FitData("classification", rows, validation, transform, ("low", "middle", "high"))


def make_tiny_table(train: int = 80, noise: float = 1.0) -> FitData:
    """``train`` rows, and a quarter as many validation rows, of 4 features: y = 30 + 5·(x₀ + x₁²) + noise."""
    random, count = np.random.default_rng(1), train + train // 4
    inputs = random.normal(2, 3, (count, 4))
    standard = (inputs - 2) / 3
    targets = (30 + 5 * (standard[:, 0] + standard[:, 1] ** 2) + random.normal(0, noise, count))[:, None]
    x, y = torch.tensor(inputs[:train]), torch.tensor(targets[:train])
    transform = Transform("table", x.mean(0), x.std(0), shift=y.mean(0), scale=y.std(0))
    rows, validation = Examples(inputs[:train], targets[:train]), Examples(inputs[train:], targets[train:])
    return FitData("regression", rows, validation, transform)


@pytest.fixture(scope="session")
def tiny_images() -> FitData:
    return make_tiny_images()


@pytest.fixture(scope="session")
def tiny_table() -> FitData:
    return make_tiny_table()


@pytest.fixture(scope="session")
def tiny(tiny_images: FitData, tiny_table: FitData) -> dict[str, FitData]:
    """Task -> data."""
    return {"classification": tiny_images, "regression": tiny_table}


@pytest.fixture
def forgotten_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory for plugins; after the test, the plugins and all that they registered are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(plugins, "_added", [])
    yield
    for table, name in plugins._added:
        table._others.pop(name, None)
