"""Stochastic gradient Langevin dynamics: the teacher's step of distilled SGLD.

    θ_{t+1} = θ_t + (η_t/2) [∇ log p(θ) + (N/M) Σ_{i in batch} ∇ log p(y_i | x_i, θ)] + z_t,   z_t ~ N(0, η_t I)

(Welling & Teh 2011, eq. 4; Korattikara et al. 2015, Algorithm 1.) There is no preconditioner, no
Metropolis correction and no temperature (that of ``joint`` is in the gradient): what is sampled is the
posterior as stated, up to the bias of a step that is not infinitely small and of gradients from
minibatches. On a quadratic potential of curvature P, with full-batch gradients, the variance that a
constant η leaves is 1/(P(1 − ηP/4)).
Draws are equally weighted also under a decreasing step (Welling & Teh weight them by η_t).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..data.minibatches import Minibatches
from ..errors import Diverged, require
from ..seeds import Seed

Position = dict[str, Tensor]
LogDensity = Callable[..., Tensor]
Gradient = Callable[[Position, Tensor], Position]


@dataclass(frozen=True)
class ConstantStep:
    """The constant schedule η_t = value."""

    name: Literal["constant"]
    value: float

    def __post_init__(self) -> None:
        require(self.value > 0, "value", "must be > 0", self.value)

    def at(self, step: int) -> float:
        """Return η of update ``step``, counted from 0."""
        return self.value


@dataclass(frozen=True)
class PolynomialDecay:
    """The schedule η_t = a (b + t)^(−c); Σ η_t diverges and Σ η_t² converges for c in (1/2, 1]."""

    name: Literal["polynomial"]
    a: float
    b: float
    c: float

    def __post_init__(self) -> None:
        require(self.a > 0, "a", "must be > 0", self.a)
        require(self.b > 0, "b", "must be > 0", self.b)
        require(0 <= self.c <= 1, "c", "must be in [0, 1]", self.c)

    def at(self, step: int) -> float:
        """Return η of update ``step``, counted from 0."""
        return self.a * (self.b + step) ** -self.c


StepSize = ConstantStep | PolynomialDecay


@dataclass(frozen=True)
class ScaledStep:
    """The constant schedule η_t = value / (N λ_n), one value for any number N of rows and precision λ_n of noise.

    The curvature of the log-likelihood grows as N λ_n (λ_n = 1 for classes).
    """

    name: Literal["scaled"]
    value: float

    def __post_init__(self) -> None:
        require(self.value > 0, "value", "must be > 0", self.value)

    def settle(self, rows: int, noise_precision: float) -> ConstantStep:
        """Return the step for this many rows."""
        return ConstantStep("constant", self.value / (rows * noise_precision))


@dataclass(frozen=True)
class Thinning:
    """The choice of positions θ_1 … θ_steps that are kept: every ``every``-th after the first ``burn_in``."""

    steps: int
    burn_in: int
    every: int

    def __post_init__(self) -> None:
        require(self.every > 0, "every", "must be > 0", self.every)
        require(0 <= self.burn_in < self.steps, "burn_in", f"must be in [0, {self.steps}), the steps", self.burn_in)
        require(self.count > 0, "every", f"must leave a draw of {self.steps - self.burn_in} steps", self.every)

    @property
    def count(self) -> int:
        """Return how many are kept."""
        return (self.steps - self.burn_in) // self.every

    def keeps(self, done: int) -> bool:
        """Say whether the position after ``done`` steps is kept."""
        return done > self.burn_in and (done - self.burn_in) % self.every == 0


def step(position: Position, gradient: Position, step_size: float, generator: torch.Generator) -> Position:
    """Make one update.

    Args:
        position: θ, named tensors of any shapes.
        gradient: ∇_θ of the log joint, the likelihood scaled by N/M; of the same names and shapes.
        step_size: η.
        generator: on the device of ``position``; it advances by one normal per coordinate.

    Returns:
        The next position, in new tensors.
    """
    return {name: theta + _move(theta, gradient[name], step_size, generator) for name, theta in position.items()}


def _move(theta: Tensor, gradient: Tensor, step_size: float, generator: torch.Generator) -> Tensor:
    noise = torch.randn(theta.shape, generator=generator, dtype=theta.dtype, device=theta.device)
    return noise.mul_(math.sqrt(step_size)).add_(gradient, alpha=step_size / 2)


def gradient(
    log_prior: LogDensity, log_likelihood: LogDensity, position: Position, batch: tuple[Tensor, ...], total: int
) -> Position:
    """Return ∇ log p(θ) + (N/M) ∇ Σ_{i in batch} log p(y_i | x_i, θ), by automatic differentiation.

    Args:
        log_prior: θ -> scalar, up to a constant.
        log_likelihood: (θ, *batch) -> the scalar sum over the batch's rows.
        batch: tensors of M rows each.
        total: N.
    """
    leaves = {name: theta.detach().requires_grad_() for name, theta in position.items()}
    joint = log_prior(leaves) + total / len(batch[0]) * log_likelihood(leaves, *batch)
    return dict(zip(leaves, torch.autograd.grad(joint, list(leaves.values())), strict=True))


def chain(
    position: Position,
    gradient_of: Gradient,
    batches: Minibatches,
    step_size: StepSize,
    rng: Seed,
    start: int,
    stop: int,
) -> Iterator[tuple[int, Position]]:
    """Yield the positions of steps ``start`` to ``stop``, as (steps done, position).

    Every random number of step t is addressed by t, so a chain continued from (t, position) has the
    bits of one that was never stopped.

    Args:
        gradient_of: (θ, row numbers) -> gradient of the log joint, the batch standing for all rows.

    Raises:
        Diverged: the position became NaN or infinite.
    """
    device = next(iter(position.values())).device
    for t in range(start, stop):
        noise = rng.fold("noise", t).generator(device)
        position = step(position, gradient_of(position, batches(t)), step_size.at(t), noise)
        if t % 100 == 99 or t + 1 == stop:
            _finite(position, t)
        yield t + 1, position


def _finite(position: Position, t: int) -> None:
    if not all(bool(torch.isfinite(theta).all()) for theta in position.values()):
        raise Diverged(f"the chain diverged before step {t + 1}: lower step_size")


def sample(
    log_prior: LogDensity,
    log_likelihood: LogDensity,
    data: tuple[Tensor, ...],
    start: Position,
    *,
    step_size: StepSize,
    batch: int,
    thinning: Thinning,
    rng: Seed,
) -> Position:
    """Return draws of a posterior given as two functions and data.

    Args:
        log_prior: θ -> scalar, up to a constant.
        log_likelihood: (θ, *rows) -> the scalar sum over these rows.
        data: tensors of N rows each.
        start: θ_0.
        batch: M; N or more: the full gradient.
        thinning: how long to run and what to keep.
        rng: the chain's address.

    Returns:
        The draws, each name stacked [draw, ...].
    """
    rows = len(data[0])

    def gradient_of(position: Position, index: Tensor) -> Position:
        return gradient(log_prior, log_likelihood, position, tuple(part[index] for part in data), rows)

    batches = Minibatches(rows, batch, rng, data[0].device)
    visited = chain(start, gradient_of, batches, step_size, rng, 0, thinning.steps)
    kept = [position for done, position in visited if thinning.keeps(done)]
    return {name: torch.stack([draw[name] for draw in kept]) for name in start}
