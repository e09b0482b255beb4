"""SWAG and SWA against numpy's moments of the stored snapshots; their refreshed statistics against pooled ones."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from bdl_pipe.artifacts import State, unstack
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.networks.normalisation import refresh_batch_norm
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.training.snapshots import RunningMoments, snapshots, with_moments
from bdl_pipe.trajectory.sgd import SGD, SgdConfig
from bdl_pipe.trajectory.swa import SWA, SwaConfig
from bdl_pipe.trajectory.swag import MULTI_SWAG, SWAG, Moments, SwagConfig, moments

from .cases import walk

TABLE = NetworkSpec(MlpConfig("mlp", (2,)), (4,), 1, "gaussian_head")  # 16 weights
IMAGES = NetworkSpec(ConvNetConfig("convnet", 4, 2), (1, 8, 8), 3, "categorical")
CONFIG = SwagConfig(rank=3, scale=1.0, draws=2, batch_norm_rows=100, batch_norm_batch=32)


def iterates(offset: float = 0.0, epochs: int = 8, weights: int = 5) -> torch.Tensor:
    """Float32 snapshots of unlike, correlated weights around ``offset``."""
    random = np.random.default_rng(0)
    steps = random.normal(0, 1, (epochs, weights)) @ random.normal(0, 1, (weights, weights)) * [0.1, 1, 2, 3, 4]
    return torch.tensor(offset + steps, dtype=torch.float32)


def made(data: FitData, past: State, seed: int, **changes: object) -> State:
    config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]
    return SWAG.stages["student"].fit_one(data, {"trajectory": [past]}, config, rng=Seed(seed), report=Silent())


def covariance(gaussian: Moments, scale: float = 1.0) -> np.ndarray:
    """AAᵀ of the linear map z ↦ w − w̄, its columns found by unit vectors."""
    size, rank = len(gaussian.mean), len(gaussian.columns)
    columns = []
    for unit in torch.eye(size + rank, dtype=torch.float64):
        columns.append(gaussian.draw(unit[:size], unit[size:], scale) - gaussian.mean)
    a = torch.stack(columns, 1).numpy()
    return a @ a.T


def expected(snapshots: torch.Tensor, rank: int) -> np.ndarray:
    """½ diag of numpy's variances + ½ of the last deviations' outer products."""
    w = snapshots.numpy().astype(np.float64)
    diagonal = np.diag(np.cov(w.T, bias=True).diagonal())
    if rank == 0:
        return diagonal
    last = (w - w.mean(0))[-rank:]
    return 0.5 * diagonal + 0.5 * sum(np.outer(d, d) for d in last) / (rank - 1)


@pytest.mark.parametrize("rank", [0, 2, 8])
def test_the_covariance_equals_numpys_moments(rank: int) -> None:
    """At rank 8 the low-rank part is of all snapshots. Told apart: a variance in the place of a deviation."""
    gaussian = moments(iterates(), rank)
    np.testing.assert_allclose(covariance(gaussian), expected(iterates(), rank), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(covariance(gaussian, 0.3), 0.3 * expected(iterates(), rank), rtol=1e-10, atol=1e-12)
    wrong = dataclasses.replace(gaussian, sd=gaussian.sd.square())
    assert not np.allclose(covariance(wrong), expected(iterates(), rank), rtol=0.05)


def test_moments_stay_accurate_at_a_large_offset() -> None:
    w = iterates(offset=1e4)  # float32 spacing there: 1e-3
    gaussian, exact = moments(w, 2), w.numpy().astype(np.float64)
    np.testing.assert_allclose(gaussian.mean.numpy(), exact.mean(0), rtol=1e-14)
    np.testing.assert_allclose(gaussian.sd.numpy(), exact.std(0), rtol=1e-9)
    careless = (w.square().mean(0) - w.mean(0).square()).clamp_min(1e-30).sqrt().numpy()
    assert np.abs(careless / exact.std(0) - 1).max() > 0.1  # the textbook formula fails on the same numbers


def test_draws_follow_from_the_random_numbers_at_their_addresses(tiny_table: FitData) -> None:
    past = walk(TABLE, 5)
    state = made(tiny_table, past, 3)
    names = [name for name, _ in TABLE.build(Seed(0)).named_parameters()]
    gaussian = moments(torch.cat([past.tensors[n].flatten(1) for n in names], 1), 3)
    for number in range(2):
        generator = Seed(3).fold("draw", number).generator()
        z1 = torch.randn(len(gaussian.mean), generator=generator, dtype=torch.float64)
        z2 = torch.randn(3, generator=generator, dtype=torch.float64)
        found = torch.cat([state.tensors[n][number].flatten() for n in names])
        torch.testing.assert_close(found, gaussian.draw(z1, z2, 1.0).float(), rtol=0, atol=0)


def test_float32_draws_equal_the_float64_map_to_a_thousandth_of_the_deviation(tiny_table: FitData) -> None:
    """Both take the float32 random numbers at the draws' addresses. Told apart: a scale one part in a hundred off."""
    past = walk(TABLE, 5)
    state = made(tiny_table, past, 3, dtype="float32")
    names = [name for name, _ in TABLE.build(Seed(0)).named_parameters()]
    gaussian = moments(torch.cat([past.tensors[n].flatten(1) for n in names], 1), 3)

    def worst(scale: float) -> float:
        far = 0.0
        for number in range(2):
            generator = Seed(3).fold("draw", number).generator()
            z1, z2 = (torch.randn(size, generator=generator) for size in (len(gaussian.mean), 3))
            found = torch.cat([state.tensors[n][number].flatten() for n in names])
            right = gaussian.draw(z1.double(), z2.double(), scale)
            far = max(far, float(((found - right).abs() / gaussian.sd).max()))
        return far

    assert worst(1.0) < 1e-3 < worst(1.01)


