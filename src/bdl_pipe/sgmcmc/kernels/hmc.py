"""Hamiltonian Monte Carlo with its acceptance (Duane et al. 1987; Neal 2011), and its step size by dual averaging.

p ~ N(0, T I), L leapfrog steps, accepted with probability min(1, exp((H₀ − H₁)/T)), H = −log p(θ) + ½‖p‖². The law is
p^{1/T} at any step size ε, given the density of all data. With ``acceptance`` each chain adapts its own ε in burn-in
(Hoffman & Gelman 2014, section 3.2.1, with its constants) and keeps it afterwards; the given step size is its first ε.
A proposal that is NaN or infinite is rejected. It counts as an acceptance of 0, so burn-in makes ε smaller.

Deviation: the code of Kim et al. 2022 and 2023 has K₁ − K₀ in the acceptance, where K₀ − K₁ belongs, and draws momenta
whose variance does not fit their kinetic energy K. Both are corrected here.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

import torch
from torch import Tensor

from ...errors import require
from ..kernel import ChainState, Density, Kernel, Positions, Randomness

_SHRINKAGE, _DELAY, _FORGETTING = 0.05, 10, 0.75  # γ, t₀ and κ of dual averaging
_FURTHER: Final = math.log(10)  # μ = log 10ε₁, since larger steps cost less


@final
@dataclass(frozen=True)
class Hmc(Kernel):
    """The kernel HMC. Its state counts the proposals that each chain accepted, ``accepted`` [chain].

    Attributes:
        leapfrogs: L, the number of leapfrog steps of a proposal.
        jitter: j; each proposal of a chain multiplies ε by a random number between 1 − j and 1 + j, so that no
            direction returns to its start.
        acceptance: the mean acceptance that burn-in adapts ε to. null: ε is the given step size.
    """

    accepts: ClassVar[bool] = True

    leapfrogs: int
    name: Literal["hmc"] = "hmc"
    jitter: float = 0.0
    acceptance: float | None = None

    def __post_init__(self) -> None:
        require(self.leapfrogs > 0, "leapfrogs", "must be > 0", self.leapfrogs)
        require(0 <= self.jitter < 1, "jitter", "must be in [0, 1)", self.jitter)
        sensible = self.acceptance is None or 0 < self.acceptance < 1
        require(sensible, "acceptance", "must be in (0, 1) or null", self.acceptance)

    def init(self, positions: Positions, rng: Randomness, temperature: float = 1.0) -> ChainState:
        zeros = torch.zeros(len(positions), dtype=torch.float64, device=positions.device)
        adapted = {} if self.acceptance is None else dict.fromkeys(("factor", "mean_factor", "short", "count"), zeros)
        return {"position": positions, "accepted": zeros, **adapted}

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
        value, gradient = density(position) if "value" not in state else (state["value"], state["gradient"])
        each = torch.full_like(state["accepted"], step_size)  # ε of each chain
        if self.acceptance is not None:
            each = each * state["factor" if adapt else "mean_factor"].exp()
        if self.jitter:
            each = each * (1 + self.jitter * (2 * rng.uniform("jitter").to(each.device) - 1))
        sizes = each[:, None].to(position)
        start = temperature**0.5 * rng.normal(position, "momenta")
        proposal, momentum, value_there, gradient_there = position, start, value, gradient
        for _ in range(self.leapfrogs):  # each leapfrog starts with the previous leapfrog's final gradient
            momentum = momentum + sizes / 2 * gradient_there
            proposal = proposal + sizes * momentum
            value_there, gradient_there = density(proposal)
            momentum = momentum + sizes / 2 * gradient_there
        gained = (value_there - value).double() - (momentum.square() - start.square()).double().sum(1) / 2
        log_ratio = torch.nan_to_num(gained / max(temperature, 1e-300), nan=-torch.inf)
        accepted = rng.uniform("accept").to(position.device).log() < log_ratio
        moved = {
            "position": torch.where(accepted[:, None], proposal, position),
            "value": torch.where(accepted, value_there, value),
            "gradient": torch.where(accepted[:, None], gradient_there, gradient),
            "accepted": state["accepted"] + accepted.double(),
        }
        if self.acceptance is None:
            return moved
        memory = {name: state[name] for name in ("factor", "mean_factor", "short", "count")}
        return {**moved, **(self._adapted(memory, log_ratio.clamp(max=0).exp()) if adapt else memory)}

    def _adapted(self, memory: ChainState, acceptance: Tensor) -> ChainState:
        """Return dual averaging's memory after a proposal; factors are logarithms of ε over the given step size."""
        assert self.acceptance is not None
        count = memory["count"] + 1
        weight = 1 / (count + _DELAY)
        short = (1 - weight) * memory["short"] + weight * (self.acceptance - acceptance)
        factor = _FURTHER - count.sqrt() / _SHRINKAGE * short
        share = count**-_FORGETTING
        mean = share * factor + (1 - share) * memory["mean_factor"]
        return {"factor": factor, "mean_factor": mean, "short": short, "count": count}

    def step_size_of(self, rate: float, rows: float) -> float:
        return (rate / rows) ** 0.5

    def noise_ratio(self, step_size: float) -> float:
        return 0.0  # the gradients use all rows
