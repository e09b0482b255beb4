"""The loss at diagonal S in one operation: against the parts of which it is the sum, and against autograd."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from bdl_pipe.last_layer import Discriminative
from bdl_pipe.last_layer.fused import Weights, diagonal_loss

from .cases import draw, perturbed

WIDTH, ROWS, CLASSES = 5, 8, 3
LABELS = torch.arange(ROWS) % CLASSES
WEIGHTS = Weights(prior_variance=1.7, wishart_dof=4.0, wishart_scale=0.6, num_train=20, kl_weight=0.3)


def make() -> Discriminative:
    constants = {"prior_variance": 1.7, "wishart_dof": 4.0, "wishart_scale": 0.6}
    return perturbed(Discriminative(WIDTH, CLASSES, covariance="diagonal", **constants))


def values() -> tuple[Tensor, ...]:
    """Features, w̄, m and −log σ; features first, as the operation takes them."""
    layer = make()
    leaves = (draw(1, ROWS, WIDTH), layer.mean, layer.covariance.log_scale, layer.noise_log_root)
    return tuple(leaf.detach().requires_grad_() for leaf in leaves)


def loss(*leaves: Tensor) -> Tensor:
    return diagonal_loss(*leaves, LABELS, WEIGHTS)


def slopes(value: Tensor, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, leaves)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 3e-6)])
@pytest.mark.parametrize("kl_weight", [0.0, 0.3, 1.0])
def test_the_loss_and_its_gradients_equal_the_sum_of_the_parts(
    dtype: torch.dtype, tolerance: float, kl_weight: float
) -> None:
    layer, features = make().to(dtype), draw(1, ROWS, WIDTH).to(dtype).requires_grad_()
    leaves = (features, *layer.parameters())
    ours = layer.loss(features, LABELS, num_train=20, kl_weight=kl_weight)
    parts = -(layer.bound(features, LABELS) + (layer.log_noise_prior() - kl_weight * layer.kl()) / 20)
    torch.testing.assert_close(ours, parts, rtol=tolerance, atol=tolerance)
    found, expected = slopes(3 * ours, leaves), slopes(3 * parts, leaves)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    other = slopes(3 * layer.loss(features, LABELS, num_train=20, kl_weight=kl_weight + 0.01), leaves)
    assert not torch.allclose(torch.cat([f.flatten() for f in other]), torch.cat([f.flatten() for f in found]))


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_first_and_second_derivatives_equal_finite_differences(check: Callable[..., bool]) -> None:
    assert check(loss, values())


@pytest.mark.parametrize("stacked", range(4))
def test_vmap_over_one_argument_equals_a_loop_over_members(stacked: int) -> None:
    """Features or one parameter of three members under ``vmap``; gradients within it, and backward through it."""
    leaves = list(values())
    leaves[stacked] = torch.stack([leaves[stacked] + shift for shift in (0.0, 0.2, -0.1)]).detach().requires_grad_()
    at = tuple(0 if i == stacked else None for i in range(4))
    each = [[*leaves[:stacked], one, *leaves[stacked + 1 :]] for one in leaves[stacked]]
    together = vmap(loss, in_dims=at)(*leaves)
    torch.testing.assert_close(together, torch.stack([loss(*one) for one in each]), rtol=1e-13, atol=1e-14)
    weight = torch.tensor([1.0, -2.0, 0.5]).double()
    expected = [slopes(loss(*one), tuple(one)) for one in each]
    for i, found in enumerate(slopes(together @ weight, tuple(leaves))):
        alone = torch.stack([w * slope[i] for w, slope in zip(weight, expected, strict=True)])
        torch.testing.assert_close(found, alone if i == stacked else alone.sum(0), rtol=1e-12, atol=1e-14)
        inside = vmap(grad(loss, argnums=i), in_dims=at)(*leaves)
        torch.testing.assert_close(inside, torch.stack([slope[i] for slope in expected]), rtol=1e-12, atol=1e-14)


def test_batched_gradients_equal_single_gradients() -> None:
    leaves, weight = values(), torch.tensor([1.0, -2.0]).double()
    many = torch.autograd.grad(loss(*leaves), leaves, grad_outputs=weight, is_grads_batched=True)
    for found, one in zip(many, slopes(loss(*leaves), leaves), strict=True):
        torch.testing.assert_close(found, torch.stack([w * one for w in weight]), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("wanted", range(4))
def test_only_the_argument_that_requires_a_gradient_gets_one(wanted: int) -> None:
    leaves = tuple(leaf.requires_grad_(i == wanted) for i, leaf in enumerate(values()))
    loss(*leaves).backward()
    assert [leaf.grad is not None for leaf in leaves] == [i == wanted for i in range(4)]
    everything = values()
    torch.testing.assert_close(leaves[wanted].grad, slopes(loss(*everything), everything)[wanted], rtol=0, atol=0)


def test_the_float32_gradient_loses_no_digits_near_the_prior() -> None:
    """With features of zero the slope in m is λ(e^d − 1)/T alone; e^d minus 1 in float32 would be 3 % off here."""
    layer = Discriminative(WIDTH, CLASSES, covariance="diagonal", initial_variance=1.0)
    with torch.no_grad():
        layer.covariance.log_scale.fill_(1e-6)
    layer.loss(torch.zeros(ROWS, WIDTH), LABELS, num_train=20).backward()
    expected = torch.full((CLASSES, WIDTH), math.expm1(2e-6) / 20)
    torch.testing.assert_close(layer.covariance.log_scale.grad, expected, rtol=1e-5, atol=0)


def test_autocast_changes_neither_the_loss_nor_its_gradients() -> None:
    layer, features = make().float(), draw(1, ROWS, WIDTH).float().requires_grad_()
    leaves = (features, *layer.parameters())
    plain = layer.loss(features, LABELS, num_train=20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = layer.loss(features, LABELS, num_train=20)
        found = slopes(cast, leaves)
    assert torch.equal(cast, plain)
    torch.testing.assert_close(found, slopes(plain, leaves), rtol=0, atol=0)


def test_labels_of_every_dtype_give_the_same_loss() -> None:
    layer, features = make(), draw(1, ROWS, WIDTH)
    expected = layer.loss(features, LABELS, num_train=20)
    for kind in (torch.uint8, torch.int32, torch.float32, torch.float64):
        assert torch.equal(layer.loss(features, LABELS.to(kind), num_train=20), expected)
