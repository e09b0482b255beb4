"""Preconditioned SGLD: a step size for each weight that depends on its gradients (Li et al. 2016, Algorithm 1).

    V ← βV + (1 − β) g∘g,   G = 1/(δ + √(V / mean V)),   θ ← θ + (η/2) G∘g + N(0, ηT G),   g = ∇ log p(θ)

The paper's drift has a further term, Γ_i = ∂G_ii/∂θ_i, which its code omits. Deviations: V is constant after burn-in,
so that Γ is 0 and the law is the law of SGLD with a fixed metric; and V is taken relative to its mean over the weights,
so that η has SGLD's units for any number of rows.
"""

from dataclasses import dataclass
from typing import Literal, final

import torch

from ...errors import require
from ..kernel import ChainState, Density, Kernel, Positions, Randomness


@final
@dataclass(frozen=True)
class Psgld(Kernel):
    """The kernel preconditioned SGLD.

    Attributes:
        decay: β, the decay of the gradients' running second moment.
        damping: δ; a weight without gradients moves 1 + 1/δ times as much as a weight with gradients of mean size.
    """

    name: Literal["psgld"] = "psgld"
    decay: float = 0.99
    damping: float = 0.1

    def __post_init__(self) -> None:
        require(0 < self.decay < 1, "decay", "must be in (0, 1)", self.decay)
        require(self.damping > 0, "damping", "must be > 0", self.damping)

    def init(self, positions: Positions, rng: Randomness, temperature: float = 1.0) -> ChainState:
        return {"position": positions, "second_moment": torch.ones_like(positions)}

    def step(
        self,
        state: ChainState,
        density: Density,
        rng: Randomness,
        step_size: float,
        temperature: float = 1.0,
        adapt: bool = False,
    ) -> ChainState:
        position, moment = state["position"], state["second_moment"]
        _, gradient = density(position)
        if adapt:
            moment = self.decay * moment + (1 - self.decay) * gradient.square()
        metric = 1 / (self.damping + (moment / moment.mean(1, keepdim=True)).sqrt())
        noise = (step_size * temperature * metric).sqrt() * rng.normal(position)
        return {"position": position + step_size / 2 * metric * gradient + noise, "second_moment": moment}

    def step_size_of(self, rate: float, rows: float) -> float:
        return 2 * rate / rows

    def noise_ratio(self, step_size: float) -> float:
        return step_size / 4  # for a weight with metric 1
