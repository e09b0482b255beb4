"""The closed form against fifty digits and dense float64 algebra; its gradients are in ``test_oracles_gradients``."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe.coresets.vbpc import closed_form
from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.seeds import Seed

from .cases import central, projected, relative

RHO, GAMMA, BETA = 2.5, 30.0, 7.0
SIZES = [(4, 9, 3), (9, 4, 3), (6, 6, 2), (1, 5, 10)]  # rows, features, classes: dual, primal, square, one row


Problem = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(params=SIZES, ids=str)
def problem(request: pytest.FixtureRequest) -> Problem:
    (n, h, k), g = request.param, torch.Generator().manual_seed(1)
    return tuple(torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((n, h), (n, k), (11, h)))


def solved(features: Tensor, labels: Tensor) -> closed_form.HeadPosterior:
    return closed_form.solve(features, labels, rho=RHO, gamma=GAMMA, beta=BETA)


def dense(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(m, V) by Bayes' rule for Gaussians: V⁻¹ = ρI + (γ/β)ΦᵀΦ, m = (γ/β)VΦᵀŶ."""
    covariance = torch.linalg.inv(RHO * torch.eye(features.shape[1]).double() + GAMMA / BETA * features.T @ features)
    return GAMMA / BETA * covariance @ features.T @ labels, covariance


def test_the_predictive_and_the_loss_equal_dense_algebra(problem: Problem) -> None:
    features, labels, test = problem
    q, (mean, covariance) = solved(features, labels), dense(features, labels)
    logits = test @ mean / (1 + math.pi / 8 * (test @ covariance @ test.T).diagonal()).sqrt()[:, None]
    log_probs = logits - logits.logsumexp(1, keepdim=True)
    torch.testing.assert_close(q.predict(test).log_probs, log_probs)
    classes = torch.arange(11) % labels.shape[1]
    onehot = torch.nn.functional.one_hot(classes, labels.shape[1]).double()
    oracle = -1000 / 11 * (onehot * log_probs).sum() + 0.01 * q.kl()
    for form in (classes, onehot):
        torch.testing.assert_close(closed_form.dataset_loss(q, test, form, num_train=1000, beta_dataset=0.01), oracle)


def test_the_bound_as_a_loss_and_its_gradient_equal_dense_algebra(problem: Problem) -> None:
    """Draw by draw from the dense posterior, in float64, with central differences in the coreset's features."""
    features, labels, test = problem
    classes = torch.arange(11) % labels.shape[1]
    noise = torch.randn(6, 11, labels.shape[1], generator=Seed(1).generator(), dtype=torch.float64)

    def plain(features: Tensor) -> Tensor:
        mean, covariance = dense(features, labels)
        spread = (test @ covariance @ test.T).diagonal().sqrt()[:, None] * noise
        terms = [torch.log_softmax(test @ mean + side * spread, -1) for side in (1, -1)]
        likelihood = torch.stack(terms).mean((0, 1)).gather(1, classes[:, None]).mean()
        return -1000 * likelihood + 0.01 * solved(features, labels).kl()

    leaf = features.clone().requires_grad_()
    loss = closed_form.dataset_loss(solved(leaf, labels), test, classes, 1000, 0.01, noise)
    torch.testing.assert_close(loss, plain(features))
    assert relative(projected(torch.autograd.grad(loss, leaf)[0]), central(plain, features)) < 1e-6


