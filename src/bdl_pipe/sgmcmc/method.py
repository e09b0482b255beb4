"""The method ``sgmcmc``: Markov chains over a network's weights, and the average of their draws.

Teacher: each seed is one chain on the joint of ``target``, run by the kernel of ``sampler``. The chain starts from
initial weights, from the prior or from the end of a trajectory. Its state is the state of a ``NetworkDraws``: the kept
draws, each parameter [draw, ...], and the network's spec. Student: the predictive (1/S) Σ_s p(y | x, θ^s) of the draws
of all chains (Korattikara et al. 2015, eq. 2), thinned evenly to at most ``student.max_draws``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..artifacts import State, under
from ..config import LATER, merge, read
from ..data.fitdata import FitData
from ..data.size import CONVNET, Section, Size
from ..errors import ConfigError, require
from ..method import Default, FromModel, Inputs, Method, ModelFit, StageSpec, Summary, Upstream
from ..networks import NetworkConfig
from ..networks.flat import FlatNetwork
from ..posterior import Likelihood, NetworkDraws, NetworkSpec
from ..progress import Report
from ..seeds import Seed
from ..training.likelihood import NoiseOf
from ..training.snapshots import snapshot
from . import diagnostics
from .kernel import Positions
from .sampler import NetworkChains, SamplerConfig
from .sampling import acceptance, kept_steps
from .schedules import LONG_EXPLORATION, CyclicalSteps, ScaledSteps, StepSizes, Thinning
from .target import NetworkTarget, factorises

_LINEAR_ROWS: Final = 1_000_000  # the most rows for the linear model
_TREE_ROWS: Final = 20_000  # the most rows for the trees: some seconds
_MOST_PRECISE: Final = 100.0  # the largest λ_n, for targets that are a linear function of the inputs
REPORT_EVERY: Final = 50  # steps between reports and checkpoints; changes no result
_NOISE_BATCHES: Final = 60  # minibatches for the estimate of gradient noise


@dataclass(frozen=True)
class TargetConfig:
    """The settings of a posterior over a network's weights.

    Attributes:
        network: the teacher's architecture; its norm must not make rows of a batch depend on each other.
        prior_precision: λ of the prior N(0, I/λ) over all weights and biases.
        noise_precision: λ_n of regression targets in standardised units; not used for classes. null: the inverse of the
            residual variance of the training targets, at most 100. The residuals come from a linear model
            (scikit-learn's ``BayesianRidge``) or, if these are smaller, from boosted trees on rows left out of their
            fit (``HistGradientBoostingRegressor``, three folds of at most 20,000 rows).
        noise: of regression: ``one`` variance 1/λ_n, or exp(g(x))/λ_n for ``each input``, where g is an output of the
            network.
    """

    network: NetworkConfig
    prior_precision: float
    noise_precision: float | None
    noise: NoiseOf = field(default="one", metadata=LATER)

    def __post_init__(self) -> None:
        require(self.prior_precision > 0, "prior_precision", "must be > 0", self.prior_precision)
        positive = self.noise_precision is None or self.noise_precision > 0
        require(positive, "noise_precision", "must be > 0 or null", self.noise_precision)

    def spec(self, data: FitData) -> NetworkSpec:
        """Return the network whose weights are sampled.

        Raises:
            ConfigError: the network's norm makes a row's likelihood depend on its batch, the network has dropout, or
                each input has its own noise and the rows are of classes.
        """
        classes, each_input = data.task == "classification", self.noise == "each input"
        require(not (classes and each_input), "target.noise", "must be one: classes have no noise", self.noise)
        likelihood: Likelihood = "categorical" if classes else "gaussian_head" if each_input else "gaussian"
        spec = NetworkSpec(self.network, data.input_shape, data.outputs, likelihood, 1 / self.precision(data))
        network = spec.build(Seed(0))
        dropout = max((module.p for module in network.modules() if isinstance(module, nn.Dropout)), default=0.0)
        require(dropout == 0, "target.network.dropout", "must be 0: the likelihood has no masks", dropout)
        if not factorises(network):
            key = "norm" if hasattr(self.network, "norm") else "name"
            rule = "must be instance, group or none" if key == "norm" else "must be of a network without batch norm"
            raise ConfigError(f"target.network.{key}", f"{rule}: the likelihood of a row must not depend on its batch")
        return spec

    def precision(self, data: FitData) -> float:
        """Return λ_n, estimated from the training rows if it is null; 1 for classes."""
        if data.task == "classification":
            return 1.0
        return _residual_precision(data) if self.noise_precision is None else self.noise_precision


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


def _residual_precision(data: FitData) -> float:
    """Return the inverse of the residual variance of the training targets, averaged over outputs.

    A linear model and boosted trees are tried for each output, and the smaller variance counts. The first rows are
    enough, because the rows are in random order.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import BayesianRidge
    from sklearn.model_selection import cross_val_predict

    rows, targets = (tensor.cpu().double().numpy() for tensor in data.rows("train").slice(0, _LINEAR_ROWS))
    left = list[float]()
    for column in targets.T:
        some = slice(min(len(rows), _TREE_ROWS))
        trees = HistGradientBoostingRegressor(early_stopping=False, random_state=0)
        missed = column[some] - cross_val_predict(trees, rows[some], column[some], cv=3)
        left.append(min(float(1 / BayesianRidge().fit(rows, column).alpha_), float((missed**2).mean())))
    return min(len(left) / sum(left), _MOST_PRECISE)


def network_chains(
    data: Sequence[FitData], target: TargetConfig, sampler: SamplerConfig, rngs: Sequence[Seed], burn_in: int
) -> NetworkChains:
    """Return chains on the posterior given the training rows of each of ``data``, one for each address.

    All chains must have the same noise precision.

    Raises:
        ConfigError: see :meth:`TargetConfig.spec`.
    """
    spec = target.spec(data[0])
    held = {id(each): each.rows("train", each.device) for each in data}
    density = NetworkTarget(spec, [held[id(each)] for each in data], target.prior_precision)
    return NetworkChains(density, sampler, rngs, burn_in)


def teacher(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: SgmcmcConfig, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """Run one chain for each of ``data``; chains of the same noise precision run as a batch.

    Chains resume exactly, since every random number is addressed by its step and its chain.

    Raises:
        ConfigError: see :meth:`TargetConfig.spec`; or the trajectory has another network.
        Diverged: a chain became NaN or infinite.
    """
    precisions = [config.target.precision(each) for each in data]
    targets = [replace(config.target, noise_precision=precision) for precision in precisions]
    groups = [[i for i, other in enumerate(precisions) if other == p] for p in dict.fromkeys(precisions)]
    ended, steps = _Ended.load(report), config.thinning.steps
    for number, members in enumerate(groups):
        if number < ended.groups:
            continue
        chains = network_chains(
            [data[i] for i in members],
            targets[members[0]],
            config.sampler,
            [rngs[i] for i in members],
            config.thinning.burn_in,
        )
        starts = _starts([inputs[i] for i in members], chains.target)
        draws = _draws(chains, starts, config.thinning, ended, len(groups), report)
        noise = chains.noise_ratio(draws[-1], steps, _NOISE_BATCHES)
        ended = ended.with_group(draws, noise, members)
    return [ended.state(i, targets[i].spec(each)) for i, each in enumerate(data)]


@dataclass(frozen=True)
class _Ended:
    """The finished chains of the groups of one fit."""

    groups: int
    draws: dict[int, Tensor]  # chain -> [draw, weight]
    noise: dict[int, Tensor]  # chain -> mean and largest noise ratio

    @classmethod
    def load(cls, report: Report) -> "_Ended":
        last = report.load()
        if last is None:
            return cls(0, {}, {})
        named = {name: under(f"ended.{name}.", last.tensors) for name in ("draws", "noise")}
        by_chain = {name: {int(i): value for i, value in chains.items()} for name, chains in named.items()}
        return cls(int(last.config["group"]), by_chain["draws"], by_chain["noise"])

    def tensors(self) -> dict[str, Tensor]:
        parts = {"draws": self.draws, "noise": self.noise}
        return {f"ended.{name}.{i}": value for name, chains in parts.items() for i, value in chains.items()}

    def with_group(self, draws: Tensor, noise: tuple[float, float], members: Sequence[int]) -> "_Ended":
        return _Ended(
            self.groups + 1,
            self.draws | {i: draws[:, c].clone() for c, i in enumerate(members)},
            self.noise | {i: torch.tensor(noise, dtype=torch.float64) for i in members},
        )

    def state(self, chain: int, spec: NetworkSpec) -> State:
        named = FlatNetwork(spec.build(Seed(0))).named(self.draws[chain])
        found, (mean, worst) = NetworkDraws(spec, named).state(), self.noise[chain].tolist()
        return State(found.tensors, {**found.config, "noise_mean": mean, "noise_worst": worst})


def _draws(
    chains: NetworkChains, starts: Positions | None, thinning: Thinning, ended: _Ended, groups: int, report: Report
) -> Float[Tensor, "draw chain weight"]:
    """Run chains from their last checkpoint, or from ``starts``, and return the kept draws."""
    kept, last = kept_steps(thinning, chains.schedule), report.load()
    if last is None or int(last.config["group"]) != ended.groups:
        first, state = 0, chains.begin(starts)
        draws: list[Tensor] = []
    else:
        saved = under("chains.", last.tensors)
        draws = list(saved.pop("draws").to(chains.target.device))
        first, state = int(last.config["step"]), chains.restored(saved)
    wanted, total = {*kept}, thinning.steps
    for done, state in chains.steps(state, first, total):  # noqa: B020
        if done in wanted:
            draws.append(state["position"])
        if done % REPORT_EVERY == 0 or done == total:
            likelihood = {"log_likelihood": float(chains.target.log_likelihood.mean())}
            report(ended.groups * total + done, groups * total, likelihood | acceptance(state, done))
            if report.due():
                so_far = torch.stack(draws) if draws else state["position"].new_zeros(0, *state["position"].shape)
                tensors = {f"chains.{name}": value.clone() for name, value in chains.saved(state).items()}
                kept_tensors = tensors | {"chains.draws": so_far} | ended.tensors()
                report.save(State(kept_tensors, {"step": done, "group": ended.groups}))
    return torch.stack(draws)


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
    weights = [_thin(NetworkDraws.from_state(state).weights, each) for state in chains[:max_draws]]
    spec = read(NetworkSpec, chains[0].config["spec"], "spec")
    return NetworkDraws(spec, {name: torch.cat([w[name] for w in weights]) for name in weights[0]})


def _thin(weights: dict[str, Tensor], count: int | None) -> dict[str, Tensor]:
    total = len(next(iter(weights.values())))
    count = total if count is None else min(count, total)
    index = torch.tensor([(i + 1) * total // count - 1 for i in range(count)])
    return {name: w[index] for name, w in weights.items()}


def summarise(states: Sequence[Sequence[State]], data: Sequence[FitData], config: SgmcmcConfig) -> Summary:
    """Compute R-hat and effective sample sizes of the chains' predictions, and the noise of their minibatches.

    Each metric is the worst over all splits.
    """
    splits = []
    for chains, rows in zip(states, data, strict=True):
        found = diagnostics.of_split([NetworkDraws.from_state(s) for s in chains], rows, config.diagnostics)
        noise = {name: max(float(state.config[name]) for state in chains) for name in ("noise_mean", "noise_worst")}
        splits.append(replace(found, metrics={**found.metrics, **noise}))
    found = diagnostics.over_splits(splits, config.diagnostics)
    return replace(found, warnings=[*found.warnings, *_of_exploration(config.sampler.step_size)])


def _of_exploration(steps: StepSizes) -> list[str]:
    share = steps.exploration if isinstance(steps, CyclicalSteps | ScaledSteps) else 0.0
    cycles = not (isinstance(steps, ScaledSteps) and steps.cycle is None)
    rule = "all draws of a cycle begin at one point and spread by its smallest steps, so that they vary too little"
    return [f"sgmcmc: step_size.exploration is {share:g}: {rule}; take 0"] * (cycles and share > LONG_EXPLORATION)


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
    bayesian=True,
    config=SgmcmcConfig,
    tasks=("classification", "regression"),
    stages={
        "teacher": StageSpec(
            fit_many=teacher, needs={"trajectory": "cyclic"}, input_optional=True, summarise=summarise
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
