"""SGLD's kernel: its formula, its gradient, its schedule, and the exact law of its draws."""

import pytest
import torch
from scipy import stats

from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import sgld


def test_step_is_the_formula():
    theta, gradient = torch.arange(3.0).double(), torch.tensor([2.0, -1.0, 0.5]).double()
    after = sgld.step({"a": theta}, {"a": gradient}, 0.04, Seed(0).generator())["a"]
    z = torch.randn(3, generator=Seed(0).generator(), dtype=torch.float64)
    torch.testing.assert_close(after, theta + 0.02 * gradient + 0.2 * z, rtol=0, atol=1e-15)
    assert torch.equal(theta, torch.arange(3.0).double())  # a pure function


def linear_model():
    random = torch.Generator().manual_seed(5)
    inputs = torch.randn(24, 3, generator=random, dtype=torch.float64)
    targets = inputs @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    targets = targets + 0.3 * torch.randn(24, generator=random, dtype=torch.float64)

    def log_prior(position):
        return -2.5 * position["w"].square().sum()

    def log_likelihood(position, x, y):
        return -4.0 * (y - x @ position["w"]).square().sum()

    return inputs, targets, log_prior, log_likelihood


def test_minibatch_gradients_average_to_the_full_gradient():
    """Over all minibatches of a partition, to rounding; by hand: −5w + 8 Xᵀ(y − Xw)."""
    inputs, targets, log_prior, log_likelihood = linear_model()
    w = torch.tensor([0.3, 0.1, -0.7], dtype=torch.float64)
    batches = sgld.Minibatches(24, 6, Seed(1))
    parts = [
        sgld.gradient(log_prior, log_likelihood, {"w": w}, (inputs[i], targets[i]), 24)["w"]
        for i in (batches(t) for t in range(4))
    ]
    by_hand = -5 * w + 8 * inputs.T @ (targets - inputs @ w)
    torch.testing.assert_close(torch.stack(parts).mean(0), by_hand, rtol=1e-12, atol=1e-12)
    unscaled = [
        sgld.gradient(log_prior, log_likelihood, {"w": w}, (inputs[i], targets[i]), 6)["w"]
        for i in (batches(t) for t in range(4))
    ]
    assert (torch.stack(unscaled).mean(0) - by_hand).norm() > 0.5 * by_hand.norm()  # without N/M


@pytest.mark.slow
def test_sampled_law_of_a_linear_model():
    """Full-batch draws of 100 chains against the exact AR(1) law; z-tests at 1e-6 over 3 means."""
    inputs, targets, log_prior, log_likelihood = linear_model()
    precision = 5 * torch.eye(3, dtype=torch.float64) + 8 * inputs.T @ inputs
    mean = torch.linalg.solve(precision, 8 * inputs.T @ targets)
    eta = 1 / float(torch.linalg.eigvalsh(precision)[-1])
    values, vectors = torch.linalg.eigh(precision)
    covariance = vectors @ torch.diag(1 / (values * (1 - eta * values / 4))) @ vectors.T
    draws = torch.stack(
        [
            sgld.sample(
                log_prior,
                log_likelihood,
                (inputs, targets),
                {"w": mean},
                step_size=sgld.ConstantStep("constant", eta),
                batch=24,
                thinning=sgld.Thinning(60, 59, 1),
                rng=Seed(2).fold(c),
            )["w"][0]
            for c in range(100)
        ]
    )
    z = (draws.mean(0) - mean) / (covariance.diagonal() / 100).sqrt()
    assert float(z.abs().max()) < stats.norm.isf(1e-6 / 6)
    mahalanobis = float(((draws - mean) @ torch.linalg.inv(covariance) * (draws - mean)).sum())
    assert stats.chi2.ppf(5e-7, 300) < mahalanobis < stats.chi2.isf(5e-7, 300)
    assert mahalanobis / 2 < stats.chi2.ppf(5e-7, 300)  # noise of twice the variance is told apart


def test_schedule():
    assert sgld.ConstantStep("constant", 1e-5).at(12345) == 1e-5
    polynomial = sgld.PolynomialDecay("polynomial", 0.5, 4.0, 0.5)
    assert [polynomial.at(t) for t in (0, 5, 12)] == pytest.approx([0.25, 0.5 / 3, 0.125])


def test_thinning():
    thinning = sgld.Thinning(steps=10, burn_in=3, every=2)
    assert [t for t in range(1, 11) if thinning.keeps(t)] == [5, 7, 9]
    assert thinning.count == 3


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: sgld.ConstantStep("constant", 0.0), "value"),
        (lambda: sgld.PolynomialDecay("polynomial", 1.0, 0.0, 0.5), "b"),
        (lambda: sgld.Thinning(10, 10, 1), "burn_in"),
        (lambda: sgld.Thinning(10, 8, 3), "every"),
    ],
)
def test_bad_numbers_are_named(make, path):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.path == path


def test_divergence_is_said():
    with pytest.raises(Diverged, match="lower step_size"):
        sgld.sample(
            lambda p: 1e9 * p["w"].square().sum(),
            lambda p, x: (p["w"] * x).sum(),
            (torch.ones(4),),
            {"w": torch.ones(1)},
            step_size=sgld.ConstantStep("constant", 1.0),
            batch=4,
            thinning=sgld.Thinning(100, 0, 100),
            rng=Seed(0),
        )
