"""The trajectory against a plain training loop written with torch's own parts."""

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe.artifacts import State, stack
from bdl_pipe.config import read
from bdl_pipe.data.augment import AugmentConfig, augment
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import register_network
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.sgd import SGD, SgdConfig
from tests.resuming import resumed, same_bits

RNG = Seed(0).fold("member", 0)
SHORT = {"network": {"name": "mlp", "hidden": [8]}, "epochs": 1}
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

    def fit(report: Report | None = None) -> State:
        return trajectory(tiny_images, before, report, snapshots_per_epoch=5, snapshots=15)

    assert all(same_bits(resumed(fit, stop), fit()) for stop in (2, 5, 8))


def test_a_start_of_another_variance_floor_and_bad_settings_fail(tiny_table: FitData, tiny_images: FitData) -> None:
    bounded = trajectory(tiny_table, **SHORT, variance_floor=1e-3)
    trajectory(tiny_table, bounded, **SHORT, variance_floor=1e-3)
    flips = {"choose": "all", "operations": {"flip": 0.5}}
    for data, start, changes, message in (
        (tiny_table, bounded, SHORT, r"variance_floor must be the trajectory's \(0\.001\), got None"),
        (
            tiny_images,
            None,
            {"snapshots_per_epoch": 6},
            r"snapshots_per_epoch must be <= the steps of an epoch \(5\), got 6",
        ),
        (tiny_table, None, SHORT | {"augmentation": flips}, "augmentation must be null: the rows are not images, got"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}"):
            trajectory(data, start, **changes)


def test_the_last_partial_batch_is_dropped_unless_it_is_the_only_batch(tiny_images: FitData) -> None:
    for batch, steps in ((100, [1, 2, 3]), (1000, [1, 2, 3]), (70, [2, 4, 6])):  # of 160 rows
        state = trajectory(tiny_images, batch=batch)
        assert state.tensors["trunk.1.num_batches_tracked"].tolist() == steps


def test_the_loss_of_regression_is_the_gaussian_nll(tiny_table: FitData) -> None:
    state, (inputs, targets) = trajectory(tiny_table, **SHORT, batch=80), tiny_table.tensors("train")
    mean, log_variance = fresh(state)(inputs).chunk(2, dim=-1)
    expected = F.gaussian_nll_loss(mean, targets, log_variance.exp(), full=True)  # the first batch is all rows
    assert abs(state.config["loss"] - expected.item()) < 1e-5


def test_augmented_training_equals_a_plain_loop_with_augmentation(tiny_images: FitData) -> None:
    operations = {"flip": 0.5, "pad_crop": 1.0}
    state = trajectory(tiny_images, epochs=1, augmentation={"choose": "all", "operations": operations})
    after, _ = plain_loop(tiny_images, fresh(state), 1, AugmentConfig("all", operations))
    assert alike(state, after[-1:]) and not alike(state, plain_loop(tiny_images, fresh(state), 1)[0][-1:])


@pytest.mark.parametrize("network", [{"name": "wide_resnet", "depth": 10, "widen": 1}, {"name": "mlp", "hidden": [16]}])
def test_dropout_draws_from_its_address_alone(tiny_images: FitData, network: dict[str, object]) -> None:
    def weights(seed: int, rate: float) -> Tensor:
        torch.manual_seed(seed)
        return trajectory(tiny_images, network=network | {"dropout": rate}, epochs=1).tensors["head.weight"]

    assert torch.equal(weights(1, 0.2), weights(2, 0.2)) and not torch.equal(weights(1, 0.2), weights(1, 0.0))


@dataclass(frozen=True)
class FixedConfig:
    """A plugin's network whose features are not trained."""

    name: Literal["fixed"] = "fixed"


def test_a_trunk_whose_weights_need_no_gradient_stays_as_it_is(tiny_table: FitData, forgotten_plugins: None) -> None:
    def trunk(_: FixedConfig, shape: tuple[int, ...], __: torch.Generator) -> tuple[nn.Module, int]:
        layer = nn.Linear(shape[0], 3)
        nn.init.constant_(layer.weight, 0.5), nn.init.zeros_(layer.bias)
        return layer.requires_grad_(False), 3

    register_network(FixedConfig, trunk)
    state = trajectory(tiny_table, network={"name": "fixed"}, augmentation=None)
    assert bool((state.tensors["trunk.weight"] == 0.5).all())
    assert bool((state.tensors["head.weight"][0] != state.tensors["head.weight"][-1]).any())
