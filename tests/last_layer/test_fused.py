"""The losses in one operation: against the parts of which they are the sum, and against autograd."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from bdl_pipe.last_layer import Discriminative, Regression
from bdl_pipe.last_layer.discriminative import DiagonalLoss
from bdl_pipe.last_layer.layer import FusedLoss
from bdl_pipe.last_layer.regression import DenseLoss

from .cases import draw, perturbed

WIDTH, ROWS, CLASSES = 5, 8, 3
LABELS = torch.arange(ROWS) % CLASSES
TARGETS = draw(2, ROWS, 2)
PRIOR: dict[str, Any] = {"prior_variance": 1.7, "wishart_dof": 4.0, "wishart_scale": 0.6}


def classes() -> Discriminative:
    return perturbed(Discriminative(WIDTH, CLASSES, covariance="diagonal", **PRIOR))


def regression(outputs: int = 2) -> Regression:
    return perturbed(Regression(WIDTH, outputs, **PRIOR))


@dataclass(frozen=True)
class Kind:
    """An operation with its arguments: those with gradients, features first, and the rest."""

    operation: FusedLoss
    leaves: tuple[Tensor, ...]
    rest: tuple[Tensor, ...] = ()

    def values(self) -> tuple[Tensor, ...]:
        return tuple(leaf.detach().clone().requires_grad_() for leaf in self.leaves)

    def loss(self, *leaves: Tensor) -> Tensor:
        return self.operation(*leaves, *self.rest)


def diagonal() -> Kind:
    layer = classes()
    leaves = draw(1, ROWS, WIDTH), layer.mean, layer.covariance.log_scale, layer.noise_log_root
    return Kind(DiagonalLoss(**PRIOR, num_train=20, kl_weight=0.3), leaves, (LABELS[:, None],))


def dense() -> Kind:
    """L does not depend on ρ here."""
    layer = regression()
    assert layer.covariance.factor is not None
    root = layer.noise_factor.tril(-1) + torch.diag(layer.noise_log_root.exp())
    weights = layer.mean, layer.covariance.factor, layer.covariance.log_scale, root, layer.noise_log_root
    return Kind(DenseLoss(**PRIOR, num_train=20, kl_weight=0.3), (draw(1, ROWS, WIDTH), *weights, TARGETS))


KINDS = {"diagonal": diagonal(), "dense": dense()}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
each_argument = pytest.mark.parametrize(
    ("kind", "argument"),
    [pytest.param(kind, i, id=f"{name}-{i}") for name, kind in KINDS.items() for i in range(len(kind.leaves))],
)


def slopes(value: Tensor, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, leaves)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 3e-6)])
@pytest.mark.parametrize("kl_weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", ["classes", "one output", "two outputs"])
def test_the_loss_and_its_gradients_equal_the_sum_of_the_parts(
    name: str, dtype: torch.dtype, tolerance: float, kl_weight: float
) -> None:
    outputs = {"one output": 1, "two outputs": 2}.get(name)
    layer: Any = (classes() if outputs is None else regression(outputs)).to(dtype)
    targets = LABELS if outputs is None else TARGETS[:, :outputs].to(dtype)
    features = draw(1, ROWS, WIDTH).to(dtype).requires_grad_()
    leaves = (features, *layer.parameters())
    ours = layer.loss(features, targets, num_train=20, kl_weight=kl_weight)
    parts = -(layer.bound(features, targets) + (layer.log_noise_prior() - kl_weight * layer.kl()) / 20)
    torch.testing.assert_close(ours, parts, rtol=tolerance, atol=tolerance)
    gradients, expected = slopes(3 * ours, leaves), slopes(3 * parts, leaves)
    torch.testing.assert_close(gradients, expected, rtol=tolerance, atol=10 * tolerance)
    other = slopes(3 * layer.loss(features, targets, num_train=20, kl_weight=kl_weight + 0.01), leaves)
    assert not torch.allclose(torch.cat([f.flatten() for f in other]), torch.cat([f.flatten() for f in gradients]))


@each_kind
def test_second_derivatives_equal_finite_differences(kind: Kind) -> None:
    """Of the first derivatives in test_every_layer."""
    assert torch.autograd.gradgradcheck(kind.loss, kind.values())


@each_argument
def test_vmap_over_one_argument_equals_a_loop_over_members(kind: Kind, argument: int) -> None:
    """Features or one parameter of three members under ``vmap``; gradients within it, and backward through it."""
    leaves = list(kind.values())
    three = [leaves[argument] + shift for shift in (0.0, 0.2, -0.1)]
    leaves[argument] = torch.stack(three).detach().requires_grad_()
    at = tuple(0 if i == argument else None for i in range(len(leaves)))
    each = [[*leaves[:argument], one, *leaves[argument + 1 :]] for one in leaves[argument]]
    together = vmap(kind.loss, in_dims=at)(*leaves)
    torch.testing.assert_close(together, torch.stack([kind.loss(*one) for one in each]), rtol=1e-13, atol=1e-13)
    weight = torch.tensor([1.0, -2.0, 0.5]).double()
    expected = [slopes(kind.loss(*one), tuple(one)) for one in each]
    for i, gradient in enumerate(slopes(together @ weight, tuple(leaves))):
        alone = torch.stack([w * slope[i] for w, slope in zip(weight, expected, strict=True)])
        torch.testing.assert_close(gradient, alone if i == argument else alone.sum(0), rtol=1e-11, atol=1e-12)
        inside = vmap(grad(kind.loss, argnums=i), in_dims=at)(*leaves)
        torch.testing.assert_close(inside, torch.stack([slope[i] for slope in expected]), rtol=1e-11, atol=1e-12)


@each_kind
def test_batched_gradients_equal_single_gradients(kind: Kind) -> None:
    leaves, weight = kind.values(), torch.tensor([1.0, -2.0]).double()
    many = torch.autograd.grad(kind.loss(*leaves), leaves, grad_outputs=weight, is_grads_batched=True)
    for gradient, one in zip(many, slopes(kind.loss(*leaves), leaves), strict=True):
        torch.testing.assert_close(gradient, torch.stack([w * one for w in weight]), rtol=1e-13, atol=1e-13)


@each_argument
def test_only_the_argument_that_requires_a_gradient_gets_one(kind: Kind, argument: int) -> None:
    leaves = tuple(leaf.requires_grad_(i == argument) for i, leaf in enumerate(kind.values()))
    kind.loss(*leaves).backward()
    assert [leaf.grad is not None for leaf in leaves] == [i == argument for i in range(len(leaves))]
    everything = kind.values()
    alone = slopes(kind.loss(*everything), everything)[argument]
    torch.testing.assert_close(leaves[argument].grad, alone, rtol=0, atol=0)


def test_the_float32_gradient_loses_no_digits_near_the_prior() -> None:
    """With features of zero the slope in m is λ(e^d − 1)/T alone; e^d minus 1 in float32 would be 3 % off here."""
    layer = Discriminative(WIDTH, CLASSES, covariance="diagonal", initial_variance=1.0)
    with torch.no_grad():
        layer.covariance.log_scale.fill_(1e-6)
    layer.loss(torch.zeros(ROWS, WIDTH), LABELS, num_train=20).backward()
    expected = torch.full((CLASSES, WIDTH), math.expm1(2e-6) / 20)
    torch.testing.assert_close(layer.covariance.log_scale.grad, expected, rtol=1e-5, atol=0)


def test_the_gradient_in_the_targets_equals_the_gradient_of_the_bound() -> None:
    layer, targets = regression(), TARGETS.clone().requires_grad_()
    ours, parts = (f(draw(1, ROWS, WIDTH), targets) for f in (lambda x, y: layer.loss(x, y, num_train=20), layer.bound))
    torch.testing.assert_close(slopes(ours, (targets,)), slopes(-parts, (targets,)), rtol=1e-12, atol=1e-13)
