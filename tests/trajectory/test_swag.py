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


def flat(state: State) -> torch.Tensor:
    """Networks as vectors of their parameters [network, weight]."""
    names = [name for name, _ in TABLE.build(Seed(0)).named_parameters()]
    return torch.cat([state.tensors[name].flatten(1) for name in names], 1)


def covariance(gaussian: Moments, scale: float = 1.0) -> np.ndarray:
    """AAᵀ of the linear map z ↦ w − w̄, its columns found by unit vectors."""
    size = len(gaussian.mean)
    units = torch.eye(size + len(gaussian.columns), dtype=torch.float64)
    a = torch.stack([gaussian.draw(unit[:size], unit[size:], scale) - gaussian.mean for unit in units], 1).numpy()
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


@pytest.mark.parametrize(("dtype", "most"), [("float64", 1e-6), ("float32", 1e-3)])
def test_draws_are_the_map_of_random_numbers_at_their_addresses(tiny_table: FitData, dtype: str, most: float) -> None:
    """In units of the deviation; float32 draws take float32 numbers. Told apart: a scale one part in a hundred off."""
    past = walk(TABLE, 5)
    drawn, gaussian = flat(made(tiny_table, past, 3, dtype=dtype)), moments(flat(past), 3)

    def worst(scale: float) -> float:
        far = 0.0
        for number in range(2):
            generator = Seed(3).fold("draw", number).generator()
            z = [torch.randn(s, generator=generator, dtype=getattr(torch, dtype)) for s in (len(gaussian.mean), 3)]
            right = gaussian.draw(*(part.double() for part in z), scale)
            right = right.float() if dtype == "float64" else right
            far = max(far, float(((drawn[number] - right).abs() / gaussian.sd).max()))
        return far

    assert worst(1.0) < most < worst(1.01) and (dtype == "float32" or worst(1.0) == 0)


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


def of_own_weights(weights: dict[str, torch.Tensor], draw: int, rows: torch.Tensor) -> bool:
    """Whether the first batch norm has the statistics of all rows under a draw's own convolution."""
    w = {name: weights[f"trunk.{name}"][draw] for name in ("0.weight", "0.bias", "1.running_mean", "1.running_var")}
    convolved = nn.functional.conv2d(rows, w["0.weight"], w["0.bias"], padding=1)
    pairs = ((w["1.running_mean"], convolved.mean((0, 2, 3))), (w["1.running_var"], convolved.var((0, 2, 3))))
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in pairs)


def test_each_draw_has_the_batch_norm_statistics_of_its_own_weights(tiny_images: FitData) -> None:
    rows = tiny_images.tensors("train")[0]
    state = made(tiny_images, walk(IMAGES, 4), 5, batch_norm_rows=None, batch_norm_batch=1000)
    assert all(of_own_weights(state.tensors, draw, rows) for draw in range(2))
    assert not torch.equal(state.tensors["trunk.1.running_mean"][0], state.tensors["trunk.1.running_mean"][1])


def test_running_moments_replace_the_moments_of_the_snapshots(tiny_table: FitData) -> None:
    """Three of 8 iterates have a snapshot: all 8 give the mean and the diagonal, the 3 snapshots give the columns."""
    whole, running = walk(TABLE, 8), RunningMoments()
    for weights in unstack(whole.tensors):
        running.update(weights)
    short = State({k: v[-3:] for k, v in whole.tensors.items()}, whole.config)
    for rank in (0, 3):
        counted, exact, few = (
            flat(made(tiny_table, past, 3, rank=rank)) for past in (with_moments(short, running, ""), whole, short)
        )
        torch.testing.assert_close(counted, exact, atol=1e-6, rtol=1e-6)
        assert not torch.allclose(counted, few, atol=1e-3)


def multi(data: FitData, past: list[State]) -> State:
    return MULTI_SWAG.stages["student"].fit_one(data, {"trajectory": past}, CONFIG, rng=Seed(3), report=Silent())


def test_multi_swag_has_the_draws_of_swag_on_each_trajectory(tiny_table: FitData) -> None:
    """Its predictive is the mean of the predictives of three Gaussians around unlike networks."""
    past, parts = [walk(TABLE, 5, spread) for spread in (0.1, 0.5, 1.0)], []
    for number, one in enumerate(past):
        place, inputs = Seed(3).fold("trajectory", number) if number else Seed(3), {"trajectory": [one]}
        parts.append(SWAG.stages["student"].fit_one(tiny_table, inputs, CONFIG, rng=place, report=Silent()))
    mixture = multi(tiny_table, past)
    for name, value in mixture.tensors.items():
        assert torch.equal(value, torch.cat([part.tensors[name] for part in parts])), name
    x, y = tiny_table.tensors("train")
    density, *densities = (
        posterior_of(state).predict(x, rng=Seed(0)).log_prob(y).double().exp() for state in (mixture, *parts)
    )
    torch.testing.assert_close(density, torch.stack(densities).mean(0), rtol=1e-5, atol=0)
    assert not torch.allclose(densities[0], densities[2], rtol=1e-2)


