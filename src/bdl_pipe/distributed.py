"""Data-parallel training: several processes share each batch and average their gradients.

The caller starts the processes and their ``torch.distributed`` group; without a group the functions here do nothing.
Every rank holds the same parameters and seed addresses, takes its own share of the rows, and makes the same update from
the mean of the shares' gradients. Up to rounding, one process with the whole batch would make this update, too. Batch
norm is the exception, as in torch's DistributedDataParallel: each rank normalises by its own share.
"""

import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

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


def averaging(module: nn.Module) -> nn.Module:
    """Wrap a module so that a backward pass through its output averages its gradients over ranks.

    The wrapper is torch's DistributedDataParallel, which exchanges gradients during the backward pass
    (``benchmarks/data_parallel.py`` compares it with an exchange after this pass). Buffers stay apart until
    :func:`broadcast_buffers`. Without a group the module is returned.
    """
    if world()[1] == 1:
        return module
    # Otherwise DDP moves gradients to other places of its buckets after the first step. With three or more ranks the
    # order of a sum depends on this place, so that a fit that continues from a checkpoint would have other bits.
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # torch 2.13's new name is not in 2.11
        return DistributedDataParallel(module, broadcast_buffers=False, find_unused_parameters=True)


@torch.no_grad()
def mean(value: Tensor) -> Tensor:
    """Return the mean over ranks of a tensor without graph."""
    _, size = world()
    if size == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / size


def rank0_says(value: bool) -> bool:
    """Return rank 0's ``value`` on every rank, because the ranks' clocks differ."""
    if world()[1] == 1:
        return value
    said = torch.tensor([value], dtype=torch.uint8, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.broadcast(said, src=0)
    return bool(said)


@torch.no_grad()
def broadcast_buffers(module: nn.Module) -> None:
    """Copy the buffers of rank 0 (batch norm's running statistics) to every rank."""
    if world()[1] == 1:
        return
    buckets: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for buffer in module.buffers():
        buckets.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    for bucket in buckets.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in bucket])
        dist.broadcast(flat, src=0)
        for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
            tensor.copy_(part.view(tensor.shape))


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
