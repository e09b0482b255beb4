"""The loss of regression at dense S in one operation: against the parts of its sum, and against autograd."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from bdl_pipe.last_layer import Regression
from bdl_pipe.last_layer.fused import Weights
from bdl_pipe.last_layer.fused_regression import composed, dense_loss

from .cases import draw, perturbed

WIDTH, ROWS, OUTPUTS = 5, 8, 2
TARGETS = draw(2, ROWS, OUTPUTS)
WEIGHTS = Weights(prior_variance=1.7, wishart_dof=4.0, wishart_scale=0.6, num_train=20, kl_weight=0.3)


def make(outputs: int = OUTPUTS) -> Regression:
    return perturbed(Regression(WIDTH, outputs, prior_variance=1.7, wishart_dof=4.0, wishart_scale=0.6))


def values() -> tuple[Tensor, ...]:
    """Features, W̄, the factor, m, L, ρ and targets, as the operation takes them; L does not depend on ρ here."""
    layer = make()
    root = layer.noise_factor.tril(-1) + torch.diag(layer.noise_log_root.exp())
    leaves = (
        draw(1, ROWS, WIDTH),
        layer.mean,
        layer.covariance.factor,
        layer.covariance.log_scale,
        root,
        layer.noise_log_root,
        TARGETS,
    )
    return tuple(leaf.detach().clone().requires_grad_() for leaf in leaves)


def loss(*leaves: Tensor) -> Tensor:
    return dense_loss(*leaves, WEIGHTS)


def slopes(value: Tensor, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, leaves)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 3e-6)])
@pytest.mark.parametrize("kl_weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("outputs", [1, OUTPUTS])
def test_the_loss_and_its_gradients_equal_the_sum_of_the_parts(
    outputs: int, dtype: torch.dtype, tolerance: float, kl_weight: float
) -> None:
    layer, features = make(outputs).to(dtype), draw(1, ROWS, WIDTH).to(dtype).requires_grad_()
    leaves, targets = (features, *layer.parameters()), TARGETS[:, :outputs].to(dtype)
    ours = layer.loss(features, targets, num_train=20, kl_weight=kl_weight)
    parts = -(layer.bound(features, targets) + (layer.log_noise_prior() - kl_weight * layer.kl()) / 20)
    torch.testing.assert_close(ours, parts, rtol=tolerance, atol=tolerance)
    found, expected = slopes(3 * ours, leaves), slopes(3 * parts, leaves)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=10 * tolerance)
    other = slopes(3 * layer.loss(features, targets, num_train=20, kl_weight=kl_weight + 0.01), leaves)
    assert not torch.allclose(torch.cat([f.flatten() for f in other]), torch.cat([f.flatten() for f in found]))


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_first_and_second_derivatives_equal_finite_differences(check: Callable[..., bool]) -> None:
    assert check(loss, values())


def test_the_composed_loss_equals_the_fused_loss() -> None:
    leaves = values()
    torch.testing.assert_close(loss(*leaves), composed(*leaves, WEIGHTS), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("stacked", range(7))
def test_vmap_over_one_argument_equals_a_loop_over_members(stacked: int) -> None:
    """Features or one parameter of three members under ``vmap``; gradients within it, and backward through it."""
    leaves = list(values())
    leaves[stacked] = torch.stack([leaves[stacked] + shift for shift in (0.0, 0.2, -0.1)]).detach().requires_grad_()
    at = tuple(0 if i == stacked else None for i in range(7))
    each = [[*leaves[:stacked], one, *leaves[stacked + 1 :]] for one in leaves[stacked]]
    together = vmap(loss, in_dims=at)(*leaves)
    torch.testing.assert_close(together, torch.stack([loss(*one) for one in each]), rtol=1e-13, atol=1e-13)
    weight = torch.tensor([1.0, -2.0, 0.5]).double()
    expected = [slopes(loss(*one), tuple(one)) for one in each]
    for i, found in enumerate(slopes(together @ weight, tuple(leaves))):
        alone = torch.stack([w * slope[i] for w, slope in zip(weight, expected, strict=True)])
        torch.testing.assert_close(found, alone if i == stacked else alone.sum(0), rtol=1e-11, atol=1e-12)
        inside = vmap(grad(loss, argnums=i), in_dims=at)(*leaves)
        torch.testing.assert_close(inside, torch.stack([slope[i] for slope in expected]), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("wanted", range(7))
def test_only_the_argument_that_requires_a_gradient_gets_one(wanted: int) -> None:
    leaves = tuple(leaf.requires_grad_(i == wanted) for i, leaf in enumerate(values()))
    loss(*leaves).backward()
    assert [leaf.grad is not None for leaf in leaves] == [i == wanted for i in range(7)]
    everything = values()
    torch.testing.assert_close(leaves[wanted].grad, slopes(loss(*everything), everything)[wanted], rtol=0, atol=0)


def test_the_gradient_in_the_targets_equals_the_gradient_of_the_bound() -> None:
    layer, targets = make(), TARGETS.clone().requires_grad_()
    ours, parts = (f(draw(1, ROWS, WIDTH), targets) for f in (lambda x, y: layer.loss(x, y, num_train=20), layer.bound))
    torch.testing.assert_close(slopes(ours, (targets,)), slopes(-parts, (targets,)), rtol=1e-12, atol=1e-13)
