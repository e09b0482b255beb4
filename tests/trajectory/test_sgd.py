"""The trajectory against a plain training loop written with torch's own parts."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe.artifacts import State, stack
from bdl_pipe.config import read
from bdl_pipe.data.augment import AugmentConfig, augment
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.sgd import SGD, SgdConfig
from tests.resuming import resumed, same_bits

RNG = Seed(0).fold("member", 0)
SECTION = {
    "network": {"name": "convnet", "width": 4, "blocks": 2},
    "epochs": 3,
    "snapshots": 3,
    "batch": 32,
    "optimiser": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
}


def trajectory(data: FitData, start: State | None = None, report: Report | None = None, **changes: object) -> State:
    config, inputs = read(SgdConfig, SECTION | changes, "methods.sgd"), {} if start is None else {"trajectory": [start]}
    return SGD.stages["trajectory"].fit_one(data, inputs, config, rng=RNG, report=report or Silent())


def plain_loop(
    data: FitData, network: nn.Module, epochs: int = 3, augmentation: AugmentConfig = AugmentConfig("all")
) -> tuple[list[dict[str, Tensor]], list[float]]:
    """The ``state_dict`` after each step of 32 rows, and the losses."""
    optimiser, after, losses = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9), [], []
    inputs, labels = data.tensors("train")
    for epoch in range(epochs):
        for rows in torch.randperm(160, generator=RNG.fold("epoch", epoch).generator()).split(32):
            optimiser.zero_grad()
            seen = augment(inputs[rows], augmentation, RNG.fold("augment", len(losses)))
            loss = F.cross_entropy(network(seen), labels[rows])
            loss.backward()
            optimiser.step()
            after.append({name: value.detach().clone() for name, value in network.state_dict().items()})
            losses.append(loss.item())
    return after, losses


def fresh(state: State) -> nn.Module:
    return read(NetworkSpec, state.config["spec"], "spec").build(RNG.fold("weights")).train()


def alike(state: State, expected: list[dict[str, Tensor]]) -> bool:
    stacked = stack(expected)
    close = (torch.allclose(value, stacked[name], atol=2e-4, rtol=1e-3) for name, value in state.tensors.items())
    return state.tensors.keys() == stacked.keys() and all(close)


def test_snapshots_equal_the_weights_of_a_plain_loop(tiny_images: FitData) -> None:
    state = trajectory(tiny_images)
    after, losses = plain_loop(tiny_images, fresh(state))
    assert alike(state, after[4::5]) and not alike(state, after[3::5])
    assert abs(state.config["loss"] - sum(losses[-5:]) / 5) < 1e-4


def test_snapshots_within_an_epoch_are_taken_after_their_steps(tiny_images: FitData) -> None:
    """Five steps an epoch: the first of two parts has two of them, the second three."""
    state = trajectory(tiny_images, snapshots_per_epoch=2, snapshots=4)
    after, _ = plain_loop(tiny_images, fresh(state))
    assert alike(state, [after[i] for i in (6, 9, 11, 14)])
    assert not alike(state, [after[i] for i in (7, 9, 12, 14)])
    spaced = trajectory(tiny_images, snapshots_per_epoch=5, snapshots=3, every=4)
    assert alike(spaced, [after[i] for i in (6, 10, 14)])
    ends = trajectory(tiny_images, snapshots_per_epoch=2, snapshots=3, every=2)
    whole = trajectory(tiny_images)
    assert all(torch.equal(value, whole.tensors[name]) for name, value in ends.tensors.items())


def test_more_snapshots_per_epoch_than_steps_are_refused(tiny_images: FitData) -> None:
    with pytest.raises(ConfigError, match=r"^snapshots_per_epoch must be <= the steps of an epoch \(5\), got 6"):
        trajectory(tiny_images, snapshots_per_epoch=6)


def test_a_trajectory_starts_where_the_given_trajectory_ended(tiny_images: FitData) -> None:
    """With its running statistics; the optimiser's momentum is not carried over."""
    before = trajectory(tiny_images, epochs=2)
    state = trajectory(tiny_images, before, epochs=1, snapshots=1)
    for epoch, expected in ((-1, True), (0, False)):
        network = fresh(state)
        network.load_state_dict({name: past[epoch] for name, past in before.tensors.items()})
        after, _ = plain_loop(tiny_images, network, epochs=1)
        assert alike(state, after[-1:]) == expected
    assert not alike(state, plain_loop(tiny_images, fresh(state), epochs=1)[0][-1:])


