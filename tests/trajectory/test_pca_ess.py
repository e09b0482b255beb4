"""The sampler against the exact posterior of a network that is linear in its subspace."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.pca_ess import PCA_ESS, PcaEssConfig, Place, sample, step

from .cases import PRIOR_VARIANCE, TEMPERATURE, coordinates, exact, linear_trajectory, rejects

CONFIG = PcaEssConfig(
    dimension=3,
    temperature=TEMPERATURE,
    prior_variance=PRIOR_VARIANCE,
    rows=None,
    draws=500,
    batch_norm_rows=None,
    batch_norm_batch=32,
    burn_in=10,
    every=1,
    batch=80,
)


def drawn(data: FitData, seed: int = 3, **changes: float) -> np.ndarray:
    past, config = linear_trajectory(), dataclasses.replace(CONFIG, **changes)
    make = PCA_ESS.stages["student"].fit_one
    state = make(data, {"trajectory": [past]}, config, rng=Seed(seed), report=Silent())
    return coordinates(state, past, config.dimension)


def test_draws_follow_the_exact_posterior(tiny_table: FitData) -> None:
    """False alarms: see ``cases.rejects``. Told apart: a temperature left out or inverted."""
    z = drawn(tiny_table)
    past = linear_trajectory()
    assert not rejects(z, *exact(past, tiny_table, 3, 1 / TEMPERATURE))
    assert rejects(z, *exact(past, tiny_table, 3, 1.0))
    assert rejects(z, *exact(past, tiny_table, 3, TEMPERATURE))


def gaussian(power: float):
    """A correlated log-likelihood of three coordinates to a power, and the exact posterior under the prior."""
    curvature = np.array([[20.0, 6.0, 0.0], [6.0, 4.0, 0.5], [0.0, 0.5, 0.2]])
    centre = np.array([1.0, -1.0, 2.0])
    covariance = np.linalg.inv(power * curvature + np.eye(3) / PRIOR_VARIANCE)

    def log_likelihood(z: torch.Tensor) -> float:
        away = z.numpy() - centre
        return float(-0.5 * power * away @ curvature @ away)

    return log_likelihood, covariance @ (power * curvature @ centre), covariance


def test_the_kernel_leaves_a_correlated_gaussian_invariant() -> None:
    """3,000 steps; false alarms: see ``cases.rejects``. Told apart: a likelihood used twice, or not at all."""
    config = dataclasses.replace(CONFIG, draws=3000, every=1)
    log_likelihood, mean, covariance = gaussian(1.0)
    twice, _, _ = gaussian(2.0)
    right = sample(log_likelihood, config, rng=Seed(5), report=Silent()).numpy()
    wrong = sample(twice, dataclasses.replace(config, draws=1000), rng=Seed(5), report=Silent()).numpy()
    assert not rejects(right, mean, covariance)
    assert rejects(wrong, mean, covariance)
    prior = sample(lambda z: 0.0, dataclasses.replace(config, draws=500), rng=Seed(6), report=Silent()).numpy()
    assert rejects(prior, mean, covariance)


def test_a_step_never_moves_to_a_point_without_likelihood() -> None:
    """A point whose log-likelihood is NaN or −∞ is never taken."""

    def cut(z: torch.Tensor) -> float:
        return math.nan if z[0] < 0 else (-math.inf if z[1] < 0 else 0.0)

    place = Place(torch.ones(2, dtype=torch.float64), 0.0)
    for number in range(200):
        place = step(place, cut, 1.0, Seed(0).fold(number).generator())
        assert (place.z >= 0).all() and place.log_likelihood == 0.0


def test_a_start_with_a_likelihood_of_nan_is_an_error() -> None:
    with pytest.raises(Diverged, match="log-likelihood at the trajectory's mean is nan"):
        sample(lambda z: math.nan, CONFIG, rng=Seed(0), report=Silent())


def test_the_size_of_a_batch_does_not_change_the_draws(tiny_table: FitData) -> None:
    one = drawn(tiny_table, draws=3, burn_in=0)
    np.testing.assert_allclose(drawn(tiny_table, draws=3, burn_in=0, batch=30), one, atol=1e-4)
    assert np.abs(drawn(tiny_table, seed=4, draws=3, burn_in=0) - one).max() > 0.1


def test_more_components_than_snapshots_less_one_are_refused(tiny_table: FitData) -> None:
    rule = r"^methods\.pca_ess\.dimension must be <= the trajectory's snapshots less one \(5\), got 6$"
    with pytest.raises(ConfigError, match=rule):
        drawn(tiny_table, dimension=6)
