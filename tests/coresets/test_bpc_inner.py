"""Short runs on a coreset against closed forms of a quadratic loss and dense differentiation."""

import pytest
import torch
from torch import Tensor

from bdl_pipe.coresets.bpc import inner
from bdl_pipe.seeds import Seed

from .cases import normal

WIDTH, ROWS = 4, 3


IMAGES, LABELS, START = normal(ROWS, WIDTH, at="images"), normal(ROWS, at="labels"), normal(1, WIDTH, at="start")


def quadratic(step: int, weights: Tensor, images: Tensor) -> Tensor:
    """(1/2n̂) ‖ŷ − X̂θ‖² of each chain."""
    return 0.5 * (LABELS - weights @ images.T).square().mean(-1)


def curved(step: int, weights: Tensor, images: Tensor) -> Tensor:
    """A loss without a closed form, of another augmentation at each step."""
    shifted = images + 0.1 * normal(*images.shape, at=f"augment-{step}")
    return (torch.tanh(shifted @ weights.T) - LABELS[:, None]).pow(4).mean(0)


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_descent_on_a_quadratic_and_its_gradients_equal_the_closed_form(steps: int) -> None:
    """θ_L = θ* + (I − ηX̂ᵀX̂/n̂)^L (θ₀ − θ*), for any solution θ* of the normal equations."""
    lr, target = torch.tensor(0.2, dtype=torch.float64, requires_grad=True), normal(WIDTH, at="target")

    def algebra(images: Tensor, lr: Tensor) -> Tensor:
        curvature = images.T @ images / ROWS
        best = images.T @ torch.linalg.solve(images @ images.T, LABELS)  # n̂ < d, so that a θ* interpolates
        shrink = torch.linalg.matrix_power(torch.eye(WIDTH, dtype=torch.float64) - lr * curvature, steps)
        return best + shrink @ (START[0] - best)

    images = IMAGES.clone().requires_grad_()
    found = inner.unrolled(quadratic, START, images, steps, lr)[0]
    torch.testing.assert_close(found, algebra(IMAGES, lr), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(inner.descended(quadratic, START, IMAGES, steps, 0.2)[-1][0], found, rtol=0, atol=0)
    if steps == 0:
        return
    ours, theirs = (
        torch.autograd.grad((end - target).square().sum(), (images, lr)) for end in (found, algebra(images, lr))
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("chains", [1, 3])
def test_the_adjoint_recursion_equals_dense_differentiation_through_all_steps(chains: int) -> None:
    steps, start, target = 6, normal(chains, WIDTH, at="starts"), normal(chains, WIDTH, at="targets")

    def dense(images: Tensor, lr: Tensor) -> Tensor:
        weights = start.clone().requires_grad_()
        for step in range(steps):
            (slope,) = torch.autograd.grad(curved(step, weights, images).sum(), weights, create_graph=True)
            weights = weights - lr * slope
        return weights

    def gradients(run: object) -> tuple[Tensor, ...]:
        images, lr = IMAGES.clone().requires_grad_(), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        end = run(images, lr)  # type: ignore[operator]
        return end.detach(), *torch.autograd.grad((end - target).square().sum(), (images, lr))

    ours = gradients(lambda images, lr: inner.unrolled(curved, start, images, steps, lr))
    theirs = gradients(dense)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
    last = gradients(
        lambda images, lr: inner.unrolled(lambda s, w, x: curved(steps - 1 - s, w, x), start, images, steps, lr)
    )
    assert not torch.allclose(last[1], theirs[1], rtol=1e-3)  # the control: augmentations in another order


def test_langevin_at_temperature_0_equals_descent_at_half_the_step_size() -> None:
    ours = inner.langevin(curved, START, IMAGES, 4, 0.2, 0.0, rng=Seed(0))
    assert torch.equal(ours, inner.descended(curved, START, IMAGES, 4, 0.1)[-1])
