"""The trajectory against a plain training loop written with torch's own parts."""

import pytest
import torch
import torch.nn.functional as F

from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.augment import AugmentConfig, augment
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory import SGD, SgdConfig

RNG = Seed(0).fold("member", 0)
SECTION = {
    "network": {"name": "convnet", "width": 4, "blocks": 2},
    "epochs": 3,
    "keep": 3,
    "batch": 32,
    "optimiser": {"name": "sgd", "rate": 0.1, "momentum": 0.9},
}


def trajectory(data: FitData, **changes: object) -> State:
    config = read(SgdConfig, SECTION | changes, "methods.sgd")
    return SGD.rooms["trajectory"].make(data, {}, config, rng=RNG, report=Silent())


def test_snapshots_are_those_of_a_plain_loop(tiny_images: FitData) -> None:
    state = trajectory(tiny_images)
    network = read(NetworkSpec, state.config["spec"], "spec").build(RNG.fold("weights")).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = tiny_images.tensors("train")
    for epoch in range(3):
        order = torch.randperm(160, generator=RNG.fold("epoch", epoch).generator())
        losses = []
        for rows in order.split(32):
            optimiser.zero_grad()
            loss = F.cross_entropy(network(inputs[rows]), labels[rows])
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        for name, value in network.state_dict().items():
            torch.testing.assert_close(state.tensors[name][epoch], value, atol=2e-4, rtol=1e-3)
    assert abs(state.config["loss"] - sum(losses) / len(losses)) < 1e-4


def test_the_last_partial_batch_is_dropped_unless_it_is_the_only_one(tiny_images: FitData) -> None:
    steps = trajectory(tiny_images, batch=100).tensors["trunk.1.num_batches_tracked"]
    assert steps.tolist() == [1, 2, 3]  # 160 rows: one batch of 100
    assert trajectory(tiny_images, batch=1000).tensors["trunk.1.num_batches_tracked"].tolist() == [1, 2, 3]
    assert trajectory(tiny_images, batch=70).tensors["trunk.1.num_batches_tracked"].tolist() == [2, 4, 6]


def test_regression_descends_the_gaussian_likelihood(tiny_table: FitData) -> None:
    config = {"network": {"name": "mlp", "hidden": [8]}, "epochs": 1, "batch": 80}
    state = trajectory(tiny_table, **config)
    network = read(NetworkSpec, state.config["spec"], "spec").build(RNG.fold("weights"))
    inputs, targets = tiny_table.tensors("train")
    mean, log_variance = network(inputs).chunk(2, dim=-1)
    expected = F.gaussian_nll_loss(mean, targets, log_variance.exp(), full=True)  # the first batch is all rows
    assert abs(state.config["loss"] - expected.item()) < 1e-5


def test_augmented_batches_are_those_of_a_plain_loop(tiny_images: FitData) -> None:
    operations = {"flip": 0.5, "pad_crop": 1.0}
    state = trajectory(tiny_images, epochs=1, augmentation={"choose": "all", "operations": operations})
    network = read(NetworkSpec, state.config["spec"], "spec").build(RNG.fold("weights")).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = tiny_images.tensors("train")
    for step, rows in enumerate(torch.randperm(160, generator=RNG.fold("epoch", 0).generator()).split(32)):
        optimiser.zero_grad()
        made = augment(inputs[rows], AugmentConfig("all", operations), RNG.fold("augment", step))
        F.cross_entropy(network(made), labels[rows]).backward()
        optimiser.step()
    plain = trajectory(tiny_images, epochs=1)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(state.tensors[name][0], value, atol=2e-4, rtol=1e-3)
    assert not torch.allclose(plain.tensors["head.weight"], state.tensors["head.weight"], atol=1e-2)


def test_only_images_are_augmented(tiny_table: FitData) -> None:
    config = {"network": {"name": "mlp", "hidden": [8]}, "augmentation": {"choose": "all", "operations": {"flip": 0.5}}}
    with pytest.raises(ConfigError, match=r"^augmentation must be null: the rows are not images, got"):
        trajectory(tiny_table, **config)


@pytest.mark.parametrize(
    "network",
    [
        {"name": "wide_resnet", "depth": 10, "widen": 1, "dropout": 0.2},
        {"name": "mlp", "hidden": [16], "dropout": 0.5},
    ],
)
def test_dropout_is_addressed_not_global(tiny_images: FitData, network: dict[str, object]) -> None:
    torch.manual_seed(1)
    first = trajectory(tiny_images, network=network, epochs=1)
    torch.manual_seed(2)
    second = trajectory(tiny_images, network=network, epochs=1)
    without = trajectory(tiny_images, network=network | {"dropout": 0.0}, epochs=1)
    assert all(torch.equal(first.tensors[k], second.tensors[k]) for k in first.tensors)
    assert not torch.equal(first.tensors["head.weight"], without.tensors["head.weight"])
