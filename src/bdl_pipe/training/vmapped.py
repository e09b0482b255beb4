"""The learners of one training run: a single learner, or several learners trained as one batched model."""

import copy
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from .. import distributed
from ..data.augment import AugmentConfig, augment
from ..data.fitdata import HeldRows, Rows
from ..errors import require
from ..networks import dropout_masks, fastest_order
from ..networks.normalisation import BatchNorm
from ..seeds import Seed
from .learner import Learner, NoisyLearner


@final
class SingleModel:
    """A single learner; in a process group each rank trains on a share of each batch.

    Attributes:
        named: the trained leaf tensors by parameter name.
    """

    def __init__(self, learner: Learner, rows: Rows, augmentation: AugmentConfig | None, rng: Seed) -> None:
        self._learner, self._augmentation, self._rng = learner.train(), augmentation, rng
        self._rows, self._images = rows, len(rows.shape) == 3
        self._order = fastest_order(learner)
        if self._images:
            learner.to(memory_format=self._order)  # type: ignore[call-overload]
        self.named = dict(learner.named_parameters())
        self._averaging = distributed.averaging(learner)

    def losses(self, rows: Tensor, noise: Mapping[str, Tensor], step: int) -> Tensor:
        """Return the loss of each model on its own batch, [model].

        Args:
            rows: row numbers [model, batch].
            noise: the noise of this step from :meth:`Learner.noise`, [model, ...] each.
            step: the step, which addresses the random numbers of augmentation and dropout.
        """
        # augment the batch before sharding, so that the augmentation does not depend on the number of ranks
        whole, targets = self._rows.take(rows[0])
        if self._images:
            if self._augmentation is not None:
                whole = augment(whole, self._augmentation, self._rng.fold("augment", step))
            whole = whole.contiguous(memory_format=self._order)  # the fastest order for convolutions
        inputs, targets = distributed.shard(whole), distributed.shard(targets)
        with dropout_masks(self._learner, self._rng.fold("dropout", step, distributed.world()[0])):
            step_noise = {name: values[0] for name, values in noise.items()}
            if isinstance(self._learner, NoisyLearner):
                step_noise = self._learner.share(step_noise)
            loss: Tensor = self._averaging(inputs, targets, len(self._rows), step_noise)
        return loss[None]

    def clip(self, largest: float) -> None:
        """Scale each model's gradients down to the norm ``largest`` if their norm is larger."""
        nn.utils.clip_grad_norm_(list(self.named.values()), largest)

    def agree(self) -> None:
        """Give all ranks of a process group the same running statistics."""
        distributed.broadcast_buffers(self._learner)

    def get(self, member: int) -> dict[str, Tensor]:
        """Return a copy of one model's ``state_dict``."""
        return {k: _plain(v) for k, v in self._learner.state_dict().items()}

    def put(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Restore a ``state_dict`` from :meth:`get`."""
        self._learner.load_state_dict(state)


@final
class VmappedModels:
    """A stack of several learners along a first dimension; their losses are computed by ``torch.func.vmap``.

    Its methods are the ones of :class:`SingleModel`, and its tensors ``named`` are [model, ...].
    """

    def __init__(self, learners: Sequence[Learner], rows: Sequence[Rows]) -> None:
        """Stack the learners, which must have equal numbers of rows.

        Raises:
            ConfigError: the learners have dropout layers or batch norm.
        """
        rule = "must be 0 if several members are trained as one (the method dropout draws its own masks)"
        for module in learners[0].modules():
            require(not isinstance(module, nn.Dropout), "network.dropout", rule)
            batch_norm = isinstance(module, BatchNorm)
            require(not batch_norm, "network", "must have no batch norm if several members are trained as one")
        held = [part for part in rows if isinstance(part, HeldRows)]
        self._count, self._streams, self._stacked = len(rows[0]), tuple(rows), None
        if len(held) == len(rows):
            self._streams = ()
            self._stacked = torch.stack([part.inputs for part in held]), torch.stack([part.targets for part in held])
        self.named, self._buffers = stack_module_state(list(learners))
        self._skeleton = copy.deepcopy(learners[0]).train().to("meta")
        self._member = torch.arange(len(learners), device=rows[0].device)[:, None]

    def losses(self, rows: Tensor, noise: Mapping[str, Tensor], step: int) -> Tensor:
        count = self._count
        if self._stacked is not None:  # each model's own rows [model, batch, ...]
            inputs, targets = (part[self._member, rows] for part in self._stacked)
        else:
            taken = [part.take(index) for part, index in zip(self._streams, rows, strict=True)]
            inputs, targets = torch.stack([x for x, _ in taken]), torch.stack([y for _, y in taken])
        loss = vmap(lambda p, x, y, z: functional_call(self._skeleton, p, (x, y, count, z)))
        losses: Tensor = loss(self.named | self._buffers, inputs, targets, dict(noise))
        return losses

    def clip(self, largest: float) -> None:
        gradients = [p.grad for p in self.named.values() if p.grad is not None]
        norm = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients]).sum(0).sqrt()  # [model]
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.reshape(-1, *[1] * (gradient.ndim - 1)))

    def agree(self) -> None:
        """Do nothing: no model has running statistics."""

    def get(self, member: int) -> dict[str, Tensor]:
        stacked = self.named | self._buffers
        return {k: _plain(stacked[k][member]) for k in self._skeleton.state_dict()}

    @torch.no_grad()
    def put(self, member: int, state: Mapping[str, Tensor]) -> None:
        stacked = self.named | self._buffers
        for name, value in state.items():
            stacked[name][member].copy_(value)


def _plain(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU, in contiguous memory order, as if read from a file."""
    return tensor.detach().to("cpu", memory_format=torch.contiguous_format, copy=True)
