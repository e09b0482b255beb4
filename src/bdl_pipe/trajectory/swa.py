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

from ..artifacts import State
from ..config import read
from ..data.fitdata import FitData
from ..errors import require
from ..iterates import moments, snapshots
from ..method import Inputs, Method, Room
from ..networks.normalisation import refresh_batch_norm
from ..posterior import NetworkDraws, NetworkSpec
from ..progress import Report
from ..seeds import Seed
from .weights import flat, named, parameter_names, statistics_rows


@dataclass(frozen=True)
class SwaConfig:
    """``methods.swa``.

    Attributes:
        batch_norm_rows: training rows that refresh running statistics, where the network has them; null: all.
        batch_norm_batch: rows in one batch of that pass, about what the network was trained with.
    """

    batch_norm_rows: int | None
    batch_norm_batch: int

    def __post_init__(self) -> None:
        rows = self.batch_norm_rows is None or self.batch_norm_rows > 1
        require(rows, "batch_norm_rows", "must be > 1 or null", self.batch_norm_rows)
        require(self.batch_norm_batch > 1, "batch_norm_batch", "must be > 1", self.batch_norm_batch)


@torch.no_grad()
def fit(data: FitData, inputs: Inputs, config: SwaConfig, *, rng: Seed, report: Report) -> State:
    """The mean of the one trajectory in ``inputs``; data only refresh batch normalisation, in an order of one address.

    Raises:
        ConfigError: the trajectory has neither moments nor two snapshots.
    """
    (trajectory,) = inputs["trajectory"]
    spec = read(NetworkSpec, trajectory.config["spec"], "spec")
    network = spec.build(Seed(0)).to(data.device)
    last = {name: past[-1] for name, past in snapshots(trajectory).items()}
    network.load_state_dict(last | _mean(trajectory, parameter_names(network), last))
    rows = statistics_rows(network, data, config.batch_norm_rows, Seed(0).fold("swa"))
    refresh_batch_norm(network, rows, config.batch_norm_batch)
    report(1, 1)
    return NetworkDraws.of(spec, [{k: v.detach().cpu() for k, v in network.state_dict().items()}]).state()


def _mean(trajectory: State, names: list[str], last: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters' mean, in the shapes and types of ``last``."""
    kept, past = moments(trajectory), snapshots(trajectory)
    if kept is not None:
        return {name: kept[0][name].to(last[name]) for name in names}
    weights = flat(past, names)
    rule = "must leave two or more snapshots for swa, where there are no moments"
    require(len(weights) > 1, "methods.sgd.keep", rule, len(weights))
    return named(weights.double().mean(0), names, last)


SWA = Method(
    name="swa",
    config=SwaConfig,
    tasks=("classification", "regression"),
    rooms={"student": Room(fit, needs=("trajectory",), takes="each")},
)
