"""Short runs on a coreset, which turn an expert's weights into a draw of the coreset's posterior.

All runs update weights θ [chain, weight] by full-batch steps on the coreset, each step with its own augmentation of the
images. A ``Loss`` maps (step, weights [chain, weight], images) to the loss of each chain [chain], in nats, up to a
factor.

:func:`unrolled` needs memory for the weights of every step and the graph of one. Its gradient is the adjoint recursion
λ_l = (I − η H_l) λ_{l+1} with ∂x̂ −= η ∂_x̂(∇_θ loss · λ_{l+1}), not a graph through all steps.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from ...seeds import Seed

Loss = Callable[[int, Float[Tensor, "chain weight"], Tensor], Float[Tensor, " chain"]]
Weights = Float[Tensor, "chain weight"]


def gradient(loss: Loss, step: int, weights: Weights, images: Tensor) -> Weights:
    """Return the gradient of each chain's loss with respect to its own weights, without a graph."""
    with torch.enable_grad():
        leaf = weights.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss(step, leaf, images.detach()).sum(), leaf)
    return slope


@torch.no_grad()
def descended(loss: Loss, start: Weights, images: Tensor, steps: int, lr: float) -> list[Weights]:
    """Return the weights after 0 … ``steps`` steps of plain gradient descent, without a graph."""
    path = [start.detach()]
    for step in range(steps):
        path.append(path[-1] - lr * gradient(loss, step, path[-1], images))
    return path


@torch.no_grad()
def langevin(
    energy: Loss, start: Weights, images: Tensor, steps: int, step_size: float, temperature: float, *, rng: Seed
) -> Weights:
    """Run unadjusted Langevin dynamics: θ ← θ − (α/2) ∇U(θ) + √(αT) z, z ~ N(0, I).

    The dynamics leave e^{−U/T} invariant up to a bias linear in α.

    Args:
        energy: U of each chain, a sum over rows plus the prior.
        step_size: α.
        temperature: T; 0 gives steps without noise.
    """
    weights = start.detach()
    for step in range(steps):
        weights = weights - 0.5 * step_size * gradient(energy, step, weights, images)
        if temperature > 0:
            z = torch.randn(weights.shape, generator=rng.fold("langevin", step).generator(), dtype=weights.dtype)
            weights = weights + (step_size * temperature) ** 0.5 * z.to(weights.device)
    return weights


def unrolled(loss: Loss, start: Weights, images: Tensor, steps: int, lr: Tensor) -> Weights:
    """Return the weights after ``steps`` steps of gradient descent, differentiable in ``images`` and in ``lr``.

    ``start`` has no gradient.
    """
    last: Tensor = _Unrolled.apply(images, lr, start.detach(), loss, steps)
    return last


@final
class _Unrolled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, lr: Tensor, start: Weights, loss: Loss, steps: int) -> Weights:
        path = descended(loss, start, images, steps, float(lr))
        ctx.loss, ctx.steps = loss, steps
        ctx.save_for_backward(images, lr, *path[:-1])
        return path[-1].clone()  # with zero steps, path[-1] is the input tensor itself

    @staticmethod
    def backward(ctx: Any, *gradients: Weights) -> tuple[Tensor | None, ...]:
        (adjoint,), (images, lr, *path) = gradients, ctx.saved_tensors
        of_images, of_lr = torch.zeros_like(images), torch.zeros_like(lr)
        for step in reversed(range(ctx.steps)):
            with torch.enable_grad():
                weights, pixels = path[step].detach().requires_grad_(), images.detach().requires_grad_()
                (slope,) = torch.autograd.grad(ctx.loss(step, weights, pixels).sum(), weights, create_graph=True)
                curved, mixed = torch.autograd.grad(slope, (weights, pixels), adjoint)
            of_lr = of_lr - (slope.detach() * adjoint).sum()
            of_images = of_images - lr * mixed
            adjoint = adjoint - lr * curved
        return of_images, of_lr, None, None, None
