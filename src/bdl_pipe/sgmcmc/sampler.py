"""The section ``sampler`` of params.yaml (the kernel and its step sizes), and chains over networks' weights."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor

from ..data.minibatches import Minibatches
from ..errors import require
from ..seeds import Seed
from .kernel import Chains, ChainState, Density, Kernel, Positions
from .kernels import KernelConfig
from .sampling import run
from .schedules import Setting, StepSizes, settled
from .target import NetworkTarget

_MOST_NUMBERS: Final = 2**27  # the most numbers in the compared gradients, half a gigabyte


@dataclass(frozen=True)
class SamplerConfig:
    """The settings of a sampler.

    Attributes:
        kernel: one of ``KERNELS``.
        step_size: the schedule of step sizes, in the kernel's units; ``scaled``: in units of the rows' mean loss.
        batch: M, the number of rows of a minibatch. null, or N or more: all rows.
        temperature: T; the chain samples posterior^(1/T).
        start: the initial weights of a chain without a trajectory: the network's own initialisation, or a draw from the
            prior.
        control_variates: the number of steps after which the anchor of control variates moves to the chain's position.
            null: no control variates.
    """

    kernel: KernelConfig
    step_size: StepSizes
    batch: int | None
    temperature: float = 1.0
    start: Literal["network", "prior"] = "network"
    control_variates: int | None = None

    def __post_init__(self) -> None:
        require(self.batch is None or self.batch > 0, "batch", "must be > 0 or null", self.batch)
        require(self.temperature > 0, "temperature", "must be > 0", self.temperature)
        refresh = self.control_variates
        require(refresh is None or refresh > 0, "control_variates", "must be > 0 or null", refresh)
        accepts = isinstance(self.kernel, Kernel) and self.kernel.accepts
        whole = not accepts or self.batch is None
        require(whole, "batch", f"must be null for the kernel {self.kernel.name}, which needs all rows", self.batch)
        plain = not accepts or refresh is None
        require(plain, "control_variates", f"must be null for the kernel {self.kernel.name}", refresh)

    def setting(self, rows: int, precision: float) -> Setting:
        """Return the setting of the step sizes for ``rows`` rows of noise precision λ_n (1 for classes)."""
        kernel, per_epoch = self.kernel, rows // min(self.batch or rows, rows)
        assert isinstance(kernel, Kernel)
        return Setting.of(
            self.step_size, "sampler.step_size", lambda steps: settled(steps, kernel, rows, precision, per_epoch)
        )


@final
class NetworkChains:
    """Chains over a network's weights that can resume at any step: a target, a sampler, and the chains' addresses."""

    def __init__(self, target: NetworkTarget, sampler: SamplerConfig, rngs: Sequence[Seed], burn_in: int) -> None:
        assert isinstance(sampler.kernel, Kernel)
        self.target, self._sampler, self._burn_in = target, sampler, burn_in
        self._setting = sampler.setting(target.rows, 1 / target.spec.one_noise)
        self.schedule = self._setting.schedule(self._setting.value)
        self._kernel, self._chains, self._rngs = sampler.kernel, Chains(rngs), list(rngs)
        rows, device = target.rows, target.device
        self._batches = [Minibatches(rows, sampler.batch or rows, rng, device) for rng in rngs]
        self._whole = target.whole() if (sampler.batch or rows) >= rows else None
        self._anchor: Positions | None = None
        self._at_anchor: Positions | None = None
        self._anchored = 0  # the step at which the anchor was last moved

    def begin(self, starts: Positions | None = None) -> ChainState:
        """Return the state of chains at ``starts``, or at the sampler's own start."""
        if starts is None:
            addresses = [rng.fold("start") for rng in self._rngs]
            prior = self._sampler.start == "prior"
            starts = self.target.from_prior(addresses) if prior else self.target.start(addresses)
        return self._kernel.init(starts, self._chains.at(0), self._sampler.temperature)

    def steps(self, state: ChainState, first: int, stop: int) -> Iterator[tuple[int, ChainState]]:
        """Yield (steps done, state) after each of the steps ``first`` … ``stop − 1``.

        Raises:
            Diverged: a position became NaN or infinite.
        """
        yield from run(
            self._kernel,
            self._density_at,
            state,
            self.schedule,
            self._chains,
            first=first,
            steps=stop,
            temperature=self._sampler.temperature,
            burn_in=self._burn_in,
            setting=self._setting,
        )

    def _density_at(self, step: int) -> Density:
        if self._whole is not None:
            return self._whole
        every = self._sampler.control_variates
        if every is None:
            return self._minibatch(step)
        moves = step % every == 0 or step < self._anchored or self._anchor is None

        def of(positions: Positions) -> tuple[Tensor, Tensor]:
            if moves:  # the anchor becomes the position at which the gradient is computed; a retry resets it
                self._anchor, self._at_anchor = positions, self.target.likelihood_gradient(positions)
                self._anchored = step
            return self._minibatch(step)(positions)

        return of

    def _minibatch(self, step: int) -> Density:
        """Return the density that is estimated from the minibatch of ``step``, with the anchor of control variates."""
        index = [batches(step) for batches in self._batches]
        if self._sampler.control_variates is None:
            return self.target.density(index)
        assert self._anchor is not None and self._at_anchor is not None
        return self.target.controlled(index, self._anchor, self._at_anchor)

    def saved(self, state: ChainState) -> dict[str, Tensor]:
        """Return the tensors that the steps after ``state`` depend on."""
        anchor = {} if self._anchor is None else {"anchor": self._anchor}
        return {**state, **anchor}

    def restored(self, saved: dict[str, Tensor]) -> ChainState:
        """Undo :meth:`saved`."""
        state = {name: value.to(self.target.device) for name, value in saved.items()}
        anchor = state.pop("anchor", None)
        if anchor is not None:
            self._anchor, self._at_anchor = anchor, self.target.likelihood_gradient(anchor)
        return state

    def noise_ratio(self, positions: Positions, step: int, batches: int) -> tuple[float, float]:
        """Compare the noise of minibatches with the kernel's own noise, at the positions of the first chain.

        Returns:
            The variance that minibatches add, relative to the injected variance: the mean over all directions, and the
            largest of any direction. It is estimated from ``batches`` minibatches of the epochs after ``step``, at the
            mean step size after burn-in.
        """
        if self._whole is not None:
            return 0.0, 0.0
        batches = min(batches, max(2, _MOST_NUMBERS // positions.shape[1]))
        gradients = torch.stack([self._minibatch(step + k)(positions)[1][0] for k in range(batches)])
        centred = (gradients - gradients.mean(0)) / (batches - 1) ** 0.5
        gram = (centred @ centred.T).double()
        steps = [t for t in range(self._burn_in, step) if self.schedule.samples(t)]
        factor = sum(self._kernel.noise_ratio(self.schedule.at(t)) for t in steps) / len(steps)
        mean, worst = float(gram.trace()) / positions.shape[1], float(torch.linalg.eigvalsh(gram)[-1])
        return factor * mean, factor * worst
