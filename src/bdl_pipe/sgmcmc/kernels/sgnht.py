"""The stochastic gradient Nosé-Hoover thermostat (Ding et al. 2014, Algorithm 2).

    r ← (1 − ξ) r + ε ∇ log p(θ) + N(0, 2αT I),   θ ← θ + ε r,   ξ ← ξ + κ (‖r‖²/n − T)

The friction ξ of a chain grows while its n velocities are hotter than T. Where the gradients' noise has one variance in
all directions, ξ settles at α plus the friction that balances this noise; the variance need not be known. The step size
is ε. The law of θ is p^{1/T} up to terms linear in ξ. Deviation: the thermostat's rate κ is a setting. With the paper's
κ = ε² the thermostat does not converge within a run at small steps; the law of θ is the same for every κ.
"""

from dataclasses import dataclass
from typing import Literal, final

from ...errors import require
from ..kernel import ChainState, Density, Kernel, Positions, Randomness


@final
@dataclass(frozen=True)
class Sgnht(Kernel):
    """The kernel SGNHT.

    Attributes:
        friction: α of the injected noise, and the initial ξ; in (0, 1).
        thermostat: κ, the rate at which the friction adapts to the velocities.
    """

    name: Literal["sgnht"] = "sgnht"
    friction: float = 0.1
    thermostat: float = 0.01

    def __post_init__(self) -> None:
        require(0 < self.friction < 1, "friction", "must be in (0, 1)", self.friction)
        require(self.thermostat > 0, "thermostat", "must be > 0", self.thermostat)

    def init(self, positions: Positions, rng: Randomness, temperature: float = 1.0) -> ChainState:
        """Return the state of chains whose velocities are N(0, T I)."""
        velocity = temperature**0.5 * rng.normal(positions, "velocities")
        return {"position": positions, "velocity": velocity, "friction": self.friction + 0 * positions[:, :1]}

    def step(
        self,
        state: ChainState,
        density: Density,
        rng: Randomness,
        step_size: float,
        temperature: float = 1.0,
        adapt: bool = False,
    ) -> ChainState:
        position, friction = state["position"], state["friction"]
        _, gradient = density(position)
        velocity = ((1 - friction) * state["velocity"]).add_(gradient, alpha=step_size)
        velocity.add_(rng.normal(position), alpha=(2 * self.friction * temperature) ** 0.5)
        hotter = velocity.square().mean(1, keepdim=True) - temperature
        return {
            "position": position.add(velocity, alpha=step_size),
            "velocity": velocity,
            "friction": friction + self.thermostat * hotter,
        }

    def step_size_of(self, rate: float, rows: float) -> float:
        return (rate / rows) ** 0.5

    def noise_ratio(self, step_size: float) -> float:
        return step_size**2 / (2 * self.friction)
