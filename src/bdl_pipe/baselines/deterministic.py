"""One network at the end of its trajectory: p(y | x, D) ≈ p(y | f(x; w)), a posterior of one draw."""

from dataclasses import dataclass

from ..artifacts import State
from ..config import read
from ..data.fitdata import FitData
from ..method import Default, FromModel, Inputs, Method, StageSpec
from ..posterior import NetworkDraws, NetworkSpec
from ..progress import Report
from ..seeds import Seed
from ..training.snapshots import snapshot


@dataclass(frozen=True)
class DeterministicConfig:
    """The section ``methods.deterministic``, which has no keys: the trajectory's config has all settings."""


def fit(data: FitData, inputs: Inputs, config: DeterministicConfig, *, rng: Seed, report: Report) -> State:
    """Return the last snapshot of the trajectory in ``inputs``; ``data`` and ``rng`` are not used."""
    (trajectory,) = inputs["trajectory"]
    spec = read(NetworkSpec, trajectory.config["spec"], "spec")
    state = NetworkDraws.of(spec, [snapshot(trajectory, -1)]).state()
    report(1, 1)
    return state


DETERMINISTIC = Method(
    name="deterministic",
    config=DeterministicConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit, needs={"trajectory": "one_to_one"}, random=False, in_driver=True)},
    program=True,
    weighs_rows=True,
    default=Default(0.1, "sgd"),
    from_model=FromModel(needs_epochs=False),
)
