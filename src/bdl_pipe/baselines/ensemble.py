"""A deep ensemble: p(y | x, D) ≈ (1/S) Σ_s p(y | f(x; w_s)) over independently trained networks.

Lakshminarayanan, Pritzel & Blundell 2017, section 2.4, without their adversarial training. For regression the
predictive is the mixture of Gaussians; the paper uses one Gaussian with the mixture's moments.
"""

from dataclasses import dataclass

from ..artifacts import State
from ..config import read
from ..data.fitdata import FitData
from ..errors import require
from ..method import Default, Inputs, Method, StageSpec
from ..posterior import NetworkDraws, NetworkSpec
from ..progress import Report
from ..seeds import Seed
from ..training.snapshots import snapshot


@dataclass(frozen=True)
class EnsembleConfig:
    """The section ``methods.ensemble``, which has no keys: the members are seeds of the trajectory."""


def fit(data: FitData, inputs: Inputs, config: EnsembleConfig, *, rng: Seed, report: Report) -> State:
    """Return the last snapshots of all trajectories in ``inputs``; ``data`` and ``rng`` are not used.

    Raises:
        ConfigError: the trajectories have different networks.
    """
    members = inputs["trajectory"]
    specs = [read(NetworkSpec, member.config["spec"], "spec") for member in members]
    require(all(s == specs[0] for s in specs), "ensemble", "must be made of trajectories of one network")
    last = [snapshot(member, -1) for member in members]
    state = NetworkDraws.of(specs[0], last).state()
    report(1, 1)
    return state


ENSEMBLE = Method(
    name="ensemble",
    config=EnsembleConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit, needs={"trajectory": "all"}, random=False, in_driver=True)},
    program=True,
    weighs_rows=True,
    default=Default(
        0.1,
        "sgd",
        automatic=lambda size: (
            "on images its NLL is below one network's on two processors" if size.image is not None else ""
        ),
    ),
)
