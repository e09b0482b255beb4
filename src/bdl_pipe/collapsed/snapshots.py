"""The base of CIBER's posteriors: a trajectory's snapshots with some weights integrated out."""

from collections.abc import Iterator
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from .. import networks
from ..artifacts import State, under, unstack
from ..config import read, to_mapping
from ..method import Inputs
from ..networks.base import Replicas
from ..posterior import NetworkSpec
from ..seeds import Seed
from ..training.snapshots import trained

Config = TypeVar("Config")
Own = TypeVar("Own", bound="CollapsedSnapshots[Any]")


class CollapsedSnapshots(Generic[Config]):
    """A posterior of the snapshots' networks, with the method's config.

    Attributes:
        weights: every entry of the network's ``state_dict``, stacked [snapshot, ...]; filters are in the network's
            fastest memory order.
        trunk: the network's trunk, without a snapshot's weights.
    """

    key: ClassVar[str]
    reads: ClassVar[type[Any]]  # the config's class

    def __init__(self, spec: NetworkSpec, config: Config, weights: dict[str, Tensor]) -> None:
        """Create the posterior of ``weights``, the entries of the network's ``state_dict`` stacked [snapshot, ...]."""
        network = spec.build(Seed(0)).eval().to(weights["head.weight"].device)
        self.spec, self.config, self.trunk = spec, config, network.trunk
        self._trunks = Replicas(network.trunk)
        self.weights = networks.in_order(weights, networks.fastest_order(network))

    def numbered(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield each snapshot's number and weights."""
        return enumerate(unstack(self.weights))

    def features(self, weights: dict[str, Tensor], inputs: Tensor) -> Float[Tensor, "batch feature"]:
        """Return the trunk's features with the weights of one snapshot."""
        return self._trunks.call(under("trunk.", weights), inputs)

    def state(self) -> State:
        config = {"posterior": self.key, "spec": to_mapping(self.spec), self.key: to_mapping(self.config)}
        return State({name: value.contiguous() for name, value in self.weights.items()}, config)

    @classmethod
    def from_state(cls: type[Own], state: State, device: torch.device | str = "cpu") -> Own:
        spec = read(NetworkSpec, state.config["spec"], "spec")
        config = read(cls.reads, state.config[cls.key], cls.key)
        return cls(spec, config, {k: v.to(device) for k, v in state.tensors.items()})


def trajectory(inputs: Inputs) -> tuple[NetworkSpec, dict[str, Tensor]]:
    """Return the network and the stacked weights of the snapshots of the trajectory in ``inputs``."""
    (found,) = inputs["trajectory"]
    return read(NetworkSpec, found.config["spec"], "spec"), trained(found)
