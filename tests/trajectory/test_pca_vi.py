"""The variational Gaussian against the exact posterior of a network that is linear in its subspace."""

import dataclasses

import numpy as np
import pytest
import torch

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.loop import OptimiserConfig, run_steps
from bdl_pipe.trajectory.pca_vi import PCA_VI, Bound, PcaViConfig
from bdl_pipe.trajectory.subspace import Target

from .cases import PRIOR_VARIANCE, TEMPERATURE, coordinates, exact, linear_trajectory, plane, rejects

CONFIG = PcaViConfig(
    dimension=3,
    temperature=TEMPERATURE,
    prior_variance=PRIOR_VARIANCE,
    rows=None,
    draws=1000,
    batch_norm_rows=None,
    batch_norm_batch=32,
    initial_sd=0.3,
    steps=250,
    samples=1,
    batch=80,
    optimiser=OptimiserConfig("adam", 0.1, "cosine"),
)


def fitted(data: FitData, **changes: object) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of q, in numpy's components."""
    past, config = linear_trajectory(), dataclasses.replace(CONFIG, **changes)
    target = Target(data, {"trajectory": [past]}, config, "pca_vi", Seed(3))
    bound = Bound(target, config, Seed(3))
    run_steps(bound, config.optimiser, config.steps, Silent())
    _, components = plane(past, 3)
    ours = target.plane.components.numpy()
    turn = ours @ np.linalg.pinv(components)  # signs
    factor = bound.factor().detach().numpy()
    return bound.mean.detach().numpy() @ turn, turn.T @ factor @ factor.T @ turn


def close(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray], tolerance: float) -> bool:
    """Whether means differ by less than ``tolerance`` exact deviations, and covariances by that share."""
    sd = np.sqrt(expected[1].diagonal())
    mean = np.abs(found[0] - expected[0]) / sd
    covariance = np.abs(found[1] - expected[1]) / np.outer(sd, sd)
    return bool(mean.max() < tolerance and covariance.max() < tolerance)


def test_the_variational_gaussian_equals_the_exact_posterior(tiny_table: FitData) -> None:
    found, past = fitted(tiny_table), linear_trajectory()
    assert close(found, exact(past, tiny_table, 3, 1 / TEMPERATURE), 1e-2)
    assert not close(found, exact(past, tiny_table, 3, 2 / TEMPERATURE), 5e-2)
    assert not close(found, exact(past, tiny_table, 3, TEMPERATURE), 5e-2)


def test_the_loss_of_batches_averages_to_the_loss_of_all_rows(tiny_table: FitData) -> None:
    """The mean loss of 300 batches against that of all rows; 6 combined standard errors (2e-9)."""

    def losses(batch: int, draws: int) -> np.ndarray:
        config = dataclasses.replace(CONFIG, batch=batch)
        target = Target(tiny_table, {"trajectory": [linear_trajectory()]}, config, "pca_vi", Seed(3))
        bound = Bound(target, config, Seed(3))
        with torch.no_grad():
            return np.array([bound.loss(number).item() for number in range(draws)])

    some, whole = losses(20, 300), losses(80, 300)
    error = np.hypot(some.std(), whole.std()) / np.sqrt(300)
    assert abs(some.mean() - whole.mean()) < 6 * error
    assert abs(some.mean() / 4 - whole.mean()) > 6 * error  # a likelihood of the batch alone


def test_networks_are_drawn_from_the_variational_gaussian(tiny_table: FitData) -> None:
    """False alarms: see ``cases.rejects``, of independent draws; q is exact to 1e-2, as the first test checks."""
    past = linear_trajectory()
    make = PCA_VI.stages["student"].fit_one
    state = make(tiny_table, {"trajectory": [past]}, CONFIG, rng=Seed(3), report=Silent())
    z = coordinates(state, past, 3)
    assert z.shape == (1000, 3)
    mean, covariance = exact(past, tiny_table, 3, 1 / TEMPERATURE)
    assert not rejects(z, mean, covariance)
    assert rejects(z, mean, covariance * 1.5)
    assert rejects(z, *exact(past, tiny_table, 3, 1.0))


def test_a_weight_decay_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^optimiser\.weight_decay must be 0: the prior is in the bound, got 0\.1$"):
        dataclasses.replace(CONFIG, optimiser=OptimiserConfig("adam", 0.1, weight_decay=0.1))
