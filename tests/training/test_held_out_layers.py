"""The noise of last layers, estimated on validation rows: a grid, covariances, and layers that memorise noise."""

import dataclasses
import math
from statistics import median
from typing import Literal

import pytest
import torch
from torch.distributions import Normal

from bdl_pipe.artifacts import State
from bdl_pipe.baselines.map_blr import MAP_BLR, MapBlrConfig
from bdl_pipe.config import read
from bdl_pipe.last_layer.methods import VBLL, VbllConfig
from bdl_pipe.last_layer.regression import Regression
from bdl_pipe.method import Method
from bdl_pipe.networks import MlpConfig
from bdl_pipe.predictive import Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.training.learner import EarlyStopping, TrainingConfig
from bdl_pipe.training.likelihood import least_noise
from bdl_pipe.training.loop import OptimiserConfig
from tests.cases import CONFIGS
from tests.training.test_held_out_noise import noisy


@pytest.mark.parametrize("seed", range(5))
def test_the_noise_factor_is_the_best_of_a_grid(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    mean, unit = (torch.randn(60, 2, generator=random).double() for _ in range(2))
    targets, noise = mean + 3 * unit, torch.tensor([0.2, 1.5])
    parts = [slice(0, 25), slice(25, None)]  # rows come in parts
    predicted = [(Gaussian(mean[None, at], 1 + noise.expand(1, len(mean[at]), 2)), targets[at]) for at in parts]

    def nll(factor: float) -> float:
        return -float(Normal(mean, (factor * noise).sqrt()).log_prob(targets).sum(-1).mean())

    score, log_factor = least_noise(predicted, noise)
    best = min(torch.logspace(-2, 4, 6001).tolist(), key=nll)
    assert math.exp(log_factor) == pytest.approx(best, rel=2e-3)
    assert score == pytest.approx(nll(math.exp(log_factor)), abs=1e-6)


def test_scaled_noise_multiplies_the_noise_covariance_by_the_factor() -> None:
    layer = Regression(4, 3, covariance="dense", rank=None, prior_variance=1.0, wishart_dof=1.0, wishart_scale=0.1)
    with torch.no_grad():
        layer.noise_factor.normal_()
        layer.noise_log_root.normal_()
    before = layer.noise_covariance.detach()
    layer.load_state_dict({**layer.state_dict(), **layer.scaled_noise(0.7)})
    torch.testing.assert_close(layer.noise_covariance.detach(), math.exp(0.7) * before)


def fitted(method: Method, noise: Literal["learned", "validation"], seed: int) -> State:
    """Fit a method to 60 rows of noise with 30 columns, for so long that it memorises them."""
    config: object = read(method.config, CONFIGS[method.name, "regression"], method.name)
    assert isinstance(config, VbllConfig | MapBlrConfig)
    optimiser, stopping = OptimiserConfig("adamw", 1e-2), EarlyStopping(60, None)
    training = TrainingConfig(60, 20, optimiser, stopping, noise=noise)
    config = dataclasses.replace(config, training=training, network=MlpConfig("mlp", (64,)))
    return method.stages["student"].fit_one(noisy(), {}, config, rng=Seed(seed), report=Silent())


@pytest.mark.soak
@pytest.mark.parametrize("method", [VBLL, MAP_BLR], ids=lambda method: method.name)
def test_validation_noise_covers_new_rows_and_learned_noise_does_not(method: Method) -> None:
    """The share of 500 new targets in 90 % intervals, a median of three seeds, with validation or learned noise."""
    random = torch.Generator().manual_seed(5)
    inputs, targets = torch.randn(500, 30, generator=random), torch.randn(500, 1, generator=random)

    def covered(noise: Literal["learned", "validation"]) -> float:
        shares = []
        for seed in range(3):
            of_new = posterior_of(fitted(method, noise, seed)).predict(inputs, rng=Seed(0))
            assert isinstance(of_new, Gaussian)
            z = (targets - of_new.draw_mean[0]).abs() / of_new.draw_variance[0].sqrt()
            shares.append(float((z < 1.6449).float().mean()))
        return median(shares)

    assert covered("validation") > 0.84
    assert covered("learned") < 0.75
