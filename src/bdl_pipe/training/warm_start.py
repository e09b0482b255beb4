"""Fits that may start from the end of a trajectory."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from ..config import read
from ..data.fitdata import FitData
from ..errors import require
from ..method import Inputs
from ..networks import Network, NetworkConfig
from ..posterior import NetworkSpec
from ..progress import Report
from ..seeds import Seed
from .fit import fit_epochs
from .learner import FitResult, Learner, TrainingConfig
from .snapshots import snapshot

Weights = dict[str, Tensor]


def fit_from(
    build: Callable[[Weights | None, FitData, Seed], Learner],
    data: Sequence[FitData],
    inputs: Sequence[Inputs],
    network: NetworkConfig,
    config: TrainingConfig,
    *,
    rngs: Sequence[Seed],
    report: Report,
) -> list[FitResult]:
    """Run ``fit_epochs``; each seed starts from the last snapshot of its trajectory, if it has one.

    Args:
        build: makes a member's learner from (initial weights or None, data, seed).
        inputs: the inputs of each member, with at most one ``trajectory``.
        network: the network of the learners, which must equal the network of the trajectories.

    Raises:
        ConfigError: the trajectory has another network; or early stopping is set, although the trajectory was trained
            on the validation rows.
        Diverged: a loss became NaN or infinite.
    """
    starts = [last_snapshot(i, network, config, d) for d, i in zip(data, inputs, strict=True)]
    return fit_epochs([partial(build, start) for start in starts], data, config, rngs=rngs, report=report)


def last_snapshot(inputs: Inputs, network: NetworkConfig, training: TrainingConfig, data: FitData) -> Weights | None:
    """Return the last snapshot of the trajectory in ``inputs``; None if there is no trajectory.

    If the head predicts means and log-variances, only the rows of the means are returned.

    Raises:
        ConfigError: see :func:`fit_from`.
    """
    trained = last_network(inputs, network, training, data, "training.early_stopping")
    if trained is None:
        return None
    spec, last = trained
    means = {name: last[name][: spec.outputs] for name in ("head.weight", "head.bias")}
    return last | means


def last_network(
    inputs: Inputs, network: NetworkConfig, training: TrainingConfig, data: FitData, key: str
) -> tuple[NetworkSpec, Weights] | None:
    """Return :func:`last_snapshot` with the whole head, and the network's spec.

    ``key`` is the config key of ``early_stopping``, for errors.

    Raises:
        ConfigError: see :func:`fit_from`.
    """
    if not inputs.get("trajectory"):
        return None
    (trajectory,) = inputs["trajectory"]
    spec = read(NetworkSpec, trajectory.config["spec"], "spec")
    require(spec.network == network, "network", f"must be the trajectory's ({spec.network})", network)
    rule = "must be null with a trajectory as input, which was trained on the validation rows"
    require(training.early_stopping is None, key, rule, training.early_stopping)
    assert (spec.input_shape, spec.outputs) == (data.input_shape, data.outputs), "one data set"
    return spec, snapshot(trajectory, -1)


def begin(network: Network, start: Weights | None) -> Network:
    """Return ``network``, with the weights ``start`` if they are given."""
    if start is not None:
        network.load_state_dict(start)
    return network
