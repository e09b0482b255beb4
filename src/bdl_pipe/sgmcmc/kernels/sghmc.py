"""Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin 2014, eq. 15).

    θ ← θ + ε r,   r ← (1 − α) r + ε ∇ log p(θ) + N(0, 2αT I)

The step size is ε. With unit mass and friction α/ε the law is p^{1/T} up to terms linear in α. In terms of stochastic
gradient descent, ε² is the learning rate of the summed loss and 1 − α the momentum. A gradient's noise of variance v
adds ε²v/(2α) times the injected noise. The paper subtracts an estimate β̂ of this addition; here β̂ is 0.
"""

from dataclasses import dataclass
from typing import Literal, final

from ...errors import require
from ..kernel import ChainState, Density, Kernel, Positions, Randomness


@final
@dataclass(frozen=True)
class Sghmc(Kernel):
    """The kernel SGHMC.

    Attributes:
        friction: α, in (0, 1).
    """

    name: Literal["sghmc"] = "sghmc"
    friction: float = 0.1

    def __post_init__(self) -> None:
        require(0 < self.friction < 1, "friction", "must be in (0, 1)", self.friction)

    def init(self, positions: Positions, rng: Randomness, temperature: float = 1.0) -> ChainState:
        """Return the state of chains whose velocities are N(0, T I)."""
        return {"position": positions, "velocity": temperature**0.5 * rng.normal(positions, "velocities")}

    def step(
        self,
        state: ChainState,
        density: Density,
        rng: Randomness,
        step_size: float,
        temperature: float = 1.0,
        adapt: bool = False,
    ) -> ChainState:
        position = state["position"].add(state["velocity"], alpha=step_size)
        _, gradient = density(position)
        velocity = ((1 - self.friction) * state["velocity"]).add_(gradient, alpha=step_size)
        noise = (2 * self.friction * temperature) ** 0.5
        return {"position": position, "velocity": velocity.add_(rng.normal(position), alpha=noise)}

    def step_size_of(self, rate: float, rows: float) -> float:
        return (rate / rows) ** 0.5

    def noise_ratio(self, step_size: float) -> float:
        return step_size**2 / (2 * self.friction)
