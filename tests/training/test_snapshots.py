"""Which iterates a trajectory keeps, their running moments against numpy's, and the softplus variance."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bdl_pipe.artifacts import State
from bdl_pipe.config import read, to_mapping
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.training.snapshots import (
    MomentsConfig,
    RunningMoments,
    SnapshotPolicy,
    epochs,
    moments,
    snapshot,
    snapshots,
    trained,
)
from bdl_pipe.trajectory.sgd import SGD, SgdConfig
from tests.cases import fit
from tests.refusals import refusal
from tests.resuming import Watched, resumed, same_bits
from tests.training.test_fit import table

SECTION = {
    "network": {"name": "mlp", "hidden": [4]},
    "epochs": 12,
    "snapshots": 12,
    "batch": 16,
    "optimiser": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
}
CHOOSE = {"every": 2, "patience": 4}


def trajectory(data: FitData, report: Report | None = None, **changes: object) -> State:
    config = read(SgdConfig, SECTION | changes, "methods.sgd")
    return SGD.stages["trajectory"].fit_one(data, {}, config, rng=Seed(0), report=report or Silent())


def numpys(past: dict[str, torch.Tensor], rows: slice) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    exact = {name: v.numpy().astype(np.float64)[rows] for name, v in past.items()}
    return {name: (v.mean(0), v.var(0)) for name, v in exact.items()}


def close(state: State, expected: dict[str, tuple[np.ndarray, np.ndarray]]) -> bool:
    values = moments(state)
    assert values is not None
    means, variances = values
    assert means.keys() == variances.keys() == expected.keys()
    return all(
        means[name].dtype == torch.float64
        and np.allclose(means[name], mean, rtol=1e-13, atol=1e-15)
        and np.allclose(variances[name], variance, rtol=1e-10, atol=1e-18)
        for name, (mean, variance) in expected.items()
    )


def test_the_moments_match_numpy_over_the_stored_iterates(tiny_table: FitData) -> None:
    every_epoch = trajectory(tiny_table, moments={"count": 12, "every": 1})
    past = snapshots(every_epoch)
    assert close(every_epoch, numpys(past, slice(None))) and every_epoch.config["iterates"] == 12
    some = trajectory(tiny_table, snapshots=1, moments={"count": 4, "every": 3})
    assert close(some, numpys(past, slice(2, None, 3))) and some.config["iterates"] == 4
    assert not close(some, numpys(past, slice(0, None, 3)))  # iterates counted from the start instead
    assert not close(some, numpys(past, slice(None)))
    many = trajectory(tiny_table, moments={"count": 40, "every": 1})
    assert close(many, numpys(past, slice(None))) and many.config["iterates"] == 12


def test_moments_stay_accurate_under_a_large_offset() -> None:
    walk = torch.tensor(1e6 + np.random.default_rng(0).normal(0, 1e-2, (30, 5)))
    running = RunningMoments()
    for weights in walk:
        running.update({"w": weights})
    np.testing.assert_allclose(running.variance["w"], walk.numpy().var(0), rtol=1e-6)
    careless = walk.square().mean(0) - walk.mean(0).square()
    assert np.abs(careless.numpy() / walk.numpy().var(0) - 1).max() > 0.1  # E[w²] − E[w]² in float64
    still = RunningMoments()
    for _ in range(7):
        still.update({"w": walk[0]})
    assert torch.equal(still.variance["w"], torch.zeros(5).double()) and torch.equal(still.mean["w"], walk[0])


def test_moments_leave_the_snapshots_unchanged(tiny_images: FitData) -> None:
    section = {"network": {"name": "convnet", "width": 4, "blocks": 2}, "epochs": 3, "snapshots": 2, "batch": 80}
    plain = trajectory(tiny_images, **section)
    with_them = trajectory(tiny_images, **section, moments={"count": 2, "every": 1})
    past = snapshots(with_them)
    assert same_bits(State(past, plain.config), plain) and moments(plain) is None
    assert same_bits(plain, State(snapshots(plain), plain.config))
    parameters = read(NetworkSpec, plain.config["spec"], "spec").build(Seed(0)).named_parameters()
    assert close(with_them, numpys({name: past[name] for name, _ in parameters}, slice(None)))  # no running statistics


def test_snapshots_are_counted_back_from_the_last_epoch(tiny_table: FitData) -> None:
    whole, spaced = trajectory(tiny_table), trajectory(tiny_table, snapshots=4, every=3)
    assert all(torch.equal(v, whole.tensors[k][2::3]) for k, v in spaced.tensors.items())
    images = SnapshotPolicy(28, every=5)  # epochs 165 to 300 of 300, every 5
    assert [e for e in range(1, 301) if images.snapshot(300 - e)] == list(range(165, 301, 5))
    swa = SnapshotPolicy(1, moments=MomentsConfig(count=140, every=1))  # after epoch 160 of 300
    assert [e for e in range(1, 301) if swa.counts(300 - e)] == list(range(161, 301))


@pytest.mark.parametrize("members", [1, 3])
def test_a_kept_start_is_the_first_snapshot_before_the_same_other_snapshots(members: int) -> None:
    """With one member and with three: the fresh weights, then the snapshots that are kept without a start."""
    data, rngs = [table(m, 5.0 * m) for m in range(members)], [Seed(3).fold(m) for m in range(members)]
    together = SGD.stages["trajectory"].fit_many
    assert together is not None
    both = [
        together(data, [{}] * members, read(SgdConfig, SECTION | change, "s"), rngs=rngs, report=Silent())
        for change in ({}, {"keep_start": True})
    ]
    for plain, state, rng in zip(*both, rngs, strict=True):
        fresh = read(NetworkSpec, state.config["spec"], "spec").build(rng.fold("weights")).state_dict()
        past = snapshots(state)
        assert past.keys() == fresh.keys() and all(torch.equal(v[0], fresh[name]) for name, v in past.items())
        assert all(len(v) == 13 and torch.equal(v[1:], plain.tensors[name]) for name, v in past.items())
        assert not any(torch.equal(v[1], fresh[name]) for name, v in past.items())
        assert all(torch.equal(v, plain.tensors[name]) for name, v in trained(state).items())
        assert epochs(state) == list(range(13)) and state.config == plain.config | {"snapshots_at": epochs(state)}
        assert epochs(plain) is None and same_bits(State(trained(plain), plain.config), plain)
        for number in (0, 4, -1):
            assert all(torch.equal(v, past[name][number]) for name, v in snapshot(state, number).items())


def test_a_trajectory_that_keeps_its_start_records_the_epoch_of_each_snapshot(tiny_table: FitData) -> None:
    assert SnapshotPolicy(3, every=2, parts_per_epoch=4, start=True).at(2) == [0, 1, 1.5, 2]
    assert SnapshotPolicy(99, every=5, start=True).at(12) == [0, 2, 7, 12] and SnapshotPolicy(2).at(12) == [11, 12]
    whole = trajectory(tiny_table, snapshots_per_epoch=5, snapshots=60)
    spaced = trajectory(tiny_table, snapshots_per_epoch=5, snapshots=4, every=3, keep_start=True)
    at = epochs(spaced)
    assert at == [0, 10.2, 10.8, 11.4, 12]
    for row, epoch in enumerate(at[1:], start=1):
        assert all(torch.equal(v[row], whole.tensors[name][round(5 * epoch) - 1]) for name, v in spaced.tensors.items())
    section = {"epochs": 30, "early_stopping": CHOOSE, "extra_epochs": 5, "snapshots": 4, "every": 2}
    chosen = trajectory(table(0), **section, keep_start=True)
    assert epochs(chosen) == [0, *(chosen.config["epochs"] - before_end for before_end in (6, 4, 2, 0))]
    assert all(len(v) == 5 for v in snapshots(chosen).values())


def test_a_continued_trajectory_starts_at_the_last_snapshot_of_the_first(tiny_table: FitData) -> None:
    first = trajectory(tiny_table, keep_start=True, moments={"count": 4, "every": 1})
    config = read(SgdConfig, SECTION | {"epochs": 1, "snapshots": 1, "keep_start": True}, "s")
    inputs = {"trajectory": [first]}
    then = SGD.stages["trajectory"].fit_one(tiny_table, inputs, config, rng=Seed(5), report=Silent())
    assert all(torch.equal(v, snapshot(first, -1)[name]) for name, v in snapshot(then, 0).items())
    assert close(first, numpys(trained(first), slice(-4, None)))  # the moments do not count the start


def test_posteriors_of_a_trajectory_do_not_use_its_start(tiny_table: FitData) -> None:
    paths = [trajectory(tiny_table, snapshots=4, keep_start=start) for start in (False, True)]
    for name in ("deterministic", "swa", "swag"):
        assert same_bits(*(fit(name, "student", tiny_table, {"trajectory": [path]}) for path in paths)), name


def test_extra_epochs_are_run_beyond_the_chosen_number(tiny_table: FitData) -> None:
    data, changes = table(0), {"epochs": 30, "early_stopping": CHOOSE}
    chosen = trajectory(data, **changes, snapshots=1).config["epochs"]
    assert chosen < 30  # otherwise the choice would not show
    after = trajectory(data, **changes, extra_epochs=5, snapshots=5, moments={"count": 5, "every": 1})
    assert after.config["epochs"] == chosen + 5
    plain = trajectory(data, epochs=chosen + 5, snapshots=5)  # after the choice, the fit is on all rows
    assert all(torch.equal(v, plain.tensors[k]) for k, v in snapshots(after).items())
    assert close(after, numpys(plain.tensors, slice(None)))


@pytest.mark.parametrize("members", [1, 2])
def test_a_killed_trajectory_continues_with_the_same_bits(members: int) -> None:
    section = {"epochs": 6, "snapshots": 2, "every": 2, "snapshots_per_epoch": 2, "keep_start": True}
    section |= {"early_stopping": CHOOSE, "extra_epochs": 3, "moments": {"count": 4, "every": 1}}
    config = read(SgdConfig, SECTION | section | {"variance_floor": 1e-3}, "methods.sgd")
    data, rngs = [table(m, 5.0 * m) for m in range(members)], [Seed(3).fold(m) for m in range(members)]
    together = SGD.stages["trajectory"].fit_many
    assert together is not None

    def make(report: Report) -> list[State]:
        return together(data, [{}] * members, config, rngs=rngs, report=report)

    calm = Watched()
    whole = make(calm)
    for stop in range(1, calm.asked + 1, 13):
        assert all(map(same_bits, whole, resumed(make, stop))), f"stopped at {stop}"


def test_the_variance_is_the_floor_plus_a_softplus(tiny_table: FitData) -> None:
    state = trajectory(tiny_table, epochs=1, snapshots=1, batch=80, variance_floor=0.01)
    spec = read(NetworkSpec, state.config["spec"], "spec")
    inputs, targets = tiny_table.tensors("train")
    mean, free = spec.build(Seed(0).fold("weights"))(inputs).chunk(2, dim=-1)
    variance = 0.01 + torch.log1p(free.exp())
    expected = F.gaussian_nll_loss(mean, targets, variance, full=True, eps=0)  # the first batch is all rows
    assert abs(state.config["loss"] - expected.item()) < 1e-5
    wrong = F.gaussian_nll_loss(mean, targets, free.exp(), full=True, eps=0)
    assert abs(state.config["loss"] - wrong.item()) > 1e-3
    extreme = spec.predictive(torch.tensor([[[0.0, -200.0], [0.0, 200.0]]]))
    torch.testing.assert_close(extreme.variance, torch.tensor([[0.01], [200.01]]))


def test_posteriors_of_a_trajectory_have_its_noise_variance(tiny_table: FitData) -> None:
    """The predictive against a mixture of torch.distributions, from the stored tensors by hand."""
    state = trajectory(tiny_table, snapshots=4, variance_floor=0.05, moments={"count": 4, "every": 1})
    other = trajectory(tiny_table, snapshots=4, variance_floor=0.05, optimiser=SECTION["optimiser"] | {"lr": 0.02})
    inputs, targets = tiny_table.tensors("validation")
    for name, past in (("deterministic", [state]), ("ensemble", [state, other]), ("swag", [state])):
        student = fit(name, "student", tiny_table, {"trajectory": past})
        predictive = posterior_of(student).predict(inputs, rng=Seed(0))
        first, bias, head, shift = student.tensors.values()
        hidden = torch.relu(torch.einsum("ni,dhi->dnh", inputs, first) + bias[:, None])
        out = torch.einsum("dnh,doh->dno", hidden, head) + shift[:, None]
        normal = torch.distributions.Normal(out[..., 0], (0.05 + F.softplus(out[..., 1])).sqrt())
        expected = torch.logsumexp(normal.log_prob(targets[:, 0]), 0) - np.log(len(out))
        torch.testing.assert_close(predictive.log_prob(targets), expected, atol=1e-5, rtol=1e-5)
        assert predictive.variance.std() > 1e-3  # a variance for each input, not one number
        assert student.config["spec"]["variance_floor"] == 0.05


def test_optional_keys_that_are_absent_are_not_written() -> None:
    """Artifacts of configs without these keys keep their bytes."""
    old = read(SgdConfig, SECTION, "s")
    assert not {"every", "after", "moments", "variance_floor", "keep_start"} & to_mapping(old).keys()
    new = read(SgdConfig, SECTION | {"moments": {"count": 2, "every": 1}, "variance_floor": 0.1}, "s")
    assert to_mapping(new)["moments"] == {"count": 2, "every": 1}
    assert all(read(SgdConfig, to_mapping(config), "s") == config for config in (old, new))
    spec = NetworkSpec(MlpConfig("mlp", (2,)), (4,), 1, "gaussian_head")
    floored = dataclasses.replace(spec, variance_floor=0.1)
    assert "variance_floor" not in to_mapping(spec) and to_mapping(floored)["variance_floor"] == 0.1
    assert all(read(NetworkSpec, to_mapping(s), "s") == s for s in (spec, floored))


def test_a_variance_floor_of_classes_is_refused(tiny_images: FitData) -> None:
    rule = "variance_floor must be null: classes have no variance, got 0.1"
    assert refusal(trajectory, tiny_images, variance_floor=0.1) == f"ConfigError: {rule}"
