"""A stored trajectory as points in weight space, and the network at any point of that space.

A point is the vector of all parameters. Buffers are not part of it: at each point the running statistics of batch
normalisation are recomputed on training rows, and all other buffers come from the last snapshot.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State, stack, unstack
from ..config import read
from ..data.fitdata import FitData
from ..data.size import Section
from ..errors import require
from ..method import ModelFit
from ..networks.normalisation import has_batch_norm, refresh_batch_norm
from ..posterior import NetworkDraws, NetworkSpec
from ..progress import Report
from ..seeds import Seed
from ..training import snapshots

FloatName = Literal["float64", "float32"]
FLOATS: Final[Mapping[FloatName, torch.dtype]] = {"float64": torch.float64, "float32": torch.float32}
_ELEMENTS: Final = 2**20  # the most weights drawn at once: 8 MiB in float64


BATCH_NORM: Final[Section] = {"batch_norm_rows": 2048, "batch_norm_batch": 64}


def batch_norm(fit: ModelFit) -> Section:
    """Return the keys of :class:`BatchNormConfig` for a user's model, with the batches of its training."""
    return {**BATCH_NORM, "batch_norm_batch": max(2, fit.batch)}


@dataclass(frozen=True)
class BatchNormConfig:
    """The config that all methods that make networks from a trajectory share.

    Attributes:
        batch_norm_rows: the number of training rows for recomputing running statistics, if any. null: all rows.
        batch_norm_batch: the number of rows of a batch in this pass; best near the batch size of training.
    """

    batch_norm_rows: int | None
    batch_norm_batch: int

    def __post_init__(self) -> None:
        rows = self.batch_norm_rows is None or self.batch_norm_rows > 1
        require(rows, "batch_norm_rows", "must be > 1 or null", self.batch_norm_rows)
        require(self.batch_norm_batch > 1, "batch_norm_batch", "must be > 1", self.batch_norm_batch)


@final
class Snapshots:
    """The snapshots of one trajectory, and its network.

    Attributes:
        spec: the network's spec.
        network: the network, on the data's device; its weights are not defined.
        flat: the snapshots on the CPU, in their stored type [epoch, weight].
        last: every entry of the last snapshot's ``state_dict``.
        moments: the mean and population variance of the iterates, in float64 [weight]. None: they were not kept.
    """

    flat: Float[Tensor, "epoch weight"]

    def __init__(
        self, trajectory: State, data: FitData, config: BatchNormConfig, rng: Seed, refresh: bool = True
    ) -> None:
        """Read the snapshots of ``trajectory``.

        Args:
            config: the settings of running statistics; all points use the same training rows.
            rng: the seed address of the choice of these rows.
            refresh: whether running statistics are recomputed; otherwise the last snapshot's are used.
        """
        self.spec = read(NetworkSpec, trajectory.config["spec"], "spec")
        self._device = torch.device(data.device)
        self.network = self.spec.build(Seed(0)).to(self._device)
        stored, kept = snapshots.trained(trajectory), snapshots.moments(trajectory)
        self._names = [name for name, _ in self.network.named_parameters()]
        self.flat = torch.cat([stored[name].reshape(len(stored[name]), -1) for name in self._names], dim=1)
        self.last = {name: past[-1] for name, past in stored.items()}
        self.moments = None if kept is None else (self._point(kept[0]), self._point(kept[1]))
        refresh = refresh and has_batch_norm(self.network)
        self._rows = data.drawn(config.batch_norm_rows, rng.fold("rows"))[0] if refresh else None
        self._batch = config.batch_norm_batch

    def named(self, point: Float[Tensor, "*draw weight"]) -> dict[str, Tensor]:
        """Return the parameters at a point by name, in their stored shapes and types; differentiable."""
        like = [self.last[name] for name in self._names]
        parts = point.split([stored.numel() for stored in like], -1)
        lead = point.shape[:-1]
        return {n: p.reshape((*lead, *s.shape)).to(s.dtype) for n, p, s in zip(self._names, parts, like, strict=True)}

    def state_at(self, point: Float[Tensor, " weight"]) -> dict[str, Tensor]:
        """Return the ``state_dict`` at a point, on the CPU, with recomputed running statistics."""
        return self.state_with(self.named(point))

    @torch.no_grad()
    def state_with(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the last snapshot's ``state_dict`` with some of its weights replaced, of any floating type.

        The result is on the CPU, with recomputed running statistics.
        """
        self.network.load_state_dict(self.last | {name: value.to(self.last[name]) for name, value in weights.items()})
        if self._rows is not None:
            refresh_batch_norm(self.network, self._rows, self._batch)
        return {name: value.detach().cpu().clone() for name, value in self.network.state_dict().items()}

    def draws(self, draw: Callable[[range], Mapping[str, Tensor]], count: int, *, report: Report) -> NetworkDraws:
        """Return ``count`` networks with drawn weights; weights that are not drawn come from the last snapshot.

        It can resume after any block of draws, with the same draws.

        Args:
            draw: draw numbers -> the drawn weights by name, stacked [draw, ...], of any floating type.
        """
        at_once = 1 if self._rows is not None else max(1, _ELEMENTS // self.flat.shape[1])
        saved = report.load()
        drawn = dict(saved.tensors) if saved is not None else {}
        blocks, done = ([drawn], len(next(iter(drawn.values())))) if drawn else ([], 0)
        while done < count:
            numbers = range(done, min(done + at_once, count))
            weights = dict(draw(numbers))
            if self._rows is not None:
                blocks.append(stack([self.state_with(one) for one in unstack(weights)]))
            else:
                blocks.append({name: value.to(self.last[name]) for name, value in weights.items()})
            done = numbers.stop
            for number in numbers:
                report(number + 1, count)
            if report.due():
                report.save(State(_joined(blocks)))
        weights = _joined(blocks)
        same = {name: value.expand(count, *value.shape) for name, value in self.last.items() if name not in weights}
        every = {name: (same | weights)[name] for name in self.network.state_dict()}
        at_hand = self.network if self._device.type == "cpu" else None
        return NetworkDraws(self.spec, every, at_hand)

    def _point(self, named: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([named[name].flatten() for name in self._names])


def _joined(blocks: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}