def random_case(number: int) -> tuple[Tensor, Tensor, Tensor, float, float, float]:
    """(Φ, Ŷ, test features, ρ, γ, β) of random sizes: plain, with equal rows, and of a condition number of 1e8."""
    g = np.random.default_rng(number)
    n, h, k = (int(g.integers(1, most)) for most in (10, 8, 5))
    rho, gamma, beta = (float(10 ** g.uniform(-3, 3)) for _ in range(3))
    features = g.standard_normal((n, h)) * 10 ** g.uniform(-1, 1)
    if number % 3 == 1:
        features = features[g.integers(0, max(1, n // 2), n)]
    if number % 3 == 2:
        left_vectors, _, right = np.linalg.svd(features, full_matrices=False)
        features = left_vectors * np.logspace(1, -7, min(n, h)) @ right
    arrays = features, g.standard_normal((n, k)), g.standard_normal((4, h))
    return *map(torch.from_numpy, arrays), rho, gamma, beta  # type: ignore[return-value]


@pytest.mark.parametrize("number", range(18))
def test_the_closed_form_of_random_coresets_equals_fifty_digit_arithmetic(number: int) -> None:
    """Mean, variance and KL by Bayes' rule with V itself; the tolerances are what float64 can hold of each."""
    features, labels, test, rho, gamma, beta = random_case(number)
    h, k = features.shape[1], labels.shape[1]
    q = closed_form.solve(features, labels, rho=rho, gamma=gamma, beta=beta)
    logit_mean, logit_variance = q.logit_moments(test)
    with mpmath.workdps(50):
        phi, targets, rows = (mpmath.matrix(t.tolist()) for t in (features, labels, test))
        precision = rho * mpmath.eye(h) + (mpmath.mpf(gamma) / beta) * phi.T * phi
        covariance = precision**-1
        mean = (mpmath.mpf(gamma) / beta) * covariance * phi.T * targets
        logits, spread = rows * mean, rows * covariance * rows.T
        trace = sum(covariance[i, i] for i in range(h))
        squares = sum(value**2 for value in mean)
        kl = (
            k * rho * trace + rho * squares + k * mpmath.log(mpmath.det(precision) / mpmath.mpf(rho) ** h) - k * h
        ) / 2
        oracle = torch.tensor([[float(logits[i, j]) for j in range(k)] for i in range(4)], dtype=torch.float64)
        variances = torch.tensor([float(spread[i, i]) for i in range(4)], dtype=torch.float64)
    a, largest = gamma / (rho * beta), float(features.square().sum())
    lost = 1e-15 * (1 + a * largest)  # round-off times the condition number of A
    torch.testing.assert_close(logit_mean, oracle, rtol=1e-9, atol=float(oracle.abs().max()) * 100 * lost + 1e-12)
    prior = test.square().sum(1) / rho
    assert ((logit_variance - variances).abs() <= prior * (1e-12 + 10 * lost)).all()
    assert float(q.kl()) == pytest.approx(float(kl), rel=1e-8 + 100 * lost)


def test_float32_stays_finite_on_a_degenerate_coreset() -> None:
    """Equal rows, ‖φ‖² = 1e4 and γ = 1e3: the variance stays in [0, ‖φ‖²/ρ] and the gradient finite."""
    features = torch.ones(10, 100).mul(10).requires_grad_()
    q = closed_form.solve(features, torch.randn(10, 3), gamma=1000.0)
    _, logit_variance = q.logit_moments(torch.cat([features.detach(), torch.randn(5, 100)]))
    assert logit_variance.min() >= 0 and logit_variance[0] < 10.0
    closed_form.dataset_loss(q, torch.randn(4, 100), torch.zeros(4).long()).backward()
    assert torch.isfinite(features.grad).all()


@pytest.mark.parametrize(("n", "h"), [(2, 3), (3, 2)], ids=["dual", "primal"])
def test_features_of_a_diverged_network_and_negative_numbers_are_refused(n: int, h: int) -> None:
    for value in (math.nan, math.inf, 1e30):
        with pytest.raises(
            Diverged, match=r"^the coreset's features became NaN or too large: lower the learning rate$"
        ):
            closed_form.solve(torch.full((n, h), value), torch.ones(n, 2))
    for name in ("rho", "gamma", "beta"):
        with pytest.raises(ConfigError, match=f"{name} must be > 0, got -1.0"):
            closed_form.solve(torch.randn(n, h), torch.randn(n, 2), **{name: -1.0})


def test_the_covariance_equals_dense_algebra_and_has_a_memory_limit(problem: Problem) -> None:
    q, (_, covariance), width = solved(*problem[:2]), dense(*problem[:2]), problem[0].shape[1]
    torch.testing.assert_close(q.covariance(), covariance, rtol=1e-10, atol=1e-12)
    assert q.covariance(8 * width**2).shape == (width, width)
    with pytest.raises(ConfigError, match=rf"covariance must have at most 0 MiB, got '{width} x {width} numbers of"):
        q.covariance(8 * width**2 - 1)


def whitened(drawn: Tensor, mean: Tensor, covariance: Tensor) -> float:
    """The largest deviation, in standard errors, of the second moments of L⁻¹(w − m) from those of N(0, I)."""
    root = torch.linalg.cholesky(covariance)
    rows = torch.linalg.solve_triangular(root, drawn - mean, upper=False).transpose(1, 2).flatten(0, 1)  # [draw·k, h]
    moments = rows.T @ rows / len(rows) - torch.eye(len(covariance), dtype=rows.dtype)
    error = torch.full_like(moments, 1.0).fill_diagonal_(math.sqrt(2)) / math.sqrt(len(rows))
    return float((moments / error).abs().max())


def test_draws_of_the_head_have_the_moments_of_its_posterior(problem: Problem) -> None:
    """60,000 draws: at most 81 moments within 5.5 standard errors; a false alarm in 300,000 runs.

    Controls: draws without the noise of Matheron's rule, and draws of the prior's width, are detected.
    """
    features, labels, _ = problem
    q, (mean, covariance) = solved(features, labels), dense(features, labels)
    drawn = q.draws(60_000 // labels.shape[1], Seed(0))
    assert whitened(drawn, mean, covariance) < 5.5
    worst = (drawn.mean(0) - mean).abs() / (covariance.diagonal()[:, None] / len(drawn)).sqrt()
    assert float(worst.max()) < 5.5
    prior = torch.randn(drawn.shape, generator=Seed(1).generator(), dtype=torch.float64) / RHO**0.5
    assert whitened(mean + prior, mean, covariance) > 20
    if q.features is not None:
        silent = prior - q.ratio * features.T @ torch.cholesky_solve(features @ prior, q.factor)
        assert whitened(mean + silent, mean, covariance) > 20
