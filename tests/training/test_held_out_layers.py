"""The noise of last layers, estimated on validation rows: a grid, and covariances."""

import math

import pytest
import torch
from torch.distributions import Normal

from bdl_pipe.last_layer.regression import Regression
from bdl_pipe.predictive import Gaussian
from bdl_pipe.training.likelihood import least_noise


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
