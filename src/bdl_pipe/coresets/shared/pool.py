"""The model pool: P networks at different ages, so that a coreset does not fit a single feature map.

Each outer step draws one network, updates the coreset through it, and then trains it for one step on the coreset; after
T steps a new network replaces it (Zhou et al. 2022; Lee et al. 2025, algorithm 1). The initial ages are staggered,
iT/P, so that networks are not all replaced together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ... import networks
from ...artifacts import under
from ...config import LATER
from ...data.augment import AugmentConfig
from ...errors import require_positive
from ...networks.base import Precision, trunk_pass
from ...seeds import Seed
from ...training import loop
from .trunk import OptimisedNetwork, adam


@dataclass(frozen=True)
class PoolConfig:
    """The settings of the model pool.

    Attributes:
        networks: P, the number of networks.
        steps: T, the age at which a network is replaced.
        lr: Adam's learning rate for the networks.
        compiled, precision: settings of the networks' forward pass, see ``trunk_pass``.
    """

    networks: int
    steps: int
    lr: float
    compiled: bool = field(default=False, metadata=LATER)
    precision: Precision = field(default="float32", metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "networks", "steps", "lr")


class ModelPool:
    """A pool of P networks with their Adam states, ages and generations, which can be stored and restored."""

    def __init__(
        self,
        config: PoolConfig,
        network: networks.NetworkConfig,
        input_shape: tuple[int, ...],
        outputs: int,
        *,
        rng: Seed,
        device: torch.device | str = "cpu",
    ) -> None:
        self._config, self._network, self._rng, self._device = config, network, rng, device
        self._input_shape, self._outputs = input_shape, outputs
        self._pass = trunk_pass(config.compiled, config.precision, device)
        self._generations = [0] * config.networks
        self._members = [self._fresh(slot) for slot in range(config.networks)]
        for slot, member in enumerate(self._members):
            member.steps = slot * config.steps // config.networks

    def draw(self, step: int) -> tuple[int, networks.Network]:
        """Return the slot and the network that outer step ``step`` uses."""
        slot = self._rng.fold("draw", step).integer() % self._config.networks
        return slot, self._members[slot].network

    def advance(self, slot: int, images: Tensor, labels: Tensor, augmentation: AugmentConfig) -> Tensor:
        """Train the network of ``slot`` one step on the coreset, replace it at age T, and return its loss []."""
        member = self._members[slot]
        rng = self._rng.fold("noise", slot, self._generations[slot], member.steps)
        loss = member.step(images, labels, augmentation, rng)
        if member.steps >= self._config.steps:
            self._generations[slot] += 1
            self._members[slot] = self._fresh(slot)
        return loss

    def state(self) -> dict[str, Tensor]:
        """Return weights, buffers and Adam states of every slot, and the ages and generations."""
        ages = torch.tensor([member.steps for member in self._members])
        tensors = {"ages": ages, "generations": torch.tensor(self._generations)}
        for slot, member in enumerate(self._members):
            named = {f"{slot}.network.{k}": v.detach() for k, v in member.network.state_dict().items()}
            named |= loop.optimiser_tensors(member.optimiser, f"{slot}.adam")
            tensors |= {k: v.clone(memory_format=torch.contiguous_format) for k, v in named.items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the tensors of :meth:`state`."""
        self._generations = tensors["generations"].tolist()
        for slot in range(self._config.networks):
            member = self._fresh(slot)
            member.network.load_state_dict(under(f"{slot}.network.", tensors))
            loop.restore_optimiser(member.optimiser, tensors, f"{slot}.adam")
            member.steps = int(tensors["ages"][slot])
            self._members[slot] = member

    def _fresh(self, slot: int) -> OptimisedNetwork:
        rng = self._rng.fold("network", slot, self._generations[slot])
        network = networks.build(self._network, self._input_shape, self._outputs, rng=rng).to(self._device)
        optimiser = adam(network, self._config.lr)
        network.compute_by(self._pass)
        if self._config.compiled:  # compiled code expects filters in this order
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return OptimisedNetwork(network, optimiser)
