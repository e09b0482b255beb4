"""The toy posteriors of the factorised Gaussian's failings: VI, EP and PBP against closed forms of a line."""

import dataclasses

import torch

from benchmarks.failings import (
    NOISE,
    TOYS,
    X,
    Y,
    backpropagation,
    expectation_propagation,
    gaussian,
    line,
    moments,
    of_line,
    page,
    share,
    shown,
    variational,
)

TOY = dataclasses.replace(TOYS["correlation"], points=121)
NEAR = dataclasses.replace(TOY, ends=4.5, points=73)  # as fine as the page's grid, and wide enough for all rows
FEATURES = torch.stack([X, torch.ones_like(X)], 1)
PRECISION = torch.eye(2) / TOY.prior_sd**2 + FEATURES.T @ FEATURES / NOISE**2  # of the exact posterior
MEAN = torch.linalg.solve(PRECISION, FEATURES.T @ Y / NOISE**2)


def test_the_grid_has_the_moments_of_the_exact_posterior() -> None:
    covariance = torch.linalg.inv(PRECISION)
    points = TOY.grid()
    figures = of_line(points, share(TOY.log_density(points)))
    mean, variance = moments(points, share(TOY.log_density(points)))
    torch.testing.assert_close(mean, MEAN, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance, covariance.diagonal(), rtol=1e-6, atol=1e-6)
    at = torch.tensor([1.5, 1.0]).double()
    assert abs(figures["sd of f(1.5)"] - float(at @ covariance @ at) ** 0.5) < 1e-6


def test_vi_has_the_inverse_diagonal_of_the_precision() -> None:
    """The optimum in closed form (Bishop 2006, section 10.1.2); the exact marginals are wider."""
    mean, sd = variational(NEAR, [0.1])
    torch.testing.assert_close(mean, MEAN, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sd, PRECISION.diagonal().rsqrt(), rtol=1e-3, atol=0)
    assert (sd < 0.7 * torch.linalg.inv(PRECISION).diagonal().sqrt()).all()  # control: they differ


def test_ep_of_one_row_has_the_moments_of_the_posterior_and_of_several_has_not() -> None:
    """With one row the factorised Gaussian is the projection of the posterior itself."""
    one = dataclasses.replace(TOY, rows=lambda weights: line(weights)[:1])
    precision = torch.eye(2) / TOY.prior_sd**2 + FEATURES[:1].T @ FEATURES[:1] / NOISE**2
    mean, sd, _ = expectation_propagation(one)
    covariance = torch.linalg.inv(precision)
    torch.testing.assert_close(mean, covariance @ FEATURES[0] * Y[0] / NOISE**2, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sd, covariance.diagonal().sqrt(), rtol=1e-5, atol=0)
    passed, of_pass = backpropagation(X[:1], Y[:1], TOY, NOISE, 1)
    torch.testing.assert_close(torch.stack([passed, of_pass]), torch.stack([mean, sd]), rtol=1e-5, atol=1e-5)
    again = backpropagation(X[:1], Y[:1], TOY, NOISE, 2)[1]
    assert (again < 0.99 * sd).all()  # control: a second epoch counts the row twice


def test_a_page_has_a_line_for_each_approximation() -> None:
    points = TOY.grid()
    q = share(gaussian(points, MEAN, PRECISION.diagonal().rsqrt()))
    rows = [("exact", shown(of_line(points, share(TOY.log_density(points))))), ("VI", shown(of_line(points, q)))]
    text = page({"correlation": rows}, {"commit": "none"})
    assert "| exact | -0.897 |" in text and "| VI | 0.000 |" in text and text.startswith("# ")
