"""SWA against numpy's mean of the stored iterates, and its refreshed statistics against pooled ones."""

import numpy as np
import pytest
import torch
from torch import nn

from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.snapshots import snapshots
from bdl_pipe.trajectory.sgd import SGD, SgdConfig
from bdl_pipe.trajectory.swa import SWA, SwaConfig

from .cases import walk
from .test_swag import IMAGES

ALL = SwaConfig(batch_norm_rows=None, batch_norm_batch=1000)


def average(data: FitData, past: State, config: SwaConfig = ALL, rng: int = 0) -> State:
    return SWA.stages["student"].fit_one(data, {"trajectory": [past]}, config, rng=Seed(rng), report=Silent())


def trained(data: FitData, **changes: object) -> State:
    images = len(data.input_shape) == 3
    network = {"name": "convnet", "width": 4, "blocks": 2} if images else {"name": "mlp", "hidden": [4]}
    optimiser = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    section = {"network": network, "epochs": 6, "snapshots": 6, "batch": 40, "optimiser": optimiser}
    config = read(SgdConfig, section | changes, "s")
    return SGD.stages["trajectory"].fit_one(data, {}, config, rng=Seed(0), report=Silent())


def weights(past: State) -> dict[str, np.ndarray]:
    """The stored iterates of each parameter, in float64."""
    names = [name for name, _ in read(NetworkSpec, past.config["spec"], "spec").build(Seed(0)).named_parameters()]
    return {name: past.tensors[name].numpy().astype(np.float64) for name in names}


def equal(made: State, expected: dict[str, np.ndarray]) -> bool:
    """To the last bit, both rounded once."""
    return all(np.array_equal(made.tensors[name][0].numpy(), v.astype(np.float32)) for name, v in expected.items())


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_weights_are_numpys_mean_of_the_snapshots(tiny: dict[str, FitData], task: str) -> None:
    past = trained(tiny[task])
    made = average(tiny[task], past)
    assert all(len(v) == 1 for v in made.tensors.values())
    iterates = weights(past)
    assert equal(made, {name: v.mean(0) for name, v in iterates.items()})
    assert not equal(made, {name: v[-1] for name, v in iterates.items()})
    assert not equal(made, {name: v[1:].mean(0) for name, v in iterates.items()})


def test_of_running_moments_it_is_the_mean_of_the_iterates_that_counted(tiny_table: FitData) -> None:
    whole = weights(trained(tiny_table))
    past = trained(tiny_table, snapshots=2, moments={"count": 5, "every": 1})
    made = average(tiny_table, past)
    for name, v in whole.items():
        np.testing.assert_allclose(made.tensors[name][0].numpy(), v[1:].mean(0), rtol=1e-6)
    assert not any(np.allclose(made.tensors[n][0].numpy(), v[-2:].mean(0), rtol=1e-4) for n, v in whole.items())
    one = trained(tiny_table, snapshots=1, moments={"count": 5, "every": 1})
    assert equal(average(tiny_table, one), {name: v.double().numpy()[0] for name, v in made.tensors.items()})
    bare = State(snapshots(past), past.config)
    assert equal(average(tiny_table, bare), {name: v[-2:].mean(0) for name, v in whole.items()})


def test_the_statistics_are_those_of_the_mean_weights(tiny_images: FitData) -> None:
    past, rows = walk(IMAGES, 4), tiny_images.tensors("train")[0]
    made = average(tiny_images, past).tensors
    convolved = nn.functional.conv2d(rows, made["trunk.0.weight"][0], made["trunk.0.bias"][0], padding=1)
    torch.testing.assert_close(made["trunk.1.running_mean"][0], convolved.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made["trunk.1.running_var"][0], convolved.var((0, 2, 3)), rtol=1e-4, atol=1e-5)
    averaged = past.tensors["trunk.1.running_mean"].mean(0)  # the iterates' own statistics, averaged with them
    assert not torch.allclose(made["trunk.1.running_mean"][0], averaged, rtol=1e-2, atol=1e-3)
    some = average(tiny_images, past, SwaConfig(batch_norm_rows=40, batch_norm_batch=20)).tensors
    assert not torch.equal(some["trunk.1.running_mean"], made["trunk.1.running_mean"])
    assert torch.equal(some["head.weight"], made["head.weight"])


def test_the_root_seed_alone_chooses_the_rows_of_the_statistics(tiny_images: FitData) -> None:
    past, some = walk(IMAGES, 4), SwaConfig(batch_norm_rows=40, batch_norm_batch=20)
    means = [average(tiny_images, past, some, rng=root).tensors["trunk.1.running_mean"] for root in (0, 1)]
    assert not torch.equal(*means)
    inputs, other = {"trajectory": [past]}, Seed(0).fold("another member")
    again = SWA.stages["student"].fit_one(tiny_images, inputs, some, rng=other, report=Silent())
    assert torch.equal(again.tensors["trunk.1.running_mean"], means[0])


def test_one_snapshot_has_no_mean(tiny_table: FitData) -> None:
    rule = r"must leave two or more snapshots for swa, where there are no moments, got 1$"
    with pytest.raises(ConfigError, match=r"^methods\.sgd\.keep " + rule):
        average(tiny_table, trained(tiny_table, snapshots=1))


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("batch_norm_rows", 1, "must be > 1 or null, got 1"),
        ("batch_norm_batch", 1, "must be > 1, got 1"),
        ("batch_norm_batch", "all", "must be a whole number, got 'all'"),
    ],
)
def test_rules(key: str, value: object, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(SwaConfig, {"batch_norm_rows": None, "batch_norm_batch": 32, key: value}, "s")
    assert str(caught.value) == f"s.{key} {rule}"
