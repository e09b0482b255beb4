"""The method ``sgld``: chains over a network's weights, and the average of their draws.

Teacher: one member is one chain of distilled SGLD's teacher (see ``sgld``) on the joint of ``joint``,
from a fresh initialisation. Its state is a posterior's (``NetworkDraws``): the kept draws, each
parameter [draw, ...], and the network's spec. Student: the predictive (1/S) Σ_s p(y | x, θ^s) of the
draws of all chains (Korattikara et al. 2015, eq. 2), thinned evenly to at most ``student.max_draws``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..artifacts import State
from ..config import LATER, read
from ..data.fitdata import FitData
from ..data.minibatches import Minibatches
from ..data.size import Section, Size
from ..errors import ConfigError, require
from ..method import Default, Inputs, Method, StageSpec, Upstream
from ..networks import NetworkConfig
from ..posterior import Likelihood, NetworkDraws, NetworkSpec
from ..progress import Report
from ..seeds import Seed
from . import diagnostics
from .joint import NetworkJoint, factorises
from .sgld import ScaledStep, StepSize, Thinning, chain

_LINEAR_ROWS: Final = 1_000_000  # that a linear model is fitted to
_MOST_PRECISE: Final = 100.0  # λ_n: of targets that are a linear function of the inputs
REPORT_EVERY = 50  # steps; progress and checkpoints, which change no result


@dataclass(frozen=True)
class TargetConfig:
    """The settings of a chain: the posterior that is sampled, and the kernel that samples it.

    Attributes:
        network: the teacher's architecture; no norm that ties the rows of a batch together.
        prior_precision: λ of the prior N(0, I/λ) over all weights and biases.
        noise_precision: λ_n of regression targets in standardised units; not used for classes. Null: the inverse of the
            variance that a linear model leaves of the training targets (scikit-learn's ``BayesianRidge``), at most 100.
        step_size: η_t, the variance of the noise of step t; ``scaled``: over the rows and λ_n.
        batch: M, rows of a minibatch; N or more: all rows.
        temperature: T of the posterior^(1/T) that is sampled; 1 is the posterior.
    """

    network: NetworkConfig
    prior_precision: float
    noise_precision: float | None
    step_size: StepSize | ScaledStep
    batch: int
    temperature: float = field(default=1.0, metadata=LATER)

    def __post_init__(self) -> None:
        require(self.prior_precision > 0, "prior_precision", "must be > 0", self.prior_precision)
        positive = self.noise_precision is None or self.noise_precision > 0
        require(positive, "noise_precision", "must be > 0 or null", self.noise_precision)
        require(self.batch > 0, "batch", "must be > 0", self.batch)
        require(self.temperature > 0, "temperature", "must be > 0", self.temperature)


@dataclass(frozen=True)
class AverageConfig:
    """The settings of the average over draws.

    ``max_draws``: how many draws the average keeps, evenly spaced over each chain; null: all.
    """

    max_draws: int | None

    def __post_init__(self) -> None:
        require(self.max_draws is None or self.max_draws > 0, "max_draws", "must be > 0 or null", self.max_draws)


@dataclass(frozen=True)
class SgldConfig:
    """The section ``methods.sgld`` of params.yaml.

    Attributes:
        target: the posterior and the kernel.
        thinning: steps of a chain, of which ``burn_in`` are dropped and every ``every``-th after kept.
        diagnostics: what R-hat and effective sample size are computed from, and when they warn.
        student: the average over the chains' draws.
    """

    target: TargetConfig
    thinning: Thinning
    diagnostics: diagnostics.DiagnosticsConfig
    student: AverageConfig


def noise_precision(data: FitData, target: TargetConfig) -> float:
    """Return λ_n, found from the training rows where it is null; 1 for classes, where it is."""
    if target.noise_precision is not None:
        return target.noise_precision
    return 1.0 if data.task == "classification" else _linear_precision(data)


def step_sizes(data: FitData, target: TargetConfig) -> StepSize:
    """Return the schedule of step sizes, in which the number of rows is accounted for."""
    if not isinstance(target.step_size, ScaledStep):
        return target.step_size
    precision = 1.0 if data.task == "classification" else noise_precision(data, target)
    return target.step_size.settle(len(data.train), precision)


def _linear_precision(data: FitData) -> float:
    """Return the inverse of the variance that linear models leave of the training targets, of all outputs' mean.

    Of many rows the first are enough: they are in random order.
    """
    from sklearn.linear_model import BayesianRidge

    rows, targets = (tensor.cpu().double().numpy() for tensor in data.rows("train").slice(0, _LINEAR_ROWS))
    left = [1 / BayesianRidge().fit(rows, column).alpha_ for column in targets.T]
    return min(float(len(left) / sum(left)), _MOST_PRECISE)


def teacher_spec(data: FitData, target: TargetConfig) -> NetworkSpec:
    """Return the network whose weights are sampled.

    Raises:
        ConfigError: its norm makes a row's likelihood depend on its batch, or it has dropout.
    """
    likelihood: Likelihood = "categorical" if data.task == "classification" else "gaussian"
    spec = NetworkSpec(target.network, data.input_shape, data.outputs, likelihood, 1 / noise_precision(data, target))
    network = spec.build(Seed(0))
    dropout = max((module.p for module in network.modules() if isinstance(module, nn.Dropout)), default=0.0)
    require(dropout == 0, "target.network.dropout", "must be 0: the likelihood has no masks", dropout)
    if not factorises(network):
        key = "norm" if hasattr(target.network, "norm") else "name"
        rule = "must be instance, group or none" if key == "norm" else "must be of a network without batch norm"
        raise ConfigError(f"target.network.{key}", f"{rule}: the likelihood is one of rows")
    return spec


def teacher(data: FitData, inputs: Inputs, config: SgldConfig, *, rng: Seed, report: Report) -> State:
    """Run one chain, which resumes exactly: every random number is addressed by its step."""
    spec, total = teacher_spec(data, config.target), config.thinning.steps
    target, rows, sizes = config.target, data.rows("train", data.device), step_sizes(data, config.target)
    joint = NetworkJoint(spec, rows, target.prior_precision, rng.fold("start"), target.temperature)
    draws = joint.start.new_zeros(config.thinning.count, len(joint.start))
    start, position, kept = _resume(report, joint.start, draws)
    batches = Minibatches(len(data.train), config.target.batch, rng, data.device)
    for done, theta in chain(position, joint.gradient, batches, sizes, rng, start, total):
        if config.thinning.keeps(done):
            draws[kept] = theta["flat"]
            kept += 1
        if done % REPORT_EVERY == 0 or done == total:
            report(done, total, {"log_likelihood": joint.batch_log_likelihood})
            if report.due():
                report.save(State({"position": theta["flat"], "draws": draws[:kept]}, {"step": done}))
    return NetworkDraws(spec, joint.network.named(draws)).state()


def _resume(report: Report, start: Tensor, draws: Tensor) -> tuple[int, dict[str, Tensor], int]:
    """Return (steps done, position, draws kept) of the last checkpoint, its draws copied into ``draws``."""
    last = report.load()
    if last is None:
        return 0, {"flat": start}, 0
    kept = len(last.tensors["draws"])
    draws[:kept] = last.tensors["draws"].to(draws)
    return int(last.config["step"]), {"flat": last.tensors["position"].to(draws)}, kept


def student(data: FitData, inputs: Inputs, config: SgldConfig, *, rng: Seed, report: Report) -> State:
    """Return the SGLD average: draws of all chains in one posterior."""
    state = average(inputs["teacher"], config.student.max_draws).state()
    report(1, 1)
    return state


def average(chains: Sequence[State], max_draws: int | None = None) -> NetworkDraws:
    """Return all chains' draws as one posterior, at most ``max_draws``: as many of each chain as divides evenly.

    Of each chain the last draw is kept and those at even distances before it.
    """
    each = None if max_draws is None else max(1, max_draws // len(chains))
    weights = [_thin(NetworkDraws.from_state(state).weights, each) for state in chains[:max_draws]]
    spec = read(NetworkSpec, chains[0].config["spec"], "spec")
    return NetworkDraws(spec, {name: torch.cat([w[name] for w in weights]) for name in weights[0]})


def _thin(weights: dict[str, Tensor], count: int | None) -> dict[str, Tensor]:
    total = len(next(iter(weights.values())))
    count = total if count is None else min(count, total)
    index = torch.tensor([(i + 1) * total // count - 1 for i in range(count)])
    return {name: w[index] for name, w in weights.items()}


def summarise(states: list[State], data: FitData, config: Any) -> tuple[dict[str, float], list[str]]:
    """Compute R-hat and effective sample size of what the chains predict."""
    return diagnostics.summarise([NetworkDraws.from_state(s) for s in states], data, config.diagnostics)


def default_chains(size: Size) -> Section:
    """Return chains with a step that follows from the rows and their noise."""
    burn_in, kept, count = size.steps(2_000), size.steps(2_000), 50
    every = max(1, kept // count)
    return {
        "target": {
            "network": size.network,
            "prior_precision": 2.0,
            "noise_precision": None,
            "step_size": {"name": "scaled", "value": 0.1},
            "batch": 3 * size.batch,
        },
        "thinning": {"steps": burn_in + count * every, "burn_in": burn_in, "every": every},
    }


SGLD = Method(
    name="sgld",
    config=SgldConfig,
    tasks=("classification", "regression"),
    stages={
        "teacher": StageSpec(teacher, summarise=summarise),
        "student": StageSpec(student, needs={"teacher": "all"}, in_driver=True),
    },
    search={
        "target.prior_precision": (0.1, 1000.0, "log"),
        "target.noise_precision": (1.0, 30.0, "log"),
    },
    default=Default(6.0, "sgld", lambda size: {"student": {"max_draws": 100}}),
    upstream={"sgld": Upstream("teacher", 3, 6.0, default_chains)},
)
