"""Stochastic gradient Langevin dynamics (Welling & Teh 2011, eq. 4; Korattikara et al. 2015, Algorithm 1).

    θ ← θ + (η/2) ∇ log p(θ) + N(0, ηT I)

The step size is η. A constant η leaves the variance T/(P (1 − ηP/4)) on a quadratic potential of curvature P, with the
gradient of all data. A gradient's noise of variance v adds ηv/4 times the injected noise.
"""

from dataclasses import dataclass
from typing import Literal, final

from ..kernel import ChainState, Density, Kernel, Randomness


@final
@dataclass(frozen=True)
class Sgld(Kernel):
    """The kernel SGLD."""

    name: Literal["sgld"] = "sgld"

    def step(
        self,
        state: ChainState,
        density: Density,
        rng: Randomness,
        step_size: float,
        temperature: float = 1.0,
        adapt: bool = False,
    ) -> ChainState:
        position = state["position"]
        _, gradient = density(position)
        moved = position.add(gradient, alpha=step_size / 2)
        return {"position": moved.add_(rng.normal(position), alpha=(step_size * temperature) ** 0.5)}

    def step_size_of(self, rate: float, rows: float) -> float:
        return 2 * rate / rows

    def noise_ratio(self, step_size: float) -> float:
        return step_size / 4
