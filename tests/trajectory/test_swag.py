"""SWAG against numpy's covariance of the stored snapshots, and its refreshed statistics against pooled ones."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from bdl_pipe.artifacts import State, unstack
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.networks.normalisation import refresh_batch_norm
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.training.snapshots import RunningMoments, with_moments
from bdl_pipe.trajectory.swag import SWAG, Moments, SwagConfig, moments

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
def test_the_covariance_is_numpys(rank: int) -> None:
    """Of rank 8 the low-rank part is of all snapshots. A variance in the place of a deviation is noticed."""
    gaussian = moments(iterates(), rank)
    np.testing.assert_allclose(covariance(gaussian), expected(iterates(), rank), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(covariance(gaussian, 0.3), 0.3 * expected(iterates(), rank), rtol=1e-10, atol=1e-12)
    wrong = dataclasses.replace(gaussian, sd=gaussian.sd.square())
    assert not np.allclose(covariance(wrong), expected(iterates(), rank), rtol=0.05)


def test_moments_survive_a_large_offset() -> None:
    w = iterates(offset=1e4)  # float32 spacing there: 1e-3
    gaussian, exact = moments(w, 2), w.numpy().astype(np.float64)
    np.testing.assert_allclose(gaussian.mean.numpy(), exact.mean(0), rtol=1e-14)
    np.testing.assert_allclose(gaussian.sd.numpy(), exact.std(0), rtol=1e-9)
    careless = (w.square().mean(0) - w.mean(0).square()).clamp_min(1e-30).sqrt().numpy()
    assert np.abs(careless / exact.std(0) - 1).max() > 0.1  # what the textbook form makes of the same numbers


def test_draws_are_the_map_of_their_addresses(tiny_table: FitData) -> None:
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


@pytest.mark.parametrize("batch", [20, 60, 7, 1000])
def test_refreshed_statistics_are_the_pooled_ones(batch: int) -> None:
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


def test_each_draw_has_the_statistics_of_its_own_weights(tiny_images: FitData) -> None:
    past, rows = walk(IMAGES, 4), tiny_images.tensors("train")[0]
    state = made(tiny_images, past, 5, batch_norm_rows=None, batch_norm_batch=1000)
    for draw in range(2):
        weights = {k: v[draw] for k, v in state.tensors.items()}
        convolved = nn.functional.conv2d(rows, weights["trunk.0.weight"], weights["trunk.0.bias"], padding=1)
        torch.testing.assert_close(weights["trunk.1.running_mean"], convolved.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(weights["trunk.1.running_var"], convolved.var((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert not torch.equal(state.tensors["trunk.1.running_mean"][0], state.tensors["trunk.1.running_mean"][1])
    assert posterior_of(state).predict(rows[:5], rng=Seed(0)).draw_log_probs.shape == (2, 5, 3)


def test_running_moments_take_the_place_of_the_snapshots(tiny_table: FitData) -> None:
    """Moments of 8 iterates, of which 3 left a snapshot: the mean and D of all, the columns of those."""
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


def test_too_few_snapshots_are_refused(tiny_table: FitData) -> None:
    with pytest.raises(ConfigError, match=r"^methods\.sgd\.keep must leave two or more snapshots for swag, got 1$"):
        made(tiny_table, walk(TABLE, 1), 0)
    with pytest.raises(ConfigError, match=r"^methods\.swag\.rank must be <= the snapshots \(2\), got 3$"):
        made(tiny_table, walk(TABLE, 2), 0)
    with pytest.raises(ConfigError, match="rank must be 0 or > 1, got 1"):
        dataclasses.replace(CONFIG, rank=1)
