"""Running statistics of batch normalisation, computed anew for weights that were not those of training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

_NORMS = nn.modules.batchnorm._BatchNorm


def has_batch_norm(network: nn.Module) -> bool:
    """Say whether any layer has running statistics."""
    return any(isinstance(m, _NORMS) and m.track_running_stats for m in network.modules())


@contextmanager
def by_batch_statistics(network: nn.Module) -> Iterator[None]:
    """Inside, batch normalisation alone is in its training mode: each batch by its own statistics, no dropout.

    Running statistics follow, as in training; all modules come out in the mode of the network.
    """
    training = network.training
    network.eval()
    for layer in (m for m in network.modules() if isinstance(m, _NORMS)):
        layer.train()
    try:
        yield
    finally:
        network.train(training)


@torch.no_grad()
def refresh_batch_norm(network: nn.Module, inputs: Float[Tensor, "row ..."], batch: int) -> None:
    """Set running statistics, in place, to their averages over one pass; the network's mode is left as it was.

    Each batch weighs as many rows as it has (their sizes differ by at most 1), so a running mean is the mean of the
    rows, and a running variance that of the batches' unbiased variances, each layer seeing what training shows it, but
    for dropout, which is off as it is in prediction.
    """
    layers = [m for m in network.modules() if isinstance(m, _NORMS) and m.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
    seen = 0
    with by_batch_statistics(network):
        for part in inputs.tensor_split(-(-len(inputs) // batch)):
            seen += len(part)
            for layer in layers:
                layer.momentum = len(part) / seen
            network(part)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
