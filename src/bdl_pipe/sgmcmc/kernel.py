"""What a kernel of a Markov chain is: ``init(positions, rng) -> state``, ``step(state, density, rng, …) -> state``.

A kernel moves several chains at once, [chain, weight] each, towards the law p(θ)^{1/T}. It knows p by a function that
returns log p(θ), up to a constant, and its gradient: of all data, or an unbiased estimate from this step's minibatch. A
kernel is a frozen dataclass, the section ``kernel`` of params.yaml that names it; each stands in a file of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from ..seeds import Seed

Positions = Float[Tensor, "chain weight"]
Density = Callable[[Positions], tuple[Float[Tensor, " chain"], Positions]]
ChainState = Mapping[str, Tensor]  # "position" and what else a kernel remembers, each [chain, ...]

_BLOCK: Final = 2**14  # normal numbers that are drawn at once: a generator costs as much as a few thousand


class Randomness:
    """The random numbers of one step of several chains; a chain that is stopped and goes on has the same ones."""

    def __init__(self, chains: "Chains", step: int) -> None:
        self._chains, self._step = chains, step

    def normal(self, like: Positions, name: str = "noise") -> Positions:
        """Draw independent standard normal numbers of the shape, type and device of ``like``."""
        return self._chains.normal(self._step, like, name)

    def uniform(self, name: str) -> Float[Tensor, " chain"]:
        """Draw one number of [0, 1) for each chain, in float64, on the CPU."""
        each = [rng.fold(name, self._step).generator() for rng in self._chains.rngs]
        count = self._chains.of_each
        return torch.cat([torch.rand(count, generator=generator, dtype=torch.float64) for generator in each])


@final
class Chains:
    """The addresses of several chains: ``Chains.of(Seed(0), 4).at(step)`` are the random numbers of a step.

    Where a chain has few weights, the normal numbers of several steps are drawn at once.

    Attributes:
        rngs: the addresses.
        of_each: how many chains draw from one address.
    """

    def __init__(self, rngs: Sequence[Seed], of_each: int = 1) -> None:
        """Take an address for each chain, which then has the same numbers whichever chains move with it."""
        self.rngs, self.of_each = tuple(rngs), of_each
        self._drawn: dict[str, tuple[int, Tensor]] = {}

    @classmethod
    def of(cls, rng: Seed, count: int) -> "Chains":
        """Return ``count`` chains that draw from one address, which is faster."""
        return cls([rng], count)

    def at(self, step: int) -> Randomness:
        """Return the random numbers of a step."""
        return Randomness(self, step)

    def normal(self, step: int, like: Positions, name: str) -> Positions:
        """Return the standard normal numbers ``name`` of a step, [chain, weight]."""
        length = max(1, _BLOCK // (self.of_each * like.shape[1]))
        block, place = divmod(step, length)
        number, drawn = self._drawn.get(name, (-1, like[None]))
        if number != block or drawn.shape[1:] != like.shape or drawn.dtype != like.dtype:
            blocks = [self._block(rng.fold(name, block), length, like) for rng in self.rngs]
            drawn = blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)
            self._drawn[name] = block, drawn
        return drawn[place]

    def _block(self, rng: Seed, length: int, like: Tensor) -> Tensor:
        shape, device = (length, self.of_each, like.shape[1]), like.device
        return torch.randn(shape, generator=rng.generator(device), dtype=like.dtype, device=device)


class Kernel(ABC):
    """A Markov kernel whose law is p(θ)^{1/T}: exactly, or up to an error that the kernel's docstring states.

    Attributes:
        accepts: the kernel compares values of one density. It needs the density of all data; minibatches are refused.
    """

    accepts: ClassVar[bool] = False
    name: str

    def init(self, positions: Positions, rng: Randomness, temperature: float = 1.0) -> ChainState:
        """Return the state of chains at ``positions``."""
        return {"position": positions}

    @abstractmethod
    def step(
        self,
        state: ChainState,
        density: Density,
        rng: Randomness,
        step_size: float,
        temperature: float = 1.0,
        adapt: bool = False,
    ) -> ChainState:
        """Make one step of all chains; returns new tensors.

        Args:
            density: positions [chain, weight] -> log p [chain], up to a constant, and ∇ log p [chain, weight].
            rng: the random numbers of this step.
            step_size: in the units of the kernel's docstring.
            temperature: T; 0: the kernel's deterministic part, an optimiser.
            adapt: whether this is burn-in, in which a kernel may change itself.
        """

    @abstractmethod
    def step_size_of(self, rate: float, rows: float) -> float:
        """Return the step size that moves as gradient descent at the rate ``rate`` on the mean of ``rows`` losses."""

    @abstractmethod
    def noise_ratio(self, step_size: float) -> float:
        """Return c such that a gradient's noise of variance v adds c·v times the variance of the kernel's own noise.

        The kernel's own noise has temperature 1. A kernel that takes no minibatches returns 0.
        """
