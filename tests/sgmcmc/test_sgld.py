"""SGLD's kernel: its exact stationary law on a Gaussian, its gradient, its schedule, its draws."""

import math

import pytest
import torch
from scipy import stats

from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import sgld

CURVATURES = torch.tensor([0.5, 2.0, 8.0, 20.0], dtype=torch.float64)  # P, one independent direction each
CENTRE = torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=torch.float64)
ETA = 0.1  # ηP up to 2: far from the small-step limit, so that the exact law differs from N(μ, 1/P)
CHAINS, STEPS = 4000, 400
FALSE_ALARM = 1e-6  # of a whole test below, all directions together, by Bonferroni


def run_parallel(move) -> torch.Tensor:
    """The last position of CHAINS independent chains [chain, direction], started at the centre."""
    position = {"θ": CENTRE.repeat(CHAINS, 1)}
    generator = Seed(3).fold("law").generator()
    for _ in range(STEPS):
        gradient = {"θ": -CURVATURES * (position["θ"] - CENTRE)}
        position = move(position, gradient, ETA, generator)
    return position["θ"]


def rejects(draws: torch.Tensor) -> bool:
    """Whether z-tests of the mean and χ² tests of the variance refuse the exact stationary law.

    θ′ = θ − (η/2)P(θ − μ) + √η z is a Gaussian AR(1) of coefficient a = 1 − ηP/2, so its stationary
    law is N(μ, η/(1 − a²)) = N(μ, 1/(P(1 − ηP/4))). Started at μ its variance after T steps is
    (1 − a^{2T}) of that, here 1 to 1e-4 of the χ² test's resolution. The chains are independent, so
    the draws are; 8 two-sided tests at FALSE_ALARM/8 each.
    """
    exact = 1 / (CURVATURES * (1 - ETA * CURVATURES / 4))
    each = FALSE_ALARM / (2 * len(exact))
    z = ((draws.mean(0) - CENTRE) / (exact / CHAINS).sqrt()).abs()
    chi = ((draws - CENTRE).square().sum(0) / exact).numpy()
    tails = torch.tensor([2 * min(stats.chi2.cdf(c, CHAINS), stats.chi2.sf(c, CHAINS)) for c in chi])
    return bool((z > stats.norm.isf(each / 2)).any() or (tails < each).any())


def test_stationary_law_on_a_gaussian():
    assert not rejects(run_parallel(sgld.step))


@pytest.mark.parametrize("sd", [ETA, math.sqrt(2 * ETA)], ids=["sd η", "sd √(2η)"])
def test_wrong_noise_is_refused(sd):
    def wrong(position, gradient, eta, generator):
        theta = position["θ"]
        noise = torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
        return {"θ": theta + eta / 2 * gradient["θ"] + sd * noise}

    assert rejects(run_parallel(wrong))


def test_wrong_drift_is_refused():
    def wrong(position, gradient, eta, generator):
        return sgld.step(position, {"θ": 2 * gradient["θ"]}, eta, generator)

    assert rejects(run_parallel(wrong))


def test_the_law_without_its_discretisation_is_refused():
    """N(μ, 1/P), the limit of small steps, is far from what η leaves."""
    noise = torch.randn(CHAINS, 4, generator=Seed(4).generator(), dtype=torch.float64)
    assert rejects(CENTRE + noise / CURVATURES.sqrt())


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
