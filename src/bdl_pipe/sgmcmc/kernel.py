"""The kernel of a Markov chain: ``init(positions, rng) -> state`` and ``step(state, density, rng, …) -> state``.

A kernel updates several chains together, [chain, weight], towards the law p(θ)^{1/T}. Its argument ``density`` returns
log p(θ), up to a constant, and its gradient, from all data or estimated without bias from this step's minibatch. A
kernel is a frozen dataclass, read from the section ``kernel`` of params.yaml; each kernel has its own file.
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
ChainState = Mapping[str, Tensor]  # "position" and a kernel's other variables, each [chain, ...]

_BLOCK: Final = 2**14  # normal numbers per generator; making a generator takes as long as drawing a few thousand


class Randomness:
    """The random numbers of one step of several chains; a resumed chain has the same numbers."""

    def __init__(self, chains: "Chains", step: int) -> None:
        self._chains, self._step = chains, step

    def normal(self, like: Positions, name: str = "noise") -> Positions:
        """Draw independent standard normal numbers of the shape, type and device of ``like``."""
        return self._chains.normal(self._step, like, name)

    def uniform(self, name: str) -> Float[Tensor, " chain"]:
        """Draw a uniform number in [0, 1) for each chain, in float64, on the CPU."""
        each = [rng.fold(name, self._step).generator() for rng in self._chains.rngs]
        count = self._chains.of_each
        return torch.cat([torch.rand(count, generator=generator, dtype=torch.float64) for generator in each])


@final
class Chains:
    """The seed addresses of several chains. ``Chains.of(Seed(0), 4).at(step)`` has the random numbers of a step.

    If chains have few weights, the normal numbers of several steps are drawn together, which is faster.

    Attributes:
        rngs: the addresses.
        of_each: the number of chains that draw from each address.
    """

    def __init__(self, rngs: Sequence[Seed], of_each: int = 1) -> None:
        """Give each chain its own address, so that its numbers do not depend on the other chains."""
        self.rngs, self.of_each = tuple(rngs), of_each
        self._drawn: dict[str, tuple[int, Tensor]] = {}

    @classmethod
    def of(cls, rng: Seed, count: int) -> "Chains":
        """Return ``count`` chains that share one address, which is faster."""
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
            shape, device = (length, self.of_each, like.shape[1]), like.device
            generators = [rng.fold(name, block).generator(device) for rng in self.rngs]
            blocks = [torch.randn(shape, generator=g, dtype=like.dtype, device=device) for g in generators]
            drawn = blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)
            self._drawn[name] = block, drawn
        return drawn[place]


class Kernel(ABC):
    """A Markov kernel whose law is p(θ)^{1/T}: exactly, or up to an error that the kernel's docstring states.

    Attributes:
        accepts: whether the kernel accepts or rejects proposals. It then needs the density of all data and refuses
            minibatches.
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
        """Make one step of all chains and return the new state, in new tensors.

        Args:
            density: positions [chain, weight] -> log p [chain], up to a constant, and ∇ log p [chain, weight].
            rng: the random numbers of this step.
            step_size: the step size, in the units of the kernel's docstring.
            temperature: T. With T = 0 the kernel is an optimiser without noise.
            adapt: whether the step is in burn-in, where a kernel may adapt its own parameters.
        """

    @abstractmethod
    def step_size_of(self, rate: float, rows: float) -> float:
        """Return the step size that moves like gradient descent on the mean of ``rows`` losses at the rate ``rate``."""

    @abstractmethod
    def noise_ratio(self, step_size: float) -> float:
        """Return c such that gradient noise of variance v adds c·v times the variance of the kernel's own noise.

        The kernel's own noise is at temperature 1. A kernel that refuses minibatches returns 0.
        """
