"""Hamiltonian samplers of e^{−U/T} for several chains at once: SGHMC, and HMC with its acceptance.

SGHMC (Chen, Fox & Guestrin 2014, eq. 15): θ ← θ + ε r, then r ← (1 − α) r − ε ∇U(θ) + N(0, 2αT). With unit mass and
friction α/ε its law is e^{−U/T} up to terms linear in α. HMC (Duane et al. 1987; Neal 2011): p ~ N(0, T I), L leapfrog
steps, accepted with probability min(1, exp((H₀ − H₁)/T)), H = U + ½‖p‖².

The evaluators of Kim et al. 2022 and 2023 have K₁ − K₀ where K₀ − K₁ belongs in the acceptance, and momenta whose
variance is not that of their kinetic energy; both are corrected here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import require
from ..seeds import Seed

Positions = Float[Tensor, "chain weight"]
Energy = Callable[[Positions], Float[Tensor, " chain"]]


@dataclass(frozen=True)
class SghmcConfig:
    """The kernel SGHMC.

    Attributes:
        step_size: ε.
        friction: α, in (0, 1).
    """

    name: Literal["sghmc"]
    step_size: float
    friction: float

    def __post_init__(self) -> None:
        require(self.step_size > 0, "step_size", "must be > 0", self.step_size)
        require(0 < self.friction < 1, "friction", "must be in (0, 1)", self.friction)


@dataclass(frozen=True)
class HmcConfig:
    """The kernel HMC.

    Attributes:
        step_size: ε of the leapfrog.
        leapfrogs: L, its steps between two acceptances.
    """

    name: Literal["hmc"]
    step_size: float
    leapfrogs: int

    def __post_init__(self) -> None:
        require(self.step_size > 0, "step_size", "must be > 0", self.step_size)
        require(self.leapfrogs > 0, "leapfrogs", "must be > 0", self.leapfrogs)


def slope(energy: Energy, positions: Positions) -> tuple[Float[Tensor, " chain"], Positions]:
    """Return U of each chain and its gradient."""
    with torch.enable_grad():
        leaf = positions.detach().requires_grad_()
        value = energy(leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient


def momenta(positions: Positions, temperature: float, rng: Seed) -> Positions:
    """Draw momenta from N(0, T I)."""
    return temperature**0.5 * _normal(positions, rng)


@torch.no_grad()
def sghmc(
    energy_at: Callable[[int], Energy],
    positions: Positions,
    velocities: Positions,
    config: SghmcConfig,
    temperature: float,
    *,
    first: int,
    steps: int,
    rng: Seed,
) -> Iterator[tuple[int, Positions, Positions]]:
    """Yield (steps done, θ, r) after each of the steps ``first`` … ``steps − 1``; a step's noise has its own address.

    Args:
        energy_at: step -> U, so that a step may have its own augmentation.
    """
    for step in range(first, steps):
        positions = positions + config.step_size * velocities
        _, gradient = slope(energy_at(step), positions)
        noise = (2 * config.friction * temperature) ** 0.5 * _normal(positions, rng.fold("sghmc", step))
        velocities = (1 - config.friction) * velocities - config.step_size * gradient + noise
        yield step + 1, positions, velocities


@torch.no_grad()
def hmc(
    energy: Energy,
    positions: Positions,
    config: HmcConfig,
    temperature: float,
    *,
    first: int,
    steps: int,
    rng: Seed,
) -> Iterator[tuple[int, Positions, Bool[Tensor, " chain"]]]:
    """Yield (proposals done, θ, which chains accepted) after each of the proposals ``first`` … ``steps − 1``."""
    value, gradient = slope(energy, positions)
    for step in range(first, steps):
        here = rng.fold("hmc", step)
        start = momenta(positions, temperature, here.fold("momenta"))
        proposal, momentum, value_there, gradient_there = positions, start, value, gradient
        for _ in range(config.leapfrogs):  # the slope at the end of one step is that at the start of the next
            momentum = momentum - 0.5 * config.step_size * gradient_there
            proposal = proposal + config.step_size * momentum
            value_there, gradient_there = slope(energy, proposal)
            momentum = momentum - 0.5 * config.step_size * gradient_there
        before = value + 0.5 * start.square().sum(1)
        after = value_there + 0.5 * momentum.square().sum(1)
        unit = torch.rand(len(positions), generator=here.fold("accept").generator(), dtype=torch.float64)
        accepted = unit.to(positions.device).log() < ((before - after) / temperature).double()  # never with NaN
        positions = torch.where(accepted[:, None], proposal, positions)
        gradient = torch.where(accepted[:, None], gradient_there, gradient)
        value = torch.where(accepted, value_there, value)
        yield step + 1, positions, accepted


def _normal(like: Positions, rng: Seed) -> Positions:
    return torch.randn(like.shape, generator=rng.generator(), dtype=like.dtype).to(like.device)
