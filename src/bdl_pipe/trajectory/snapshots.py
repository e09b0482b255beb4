"""A stored trajectory as points in the space of weights, and the network at any point of that space.

A point is all parameters, one after the other, in one vector. Parameters alone are coordinates: at each point the
running statistics of batch normalisation are recomputed on training rows; all other buffers are the last snapshot's.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State
from ..config import read
from ..data.fitdata import FitData
from ..networks.normalisation import has_batch_norm, refresh_batch_norm
from ..posterior import NetworkSpec
from ..seeds import Seed


@final
class Snapshots:
    """The snapshots of one trajectory, and its network.

    Attributes:
        spec: how the network is built and its outputs are read.
        network: on the data's device, with whatever weights it was last given.
        flat: the snapshots, on the CPU, of the type they were stored in [epoch, weight].
    """

    flat: Float[Tensor, "epoch weight"]

    def __init__(self, trajectory: State, data: FitData, rows: int | None, batch: int, rng: Seed) -> None:
        """
        Args:
            rows: training rows that refresh running statistics, the same at all points; None: all.
            batch: rows in one batch of that pass.
            rng: where the choice of rows is drawn.
        """
        self.spec = read(NetworkSpec, trajectory.config["spec"], "spec")
        self.network = self.spec.build(Seed(0)).to(data.device)
        self._names = [name for name, _ in self.network.named_parameters()]
        self.flat = torch.cat([trajectory.tensors[name].flatten(1) for name in self._names], dim=1)
        self._last = {name: stored[-1] for name, stored in trajectory.tensors.items()}
        self._rows, self._batch = self._choose(data, rows, rng), batch

    def named(self, point: Float[Tensor, " weight"]) -> dict[str, Tensor]:
        """The parameters at a point, by name, of the shapes and types of the stored ones; differentiable."""
        like = [self._last[name] for name in self._names]
        parts = point.split([stored.numel() for stored in like])
        return {n: p.reshape(s.shape).to(s.dtype) for n, p, s in zip(self._names, parts, like, strict=True)}

    @torch.no_grad()
    def state_at(self, point: Float[Tensor, " weight"]) -> dict[str, Tensor]:
        """The ``state_dict`` at a point, on the CPU, its running statistics refreshed."""
        self.network.load_state_dict(self._last | self.named(point))
        refresh_batch_norm(self.network, self._rows, self._batch)
        return {name: value.detach().cpu().clone() for name, value in self.network.state_dict().items()}

    def _choose(self, data: FitData, rows: int | None, rng: Seed) -> Tensor:
        """The rows that refresh statistics; none where nothing needs them."""
        inputs, _ = data.tensors("train", data.device)
        if not has_batch_norm(self.network):
            return inputs[:0]
        order = torch.randperm(len(inputs), generator=rng.fold("rows").generator())
        return inputs[order[:rows].to(data.device)]
