"""The posterior of a trajectory's snapshots, their last layers, and the box that the last layers' weights span.

q is uniform on [min, max] of each weight over the snapshots (Zeng and Van den Broeck 2023, section 4.2). For one
snapshot and class k, with the weights in C collapsed and the snapshot's other weights, the logit is

    l_k + Σ_{i ∈ C} (W_i − w_i)φ_i = l_k + Σ_{i ∈ C} (m_i − w_i)φ_i + Σ_{i ∈ C} h_iU_i,    U_i uniform on [−1, 1],

with m_i the middle of the range of W_i, and h_i half the range times |φ_i|. The bias is the weight of an input of 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
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

SCORES: Final = 1 << 15  # half-widths that are computed together; for more, torch starts threads, which is slower here
FEW: Final = 4  # up to this number, the largest values are found one by one
GROUP: Final = 32  # group size of a first pass for maxima, since an argmax takes five times as long as a maximum


class Collapsed(NamedTuple):
    """The contribution of the collapsed weights' boxes to each logit.

    Attributes:
        shift: Σ (m_i − w_i)φ_i, from the snapshot's weights to the middle of the box.
        half_widths: h_i, in descending order.
    """

    shift: Float[Tensor, "*batch class"]
    half_widths: Float[Tensor, "*batch class d"]


@dataclass(frozen=True)
class Head:
    """The last layers of all snapshots, with the biases as the last weights."""

    weights: Float[Tensor, "snapshot class input"]

    @classmethod
    def of(cls, weight: Float[Tensor, "snapshot class width"], bias: Float[Tensor, "snapshot class"]) -> "Head":
        """Join the weights and the biases of all snapshots."""
        return cls(torch.cat([weight, bias[..., None]], -1))

    def collapse(self, snapshot: int, features: Float[Tensor, "batch width"], count: int) -> Collapsed:
        """Return the ``count`` weights of each class with the largest range·|φ|, separately for each input.

        It needs memory for the result, a 32nd of all half-widths, and blocks of SCORES numbers.
        """
        weights, low, high = self.weights[snapshot], self.weights.amin(0), self.weights.amax(0)
        spare = -weights.shape[-1] % GROUP
        half = _grouped((high - low) / 2, spare)  # [class, group, GROUP]
        offset = _grouped(((low - weights) + (high - weights)) / 2, spare)  # 0 if the snapshots are equal
        grouped = _grouped(F.pad(features, (0, 1), value=1.0), spare)  # [row, group, GROUP]
        rows = max(1, SCORES // half.numel())
        peaks = torch.cat([(half * part.abs()[:, None]).amax(-1) for part in grouped.split(rows)])
        rows = max(1, SCORES // (len(half) * GROUP * count))
        classes, parts = torch.arange(len(half), device=half.device)[:, None], list[tuple[Tensor, Tensor]]()
        for part, peak in zip(grouped.split(rows), peaks.split(rows), strict=True):
            groups = _top(peak, min(count, peak.shape[-1]))[1]  # the largest are in these [row, class, chosen]
            row = torch.arange(part.shape[0], device=part.device)[:, None, None]  # len() would fix a traced batch
            inputs = part[row, groups].flatten(-2)  # [row, class, candidate]
            largest, place = _top(half[classes, groups].flatten(-2) * inputs.abs(), count)
            shift = offset[classes, groups].flatten(-2).gather(-1, place) * inputs.gather(-1, place)
            parts.append((shift.sum(-1), largest))
        return Collapsed(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def draw(self, draws: int, rng: Seed) -> Float[Tensor, "draw class input"]:
        """Draw all weights from the box, on the CPU, so that every device has the same draws."""
        low, high = self.weights.amin(0), self.weights.amax(0)
        uniform = torch.rand(draws, *low.shape, generator=rng.generator(), dtype=low.dtype)
        return low + (high - low) * uniform.to(low.device)

    def drawn_shift(
        self,
        snapshot: int,
        features: Float[Tensor, "batch width"],
        count: int,
        drawn: Float[Tensor, "draw class input"],
    ) -> Float[Tensor, "draw batch class"]:
        """Return Σ_{i ∈ C} (W_i − w_i)φ_i for drawn weights W, C the weights that ``collapse`` selects.

        Inputs share W. It needs memory for draws × inputs × classes × count numbers.
        """
        inputs = F.pad(features, (0, 1), value=1.0)
        half = (self.weights.amax(0) - self.weights.amin(0)) / 2
        chosen = (half * inputs.abs()[:, None]).topk(count, -1).indices  # [batch, class, d]
        moved = (drawn - self.weights[snapshot])[:, torch.arange(len(half), device=half.device)[:, None], chosen]
        return (moved * inputs[:, None].expand(-1, len(half), -1).gather(-1, chosen)).sum(-1)


def _grouped(values: Tensor, spare: int) -> Tensor:
    """Group the inputs: [..., group, GROUP] of [..., input], with zeros at the end."""
    return F.pad(values, (0, spare)).unflatten(-1, (-1, GROUP))


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return ``topk`` over the last dimension of values ≥ 0; a few are found faster one after another."""
    if count > FEW:
        largest, index = values.topk(count, -1)
        return largest, index
    maxima = [values.max(-1, keepdim=True)]
    for _ in range(count - 1):
        values = values.scatter(-1, maxima[-1].indices, -1.0)
        maxima.append(values.max(-1, keepdim=True))
    return torch.cat([m.values for m in maxima], -1), torch.cat([m.indices for m in maxima], -1)


class CollapsedSnapshots(Generic[Config]):
    """A posterior of the snapshots' networks, some of whose weights are integrated out, with the method's config.

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
    """Return the network and the stacked weights of the snapshots of the trajectory in ``inputs``.

    Raises:
        ConfigError: the network's noise is a Student t.
    """
    (state,) = inputs["trajectory"]
    spec = read(NetworkSpec, state.config["spec"], "spec")
    spec.require_gaussian("the integrals over weights are of Gaussian noise")
    return spec, trained(state)
