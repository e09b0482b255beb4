"""The methods that suit a data set's size, the runs that they are made from, and how long all of them take.

Every registered method with a ``default`` is offered, a plugin's as well.
"""

import time
from collections.abc import Iterable
from typing import Final

import torch

from . import networks
from .config import variant
from .data.size import Size
from .errors import require
from .method import Default, Method, Upstream
from .registry import METHODS
from .seeds import Seed

_BLOCKS, _TIMED = 8, 5  # blocks of steps that are timed, and the steps of each
_PER_STAGE: Final = 3.0  # seconds to start a stage, read its data and write its result


def offered(size: Size) -> list[Method]:
    """List the methods that can predict the task, and are affordable and defined at the size."""
    return [m for m, default in defaults(METHODS.values()) if size.task in m.tasks and default.suits(size)]


def defaults(methods: Iterable[Method]) -> list[tuple[Method, Default]]:
    """List the methods that have a default, each with it."""
    return [(method, method.default) for method in methods if method.default is not None]


def upstream(methods: Iterable[Method], size: Size) -> dict[str, tuple[Method, Upstream]]:
    """Return the runs that runs of ``methods`` are made from: key -> (method, run), in the methods' order.

    Raises:
        ConfigError: a default names a key that no method's ``upstream`` has.
    """
    known = {key: (method, run) for method in METHODS.values() for key, run in method.upstream.items()}
    keys = {default.upstream for _, default in defaults(methods)} - {""}
    for key in keys:
        require(key in known, "default.upstream", f"must be one of {', '.join(known)}", key)
    keys |= {known[key][1].start(size) for key in keys} - {""}
    return {key: run for key, run in known.items() if key in keys}


def seconds(methods: Iterable[Method], size: Size) -> float:
    """Return the seconds of a comparison of ``methods`` on this machine, by the time of plain steps and their costs."""
    chosen = defaults(methods)
    above = upstream([method for method, _ in chosen], size)
    cost = sum(run.cost for _, run in above.values()) + sum(default.cost for _, default in chosen)
    stages = len(above) + 2 * len(chosen)  # Each chosen method is fitted and evaluated.
    return cost * size.steps(2_000) * step_seconds(size) * size.splits + _PER_STAGE * stages


def step_seconds(size: Size) -> float:
    """Time a step of the network that all methods have: forward, backward and AdamW's update.

    It is that of the fastest of several blocks on one thread, as a fit has: other work on the machine while it is timed
    does not shorten the fits.
    """
    shape = size.image or (size.width,)
    kinds = {name: entry.config for name, entry in networks.NETWORKS.items()}
    network = networks.build(variant(kinds, size.network, "network"), shape, 2, rng=Seed(0))
    optimiser, rows = torch.optim.AdamW(network.parameters()), torch.randn(size.batch, *shape)
    threads, blocks = torch.get_num_threads(), list[float]()
    torch.set_num_threads(1)
    try:
        for _ in range(_BLOCKS):
            start = time.perf_counter()
            for _ in range(_TIMED):
                optimiser.zero_grad()
                network(rows).square().mean().backward()
                optimiser.step()
            blocks.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return min(blocks) / _TIMED