def test_a_trajectory_with_a_given_start_resumes_within_an_epoch_with_the_same_bits(tiny_images: FitData) -> None:
    before = trajectory(tiny_images, epochs=1)
    whole = trajectory(tiny_images, before, snapshots_per_epoch=5, snapshots=15)
    for stop in (2, 5, 8):
        again = resumed(lambda r: trajectory(tiny_images, before, r, snapshots_per_epoch=5, snapshots=15), stop)
        assert same_bits(again, whole)


def test_a_start_with_another_variance_floor_is_refused(tiny_table: FitData) -> None:
    numbers = {"network": {"name": "mlp", "hidden": [8]}, "epochs": 1}
    bounded = trajectory(tiny_table, **numbers, variance_floor=1e-3)
    trajectory(tiny_table, bounded, **numbers, variance_floor=1e-3)
    with pytest.raises(ConfigError, match=r"^variance_floor must be the trajectory's \(0\.001\), got None"):
        trajectory(tiny_table, bounded, **numbers)


def test_the_last_partial_batch_is_dropped_unless_it_is_the_only_batch(tiny_images: FitData) -> None:
    steps = trajectory(tiny_images, batch=100).tensors["trunk.1.num_batches_tracked"]
    assert steps.tolist() == [1, 2, 3]  # 160 rows: one batch of 100
    assert trajectory(tiny_images, batch=1000).tensors["trunk.1.num_batches_tracked"].tolist() == [1, 2, 3]
    assert trajectory(tiny_images, batch=70).tensors["trunk.1.num_batches_tracked"].tolist() == [2, 4, 6]


def test_the_loss_of_regression_is_the_gaussian_nll(tiny_table: FitData) -> None:
    config = {"network": {"name": "mlp", "hidden": [8]}, "epochs": 1, "batch": 80}
    state = trajectory(tiny_table, **config)
    network = read(NetworkSpec, state.config["spec"], "spec").build(RNG.fold("weights"))
    inputs, targets = tiny_table.tensors("train")
    mean, log_variance = network(inputs).chunk(2, dim=-1)
    expected = F.gaussian_nll_loss(mean, targets, log_variance.exp(), full=True)  # the first batch is all rows
    assert abs(state.config["loss"] - expected.item()) < 1e-5


def test_augmented_training_equals_a_plain_loop_with_augmentation(tiny_images: FitData) -> None:
    operations = {"flip": 0.5, "pad_crop": 1.0}
    state = trajectory(tiny_images, epochs=1, augmentation={"choose": "all", "operations": operations})
    after, _ = plain_loop(tiny_images, fresh(state), 1, AugmentConfig("all", operations))
    assert alike(state, after[-1:]) and not alike(state, plain_loop(tiny_images, fresh(state), 1)[0][-1:])


def test_an_augmentation_of_rows_that_are_not_images_is_refused(tiny_table: FitData) -> None:
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
def test_dropout_draws_from_the_address_and_not_from_the_global_generator(
    tiny_images: FitData, network: dict[str, object]
) -> None:
    torch.manual_seed(1)
    first = trajectory(tiny_images, network=network, epochs=1)
    torch.manual_seed(2)
    second = trajectory(tiny_images, network=network, epochs=1)
    without = trajectory(tiny_images, network=network | {"dropout": 0.0}, epochs=1)
    assert all(torch.equal(first.tensors[k], second.tensors[k]) for k in first.tensors)
    assert not torch.equal(first.tensors["head.weight"], without.tensors["head.weight"])
