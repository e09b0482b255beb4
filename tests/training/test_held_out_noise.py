"""The noise of the best likelihood: a closed form, grids, a variational network, and the layers' covariances."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from bdl_pipe.baselines.bnn import Bnn, BnnConfig, BnnSpec
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.last_layer.regression import Regression
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.predictive import Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.fit import fit_epochs
from bdl_pipe.training.learner import TrainingConfig
from bdl_pipe.training.likelihood import least_head_nll, least_nll, least_noise
from bdl_pipe.training.loop import OptimiserConfig
from bdl_pipe.trajectory import sgd
from tests.baselines.cases import unscaled


def test_the_noise_variance_of_several_draws_is_the_best_of_a_grid() -> None:
    random = torch.Generator().manual_seed(1)
    draws, targets = torch.randn(3, 40, 1, generator=random).double(), torch.randn(40, 1, generator=random).double()

    def nll(v: float) -> Tensor:
        each = torch.distributions.Normal(draws, math.sqrt(v)).log_prob(targets).sum(-1)
        return -(torch.logsumexp(each, 0) - math.log(3)).mean()

    grid = torch.logspace(-3, 2, 4001).tolist()
    best = min(grid, key=lambda v: float(nll(v)))
    score, log_variance = least_nll(draws, targets)
    assert math.exp(log_variance) == pytest.approx(best, rel=3e-3)
    assert score == pytest.approx(float(nll(best)), abs=1e-6)
    assert best < float((draws.mean(0) - targets).square().mean())  # the draws' disagreement is not counted twice


def variances(free: Tensor, floor: float | None) -> Tensor:
    return free.exp() if floor is None else floor + (1 + free.exp()).log()


@pytest.mark.parametrize("floor", [None, 0.01, 0.001])
def test_no_line_of_a_grid_has_a_lower_loss_than_the_fitted_line(floor: float | None) -> None:
    """Heads of all scales, over- and under-confident; residuals below the floor, too."""
    for case in range(40):
        random = torch.Generator().manual_seed(case)
        free = torch.randn(60, 2, generator=random).double() * (0.3 + case % 4) + (case % 5 - 3)
        mean, unit = (torch.randn(60, 2, generator=random).double() for _ in range(2))
        targets = mean + unit * (free * (case % 3) / 4 + case % 7 - 4).exp()
        score, shift, slope = least_head_nll([(Gaussian(mean[None], variances(free, floor)[None]), targets)], floor)
        shifts, slopes = torch.linspace(-14, 14, 141).double(), torch.linspace(0, 1, 21).double()
        lines = shifts[:, None, None, None] + slopes[:, None, None] * (free - free.mean())  # of each row
        grid = -torch.distributions.Normal(mean, variances(lines, floor).sqrt()).log_prob(targets).sum(-1).mean(-1)
        nll = -torch.distributions.Normal(mean, variances(shift + slope * free, floor).sqrt()).log_prob(targets)
        assert 0 <= slope <= 1, case
        assert score == pytest.approx(float(nll.sum(1).mean()), abs=1e-6), case
        assert score < float(grid.min()) + 1e-4, case


def test_a_residual_that_is_not_finite_has_a_score_that_is_not_finite() -> None:
    ones = torch.ones(5, 1, dtype=torch.float64)
    for bad in (math.nan, math.inf):
        assert not math.isfinite(least_head_nll([(Gaussian(bad * ones[None], ones[None]), ones)], 0.01)[0])


@pytest.mark.parametrize("floor", [None, 0.01])
def test_variances_of_a_head_move_along_the_line_and_its_means_do_not(floor: float | None) -> None:
    spec = NetworkSpec(MlpConfig("mlp", (8,)), (3,), 2, "gaussian_head", variance_floor=floor)
    data = unscaled(np.zeros((2, 3)), np.zeros((2, 2)))
    learner, inputs = sgd._Network(spec, None, data, Seed(0)), torch.randn(9, 3)
    start = {"shift": torch.tensor(0.7), "slope": torch.tensor(0.4)}
    before = learner.network(inputs).detach()
    learner.load_state_dict(learner.with_estimated(learner.state_dict(), start))
    after = learner.network(inputs).detach()
    assert torch.equal(after[:, :2], before[:, :2])
    torch.testing.assert_close(after[:, 2:], 0.7 + 0.4 * before[:, 2:])


def underfitted(draws: int = 8) -> tuple[BnnConfig, FitData]:
    """A variational network after 20 epochs: its draws disagree, and its loss counts their disagreement as noise."""
    random = np.random.default_rng(3)
    inputs = random.normal(size=(600, 4))
    data = unscaled(inputs, np.sin(2 * inputs[:, :1]) + 0.1 * random.normal(size=(600, 1)))
    training = TrainingConfig(20, 20, OptimiserConfig("adam", 1e-2), noise="training")
    network = MlpConfig("mlp", (64,))
    return BnnConfig(network, training, stochastic="all", initial_sd=0.3, draws=draws, validation_draws=2), data


@pytest.mark.soak
def test_the_noise_of_training_rows_is_the_best_for_the_predictive() -> None:
    config, data = underfitted()
    trained = dataclasses.replace(config, training=dataclasses.replace(config.training, noise="learned"))
    estimated, learned = (
        fit_epochs(
            lambda rows, rng, config=each: Bnn(BnnSpec(config, rows.input_shape, 1, "regression"), rng),
            [data], each.training, rngs=[Seed(1)], report=Silent(),
        )[0]
        for each in (config, trained)
    )  # fmt: skip
    inputs, targets = data.rows("train").slice(0, 600)

    def loss(log_variance: float, seed: int) -> float:
        learner = Bnn(BnnSpec(config=config, task="regression", input_shape=(4,), outputs=1), Seed(1))
        learner.load_state_dict(estimated.state | {"likelihood.log_variance": torch.tensor([log_variance])})
        with torch.no_grad():
            return -float(learner.predict(inputs, rng=Seed(seed)).log_prob(targets).double().mean())

    estimate = float(estimated.state["likelihood.log_variance"])
    assert estimate < float(learned.state["likelihood.log_variance"]) - 0.5, "the disagreement is not counted twice"
    at_own = loss(estimate, 5)  # the seed differs from the seed of the estimate
    assert all(at_own < loss(estimate + shift, 5) + 1e-2 for shift in (-1.0, -0.5, -0.2, 0.2, 0.5, 1.0))
    for name, value in learned.state.items():
        assert name == "likelihood.log_variance" or torch.equal(value, estimated.state[name]), "only the noise differs"


def test_the_noise_factor_is_the_best_of_a_grid() -> None:
    random = torch.Generator().manual_seed(0)
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
