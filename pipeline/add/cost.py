"""About how long a comparison takes: plain steps are timed here, and what else a method does was measured."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from .numbers import Size, needed

# seconds of a method over those of a plain network's 2,000 steps (which 3 networks of `sgd` take 3 times), measured
SHARES: Final[Mapping[str, float]] = {
    "sgd": 3.0, "iterates": 0.5, "sgld": 6.0, "dark_knowledge": 2.0, "vbll": 1.6, "d_vbll": 1.6, "g_vbll": 2.0,
    "sngp": 1.6, "map_blr": 1.0, "gp": 3.0, "svgp": 12.0, "ffg_u": 6.0, "ensemble_u": 8.0, "ffg_w": 3.0, "bnn": 3.0,
    "dropout": 1.5, "deterministic": 0.1, "ensemble": 0.1, "swa": 0.1, "swag": 0.2, "pca_ess": 1.0, "pca_vi": 0.5,
    "kfac_laplace": 0.5, "vbpc": 4.0, "random_coreset": 0.2, "ciber": 0.3, "ciber_last": 0.5, "ciber_second": 0.5,
}  # fmt: skip
_TIMED: Final = 40
_PER_STAGE: Final = 3.0  # seconds: a process, its data, its result


def estimate(size: Size, chosen: Sequence[str]) -> float:
    """Return the seconds of all methods together, on this machine."""
    rows = [*needed(chosen, size), *chosen]
    work = sum(SHARES[row] for row in rows) * size.steps(2_000) * step_seconds(size) * size.splits
    return work + _PER_STAGE * (len(rows) + len(chosen))


def step_seconds(size: Size) -> float:
    """Time a plain step of the network that all methods have: forward, backward and AdamW's update."""
    import torch

    from bdl_pipe import networks
    from bdl_pipe.config import variant
    from bdl_pipe.seeds import Seed

    shape = size.image or (size.width,)
    kinds = {name: entry.config for name, entry in networks.NETWORKS.items()}
    network = networks.build(variant(kinds, size.network, "network"), shape, 2, rng=Seed(0))
    optimiser, rows = torch.optim.AdamW(network.parameters()), torch.randn(size.batch, *shape)
    began = 0.0
    for step in range(_TIMED + 5):
        if step == 5:
            began = time.perf_counter()
        optimiser.zero_grad()
        network(rows).square().mean().backward()
        optimiser.step()
    return (time.perf_counter() - began) / _TIMED
