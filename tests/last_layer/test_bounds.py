"""The bounds of E log Σ exp of Gaussian logits, against Gauss–Hermite quadrature and SciPy's minima of the formulas."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.last_layer import Discriminative, bounds
from bdl_pipe.last_layer.learner import LastLayerSpec
from bdl_pipe.last_layer.methods import LastLayerPosterior
from bdl_pipe.seeds import Seed
from tests.cases import GAUSSIAN, MLP, fit
from tests.refusals import refusal

from .cases import draw, perturbed

POINTS, CLASSES = 12, 3


def expected(mean: Tensor, covariance: Tensor) -> np.ndarray:
    """E log Σ exp z of each row, with 36 nodes of each of three dimensions; at a variance of 4 to 1e-6."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(36)
    grid = torch.tensor(list(product(nodes, repeat=CLASSES)))
    shares = torch.tensor(list(product(weights / weights.sum(), repeat=CLASSES))).prod(-1)
    logits = mean[:, None] + grid @ torch.linalg.cholesky(covariance).mT
    return (torch.logsumexp(logits, -1) @ shares).numpy()


def independent() -> tuple[Tensor, Tensor]:
    return 2 * draw(1, POINTS, CLASSES), 4 * torch.rand(
        POINTS, CLASSES, generator=torch.Generator().manual_seed(2)
    ).double()


def dependent() -> tuple[Tensor, Tensor]:
    root = draw(3, POINTS, CLASSES, CLASSES)
    return 2 * draw(1, POINTS, CLASSES), root @ root.mT / 2 + 0.05 * torch.eye(CLASSES)


@pytest.mark.parametrize("name", bounds.BOUNDS)
def test_each_bound_is_above_the_expectation(name: str) -> None:
    mean, variance = independent()
    truth, bound = expected(mean, torch.diag_embed(variance)), bounds.BOUNDS[name](mean, variance).numpy()
    assert (bound > truth).all()
    if name == "tilted":
        gap, of_jensen = bound - truth, bounds.jensen(mean, variance).numpy() - truth
        assert (gap < of_jensen).all() and gap.mean() < 0.3 * of_jensen.mean()


def test_wrong_formulas_are_below_the_expectation_somewhere() -> None:
    """A log-sum-exp of the means; the tilted bound without its quadratic term, or with half of it."""
    mean, variance = independent()
    truth = expected(mean, torch.diag_embed(variance))
    tilt = torch.softmax(mean, -1)
    inner = torch.logsumexp(mean + (0.5 - tilt) * variance, -1)
    right = inner + 0.5 * (tilt.square() * variance).sum(-1)
    assert (right.numpy() > truth).all()  # at any tilt
    for wrong in (torch.logsumexp(mean, -1), inner, 0.5 * (inner + right)):
        assert (wrong.numpy() < truth).any()


def test_the_bound_of_dependent_logits_has_their_covariance() -> None:
    """Wrong: the bound of independent logits, which is below the expectation where logits are opposed."""
    mean, covariance = dependent()
    truth, bound = expected(mean, covariance), bounds.tilted_dense(mean, covariance).numpy()
    assert (bound > truth - 1e-9).all() and (bound - truth).mean() < 0.2
    diagonal = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
    alone = bounds.tilted(mean, covariance.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(bounds.tilted_dense(mean, diagonal), alone, rtol=1e-3, atol=1e-3)
    opposed = torch.tensor([[[4.0, -3.9, 0.0], [-3.9, 4.0, 0.0], [0.0, 0.0, 0.01]]]).double()
    centre = torch.tensor([[0.0, 0.0, -9.0]]).double()
    at = expected(centre, opposed)
    assert float(bounds.tilted_dense(centre, opposed)) > at
    assert float(bounds.tilted(centre, opposed.diagonal(dim1=-2, dim2=-1))) < at


@pytest.mark.parametrize("name", ["tilted", "bouchard"])
def test_the_free_parameters_are_at_the_minimum(name: str) -> None:
    mean, variance = (tensor.numpy()[:4] for tensor in independent())
    ours = bounds.BOUNDS[name](torch.tensor(mean), torch.tensor(variance)).numpy()
    for m, v, bound in zip(mean, variance, ours, strict=True):

        def formula(free: np.ndarray) -> float:
            if name == "tilted":
                return float(0.5 * (free**2 * v).sum() + np.logaddexp.reduce(m + (0.5 - free) * v))  # noqa: B023
            alpha, width = free[0], np.exp(free[1:])
            slope = np.tanh(width / 2) / (4 * width)
            each = (m - alpha - width) / 2 + slope * ((m - alpha) ** 2 + v - width**2) + np.logaddexp(0, width)  # noqa: B023
            return float(alpha + each.sum())

        least = minimize(formula, np.zeros(CLASSES + (name == "bouchard"))).fun
        assert abs(bound - least) < 2e-3 * (1 + abs(least))


def test_the_loss_of_a_tighter_bound_is_lower_and_its_gradient_is_the_bounds() -> None:
    features, labels = draw(7, 6, 4), torch.tensor([0, 1, 2, 2, 0, 1])
    losses = {}
    for name in bounds.BOUNDS:
        layer = perturbed(Discriminative(4, 3, covariance="diagonal", bound=name))
        losses[name] = layer.loss(features, labels, num_train=50)
        if name != "jensen":  # a central difference, of which the free parameters are optimised at both ends
            losses[name].backward()
            assert layer.mean.grad is not None
            value, step = layer.mean.detach().clone(), torch.zeros_like(layer.mean)
            step[1, 2] = 1e-4
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    layer.mean.copy_(value + sign * step)
                    ends.append(float(layer.loss(features, labels, num_train=50)))
            assert float(layer.mean.grad[1, 2]) == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-3)
    assert losses["tilted"] < losses["jensen"] - 0.01


def test_a_bound_is_a_setting_of_classes_alone(tiny_images: FitData) -> None:
    layers = [GAUSSIAN | {"covariance": "diagonal", "bound": name} for name in ("jensen", "tilted")]
    states = [fit("d_vbll", "student", tiny_images, {}, rng=Seed(5), layer=layer) for layer in layers]
    assert not torch.equal(*(state.tensors["layer.mean"] for state in states))
    inputs, labels = tiny_images.tensors("validation")
    posterior = LastLayerPosterior.from_state(states[1])
    assert posterior.predict(inputs, rng=Seed(0)).log_prob(labels).isfinite().all()
    section = {"network": MLP, "input_shape": [4], "outputs": 1, "task": "regression", "features": None}
    layer = GAUSSIAN | {"name": "gaussian", "bound": "tilted"}
    message = refusal(read, LastLayerSpec, section | {"layer": layer}, "spec")
    assert message.endswith(
        "layer.bound must be jensen: the bound of regression is the expectation itself, got 'tilted'"
    )
    rule = "ConfigError: bound must be one of jensen, tilted, bouchard, got 'taylor'"
    assert refusal(Discriminative, 4, 3, bound="taylor") == rule
