"""The method ``sgmcmc``: Markov chains over a network's weights, and the average of their draws.

Teacher: each seed is one chain on the joint of ``target``, run by the kernel of ``sampler``. The chain starts from
initial weights, from the prior or from the end of a trajectory. Its state is the state of a ``NetworkDraws``: the kept
draws, each parameter [draw, ...], and the network's spec. Student: the predictive (1/S) Σ_s p(y | x, θ^s) of the draws
of all chains (Korattikara et al. 2015, eq. 2), thinned evenly to at most ``student.max_draws``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..artifacts import State, under
from ..config import merge, read
from ..data.fitdata import FitData
from ..data.size import CONVNET, Section, Size
from ..errors import require
from ..method import Default, FromModel, Inputs, Method, ModelFit, StageSpec, Summary, Upstream
from ..networks.flat import FlatNetwork
from ..posterior import NetworkDraws, NetworkSpec
from ..progress import Phase, Report
from ..seeds import Seed
from ..training.snapshots import snapshot
from . import diagnostics
from .kernel import Positions
from .sampler import NetworkChains, SamplerConfig
from .sampling import kept_draws
from .schedules import Thinning, long_exploration
from .target import NetworkTarget, TargetConfig

REPORT_EVERY: Final = 50  # steps between reports and checkpoints; changes no result
_NOISE_BATCHES: Final = 60  # minibatches for the estimate of gradient noise
_PHASE: Final = "group-"  # first part of the name of a group's phase
_ENDED: Final = "ended."  # prefix of the finished groups' tensors in a checkpoint


@dataclass(frozen=True)
class AverageConfig:
    """The settings of the average over draws.

    Attributes:
        max_draws: the largest number of draws to keep, evenly spaced over each chain. null: all draws.
    """

    max_draws: int | None

    def __post_init__(self) -> None:
        require(self.max_draws is None or self.max_draws > 0, "max_draws", "must be > 0 or null", self.max_draws)


@dataclass(frozen=True)
class SgmcmcConfig:
    """The section ``methods.sgmcmc`` of params.yaml.

    Attributes:
        target: the posterior that the chains sample.
        sampler: the kernel and its step sizes.
        thinning: the number of steps of a chain, and which of them are kept as draws.
        diagnostics: the rows for R-hat and effective sample size, and the bounds for warnings.
        student: the average over the chains' draws.
    """

    target: TargetConfig
    sampler: SamplerConfig
    thinning: Thinning
    diagnostics: diagnostics.DiagnosticsConfig
    student: AverageConfig


def teacher(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: SgmcmcConfig, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """Run one chain for each of ``data``; chains of the same noise precision run as a batch.

    Chains resume exactly, since every random number is addressed by its step and its chain. Frozen statistics of batch
    norms are part of each draw, and such chains run one after another.

    Raises:
        ConfigError: see :meth:`TargetConfig.spec`; or the trajectory has another network.
        Diverged: a chain became NaN or infinite.
    """
    validate_sources(config, inputs[0])
    precisions = [config.target.precision(each) for each in data]
    targets = [replace(config.target, noise_precision=precision) for precision in precisions]
    if frozen := config.target.batch_norm == "frozen":  # each chain has its own network, with its own statistics
        groups = [[i] for i in range(len(data))]
    else:
        groups = [[i for i, other in enumerate(precisions) if other == p] for p in dict.fromkeys(precisions)]
    last, steps = report.load(), config.thinning.steps
    first = 0 if last is None else int(last.config["phase"].removeprefix(_PHASE))
    ended = {} if last is None else under(_ENDED, last.tensors)  # draws and noise of the chains of finished groups
    for number, members in list(enumerate(groups))[first:]:
        some, addresses = [data[i] for i in members], [rngs[i] for i in members]
        chains = NetworkChains(some, targets[members[0]], config.sampler, addresses, config.thinning.burn_in)
        starts = _starts([inputs[i] for i in members], chains.target)
        if frozen:
            chains.target.freeze(snapshot(inputs[number]["trajectory"][0], -1))
        carried = {_ENDED + name: value for name, value in ended.items()}
        draws = kept_draws(
            partial(chains.begin, starts),
            partial(chains.steps, stop=steps),
            config.thinning,
            chains.schedule,
            Phase(report, f"{_PHASE}{number}", number * steps, len(groups) * steps, carried),
            device=chains.target.device,
            every=REPORT_EVERY,
            metrics=partial(lambda target: {"log_likelihood": float(target.log_likelihood.mean())}, chains.target),
        )
        noise = torch.tensor(chains.noise_ratio(draws[-1], steps, _NOISE_BATCHES), dtype=torch.float64)
        for c, i in enumerate(members):
            ended |= {f"draws.{i}": draws[:, c].clone(), f"noise.{i}": noise.clone()}  # a file shares no memory
    states = []
    for i, each in enumerate(data):
        spec = targets[i].spec(each)
        named = FlatNetwork(spec.build(Seed(0))).named(ended[f"draws.{i}"])
        if frozen:
            count, start = len(ended[f"draws.{i}"]), snapshot(inputs[i]["trajectory"][0], -1)
            named |= {name: value.expand(count, *value.shape) for name, value in start.items() if name not in named}
        state = NetworkDraws(spec, named).state()
        mean, worst = ended[f"noise.{i}"].tolist()
        states.append(State(state.tensors, {**state.config, "noise_mean": mean, "noise_worst": worst}))
    return states


def validate_sources(config: SgmcmcConfig, sources: Mapping[Any, Any]) -> None:
    """Check that chains with frozen batch norms start at a trajectory, which has the statistics.

    Raises:
        ConfigError: they do not.
    """
    rule = "must be a trajectory: target.batch_norm is frozen"
    require(config.target.batch_norm == "refused" or bool(sources.get("trajectory")), "input", rule, "the data alone")


def _starts(inputs: Sequence[Inputs], target: NetworkTarget) -> Positions | None:
    """Return the last weights of the trajectories, [chain, weight]; None without trajectories."""
    if not inputs[0].get("trajectory"):
        return None
    starts, spec = [], target.spec
    for each in inputs:
        (trajectory,) = each["trajectory"]
        other = read(NetworkSpec, trajectory.config["spec"], "spec")
        rule = f"must be the trajectory's ({other.network})"
        require(other.network == spec.network, "target.network", rule, spec.network)
        require(
            other.likelihood == spec.likelihood,
            "input",
            f"must be a trajectory of {spec.likelihood} outputs",
            other.likelihood,
        )
        floor = other.variance_floor
        require(floor is None, "input", "must be a trajectory without variance_floor, which chains do not have", floor)
        starts.append(target.network.flat(snapshot(trajectory, -1)))
    return torch.stack(starts).to(target.device)


def student(data: FitData, inputs: Inputs, config: SgmcmcConfig, *, rng: Seed, report: Report) -> State:
    """Return the average over the draws of all chains, as one posterior."""
    state = average(inputs["teacher"], config.student.max_draws).state()
    report(1, 1)
    return state


def average(chains: Sequence[State], max_draws: int | None = None) -> NetworkDraws:
    """Return the chains' draws as one posterior of at most ``max_draws`` draws, with equally many from each chain.

    Each chain contributes its last draw and evenly spaced draws before it.
    """
    each = None if max_draws is None else max(1, max_draws // len(chains))
    weights = list[dict[str, Tensor]]()
    for state in chains[:max_draws]:
        draws = NetworkDraws.from_state(state).weights
        total = len(next(iter(draws.values())))
        count = total if each is None else min(each, total)
        index = torch.tensor([(i + 1) * total // count - 1 for i in range(count)])
        weights.append({name: w[index] for name, w in draws.items()})
    spec = read(NetworkSpec, chains[0].config["spec"], "spec")
    return NetworkDraws(spec, {name: torch.cat([w[name] for w in weights]) for name in weights[0]})


def summarise(states: Sequence[Sequence[State]], data: Sequence[FitData], config: SgmcmcConfig) -> Summary:
    """Compute R-hat and effective sample sizes of the chains' predictions, and the noise of their minibatches.

    Each metric is the worst over all splits.
    """
    splits = []
    for chains, rows in zip(states, data, strict=True):
        summary = diagnostics.of_split([NetworkDraws.from_state(s) for s in chains], rows, config.diagnostics)
        noise = {name: max(float(state.config[name]) for state in chains) for name in ("noise_mean", "noise_worst")}
        splits.append(replace(summary, metrics={**summary.metrics, **noise}))
    summary, share = diagnostics.over_splits(splits, config.diagnostics), long_exploration(config.sampler.step_size)
    rule = "all draws of a cycle begin at one point and spread by its smallest steps, so that they vary too little"
    warning = f"sgmcmc: step_size.exploration is {share:g}: {rule}; take 0"
    return replace(summary, warnings=[*summary.warnings, *[warning] * (share > 0)])


def default_chains(size: Size) -> Section:
    """Return the settings of chains whose step size follows from the number of rows and their noise.

    The prior precision was chosen on fourteen small tables: with 10 instead of 2, all eight of regression have a lower
    NLL; of classes, easy ones (iris, penguins) get a much higher NLL, so that theirs is 4.
    """
    precision = 4.0 if size.task == "classification" else 10.0
    burn_in, kept, count = size.steps(2_000), size.steps(2_000), 50
    every = max(1, kept // count)
    return {
        "target": {"network": size.network, "prior_precision": precision, "noise_precision": None, **size.noise_of},
        "sampler": {"kernel": {"name": "sgld"}, "step_size": {"name": "scaled", "rate": 0.05}, "batch": 3 * size.batch},
        "thinning": {"steps": burn_in + count * every, "burn_in": burn_in, "every": every},
    }


def _from_model(fit: ModelFit) -> Section:
    """Return the hyperparameters of chains that start at a user's model, with about 20 draws, each as large as it.

    Two chains of 20 independent draws keep the bounds: the worst R-hat of 33 independent functions was at most 1.32 in
    60 trials, and the least effective number of draws 7. They break the bounds of long chains, 1.05 and 100.
    """
    steps = max(fit.steps, fit.draws)
    burn_in = steps // 5
    changes: Section = {
        "target": {"network": fit.network, "noise_precision": fit.precision},
        "sampler": {"step_size": {"rate": fit.lr or 0.003}, "batch": fit.batch},
        "thinning": {"steps": steps, "burn_in": burn_in, "every": max(1, (steps - burn_in) // fit.draws)},
        "diagnostics": {"max_rhat": 1.4, "min_ess": 6},
    }
    return merge(SGMCMC.settings, changes)


SGMCMC = Method(
    name="sgmcmc",
    family="sgmcmc",
    bayesian=True,
    config=SgmcmcConfig,
    tasks=("classification", "regression"),
    stages={
        "teacher": StageSpec(
            fit_many=teacher,
            needs={"trajectory": "cyclic"},
            input_optional=True,
            summarise=summarise,
            validate_sources=validate_sources,
        ),
        "student": StageSpec(student, needs={"teacher": "all"}, random=False, in_driver=True),
    },
    search={
        "target.prior_precision": (0.1, 1000.0, "log"),
        "target.noise_precision": (1.0, 30.0, "log"),
    },
    settings={
        "target": {"network": CONVNET, "prior_precision": 1.0, "noise_precision": 10.0},
        "sampler": {"kernel": {"name": "sghmc"}, "step_size": {"name": "scaled", "rate": 3e-3}, "batch": 128},
        "thinning": {"steps": 940, "burn_in": 120, "every": 205},
        "diagnostics": {"rows": 32, "max_rhat": 1.05, "min_ess": 100},
        "student": {"max_draws": None},
    },
    default=Default(6.0, "sgmcmc", lambda size: {"student": {"max_draws": 100}}),
    from_model=FromModel(_from_model),
    upstream={"sgmcmc": Upstream("teacher", 3, 6.0, default_chains)},
)
