"""The section ``sampler`` of params.yaml (the kernel and its step sizes), and chains over networks' weights."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import torch

from ..data.fitdata import FitData, Minibatches
from ..errors import require, require_positive
from ..seeds import Seed
from .kernel import Chains, ChainState, Density, Kernel, Positions
from .kernels import KernelConfig
from .sampling import run
from .schedules import Setting, StepSizes, settled
from .target import NetworkTarget, TargetConfig

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
    """

    kernel: KernelConfig
    step_size: StepSizes
    batch: int | None
    temperature: float = 1.0
    start: Literal["network", "prior"] = "network"

    def __post_init__(self) -> None:
        require_positive(self, "temperature", or_null=("batch",))
        whole = self.batch is None or not (isinstance(self.kernel, Kernel) and self.kernel.accepts)
        require(whole, "batch", f"must be null for the kernel {self.kernel.name}, which needs all rows", self.batch)

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

    def __init__(
        self, data: Sequence[FitData], config: TargetConfig, sampler: SamplerConfig, rngs: Sequence[Seed], burn_in: int
    ) -> None:
        """Create chains on the posterior given the training rows of each of ``data``, one for each address.

        All chains must have the same noise precision.

        Raises:
            ConfigError: see :meth:`TargetConfig.spec`.
        """
        assert isinstance(sampler.kernel, Kernel)
        held = {id(each): each.rows("train", each.device) for each in data}
        target = NetworkTarget(config.spec(data[0]), [held[id(each)] for each in data], config.prior_precision)
        self.target, self._sampler, self._burn_in = target, sampler, burn_in
        self._setting = sampler.setting(target.rows, 1 / target.spec.one_noise)
        self.schedule = self._setting.schedule(self._setting.value)
        self._kernel, self._chains, self._rngs = sampler.kernel, Chains(rngs), list(rngs)
        rows, device = target.rows, target.device
        self._batches = [Minibatches(rows, sampler.batch or rows, rng, device) for rng in rngs]
        self._whole = target.whole() if (sampler.batch or rows) >= rows else None

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
        return self._whole or self.target.density([batches(step) for batches in self._batches])

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
        gradients = torch.stack([self._density_at(step + k)(positions)[1][0] for k in range(batches)])
        centred = (gradients - gradients.mean(0)) / (batches - 1) ** 0.5
        gram = (centred @ centred.T).double()
        steps = [t for t in range(self._burn_in, step) if self.schedule.samples(t)]
        factor = sum(self._kernel.noise_ratio(self.schedule.at(t)) for t in steps) / len(steps)
        mean, worst = float(gram.trace()) / positions.shape[1], float(torch.linalg.eigvalsh(gram)[-1])
        return factor * mean, factor * worst
