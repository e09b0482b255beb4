"""Evaluation mode, and the recomputation of running statistics for weights that were not trained."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

BatchNorm = nn.modules.batchnorm._BatchNorm  # torch has no public name for the base class of its batch norms


def has_batch_norm(network: nn.Module) -> bool:
    """Return whether any layer has running statistics."""
    return any(isinstance(m, BatchNorm) and m.track_running_stats for m in network.modules())


@contextmanager
def evaluation(module: nn.Module, *, batch_statistics: bool = False) -> Iterator[None]:
    """Put ``module`` in evaluation mode inside the block; each submodule's own mode is restored afterwards.

    With ``batch_statistics``, batch normalisation is in training mode: it normalises each batch by its own statistics
    and updates its running statistics. Dropout stays off.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    for part, _ in modes:
        if batch_statistics and isinstance(part, BatchNorm):
            part.train()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@torch.no_grad()
def refresh_batch_norm(network: nn.Module, inputs: Float[Tensor, "row ..."], batch: int) -> None:
    """Set running statistics, in place, to their averages over one pass; the network's mode is kept.

    Batches are weighted by their numbers of rows (which differ by at most 1). So a running mean is the mean over rows,
    and a running variance is the mean of the batches' unbiased variances. Layers see the same inputs as in training,
    except that dropout is off, as in prediction.
    """
    layers = [m for m in network.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
    seen = 0
    with evaluation(network, batch_statistics=True):
        for part in inputs.tensor_split(-(-len(inputs) // batch)):
            seen += len(part)
            for layer in layers:
                layer.momentum = len(part) / seen
            network(part)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
