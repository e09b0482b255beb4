"""Data-parallel training: several processes share each batch and average their gradients.

The caller starts the processes and their ``torch.distributed`` group; without a group the functions here do nothing.
Every rank holds the same parameters and seed addresses, takes its own share of the rows, and makes the same update from
the mean of the shares' gradients. Up to rounding, one process with the whole batch would make this update, too. Batch
norm is the exception, as in torch's DistributedDataParallel: each rank normalises by its own share.
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn

from .artifacts import State, from_bytes, to_bytes
from .errors import require


def world() -> tuple[int, int]:
    """Return (rank, size) of the process group; (0, 1) without a group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def shard(rows: Shaped[Tensor, "batch ..."]) -> Shaped[Tensor, "share ..."]:
    """Return this rank's share of a batch, ``rows[rank::size]``.

    All shares are of equal size, so the mean of their means is the batch's mean.

    Raises:
        ConfigError: the number of ranks does not divide the batch; a smaller batch would be another experiment.
    """
    rank, size = world()
    require(len(rows) % size == 0, "batch", f"must be a multiple of the {size} workers of a task", len(rows))
    return rows[rank::size]


@torch.no_grad()
def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace every gradient by its mean over ranks: one all-reduce for each dtype and device.

    Every rank must have gradients for the same parameters.
    """
    _, size = world()
    if size == 1:
        return
    for bucket in _buckets(p.grad for p in parameters if p.grad is not None):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        dist.all_reduce(flat)
        _scatter(flat / size, bucket)


@torch.no_grad()
def mean(value: Tensor) -> Tensor:
    """Return the mean over ranks of a tensor without graph."""
    _, size = world()
    if size == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / size


@torch.no_grad()
def broadcast_buffers(module: nn.Module) -> None:
    """Copy the buffers of rank 0 (batch norm's running statistics) to every rank."""
    if world()[1] == 1:
        return
    for bucket in _buckets(module.buffers()):
        flat = torch.cat([buffer.reshape(-1) for buffer in bucket])
        dist.broadcast(flat, src=0)
        _scatter(flat, bucket)


def broadcast_from_rank0(load: Callable[[], State | None]) -> State | None:
    """Return rank 0's ``load()`` on every rank, so that all ranks continue from the same checkpoint."""
    rank, size = world()
    if size == 1:
        return load()
    state = load() if rank == 0 else None
    blob = [to_bytes(state) if state is not None else None]
    dist.broadcast_object_list(blob, src=0)
    if rank > 0 and blob[0] is not None:
        state = from_bytes(blob[0], "the first rank's checkpoint")
    return state


def _buckets(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    buckets: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        buckets.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(buckets.values())


def _scatter(flat: Tensor, bucket: list[Tensor]) -> None:
    for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
        tensor.copy_(part.view(tensor.shape))
