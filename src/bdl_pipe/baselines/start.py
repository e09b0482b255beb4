"""A fit that may start where a trajectory ended."""

from collections.abc import Sequence

from torch import Tensor

from ..config import read
from ..data.fitdata import FitData
from ..errors import require
from ..learner import LearnConfig
from ..method import Inputs
from ..networks import Network, NetworkConfig
from ..posterior import NetworkSpec
from ..seeds import Seed

Weights = dict[str, Tensor]


def last_snapshot(inputs: Inputs, network: NetworkConfig, learn: LearnConfig, data: FitData) -> Weights | None:
    """The last snapshot of the one trajectory in ``inputs``, None where there is none.

    Of a head that predicts a mean and a log-variance the rows of the mean alone.

    Raises:
        ConfigError: the trajectory is of another network, or epochs are to be chosen on validation rows,
            which a trajectory of the final fit has been trained on.
    """
    if not inputs.get("trajectory"):
        return None
    (trajectory,) = inputs["trajectory"]
    spec = read(NetworkSpec, trajectory.config["spec"], "spec")
    require(spec.network == network, "network", f"must be the trajectory's ({spec.network})", network)
    rule = "must be null where a trajectory is the start: it has been trained on the validation rows"
    require(learn.choose is None, "learn.choose", rule, learn.choose)
    assert (spec.input_shape, spec.outputs) == (data.input_shape, data.outputs), "one data set"
    last = {name: snapshots[-1] for name, snapshots in trajectory.tensors.items()}
    means = {name: last[name][: spec.outputs] for name in ("head.weight", "head.bias")}
    return last | means


def begin(network: Network, start: Weights | None) -> Network:
    """``network``, with the weights of ``start`` where there is one."""
    if start is not None:
        network.load_state_dict(start)
    return network


def member_of(rng: Seed, members: Sequence[Seed]) -> int:
    """Which member's address ``rng`` lies below."""
    found = [m for m, r in enumerate(members) if r.root == rng.root and r.address == rng.address[: len(r.address)]]
    assert len(found) == 1, "members have addresses of their own"
    return found[0]
