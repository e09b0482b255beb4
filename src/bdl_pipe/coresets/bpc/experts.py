"""Expert trajectories for coreset methods: weights as vectors, at the start and after each epoch.

The experts of Kim et al. 2022 are the experts of trajectory matching (Cazenave et al. 2022): networks trained on the
data, saved at the start and after every epoch. Here the experts are a run of ``sgd`` with ``keep_start`` and a snapshot
after every epoch. With ``snapshots_per_epoch`` the run saves a snapshot after every part of an epoch, because an epoch
of 60,000 rows is long for a small coreset; the methods then count parts as epochs. :class:`Experts` reads only the
snapshots that it needs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from ...artifacts import State
from ...config import read
from ...data.fitdata import FitData
from ...errors import require
from ...method import Kind
from ...networks.flat import FlatNetwork
from ...networks.normalisation import BatchNorm
from ...posterior import NetworkSpec
from ...seeds import Seed
from ...training import snapshots

_NORM: Final = "must be of a network without running statistics (norm: instance, group or none)"


def check_experts(sources: Mapping[Kind, Any], epochs: int) -> None:
    """Check before training that the config of a trajectory is suitable for experts.

    Args:
        sources: the configs of the coreset's inputs, by stage kind.
        epochs: the number of epochs after the expert's start that the method uses, by its key ``start_epochs``.

    Raises:
        ConfigError: the trajectory lacks its start or an epoch, or its network has running statistics.
    """
    expert = sources["trajectory"]
    keeps = getattr(expert, "keep_start", False)  # a plugin's trajectory may lack the key
    require(keeps, "input", "must be of a trajectory with keep_start: true", keeps)
    require(getattr(expert.network, "norm", None) != "batch", "input", _NORM, "batch")
    parts = expert.epochs * expert.snapshots_per_epoch
    whole = expert.every == 1 and expert.snapshots >= parts
    rule = f"must be of a trajectory with a snapshot of every epoch, or every part of one (snapshots: {parts})"
    require(whole, "input", rule, expert.snapshots)
    rule = f"must be <= the epochs, or parts of them, of the trajectory ({parts})"
    require(epochs <= parts, "start_epochs", rule, epochs)


@final
class Experts:
    """A set of expert trajectories of one network.

    Attributes:
        spec: the network's spec.
        network: the network as a function of its weights.
        epochs: the number of epochs, or parts of epochs, of each expert, without the start.
    """

    def __init__(self, states: Sequence[State], data: FitData) -> None:
        """Create the experts from trajectories that have a snapshot of their start and every epoch.

        Raises:
            ConfigError: a trajectory lacks its start or an epoch, or the network is for other images or classes or has
                batch normalisation with running statistics, which a vector of weights does not include.
        """
        self._states, self._device = states, data.device
        self.spec = read(NetworkSpec, states[0].config["spec"], "spec")
        interface = (self.spec.input_shape, self.spec.outputs)
        ours = (data.input_shape, data.outputs)
        require(interface == ours, "input", f"must be of experts for images and classes of {ours}", interface)
        network = self.spec.build(Seed(0)).to(data.device)
        require(not any(isinstance(module, BatchNorm) for module in network.modules()), "input", _NORM)
        self.network = FlatNetwork(network)
        counts = []
        for state in states:
            at = snapshots.epochs(state) or []
            require(len(at) > 1, "input", "must be of a trajectory that kept its start (keep_start: true)")
            evenly = at == [part * at[-1] / (len(at) - 1) for part in range(len(at))]
            require(evenly, "input", "must be of a trajectory that kept every epoch, or every part of one", at)
            counts.append(len(at) - 1)
        self.epochs = min(counts)

    def __len__(self) -> int:
        return len(self._states)

    def weights(self, expert: int, epoch: int) -> Float[Tensor, " weight"]:
        """Return an expert's weights after ``epoch`` epochs, or parts of epochs; 0 is the start."""
        return self.network.flat(snapshots.snapshot(self._states[expert], epoch)).to(self._device)


def drawn_epoch(experts: Experts, epochs: int, rng: Seed) -> tuple[int, int]:
    """Draw an expert, and one of its first ``epochs`` epochs."""
    return rng.fold("expert").integer() % len(experts), rng.fold("epoch").integer() % epochs


def drawn_start(experts: Experts, epochs: int, ahead: int, rng: Seed) -> tuple[Tensor, Tensor]:
    """Draw an expert and one of its first ``epochs`` epochs; return the weights there and ``ahead`` epochs later."""
    expert, epoch = drawn_epoch(experts, epochs, rng)
    return experts.weights(expert, epoch), experts.weights(expert, epoch + ahead)


def noisy(weights: Tensor, draws: int, sd: float, rng: Seed) -> Tensor:
    """Draw from N(weights, sd² I): [draw, weight], on the weights' device."""
    noise = torch.randn((draws, len(weights)), generator=rng.generator(), dtype=weights.dtype)
    return weights + sd * noise.to(weights.device)
