"""SWA: one network at the mean of its trajectory's weights.

Izmailov, Podoprikhin, Garipov, Vetrov & Wilson 2018, algorithm 1: w_SWA = (1/n) Σ w_t over the iterates that counted,
the running statistics of batch normalisation then recomputed in a pass over training rows (section 3.2).

The mean is that of the trajectory's running moments, or, where none were kept, of its snapshots; both in float64, so
that it is rounded once. Every parameter is averaged; all other buffers are the last snapshot's. Deviation: which
iterates count, and their rate, are the trajectory's to say (``methods.sgd``), so that other methods share them; the
paper's cycles within the averaged part are not built.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..artifacts import State
from ..data.fitdata import FitData
from ..errors import require
from ..method import Default, Inputs, Method, StageSpec
from ..posterior import NetworkDraws
from ..progress import Report
from ..seeds import Seed
from .snapshots import BatchNormConfig, Snapshots


@dataclass(frozen=True)
class SwaConfig(BatchNormConfig):
    """The section ``methods.swa``, which leaves nothing more to choose."""


@torch.no_grad()
def fit(data: FitData, inputs: Inputs, config: SwaConfig, *, rng: Seed, report: Report) -> State:
    """Return the mean of the one trajectory in ``inputs``.

    Data only refresh batch normalisation, with one choice of rows.

    Raises:
        ConfigError: the trajectory has neither moments nor two snapshots.
    """
    (trajectory,) = inputs["trajectory"]
    rows = Seed(rng.root).fold("swa")  # the root's alone: members differ by their trajectories, not by these rows
    snapshots = Snapshots(trajectory, data, config, rows)
    made = snapshots.state_at(_mean(snapshots))
    report(1, 1)
    return NetworkDraws.of(snapshots.spec, [made]).state()


def _mean(snapshots: Snapshots) -> Tensor:
    """Return the mean of the parameters [weight], in float64."""
    if snapshots.moments is not None:
        return snapshots.moments[0]
    rule = "must leave two or more snapshots for swa, where there are no moments"
    require(len(snapshots.flat) > 1, "methods.sgd.keep", rule, len(snapshots.flat))
    return snapshots.flat.double().mean(0)


SWA = Method(
    name="swa",
    config=SwaConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit, needs={"trajectory": "one_to_one"})},
    default=Default(0.1, "iterates", suits=lambda size: size.task == "classification"),
)
