"""Estimate how long a comparison takes: time plain steps on this machine, and scale them by each method's cost."""

import time
from collections.abc import Sequence
from typing import Final

from .defaults import METHODS, UPSTREAM, upstream_of
from .size import Size

_TIMED: Final = 40  # steps
_PER_STAGE: Final = 3.0  # seconds to start a stage, read its data and write its result


def estimate(size: Size, chosen: Sequence[str]) -> float:
    """Return the seconds of all chosen methods together, on this machine."""
    upstream = upstream_of(chosen, size)
    cost = sum(UPSTREAM[name].cost for name in upstream) + sum(METHODS[method].cost for method in chosen)
    stages = len(upstream) + 2 * len(chosen)  # Each chosen method is fitted and evaluated.
    return cost * size.steps(2_000) * step_seconds(size) * size.splits + _PER_STAGE * stages


def step_seconds(size: Size) -> float:
    """Time a step of the network that all methods have: forward, backward and AdamW's update."""
    import torch

    from bdl_pipe import networks
    from bdl_pipe.config import variant
    from bdl_pipe.seeds import Seed

    shape = size.image or (size.width,)
    kinds = {name: entry.config for name, entry in networks.NETWORKS.items()}
    network = networks.build(variant(kinds, size.network, "network"), shape, 2, rng=Seed(0))
    optimiser, rows = torch.optim.AdamW(network.parameters()), torch.randn(size.batch, *shape)
    start = 0.0
    for step in range(_TIMED + 5):
        if step == 5:
            start = time.perf_counter()
        optimiser.zero_grad()
        network(rows).square().mean().backward()
        optimiser.step()
    return (time.perf_counter() - start) / _TIMED