@pytest.mark.parametrize("batch", [20, 60, 7, 1000])
def test_refreshed_batch_norm_statistics_equal_pooled_statistics(batch: int) -> None:
    x = torch.tensor(np.random.default_rng(1).normal(3, 2, (60, 4)), dtype=torch.float32)
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    network[0].running_mean.fill_(99)
    refresh_batch_norm(network, x, batch)
    parts = np.array_split(x.numpy().astype(np.float64), -(-60 // batch))
    variance = sum(len(p) * p.var(0, ddof=1) for p in parts) / 60
    torch.testing.assert_close(
        network[0].running_mean.double(), torch.tensor(x.double().numpy().mean(0)), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(network[0].running_var.double(), torch.tensor(variance), rtol=1e-5, atol=0)
    assert network[0].momentum == 0.1 and not network.training and not network[1].training


def test_each_draw_has_the_batch_norm_statistics_of_its_own_weights(tiny_images: FitData) -> None:
    past, rows = walk(IMAGES, 4), tiny_images.tensors("train")[0]
    state = made(tiny_images, past, 5, batch_norm_rows=None, batch_norm_batch=1000)
    for draw in range(2):
        weights = {k: v[draw] for k, v in state.tensors.items()}
        convolved = nn.functional.conv2d(rows, weights["trunk.0.weight"], weights["trunk.0.bias"], padding=1)
        torch.testing.assert_close(weights["trunk.1.running_mean"], convolved.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(weights["trunk.1.running_var"], convolved.var((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert not torch.equal(state.tensors["trunk.1.running_mean"][0], state.tensors["trunk.1.running_mean"][1])
    assert posterior_of(state).predict(rows[:5], rng=Seed(0)).draw_log_probs.shape == (2, 5, 3)


def test_running_moments_replace_the_moments_of_the_snapshots(tiny_table: FitData) -> None:
    """Three of 8 iterates have a snapshot: all 8 give the mean and the diagonal, the 3 snapshots give the columns."""
    whole = walk(TABLE, 8)
    running = RunningMoments()
    for weights in unstack(whole.tensors):
        running.update(weights)
    short = State({k: v[-3:] for k, v in whole.tensors.items()}, whole.config)
    names = [name for name, _ in TABLE.build(Seed(0)).named_parameters()]

    def draws(past: State, rank: int) -> torch.Tensor:
        state = made(tiny_table, past, 3, rank=rank)
        return torch.cat([state.tensors[n].flatten(1) for n in names], 1)

    for rank in (0, 3):
        found = draws(with_moments(short, running, ""), rank)
        torch.testing.assert_close(found, draws(whole, rank), atol=1e-6, rtol=1e-6)
        assert not torch.allclose(found, draws(short, rank), atol=1e-3)


def test_multi_swag_has_the_draws_of_swag_on_each_trajectory(tiny_table: FitData) -> None:
    """Its predictive is the mean of the predictives of three Gaussians around unlike networks."""
    past = [walk(TABLE, 5, spread) for spread in (0.1, 0.5, 1.0)]
    inputs, rng = {"trajectory": past}, Seed(3)
    found = MULTI_SWAG.stages["student"].fit_one(tiny_table, inputs, CONFIG, rng=rng, report=Silent())
    parts = []
    for number, one in enumerate(past):
        place = rng.fold("trajectory", number) if number else rng
        of_one = {"trajectory": [one]}
        parts.append(SWAG.stages["student"].fit_one(tiny_table, of_one, CONFIG, rng=place, report=Silent()))
    for name, value in found.tensors.items():
        assert torch.equal(value, torch.cat([part.tensors[name] for part in parts])), name
    x, y = tiny_table.tensors("train")
    densities = [posterior_of(part).predict(x, rng=Seed(0)).log_prob(y).double().exp() for part in parts]
    mixture = posterior_of(found).predict(x, rng=Seed(0)).log_prob(y).double().exp()
    torch.testing.assert_close(mixture, torch.stack(densities).mean(0), rtol=1e-5, atol=0)
    assert not torch.allclose(densities[0], densities[2], rtol=1e-2)


def test_multi_swag_refuses_trajectories_of_unlike_networks(tiny_table: FitData) -> None:
    other = NetworkSpec(MlpConfig("mlp", (3,)), (4,), 1, "gaussian_head")
    past = [walk(TABLE, 5), walk(other, 5)]
    with pytest.raises(ConfigError, match=r"^methods\.multi_swag must be made of trajectories of one network$"):
        MULTI_SWAG.stages["student"].fit_one(tiny_table, {"trajectory": past}, CONFIG, rng=Seed(0), report=Silent())


def test_too_few_snapshots_are_refused(tiny_table: FitData) -> None:
    with pytest.raises(
        ConfigError, match=r"^methods\.sgd\.snapshots must be at least 2 for swag without moments, got 1$"
    ):
        made(tiny_table, walk(TABLE, 1), 0)
    with pytest.raises(ConfigError, match=r"^methods\.swag\.rank must be <= the snapshots \(2\), got 3$"):
        made(tiny_table, walk(TABLE, 2), 0)
    rule = r"^methods\.multi_swag\.rank must be <= the snapshots \(2\), got 3$"
    with pytest.raises(ConfigError, match=rule):
        inputs = {"trajectory": [walk(TABLE, 5), walk(TABLE, 2)]}
        MULTI_SWAG.stages["student"].fit_one(tiny_table, inputs, CONFIG, rng=Seed(0), report=Silent())
    with pytest.raises(ConfigError, match="rank must be 0 or > 1, got 1"):
        dataclasses.replace(CONFIG, rank=1)


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
def test_swa_weights_equal_numpys_mean_of_the_snapshots(tiny: dict[str, FitData], task: str) -> None:
    past = trained(tiny[task])
    made = average(tiny[task], past)
    assert all(len(v) == 1 for v in made.tensors.values())
    iterates = weights(past)
    assert equal(made, {name: v.mean(0) for name, v in iterates.items()})
    assert not equal(made, {name: v[-1] for name, v in iterates.items()})
    assert not equal(made, {name: v[1:].mean(0) for name, v in iterates.items()})


def test_swa_weights_with_running_moments_are_the_mean_of_the_counted_iterates(tiny_table: FitData) -> None:
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


def test_swa_has_the_batch_norm_statistics_of_the_mean_weights(tiny_images: FitData) -> None:
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


def test_the_root_seed_alone_chooses_the_rows_of_the_batch_norm_statistics(tiny_images: FitData) -> None:
    past, some = walk(IMAGES, 4), SwaConfig(batch_norm_rows=40, batch_norm_batch=20)
    means = [average(tiny_images, past, some, rng=root).tensors["trunk.1.running_mean"] for root in (0, 1)]
    assert not torch.equal(*means)
    inputs, other = {"trajectory": [past]}, Seed(0).fold("another member")
    again = SWA.stages["student"].fit_one(tiny_images, inputs, some, rng=other, report=Silent())
    assert torch.equal(again.tensors["trunk.1.running_mean"], means[0])


def test_swa_refuses_a_single_snapshot(tiny_table: FitData) -> None:
    rule = r"must be at least 2 for swa without moments, got 1$"
    with pytest.raises(ConfigError, match=r"^methods\.sgd\.snapshots " + rule):
        average(tiny_table, trained(tiny_table, snapshots=1))


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("batch_norm_rows", 1, "must be > 1 or null, got 1"),
        ("batch_norm_batch", 1, "must be > 1, got 1"),
        ("batch_norm_batch", "all", "must be a whole number, got 'all'"),
    ],
)
def test_swa_refuses_invalid_batch_norm_settings(key: str, value: object, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(SwaConfig, {"batch_norm_rows": None, "batch_norm_batch": 32, key: value}, "s")
    assert str(caught.value) == f"s.{key} {rule}"
