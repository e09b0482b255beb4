"""SWA: one network at the mean of its trajectory's weights.

Izmailov, Podoprikhin, Garipov, Vetrov & Wilson 2018, algorithm 1: w_SWA = (1/n) Σ w_t over the averaged iterates; the
running statistics of batch normalisation are then recomputed in a pass over training rows (section 3.2).

The mean comes from the trajectory's running moments or, if it has none, from its snapshots; both are in float64 and
rounded once. Every parameter is averaged; all other buffers come from the last snapshot. Deviation: the trajectory
(``methods.sgd``) sets the averaged iterates and their learning rate, so that other methods can share it; the paper's
cyclical rates within the averaged part are not implemented.
"""

from dataclasses import dataclass

import torch

from ..artifacts import State
from ..data.fitdata import FitData
from ..errors import require
from ..method import Default, FromModel, Inputs, Method, StageSpec
from ..posterior import NetworkDraws
from ..progress import Report
from ..seeds import Seed
from .snapshots import BATCH_NORM, BatchNormConfig, Snapshots, batch_norm


@dataclass(frozen=True)
class SwaConfig(BatchNormConfig):
    """The section ``methods.swa``: the settings of batch normalisation's statistics."""


@torch.no_grad()
def fit(data: FitData, inputs: Inputs, config: SwaConfig, *, rng: Seed, report: Report) -> State:
    """Return the network at the mean weights of the trajectory in ``inputs``.

    The data serve only to recompute batch normalisation's statistics, on the same rows for all members.

    Raises:
        ConfigError: the trajectory has neither moments nor two snapshots.
    """
    (trajectory,) = inputs["trajectory"]
    rows = Seed(rng.root).fold("swa")  # the root seed alone: the same rows for all members
    snapshots = Snapshots(trajectory, data, config, rows)
    enough, rule = (
        snapshots.moments is not None or snapshots.count > 1,
        "must be at least 2 for swa without moments",
    )
    require(enough, "methods.sgd.snapshots", rule, snapshots.count)
    mean = snapshots.flat().double().mean(0) if snapshots.moments is None else snapshots.moments[0]
    network = snapshots.state_at(mean)
    report(1, 1)
    return NetworkDraws.of(snapshots.spec, [network]).state()


SWA = Method(
    name="swa",
    family="trajectory",
    config=SwaConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit, needs={"trajectory": "one_to_one"}, random=False)},
    program=True,
    weighs_rows=True,
    settings=BATCH_NORM,
    default=Default(0.1, "iterates", suits=lambda size: size.task == "classification"),
    from_model=FromModel(batch_norm),
)
