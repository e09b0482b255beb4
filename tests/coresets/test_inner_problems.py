"""The Laplace approximation of benchmarks/vbpc_inner.py against dense algebra over the head's weights."""

import torch
from torch import Tensor

from bdl_pipe.predictive import mean_field
from bdl_pipe.seeds import Seed
from benchmarks.vbpc_inner import laplace

from .cases import central, drawn, projected, relative

RHO, WEIGHT, HEAD = 2.0, 2.0, (9, 3)
FEATURES, LABELS, TEST = (3 * drawn(*shape, at=Seed(3).fold(str(shape))) for shape in ((7, 9), (7, 3), (5, 9)))


def dense(at_mode: bool, start: Tensor) -> Tensor:
    """The log-probabilities from the weights' posterior N(mode, H⁻¹), by damped Newton steps on all hk weights."""

    def loss(weights: Tensor) -> Tensor:
        fit = (LABELS.softmax(1) * (FEATURES @ weights).log_softmax(1)).sum()
        return 0.5 * RHO * weights.square().sum() - WEIGHT * fit

    def hessian(weights: Tensor) -> Tensor:
        p = (FEATURES @ weights).softmax(1)
        rows = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        blocks = WEIGHT * torch.einsum("nh,ncd,ng->hcgd", FEATURES, rows, FEATURES)
        return RHO * torch.eye(start.numel()).double() + blocks.reshape(start.numel(), start.numel())

    weights = start
    for _ in range(15 if at_mode else 0):
        slope = RHO * weights - WEIGHT * FEATURES.T @ (LABELS.softmax(1) - (FEATURES @ weights).softmax(1))
        step, size = torch.linalg.solve(hessian(weights), slope.flatten()).view(HEAD), 1.0
        while loss(weights - size * step) > loss(weights) and size > 1e-6:
            size /= 2
        weights = weights - size * step
    covariance = torch.linalg.inv(hessian(weights)).view(HEAD + HEAD)
    variance = torch.einsum("bh,hcgc,bg->bc", TEST, covariance, TEST)
    return mean_field(TEST @ weights, variance)


def test_laplace_equals_dense_algebra_at_the_mode_and_at_a_given_head() -> None:
    head = 0.3 * drawn(*HEAD, at=Seed(4))
    updated, untouched = (laplace(FEATURES, LABELS, RHO, WEIGHT, at)(TEST) for at in (None, head))
    assert relative(updated, dense(True, torch.zeros(HEAD).double())) < 1e-9
    assert relative(untouched, dense(False, head)) < 1e-9
    assert relative(untouched, dense(True, head)) > 0.01


def test_the_gradient_of_the_last_newton_step_is_the_gradient_of_the_mode() -> None:
    leaf = FEATURES.clone().requires_grad_()

    def value(features: Tensor) -> Tensor:
        return laplace(features, LABELS, RHO, WEIGHT, None)(TEST)[:, 0].sum()

    differences = central(value, FEATURES)
    assert relative(projected(torch.autograd.grad(value(leaf), leaf)[0]), differences) < 1e-6
    still = laplace(leaf, LABELS, RHO, WEIGHT, torch.zeros(HEAD).double())(TEST)[:, 0].sum()
    assert relative(projected(torch.autograd.grad(still, leaf)[0]), differences) > 0.1