OTHER = NetworkSpec(MlpConfig("mlp", (3,)), (4,), 1, "gaussian_head")


@pytest.mark.parametrize(
    ("fit", "past", "message"),
    [
        ("swag", [(TABLE, 1)], r"methods\.sgd\.snapshots must be at least 2 for swag without moments, got 1$"),
        ("swa", [(TABLE, 1)], r"methods\.sgd\.snapshots must be at least 2 for swa without moments, got 1$"),
        ("swag", [(TABLE, 2)], r"methods\.swag\.rank must be <= the snapshots \(2\), got 3$"),
        ("multi", [(TABLE, 5), (TABLE, 2)], r"methods\.multi_swag\.rank must be <= the snapshots \(2\), got 3$"),
        ("multi", [(TABLE, 5), (OTHER, 5)], r"methods\.multi_swag must be made of trajectories of one network$"),
    ],
)
def test_too_few_snapshots_and_unlike_networks_are_refused(
    tiny_table: FitData, fit: str, past: list[tuple[NetworkSpec, int]], message: str
) -> None:
    walks = [walk(*one) for one in past]
    fits = {"swag": lambda: made(tiny_table, walks[0], 0), "swa": lambda: average(tiny_table, walks[0])}
    with pytest.raises(ConfigError, match=f"^{message}"):
        (fits | {"multi": lambda: multi(tiny_table, walks)})[fit]()


ALL = SwaConfig(batch_norm_rows=None, batch_norm_batch=1000)


def average(data: FitData, past: State, config: SwaConfig = ALL, rng: Seed = Seed(0)) -> State:
    return SWA.stages["student"].fit_one(data, {"trajectory": [past]}, config, rng=rng, report=Silent())


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
    averaged = average(tiny[task], past)
    assert all(len(v) == 1 for v in averaged.tensors.values())
    iterates = weights(past)
    assert equal(averaged, {name: v.mean(0) for name, v in iterates.items()})
    assert not equal(averaged, {name: v[-1] for name, v in iterates.items()})
    assert not equal(averaged, {name: v[1:].mean(0) for name, v in iterates.items()})


def test_swa_weights_with_running_moments_are_the_mean_of_the_counted_iterates(tiny_table: FitData) -> None:
    whole = weights(trained(tiny_table))
    past = trained(tiny_table, snapshots=2, moments={"count": 5, "every": 1})
    averaged = average(tiny_table, past)
    for name, v in whole.items():
        np.testing.assert_allclose(averaged.tensors[name][0].numpy(), v[1:].mean(0), rtol=1e-6)
    assert not any(np.allclose(averaged.tensors[n][0].numpy(), v[-2:].mean(0), rtol=1e-4) for n, v in whole.items())
    one = trained(tiny_table, snapshots=1, moments={"count": 5, "every": 1})
    assert equal(average(tiny_table, one), {name: v.double().numpy()[0] for name, v in averaged.tensors.items()})
    bare = State(snapshots(past), past.config)
    assert equal(average(tiny_table, bare), {name: v[-2:].mean(0) for name, v in whole.items()})


def test_swa_has_the_batch_norm_statistics_of_the_mean_weights(tiny_images: FitData) -> None:
    """Of rows that the root seed alone chooses."""
    past, rows, key = walk(IMAGES, 4), tiny_images.tensors("train")[0], "trunk.1.running_mean"
    swa = average(tiny_images, past).tensors
    assert of_own_weights(swa, 0, rows)
    averaged = past.tensors[key].mean(0)  # the iterates' own statistics, averaged with them
    assert not torch.allclose(swa[key][0], averaged, rtol=1e-2, atol=1e-3)
    config = SwaConfig(batch_norm_rows=40, batch_norm_batch=20)
    seeds = (Seed(0), Seed(1), Seed(0).fold("another member"))
    some, other, same = (average(tiny_images, past, config, seed).tensors for seed in seeds)
    assert not torch.equal(some[key], swa[key]) and torch.equal(some["head.weight"], swa["head.weight"])
    assert not torch.equal(some[key], other[key]) and torch.equal(some[key], same[key])
