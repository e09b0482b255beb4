"""Further rows in closed form: equal to the layer's posterior given all rows, for all methods that have it."""

import copy
import functools
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from bdl_pipe import METHODS, BayesianClassifier, BayesianRegressor
from bdl_pipe.estimators.base import BayesianEstimator
from bdl_pipe.posterior_protocols import OnlinePosterior

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(90, 3))
Y = 5 + 2 * np.sin(X[:, 0]) + 0.3 * RANDOM.normal(size=90)
LABELS = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 1)]
HERE, TWICE = slice(0, 50), (np.tile(X, (2, 1)), np.tile(Y, 2))


@functools.cache
def _fitted(method: str) -> BayesianRegressor:
    return BayesianRegressor(method, pace=0.02).fit(X[HERE], Y[HERE])


def fitted(method: str) -> BayesianRegressor:
    """Return a copy of a fit, which can learn further rows without changing the fit."""
    return copy.deepcopy(_fitted(method))


def gaussian(estimator: BayesianEstimator, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of the functions at rows, and not of targets."""
    predictor = estimator.fitted_.predictor()
    functions = predictor.posterior.functions(predictor.transform.inputs(rows)[None], rng=estimator.fitted_.address())
    return functions.mean[0, 0, :, 0].double(), functions.covariance[0, 0, 0].double()


@pytest.mark.parametrize("method", ["linear", "map_blr", "gbll", "ldgbll", "vbll"])
def test_functions_equal_the_gaussian_given_all_rows(method: str) -> None:
    """The oracle conditions the functions' Gaussian before, at new and other inputs, on the new targets, by its
    covariance and not by weights. With another noise it is another Gaussian."""
    estimator = fitted(method)
    new, probe = X[50:60], X[60:65]
    mean, covariance = gaussian(estimator, np.concatenate([new, probe]))
    predictor = estimator.fitted_.predictor()
    targets = predictor.transform.targets(Y[50:60, None]).double()[:, 0]
    functions = predictor.posterior.functions(predictor.transform.inputs(new)[None], rng=estimator.fitted_.address())
    noise = functions.noise[0].double()
    noise = noise.expand(10) if noise.ndim == 1 else noise[0, :, 0]

    def conditioned(noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        here, across = covariance[:10, :10] + torch.diag(noise), covariance[10:, :10]
        after = mean[10:] + across @ torch.linalg.solve(here, targets - mean[:10])
        return after, covariance[10:, 10:] - across @ torch.linalg.solve(here, across.T)

    for part in (slice(50, 53), slice(53, 60)):
        estimator.partial_fit(X[part], Y[part])
    after, spread = gaussian(estimator, probe)
    exact, exact_spread = conditioned(noise)
    tolerance = 1e-8 if method == "linear" else 1e-4  # a network's covariances before the rows are float32
    assert torch.allclose(after, exact, atol=tolerance) and torch.allclose(spread, exact_spread, atol=tolerance)
    wrong, _ = conditioned(2 * noise)
    assert not torch.allclose(after, wrong, atol=1e-3)


@pytest.mark.parametrize("method", ["map_blr", "vbll"])
def test_rows_at_once_or_one_by_one_give_one_posterior_and_forgetting_gives_another(method: str) -> None:
    once, each = fitted(method), fitted(method)
    once.partial_fit(X[50:70], Y[50:70], keep=0.9)
    for row in range(50, 70):
        each.partial_fit(X[row : row + 1], Y[row : row + 1], keep=0.9)
    assert once.predict(X) == pytest.approx(each.predict(X), rel=1e-6)
    kept = fitted(method).partial_fit(X[50:70], Y[50:70])
    assert np.abs(kept.predict(X) - once.predict(X)).max() > 1e-3
    assert gaussian(once, X[:1])[1] > gaussian(kept, X[:1])[1]


def test_what_is_forgotten_fades_by_keep_to_the_number_of_later_rows() -> None:
    """With keep = λ, n later rows give A = λⁿA₀ + Σ λ^(n−1−i) φφᵀ/σ²."""
    estimator = fitted("linear")
    layer = estimator.fitted_.predictor().posterior.layer
    precision, phi = layer.factor @ layer.factor.T, []
    predictor = estimator.fitted_.predictor()
    for row in range(50, 60):
        phi = predictor.posterior.features(predictor.transform.inputs(X[row : row + 1]))
        precision = 0.8 * precision + phi.T @ phi / layer.noise_variance
    estimator.partial_fit(X[50:60], Y[50:60], keep=0.8)
    factor = estimator.fitted_.predictor().posterior.layer.factor
    assert torch.allclose(factor @ factor.T, precision, rtol=1e-10)


def test_class_means_equal_their_posterior_given_all_rows() -> None:
    estimator = BayesianClassifier("g_vbll", pace=0.02).fit(X[HERE], LABELS[HERE])
    before = estimator.fitted_.predictor().posterior.learner
    features = before.features(estimator.fitted_.predictor().transform.inputs(X[50:60]), 0, estimator.fitted_.address())
    layer, places = before.layer, np.searchsorted(estimator.classes_, LABELS[50:60])
    mean, precision = layer.mean.double(), torch.exp(-2 * layer.log_std.double())
    for phi, k in zip(features.double(), places, strict=True):  # Kalman's update, row by row
        gain = 1 / (1 + layer.noise_variance.double() * precision[k])
        mean[k] = mean[k] + gain * (phi - mean[k])
        precision[k] = precision[k] + 1 / layer.noise_variance.double()
    counts = layer.concentration + torch.bincount(torch.from_numpy(places), minlength=3)
    after = estimator.partial_fit(X[50:60], LABELS[50:60]).fitted_.predictor().posterior.learner.layer
    assert torch.allclose(after.mean.double(), mean, atol=1e-5)
    assert torch.allclose(torch.exp(-2 * after.log_std.double()), precision, rtol=1e-5)
    assert torch.equal(after.concentration, counts)


def test_a_saved_estimator_keeps_what_it_has_learnt(tmp_path: Path) -> None:
    estimator = fitted("vbll").partial_fit(X[50:], Y[50:])
    estimator.save(tmp_path / "saved")
    assert (BayesianRegressor.load(tmp_path / "saved").predict(X) == estimator.predict(X)).all()


def test_partial_fit_begins_with_a_fit_and_refuses_what_has_no_closed_form() -> None:
    assert isinstance(BayesianRegressor("linear").partial_fit(X, Y).fitted_.predictor().posterior, OnlinePosterior)
    for bad, message in (
        (
            lambda: BayesianRegressor("vbll", pace=0.02).fit(X, X).partial_fit(X, X),
            "needs a layer for one target or a generative layer with a point noise, got Regression",
        ),
        (lambda: fitted("linear").partial_fit(X, Y, keep=0), r"keep must be in \(0, 1\], got 0"),
        (lambda: fitted("linear").partial_fit(X, Y[:, None]), "y must have the form of fit, 1 numbers a row"),
        (
            lambda: BayesianRegressor("linear", conformal="split").fit(*TWICE).partial_fit(X, Y),
            "conformal must be None for partial_fit, got .split.",
        ),
        (
            lambda: BayesianClassifier("g_vbll", pace=0.02).fit(X, LABELS).partial_fit(X[:1], ["d"]),
            "y: must be classes of fit, got .d. in row 1",
        ),
        (
            lambda: BayesianClassifier("g_vbll").partial_fit(X, LABELS, classes=["a", "b", "c", "d"]),
            r"y must have each of classes, got \['a', 'b', 'c'\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            bad()
    message = r"dropout cannot learn further rows in closed form \(vbll, .*linear.* can\): call fit with all rows"
    with pytest.raises(AttributeError) as error:
        _ = BayesianRegressor("dropout").partial_fit
    assert re.match(message, str(error.value.__cause__ or error.value)), error.value.__cause__
    assert not hasattr(BayesianClassifier("vbll"), "partial_fit")


def test_a_method_says_whether_it_learns_further_rows() -> None:
    """A method that declares a task has a case above."""
    cases = {"regression": {"linear", "map_blr", "gbll", "ldgbll", "vbll"}, "classification": {"g_vbll"}}
    assert {task: {name for name, method in METHODS.items() if task in method.online} for task in cases} == cases
